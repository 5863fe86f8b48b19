"""Real vocabularies for measuring the token estimate, fetched by `deploy/setup/vocabularies.sh`: of Qwen and of DeepSeek."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import tiktoken
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parent.parent / ".cache/vocabularies"
QWEN, DEEPSEEK, LOCALES = FOLDER / "qwen.tiktoken", FOLDER / "deepseek.json", FOLDER / "locale"
QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

Count = Callable[[str], int]


def counters() -> dict[str, tuple[Count, int, int]]:
    """By name: how a text is counted, and what the chat template adds per request and per message.

    Raises FileNotFoundError when the vocabularies have not been fetched.
    """
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, QWEN.read_bytes().splitlines())}
    qwen = tiktoken.Encoding("qwen", pat_str=QWEN_PATTERN, mergeable_ranks=ranks, special_tokens={})
    deepseek = Tokenizer.from_file(str(DEEPSEEK))
    return {
        "qwen": (lambda text: len(qwen.encode_ordinary(text)), 3, 5),  # <|im_start|>role\n … <|im_end|>\n
        "deepseek": (lambda text: len(deepseek.encode(text, add_special_tokens=False)), 2, 1),
    }
