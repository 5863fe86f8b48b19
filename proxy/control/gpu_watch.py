"""The part of control that asks dcgm-exporters about the workers' GPUs: each page once, however many workers it tells of.

An exporter looks at its GPUs every 30 seconds unless told otherwise (`--collect-interval`), so it is asked every ten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import aiohttp
from yarl import URL

from proxy.config.dcgm import DcgmSource
from proxy.control.steady_clock import SteadyClock
from telemetry.dcgm import Sample, pick, read_page
from telemetry.gpus_lately import GpusLately

_log = logging.getLogger(__name__)

PERIOD_SECONDS = 10.0
_ASK_SECONDS = 3.0
_MOST_AT_ONCE = 20
MOST_PAGE_BYTES = 4 * 1024 * 1024


class GpuWatch:
    """One per control process. `lately` is what is known of the GPUs of each worker, by its name, and stays the same object."""

    def __init__(self, session: aiohttp.ClientSession, clock: SteadyClock, ask_seconds: float = _ASK_SECONDS) -> None:
        self.lately: dict[str, GpusLately] = {}
        self._session = session
        self._clock = clock
        self._ask_seconds = ask_seconds
        self._blind: dict[str, str] = {}  # why nothing is known of a worker's GPUs

    def __repr__(self) -> str:
        return f"<GpuWatch of {len(self.lately)} workers, blind for {len(self._blind)}>"

    async def run(self, sources: Callable[[], Mapping[str, DcgmSource]]) -> None:
        """Ask again and again until cancelled. A fault of ours in one turn is logged and does not end it."""
        while True:
            try:
                await self.turn(sources())
            except Exception:
                _log.exception("exporters could not be asked about GPUs")
            await asyncio.sleep(PERIOD_SECONDS)

    async def turn(self, sources: Mapping[str, DcgmSource]) -> None:
        """Ask each exporter once, and forget workers that are not among these."""
        for gone in self.lately.keys() - sources.keys():
            del self.lately[gone]
            self._blind.pop(gone, None)
        room = asyncio.Semaphore(_MOST_AT_ONCE)
        urls = list(dict.fromkeys(source.url for source in sources.values()))
        pages = dict(zip(urls, await asyncio.gather(*(self._ask(url, room) for url in urls)), strict=True))
        now = self._clock.now()
        for worker, source in sources.items():
            page = pages[source.url]
            gpus = None if isinstance(page, str) else pick(page, dict(source.labels))
            self.lately.setdefault(worker, GpusLately()).look(now, gpus)
            wrong = page if isinstance(page, str) else None if gpus is not None else "none of its GPUs has the labels of `dcgm`"
            self._tell(worker, source, wrong)

    async def _ask(self, url: str, room: asyncio.Semaphore) -> list[Sample] | str:
        """The samples of a page, or what is wrong with it."""
        async with room:
            try:
                async with self._session.get(
                    URL(url),
                    headers={"Accept-Encoding": "identity"},
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=self._ask_seconds),
                ) as response:
                    if response.status != 200 or response.headers.get("Content-Encoding", "identity") != "identity":
                        return f"it answered {response.status}"
                    page = bytearray()
                    async for data in response.content.iter_any():
                        page += data
                        if len(page) > MOST_PAGE_BYTES:
                            return "its page is too long"
            except TimeoutError:
                return f"it did not answer within {self._ask_seconds:g} s"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                return f"it could not be asked ({type(error).__name__})"
        return read_page(bytes(page)) or "its page tells of no GPU"

    def _tell(self, worker: str, source: DcgmSource, wrong: str | None) -> None:
        """One line when the GPUs of a worker cannot be seen, and one when they can again."""
        before = self._blind.get(worker)
        if wrong is None:
            if self._blind.pop(worker, None) is not None:
                _log.info("the GPUs of worker %s are seen again", worker)
        else:
            self._blind[worker] = wrong
            if before != wrong:
                _log.warning("the GPUs of worker %s are not seen: of %s, %s", worker, source.url, wrong)
