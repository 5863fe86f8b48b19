"""Texts of many kinds for measuring the token estimate, from what is at hand on any machine.

Prose is the documentation that comes with Python, code its standard library; Chinese and Japanese are the translated texts of
a wheel that `deploy/setup/vocabularies.sh` fetches. The rest is made: by a seeded generator, so that runs can be compared.
"""

from __future__ import annotations

import base64
import json
import random
import re
import sysconfig
import zlib
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

KINDS = ("prose", "code", "chat", "json", "chinese", "japanese", "escaped", "base64", "hex", "emoji")
LOCALES = Path(".cache/vocabularies/locale")
"""Where the translated texts lie, by language: ``zh_Hans.po`` and so on."""

_EMOJI = [chr(code) for code in (*range(0x1F600, 0x1F650), *range(0x1F300, 0x1F320), *range(0x1F680, 0x1F6C0), 0x2764, 0x2728)]
_CODE = ("argparse", "asyncio/base_events", "ast", "calendar", "configparser", "dataclasses", "datetime", "decimal", "difflib")
_MORE_CODE = (
    "doctest",
    "enum",
    "fractions",
    "ftplib",
    "heapq",
    "imaplib",
    "inspect",
    "ipaddress",
    "logging/handlers",
    "mailbox",
)


class Texts:
    """Pieces of text by kind. ``half`` 0 and 1 never share a piece, so that one may be learned from and the other judged."""

    def __init__(self, half: int, seed: int, locales: Path = LOCALES) -> None:
        self._random = random.Random(seed * 2 + half)  # noqa: S311 (texts, no secrets)
        library = Path(sysconfig.get_path("stdlib"))
        names = (_CODE, _MORE_CODE)[half]
        pages = sorted(topics)[half::2]
        self._sources = {
            "prose": "\n\n".join(_as_prose(topics[page]) for page in pages),
            "code": "\n\n".join((library / f"{name}.py").read_text(encoding="utf-8") for name in names),
            "chinese": _translated(locales, ("zh_Hans", "zh_Hant"), half),
            "japanese": _translated(locales, ("ja",), half),
        }

    def make(self, kind: str, characters: int) -> str:
        """A text of this kind, of about so many characters."""
        made: Callable[[int], str] | None = getattr(self, f"_{kind}", None)
        return self._piece(kind, characters) if made is None else made(characters)

    def _piece(self, kind: str, characters: int) -> str:
        source = self._sources[kind]
        start = self._random.randrange(max(1, len(source) - characters))
        piece = source[start : start + characters]
        while len(piece) < characters:
            piece += source[: characters - len(piece)]
        return piece

    def _json(self, characters: int) -> str:
        rows = []
        size = 0
        words = self._piece("prose", 4000).split()
        while size < characters:
            row = {
                "id": self._random.randrange(10**6),
                "name": " ".join(self._random.choices(words, k=2)),
                "score": round(self._random.random(), 4),
                "tags": self._random.choices(words, k=3),
                "is_active": self._random.random() < 0.5,
                "parent": None,
                "created_at": f"2025-{self._random.randrange(1, 13):02}-{self._random.randrange(1, 29):02}T08:30:00Z",
            }
            rows.append(row)
            size += len(json.dumps(row))
        return json.dumps(rows, indent=self._random.choice((None, 2)))[:characters]

    def _escaped(self, characters: int) -> str:
        """JSON with escapes, as the text of a message: what a client sends that has put one document into another."""
        kind = self._random.choice(("chinese", "japanese"))
        return json.dumps({"title": self._piece("prose", 40), "body": self._piece(kind, max(1, characters // 6))})[:characters]

    def _base64(self, characters: int) -> str:
        data = zlib.compress(self._random.randbytes(characters))
        return base64.b64encode(data).decode()[:characters]

    def _hex(self, characters: int) -> str:
        return self._random.randbytes(characters // 2 + 1).hex()[:characters]

    def _emoji(self, characters: int) -> str:
        words = self._piece("prose", 2000).split()
        out = []
        for _ in range(max(1, characters // 4)):
            out.append("".join(self._random.choices(_EMOJI, k=self._random.randrange(1, 4))))
            if self._random.random() < 0.4:
                out.append(f" {self._random.choice(words)} ")
        return "".join(out)[:characters]

    def _chat(self, characters: int) -> str:
        parts = []
        size = 0
        while size < characters:
            kind = self._random.choices(("prose", "code", "json", "chinese"), (6, 3, 1, 0.3))[0]
            part = self.make(kind, self._random.randrange(40, max(41, min(1500, characters))))
            parts.append(f"```\n{part}\n```" if kind == "code" else part)
            size += len(part)
        return "\n\n".join(parts)[:characters]


def _as_prose(page: str) -> str:
    """The page without the marks of its format and its examples, its lines joined into paragraphs."""
    paragraphs = [text for text in page.split("\n\n") if text and not text.startswith((" ", "*", "+", "|", "=", "-"))]
    return "\n\n".join(re.sub(r"[`*]+", "", text).replace("\n", " ") for text in paragraphs)


def _translated(folder: Path, languages: tuple[str, ...], half: int) -> str:
    texts = []
    for language in languages:
        for path in sorted(folder.glob(f"{language}*.po")):
            found = re.findall(r'^msgstr(?:\[0\])? ((?:"[^\n]*"\n)+)', path.read_text(encoding="utf-8"), re.MULTILINE)
            for index, literal in enumerate(found):
                text = "".join(json.loads(part) for part in literal.splitlines())
                if text and index % 2 == half:
                    texts.append(text)
    return "\n".join(texts)
