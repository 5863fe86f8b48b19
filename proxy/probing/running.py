"""Sending the bursts of a probe: within its bounds, watched, and cancelled without losing what was measured."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

import aiohttp

from proxy.control.worker_page import WorkerFigures, scan_page
from proxy.probing.answer import Answer, Measured
from proxy.probing.design import Burst
from proxy.probing.endpoint import Endpoint, ProbeError
from proxy.probing.prompts import PromptMaker, learned, words_text

_WATCH_SECONDS = 0.25
_NO_PAGE = frozenset({401, 403, 404, 405, 410})
_MOST_PAGE_BYTES = 4 * 1024 * 1024
_CALIBRATING_WORDS = (64, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a probe may cost at most."""

    requests: int
    seconds: float


@dataclass(slots=True)
class Log:
    """What has been measured so far; grows while the probe runs, so that nothing is lost when it is cancelled."""

    measured: list[Measured] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    ended: str = "complete"  # or: requests, seconds, cancelled, errors
    requests: int = 0
    kv_tokens: float | None = None  # that the worker's cache holds


class Watch:
    """Looks at the worker's metrics page every quarter of a second; says nothing where there is none.

    A page costs vLLM's API server 5 ms, in which it answers nobody. So call `look` once before anything is measured, and `run`
    as each burst is sent: whose first look comes a quarter of a second later, and never together with what is timed.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._peak = WorkerFigures(running=None, waiting=None, kv_usage_ratio=None)
        self.kv_tokens: float | None = None
        self.is_told = False  # whether there is a page
        self._is_absent = False

    def __repr__(self) -> str:
        return f"<Watch {self._url} {self._peak}>"

    async def run(self) -> None:
        """Look until cancelled; not where it was said that there is no page, which a gateway would count as a wrong request."""
        while not self._is_absent:
            await asyncio.sleep(_WATCH_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Once."""
        try:
            async with self._session.get(self._url, timeout=aiohttp.ClientTimeout(total=5.0)) as response:
                page = await response.content.read(_MOST_PAGE_BYTES) if response.status == 200 else b""
                while response.status == 200 and len(page) < _MOST_PAGE_BYTES:
                    piece = await response.content.read(_MOST_PAGE_BYTES)
                    if not piece:
                        break
                    page += piece
        except (aiohttp.ClientError, TimeoutError):
            return
        found = scan_page(page)
        if found is None:
            self._is_absent = response.status in _NO_PAGE and not self.is_told
            return
        self.is_told = True
        self.kv_tokens = found.kv_tokens or self.kv_tokens
        self._peak = WorkerFigures(
            running=_larger(self._peak.running, found.running),
            waiting=_larger(self._peak.waiting, found.waiting),
            kv_usage_ratio=_larger(self._peak.kv_usage_ratio, found.kv_usage_ratio),
        )

    def take(self) -> WorkerFigures:
        """The largest figures since the last call."""
        peak = self._peak
        self._peak = WorkerFigures(running=None, waiting=None, kv_usage_ratio=None)
        return peak


async def learn_prompts(endpoint: Endpoint) -> tuple[PromptMaker, bool]:
    """How long words are in tokens here, and whether the endpoint counts prompts at all. `ProbeError` if a request fails."""
    seen: list[tuple[int, int]] = []
    for words in _CALIBRATING_WORDS:
        if endpoint.most_tokens is not None and 4 * words > endpoint.most_tokens:
            continue
        answer = await endpoint.ask(words_text(words, secrets.token_hex(8)), 2)
        # Two tokens may be half a character, of which nothing is sent: what the prompt has was counted all the same.
        if answer.error is not None and answer.prompt_tokens is None:
            raise ProbeError(f"a first request of {words} words failed: {answer.error}")
        if answer.prompt_tokens is not None:
            seen.append((words, answer.prompt_tokens))
    return learned(seen), bool(seen)


async def run_bursts(
    endpoint: Endpoint,
    bursts: Sequence[Burst],
    maker: PromptMaker,
    bounds: Bounds,
    log: Log,
    *,
    is_warm_too: bool,
    watch: Watch,
    clock: Callable[[], float],
    tell: Callable[[Burst, bool], None],
) -> None:
    """Send them one after the other, each cold and then warm, into the log. Stops at the bounds, and says so there."""
    ends_at = clock() + bounds.seconds
    await watch.look()
    for place, burst in enumerate(bursts):
        salts = [secrets.token_hex(8) for _ in range(burst.total)]
        texts = [maker.text(burst.prompt_tokens, salt) for salt in salts]
        for is_warm in (False, True) if is_warm_too and burst.is_sent_again else (False,):
            if log.requests + burst.total > bounds.requests or clock() >= ends_at:
                log.ended = "seconds" if clock() >= ends_at else "requests"
                log.left_out += dict.fromkeys(one.title for one in bursts[place:])
                return
            tell(burst, is_warm)
            log.requests += burst.total
            watch.take()
            looking = asyncio.create_task(watch.run())
            try:
                answers = await _within(ends_at - clock(), _calls(endpoint, burst, texts))
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            if answers is None:
                log.ended = "seconds"
                log.left_out += dict.fromkeys(one.title for one in bursts[place:])
                return
            peak = watch.take()
            log.kv_tokens = watch.kv_tokens
            measured = Measured(
                burst=burst,
                is_warm=is_warm,
                answers=tuple(answer for several in answers for answer in several),
                peak_kv_ratio=peak.kv_usage_ratio,
                peak_waiting=peak.waiting,
            )
            log.measured.append(measured)
            if burst.requests == 1 and len(log.measured) >= 3 and all(one.errors for one in log.measured[-3:]):
                log.ended = "errors"
                log.left_out += dict.fromkeys(one.title for one in bursts[place + 1 :])
                return


def _calls(endpoint: Endpoint, burst: Burst, texts: Sequence[str]) -> list[Coroutine[None, None, list[Answer]]]:
    """Streams of a burst, of one request each unless the load is to be steady: then their starts are spread.

    The first stream's first answer comes alone. Its time is what the others' starts are spread over, so that requests go on to
    come one by one.
    """
    alone: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def stream(place: int) -> list[Answer]:
        if place and burst.in_turn > 1:
            first = await asyncio.shield(alone)
            await asyncio.sleep((first.ended_at - first.sent_at) * place / burst.requests)
        answers = []
        for text in texts[place :: burst.requests]:
            answers.append(await endpoint.ask(text, burst.output_tokens))
            if not alone.done():
                alone.set_result(answers[0])
        return answers

    return [stream(place) for place in range(burst.requests)]


async def _within(seconds: float, calls: Sequence[Coroutine[None, None, list[Answer]]]) -> list[list[Answer]] | None:
    """All answers; ``None`` if the time is over before the last of them."""
    try:
        async with asyncio.timeout(seconds):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call) for call in calls]
    except TimeoutError:
        return None
    return [task.result() for task in tasks]


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)
