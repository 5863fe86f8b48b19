"""Tokenizers made on the spot: a token for each byte, and one for ``hello``."""

from __future__ import annotations

import base64
import json
from pathlib import Path


def a_tiktoken_file(folder: Path) -> Path:
    """Ranks of a tiktoken encoding."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"hello"]
    path = folder / "made.tiktoken"
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)))
    return path


def a_tokenizer_file(folder: Path) -> Path:
    """A tokenizer.json, with special tokens as real ones have."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
    vocabulary = {token: rank for rank, token in enumerate([*letters, "he", "ll", "hell", "hello"])}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": len(vocabulary) + index, "content": content, **special}
        for index, content in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    path = folder / "tokenizer.json"
    path.write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": added,
                "pre_tokenizer": byte_level,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll", "hell o"]},
            }
        )
    )
    return path
