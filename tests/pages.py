"""The blocks of the README and of pages with commands, as they stand there, and a shell that runs them on other ports."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("cost", "estimating-tokens", "live-page", "simulator")),
    *sorted(ROOT.glob("docs/how-to/*.md")),
)
COMMANDS = ("sh", "console")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page without ``.md``, its language (empty where none is named), and its text."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which tests name it."""
        return self.text.partition("\n")[0]

    @property
    def commands(self) -> list[str]:
        """The commands of a console, without their answers; of a shell all that is in it, line by line."""
        text = self.text.replace("\\\n", " ")
        if self.language == "console":
            return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        return [line for line in text.splitlines() if line.strip()]

    @property
    def answers(self) -> list[str]:
        """What a console shows behind each command, as many as there are commands."""
        return [part.partition("\n")[2].rstrip("\n") for part in self.text.removeprefix("$ ").split("\n$ ")]


@cache
def blocks() -> tuple[Block, ...]:
    """All blocks of all pages, in their order."""
    pattern = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return tuple(Block(page.stem, *found) for page in PAGES for found in pattern.findall(page.read_text()))


def block(page: str, first: str) -> Block:
    """The block of this page whose first line is this, or else begins so. LookupError if it is none, or several."""
    here = [each for each in blocks() if each.page == page]
    found = [each for each in here if each.first == first] or [each for each in here if each.first.startswith(first)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} blocks of {page} begin with {first!r}")
    return found[0]


def relocated(text: str, addresses: Mapping[str, str]) -> str:
    """The text with each ``host:port`` exchanged; ports by themselves are 127.0.0.1's. LookupError for an address not given."""

    def exchanged(found: re.Match[str]) -> str:
        if found[0] not in addresses:
            raise LookupError(f"{found[0]} would be asked as it stands there")
        return addresses[found[0]]

    text = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}:\d+\b", exchanged, text)
    ports = {old.rpartition(":")[2]: new.rpartition(":")[2] for old, new in addresses.items() if old.startswith("127.0.0.1:")}
    return re.sub(
        r"(?<=-port )\d+|(?<=for port in )[\d ]+(?=;)", lambda found: " ".join(ports[port] for port in found[0].split()), text
    )


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it wrote on both outputs."""

    status: int
    out: str
    err: str


class Shell:
    """A bash in a folder of its own, in which ``ridgeline`` is this checkout's command."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        command = programs / "ridgeline"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m proxy.cli "$@"\n')
        command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        path = f"{programs}:{os.environ['PATH']}"
        self._environ = {**kept, **(environ or {}), "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    async def run(self, text: str, *, folder: Path | None = None, timeout_seconds: float = 60.0) -> Done:
        """Run it to its end. TimeoutError, with the process killed, if that does not come."""
        process = await self.start(text, folder=folder)
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_seconds)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    async def start(self, text: str, *, folder: Path | None = None) -> asyncio.subprocess.Process:
        """Start it in a session of its own; whoever does so ends it."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            "bash", "-ec", text, cwd=folder or self.folder, env=self._environ, stdout=pipe, stderr=pipe, start_new_session=True
        )
