"""Is each worker well, and how busy does it say it is: one task per worker asks every five seconds.

A probe never touches what routing counts itself. Every request is bounded in time and size, follows no redirect, keeps no
cookie and uses no proxy of the environment; whatever a worker sends, the worst is an unknown figure.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from math import nan
from ssl import SSLContext

import aiohttp
from yarl import URL

from proxy.control.worker_page import WorkerFigures, read_version, scan_page
from proxy.tls import why_untrusted
from routing.crowding import others_of
from routing.topology import Worker
from telemetry.layout import Layout, slot

_log = logging.getLogger(__name__)

MAX_PAGE_BYTES = 4 * 1024 * 1024
_MOST_VERSION_BYTES = 4096
_VERSION_TURNS = 60  # a worker whose page tells nothing of a restart is asked for its version every five minutes
_KEPT_SECONDS = 1.0  # from the probe to the scrape of one turn; a new turn makes a new connection, as clients' requests do
_OWN_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often a worker is asked and how long it may take, in seconds."""

    period_seconds: float = 5.0  # ± 10 %
    health_seconds: float = 2.0
    scrape_seconds: float = 3.0


class HealthState:
    """Verdict on one worker from the results of its probes: up after one success, down after two failures in a row.

    The first result decides at once.
    """

    FAILURES_TO_DOWN = 2

    def __init__(self) -> None:
        self.is_up: bool | None = None  # None: not probed yet
        self._failures = 0

    def __repr__(self) -> str:
        verdict = {None: "unknown", True: "up", False: "down"}[self.is_up]
        return f"<HealthState {verdict}, {self._failures} failures in a row>"

    def take(self, *, succeeded: bool) -> bool:
        """Take the result of a probe; return whether it changed the verdict."""
        before = self.is_up
        if succeeded:
            self._failures = 0
            self.is_up = True
        else:
            self._failures += 1
            if before is None or self._failures >= self.FAILURES_TO_DOWN:
                self.is_up = False
        return self.is_up is not before


class WorkerCells:
    """The cells that control writes for one worker.

    ``ridgeline_worker_up`` is 1 for up, 0 for down and NaN for not probed yet. Whoever chooses workers takes NaN for up: a
    gateway that has just started serves at once, and a control process that is away takes no worker out.
    """

    def __init__(self, values: memoryview[float], layout: Layout, worker: Worker) -> None:
        base = layout.worker_base(worker.index)
        self._values = values
        self._up = base + slot("ridgeline_worker_up")
        self._running = base + slot("ridgeline_worker_running_requests")
        self._waiting = base + slot("ridgeline_worker_waiting_requests")
        self._kv_usage = base + slot("ridgeline_worker_kv_usage_ratio")
        self._failures = base + slot("ridgeline_scrape_failures_total")
        self._restarts = base + slot("ridgeline_worker_restarts_total")

    def set_up(self, *, is_up: bool) -> None:
        """Publish the verdict."""
        self._values[self._up] = float(is_up)

    def count_restart(self) -> None:
        """The worker is another process than before; what it had cached is gone."""
        self._values[self._restarts] += 1

    def set_figures(self, figures: WorkerFigures | None) -> None:
        """Publish what a scrape found, unknown figures as NaN; ``None`` for a scrape that failed, which is counted."""
        if figures is None:
            self._values[self._failures] += 1
            figures = WorkerFigures(running=None, waiting=None, kv_usage_ratio=None)
        self._values[self._running] = nan if figures.running is None else figures.running
        self._values[self._waiting] = nan if figures.waiting is None else figures.waiting
        self._values[self._kv_usage] = nan if figures.kv_usage_ratio is None else figures.kv_usage_ratio


def open_session() -> aiohttp.ClientSession:
    """Return the session for all probes, to be closed by the caller."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_SECONDS),  # no hidden queue between workers
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


class WorkerProbe:
    """Asks one worker. `worker_key` is sent as Bearer; ``tls`` gives the context of each connection to an https URL."""

    def __init__(
        self,
        worker: Worker,
        *,
        session: aiohttp.ClientSession,
        cells: WorkerCells,
        worker_key: str | None = None,
        health_path: str = "/health",
        tls: Callable[[], SSLContext] | None = None,
        server_name: str | None = None,
        timing: Timing | None = None,
        read_own: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``read_own`` tells how many sequences this gateway has at the worker at the moment."""
        self.health = HealthState()
        self.kv_tokens: float | None = None  # that the worker's cache holds, as last read
        self.engine_version: str | None = None  # of vLLM, as it last said; None: it has not, or is something else
        self._version_in_turns = 0  # until it is asked again
        self.others: float | None = None  # requests that it has from others, as last read; None: not known
        self._read_own = read_own
        self.started_unix_seconds: float | None = None  # of the worker's process, as last read
        self._worker = worker
        self._session = session
        self._cells = cells
        self._timing = timing or Timing()
        self._health_path = health_path
        self._tls = tls
        self._server_name = server_name
        self._headers = {"Accept-Encoding": "identity"}
        if worker_key is not None:
            self._headers["Authorization"] = f"Bearer {worker_key}"

    def __repr__(self) -> str:
        return f"<WorkerProbe {self._worker.name} {self.health!r}>"

    def write_to(self, cells: WorkerCells) -> None:
        """Publish to other cells from now on, the verdict that there is at once."""
        self._cells = cells
        if self.health.is_up is not None:
            cells.set_up(is_up=self.health.is_up)

    async def run(self, first_delay_seconds: float) -> None:
        """Ask until cancelled. A fault of ours in one turn is logged and does not end it."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(first_delay_seconds)
        while True:
            began_at = loop.time()
            try:
                await self.turn()
            except Exception:
                _log.exception("probe of worker %s", self._worker.name)
            pause = self._timing.period_seconds * random.uniform(0.9, 1.1)  # noqa: S311 -- jitter
            await asyncio.sleep(max(0.0, began_at + pause - loop.time()))

    async def turn(self) -> None:
        """Ask for health and for figures, once each, and for the version where it may be another."""
        try:
            failure = await self._health_failure()
        except _OwnShortageError as shortage:
            _log.warning("worker %s was not probed: %s", self._worker.name, shortage)
        else:
            if self.health.take(succeeded=failure is None):
                self._cells.set_up(is_up=failure is None)
                if failure is None:
                    self._version_in_turns = 0
                    _log.info("worker %s is up", self._worker.name)
                else:
                    _log.warning("worker %s is down: %s", self._worker.name, failure)
        own = self._read_own()
        figures = await self._figures()
        # What began or ended while the page was on its way may be in it or not, and is no other's.
        own = max(own, self._read_own())
        self.others = None if figures is None else others_of(figures.running, figures.waiting, own)
        self._cells.set_figures(figures)
        if figures is not None and figures.kv_tokens is not None:
            self.kv_tokens = figures.kv_tokens
        if figures is not None and figures.started_unix_seconds is not None:
            if self.started_unix_seconds not in (None, figures.started_unix_seconds):
                self._cells.count_restart()
                self._version_in_turns = 0
                _log.warning("worker %s has been restarted", self._worker.name)
            self.started_unix_seconds = figures.started_unix_seconds
        if self.health.is_up and self._version_in_turns <= 0:
            await self._ask_version()
        self._version_in_turns -= 1

    async def _health_failure(self) -> str | None:
        """Return why the worker is not well; ``None`` when it is. Raises _OwnShortageError when it could not be asked."""
        try:
            async with self._get(self._health_path, self._timing.health_seconds) as response:
                return None if response.status == 200 else f"its health check answered {response.status}"
        except TimeoutError:
            return f"its health check did not answer within {self._timing.health_seconds:g} s"
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
                cause = (
                    error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error.os_error
                )
                return (isinstance(cause, OSError) and why_untrusted(cause)) or "its certificate is not trusted"
            code = getattr(error, "errno", None)
            if code in _OWN_SHORTAGES:
                raise _OwnShortageError(os.strerror(code)) from error
            reason = os.strerror(code).lower() if isinstance(code, int) and code > 0 else type(error).__name__
            return f"its health check failed: {reason}"

    async def _figures(self) -> WorkerFigures | None:
        answered = await self._page("/metrics", MAX_PAGE_BYTES)
        return None if answered is None or answered[1] is None else scan_page(answered[1])

    async def _ask_version(self) -> None:
        """Ask again at the next turn if nothing came; what answers and names none is something else than vLLM."""
        answered = await self._page("/version", _MOST_VERSION_BYTES)
        if answered is None:
            return
        status, page = answered
        if status >= 500:  # it is not there yet, or somebody before it
            return
        self._version_in_turns = _VERSION_TURNS
        version = None if page is None else read_version(page)
        if version is None or version == self.engine_version:
            return
        if self.engine_version is not None:
            _log.warning("worker %s runs vLLM %s now, before it was %s", self._worker.name, version, self.engine_version)
        self.engine_version = version

    async def _page(self, path: str, most_bytes: int) -> tuple[int, bytes | None] | None:
        """Status and page; ``None`` for what is no page, and for all of it when nothing whole came."""
        try:
            async with self._get(path, self._timing.scrape_seconds) as response:
                if response.status != 200 or response.headers.get("Content-Encoding", "identity") != "identity":
                    return response.status, None
                page = bytearray()
                async for data in response.content.iter_any():
                    page += data
                    if len(page) > most_bytes:
                        return response.status, None
                return response.status, bytes(page)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None

    def _get(self, path: str, total_seconds: float) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.get(
            URL(self._worker.url + path, encoded=True),
            headers=self._headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=total_seconds),
            ssl=True if self._tls is None else self._tls(),
            server_hostname=self._server_name,
        )


class _OwnShortageError(Exception):
    """This machine, not the worker, is why a probe failed; the text says what is short."""
