"""What the live page shows, kept up to date in the control process, and its streams to those who look.

One view is made every second or more seldom (a large fleet's takes longer) and encoded once for all viewers. Who looks is
bounded, and who reads too slowly is dropped: a browser connects again by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from time import monotonic, process_time
from typing import TypeVar

import msgspec
from aiohttp import web

from dashboards.live.findings import Findings, headline
from dashboards.live.fleet import Around, Since, build
from dashboards.live.hour import Hour, Minute
from dashboards.live.phases import row_of
from dashboards.live.shown import Fleet
from dashboards.live.why import Why, why
from dashboards.live.window import BOUNDS, HALF_SECONDS, Window
from proxy.admin.access import STILL_LET_IN
from proxy.control.drifting import DriftWatch
from proxy.control.judging import Judge
from proxy.control.steady_clock import SteadyClock
from proxy.control.view import GatewayView
from routing.topology import Topology
from telemetry.prefix_drift import Drift
from telemetry.record import RequestRecord
from telemetry.wellformed import well_formed

T = TypeVar("T")
_log = logging.getLogger(__name__)

MOST_VIEWERS = 16
WRITE_SECONDS = 10.0
"""For a viewer to take what it was sent."""
PERIOD_SECONDS = 1.0
UNSEEN_SECONDS = 5.0
"""Between two looks that nobody sees: so exactly it is known since when things are as they are."""
_MOST_LOAD_RATIO = 0.02  # of this process, for making views
_BYTES_PER_SECOND = 128 * 1024  # that a viewer gets on average
_FRESH_SECONDS = 0.25  # how old a view may be that is given to who asks for one
_ROWS = 100  # that a viewer gets at once
_LOOKS_PER_HOUR_EVENT = 10
_HEARTBEAT_SECONDS = 5.0
_RETRY_MILLISECONDS = 1000
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


class _Shown(Fleet, kw_only=True):
    """What `/api/fleet` gives."""

    drifts: list[Drift]
    lately_seconds: float = 2 * HALF_SECONDS  # that figures cover at most
    bucket_bounds_seconds: tuple[float, ...] = BOUNDS


class _PoolHour(msgspec.Struct):
    model: str
    pool: str
    minutes: list[Minute]


class LiveFeed:
    """One per control process. `take` every record; `run` is a task of its own."""

    def __init__(
        self,
        view: GatewayView,
        judge: Judge,
        watch: DriftWatch,
        *,
        most_viewers: int = MOST_VIEWERS,
        write_seconds: float = WRITE_SECONDS,
        clock: SteadyClock | None = None,
    ) -> None:
        self._clock = clock or SteadyClock()
        self._began_at = monotonic()
        self.window = Window()
        self._watch = watch
        self._hour = Hour()
        self._findings = Findings()
        self._looks = 0
        self._most_viewers = most_viewers
        self._write_seconds = write_seconds
        self.viewers = 0
        self._view = view
        self._judge = judge
        self._since = Since()
        self._topology: Topology | None = None
        self._looking = asyncio.Lock()
        self._news = asyncio.Event()
        self._is_closing = False
        self._looked_at = -_FRESH_SECONDS
        self._minute = 0.0  # since 1970, of the last look
        self._cost_seconds = 0.0
        self._fleet = b""
        self._rows = b""
        self._revised: list[RequestRecord] = []  # since the last look
        self._rows_between = (0, 0)  # records taken when those rows begin, and when they end

    def __repr__(self) -> str:
        return f"<LiveFeed {self.window}, {self.viewers} viewers>"

    def take(self, records: Iterable[RequestRecord]) -> None:
        """Remember finished requests. A fault of ours costs nobody else its records."""
        try:
            self.window.take(records)
        except Exception:
            _log.exception("records could not be taken for the live page")

    def revise(self, records: Sequence[RequestRecord]) -> None:
        """The causes of these, which were taken before, are known better now."""
        try:
            self.window.revise(records)
            self._revised += records
        except Exception:
            _log.exception("records could not be revised for the live page")

    async def run(self) -> None:
        """Look again and again until cancelled. A fault of ours in one look is logged and does not end it."""
        while True:
            pause = max(PERIOD_SECONDS, self._cost_seconds / _MOST_LOAD_RATIO, len(self._fleet) / _BYTES_PER_SECOND)
            await asyncio.sleep(pause)
            if self.can_wait(monotonic()):
                continue
            try:
                async with self._looking:
                    await self._look()
            except Exception:
                _log.exception("the live page could not be brought up to date")

    def can_wait(self, now: float) -> bool:
        """Whether nobody would see a look at this instant (monotonic), the last was not long ago, and no minute ended since."""
        return not self.viewers and now < self._looked_at + UNSEEN_SECONDS and self._clock.now() // 60 == self._minute

    async def fleet(self) -> bytes:
        """The fleet of this moment as JSON."""
        async with self._looking:
            if monotonic() - self._looked_at > _FRESH_SECONDS:
                await self._look()
        return self._fleet

    def hour(self) -> bytes:
        """The last hour of each pool, minute by minute, as JSON."""
        pools, shift = self._hour.view(self._view.snapshot()), self._clock.set_by_seconds
        return msgspec.json.encode(
            [
                _PoolHour(model, pool, [_shifted(minute, shift) for minute in minutes])
                for (model, pool), minutes in pools.items()
            ]
        )

    def why(self, request_id: str) -> Why | None:
        """Why a request was as it was; ``None`` if it is not among the last ones."""
        record = self.window.find(request_id)
        if record is None:
            return None
        place, standards = (record.model, record.pool), self._judge.standards
        standard = standards.of_pool(*place) if record.worker is None else standards.of(*place, record.worker)
        return why(record, None if standard is None else standard.yardstick, standards.hardware().get(place))

    def close(self) -> None:
        """End all streams."""
        self._is_closing = True
        self._tell()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send the fleet, and finished requests, until the viewer leaves, reads too slowly or is let in no more."""
        if self.viewers >= self._most_viewers:
            return web.Response(status=503, text=f"{self._most_viewers} are looking already\n", headers={"Retry-After": "5"})
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        self.viewers += 1
        try:
            await response.prepare(request)
            await self._send(response, request)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            pass
        finally:
            self.viewers -= 1
        return response

    async def _send(self, response: web.StreamResponse, request: web.Request) -> None:
        piece = b"retry: %d\n\n" % _RETRY_MILLISECONDS + _event(b"fleet", await self.fleet()) + _event(b"hour", self.hour())
        told = self._rows_between[1]
        newest = list(self.window.newest(_ROWS, until=told))
        piece += _event(b"records", self._encoded(chain(newest, self.window.odd(until=told - len(newest)))))
        news = self._news
        is_let_in: Callable[[], bool] = request.get(STILL_LET_IN, lambda: True)
        while not self._is_closing and is_let_in():
            async with asyncio.timeout(self._write_seconds):
                await response.write(piece)
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_SECONDS):
                    await news.wait()
            if not news.is_set():
                piece = b": still here\n\n"
                continue
            news = self._news
            piece = _event(b"fleet", self._fleet)
            if self._looks % _LOOKS_PER_HOUR_EVENT == 0:
                piece += _event(b"hour", self.hour())
            if told < self._rows_between[1]:
                begin, end = self._rows_between
                rows = self._rows if told == begin else self._encoded(self.window.newest(_ROWS, after=told, until=end))
                piece += _event(b"records", rows)
                told = end
        with suppress(ConnectionResetError):
            await response.write_eof()

    async def _look(self) -> None:
        snapshot = self._view.snapshot()
        if snapshot.topology is not self._topology:
            self._topology = snapshot.topology
            self.window.keep_only(worker.name for worker in snapshot.topology.workers)
        self.window.turn(monotonic())
        around = Around(
            snapshot=snapshot,
            condition_of=self._view.condition_reader(),
            hardware=self._judge.standards.hardware(),
            processes=self._view.processes,
            log_lines_dropped=self._view.log_lines_dropped,
            now_unix_seconds=self._clock.now(),
            control_seconds=monotonic() - self._began_at,
            is_stopping=self._view.is_stopping,
            engine_version_of=self._judge.standards.version_of,
            gpus=self._judge.gpus,
        )
        began_at, cost = process_time(), 0.0

        async def made(steps: Iterable[T | None]) -> T:
            """What a computation in steps ends with, letting the loop run between two of them."""
            nonlocal began_at, cost
            for step in steps:
                if step is not None:
                    return step
                cost += process_time() - began_at
                await asyncio.sleep(0)
                began_at = process_time()
            raise AssertionError("the last step has a result")

        view = await made(build(around, self.window, self._since))
        self._hour.look(snapshot, around.now_unix_seconds)
        self._minute = around.now_unix_seconds // 60
        findings = await made(self._findings.steps(view, self._watch.drifts(), self._hour))
        self._looks += 1
        self._fleet = msgspec.json.encode(
            _Shown(
                now_unix_seconds=view.now_unix_seconds,
                headline=headline(view, findings),
                findings=findings,
                gateway=view.gateway,
                pools=view.pools,
                keys=view.keys,
                drifts=self._watch.view(),
            )
        )
        if self.viewers:
            begin = self._rows_between[1]
            self._rows = self._encoded(chain(self.window.newest(_ROWS, after=begin), self._revised))
            self._rows_between = (begin, self.window.taken)
        else:
            self._rows_between = (self.window.taken, self.window.taken)
        self._revised = []
        self._cost_seconds = cost + process_time() - began_at
        self._looked_at = monotonic()
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _encoded(self, records: Iterable[RequestRecord]) -> bytes:
        """Rows of these records as a JSON list."""
        chosen = list(records)
        try:
            return msgspec.json.encode([row_of(record) for record in chosen])
        except UnicodeEncodeError:
            return msgspec.json.encode([row_of(well_formed(record)) for record in chosen])


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, data)


def _shifted(minute: Minute, seconds: float) -> Minute:
    """The same minute by the wall clock as it goes now."""
    return msgspec.structs.replace(minute, begins_unix_seconds=minute.begins_unix_seconds + seconds)
