"""The Dockerfile read so far that its steps can be done, and looked at, without an engine for containers."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy/container/Dockerfile"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its word, and the rest of its (joined) lines."""

    word: str
    rest: str

    @property
    def command(self) -> list[str]:
        """The words of the JSON form, after options and CMD."""
        return json.loads(self.rest[self.rest.index("[") :])

    @property
    def sources(self) -> list[str]:
        """What a COPY from the context copies."""
        return shlex.split(self.rest)[:-1]


def stages(path: Path = DOCKERFILE) -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    found: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, text.replace("\\\n", " ").splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(word, rest.strip()))
    return found


def last(stage: list[Instruction], word: str) -> Instruction:
    """The one that holds, where a word is repeated."""
    return [each for each in stage if each.word == word][-1]
