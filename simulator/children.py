"""Child processes of the demo: started in sessions of their own, so that Ctrl-C reaches the demo first; ended by their pid."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

_TAIL_BYTES = 2000


class Child:
    """One process, and the file its standard error goes to."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log

    def __repr__(self) -> str:
        return f"<Child {self.name} pid {self.process.pid} returncode {self.process.returncode}>"

    def last_words(self) -> str:
        """The end of what it wrote to standard error, for a person to read."""
        return self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()

    async def first_line(self) -> str:
        """The first line of its standard output; empty if it ends without one."""
        if self.process.stdout is None:
            raise ValueError("the standard output of this child is not read")
        return (await self.process.stdout.readline()).decode(errors="replace").strip()

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, and make it end when the grace is over. Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.returncode is None:
                self.process.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


@contextlib.asynccontextmanager
async def child(
    name: str, arguments: Sequence[str], *, folder: Path, grace_seconds: float, reads_output: bool = False
) -> AsyncIterator[Child]:
    """Run ``python ARGUMENTS`` for as long as the block lasts. Its output goes to ``folder/NAME.log``."""
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if reads_output else file,
            stderr=file,
            start_new_session=True,
        )
    started = Child(name, process, log)
    try:
        yield started
    finally:
        await asyncio.shield(started.stop(grace_seconds))
