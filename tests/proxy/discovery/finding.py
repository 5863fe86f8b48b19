"""What the tests of discovery share: workers that are found, and somebody who hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from proxy.config.worker_url import parse_worker_url
from proxy.discovery.found import FoundWorker
from proxy.discovery.source import Listener, Source


def a_worker(
    name: str, host: str = "", *, is_draining: bool = False, is_gone: bool = False, source: str = "dns"
) -> FoundWorker:
    """A worker of this name, at an address of its own unless one is given."""
    return FoundWorker(
        name=name, url=parse_worker_url(f"http://{host or name}:8000"), is_draining=is_draining, is_gone=is_gone, source=source
    )


class Ear:
    """Hears what a source tells."""

    def __init__(self) -> None:
        self.found: list[tuple[FoundWorker, ...]] = []
        self.failures: list[str] = []
        self.listener = Listener(self.found.append, self.failures.append)

    def __repr__(self) -> str:
        return f"<Ear found {self.found}, failed {self.failures}>"

    @property
    def names(self) -> list[str]:
        """The names that were told last, those that drain in brackets."""
        return (
            [f"({each.name})" if each.is_draining else each.name for each in self.found[-1]] if self.found else ["nothing yet"]
        )

    async def hears(self, holds: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until it holds. AssertionError if it never does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():  # noqa: ASYNC110 -- what a source tells is no event
                    await asyncio.sleep(0.005)
        assert holds(), self

    async def hears_of(self, *names: str) -> None:
        """Wait until these are the workers."""
        await self.hears(lambda: self.names == list(names))


@asynccontextmanager
async def heard(source: Source) -> AsyncIterator[Ear]:
    """The source at work."""
    ear = Ear()
    task = asyncio.create_task(source.run(ear.listener))
    try:
        yield ear
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def names(workers: Iterable[FoundWorker]) -> list[str]:
    return [worker.name for worker in workers]
