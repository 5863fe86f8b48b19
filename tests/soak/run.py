"""A gateway with two serving processes under mixed traffic and trouble of every sort, and its books afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from tests.chaos.client import Verdict
from tests.chaos.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.chaos.run import LIMITS, LONG, SHORT, Report, make_trouble
from tests.chaos.trouble import Kind as Fault
from tests.chaos.trouble import Trouble, draw_trouble
from tests.chaos.workers import MODEL, SimulatedWorker, simulated_workers
from tests.integration.answers import plain
from tests.integration.gateway import Gateway, GatewayError, Metrics, free_ports, running_gateway
from tests.integration.load import all_up
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Script, Send
from tests.soak.balance import Books, Check, balance, nobody, total_of
from tests.soak.disturbing import Disturbance, Killed, disturb, draw_disturbances
from tests.soak.questions import EMBEDDING_MODEL, OTHER_MODEL, vector_of
from tests.soak.traffic import KEYS, MARK, Sent, send_traffic, strays
from tests.soak.watching import Trend, idle_descriptors, take_samples, trends, watched

OTHER = ("other-1", "other-2")  # to which nothing is done
_PATHS = tuple(dialect.path for dialect in (CHAT, COMPLETIONS, MESSAGES, RESPONSES))
_PROCESSES = 2
_SHORT_TOKENS = 8_000  # the bound between the pools
_SAMPLES = 300  # in a run, at most
_IDLE_SECONDS = 8.0  # longer than connections to workers are kept
_QUIET_SECONDS = 15.0  # in which everything has to come to rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """What came of a run."""

    seconds: float
    sent: Sequence[Sent]
    trouble: Sequence[Trouble]
    disturbances: Sequence[Disturbance]
    killed: Sequence[Killed]
    checks: Sequence[Check]
    trends: Sequence[Trend]
    complaint: str | None = None  # of the gateway, on standard error or by the way in which it ended

    @property
    def failures(self) -> list[str]:
        """What does not hold, in words."""
        return [
            *(": ".join((one.name, f"{one.expected:g} and {one.found:g}", *one.who)) for one in self.checks if not one.holds),
            *(f"{one.figure} of {one.role} grew: {one.earlier:g} to {one.later:g}" for one in self.trends if not one.is_flat),
            *([] if self.complaint is None else [_shortened(self.complaint)]),
        ]


def _shortened(complaint: str) -> str:
    """What it is about: the first lines, and those around the first traceback."""
    at = max(0, complaint.find("Traceback") - 300)
    return f"the gateway complained: {complaint[:100]} … {complaint[at : at + 1500]}"


async def run_soak(
    *, seconds: float, per_second: float, seed: int, kills: bool = True, lasts: tuple[float, float] = (4.0, 7.0)
) -> Soaked:
    """Serve for so long, while each trouble of a worker lasts between these seconds.

    Without ``kills`` the gateway's own processes live all along, and everything has to agree exactly.
    """
    workers = _workers()
    pools: dict[str, Sequence[str]] = {"short": SHORT, "long": LONG}
    trouble = draw_trouble(pools, seconds, lasts, seed)
    disturbances = draw_disturbances(seconds, seed, kills=kills)
    admin = asyncio.Lock()
    found: list[Soaked] = []
    try:
        async with (
            simulated_workers(*workers.values()),
            ScriptedWorker(_embeddings) as embedder,
            running_gateway(_config(workers, pools, embedder), processes=_PROCESSES) as gateway,
        ):
            await all_up(gateway, _PROCESSES)
            before = take_samples(gateway, 0.0)
            started_at = time.monotonic()
            async with watched(gateway, started_at, max(0.25, seconds / _SAMPLES)) as samples, asyncio.TaskGroup() as group:
                for one in trouble:
                    group.create_task(make_trouble(one, workers[one.worker], gateway, started_at, admin))
                disturbing = group.create_task(disturb(gateway, disturbances, started_at, admin, seed))
                sending = group.create_task(send_traffic(gateway, seconds=seconds, per_second=per_second, seed=seed))
            sent, killed = sending.result(), disturbing.result()
            metrics = await _at_rest(gateway)
            pages = await _pages(workers, trouble)
            books = Books(
                sent=sent,
                killed=killed,
                metrics=metrics,
                lines=await _all_lines(gateway),
                worker_requests={
                    name: sum(total_of(page, "http_requests_total", handler=path) for path in _PATHS)
                    for name, page in pages.items()
                }
                | {embedder.url.removeprefix("http://"): len(embedder.requests)},
                worker_tokens={name: pages[name].total("vllm:request_generation_tokens_sum") for name in OTHER},
            )
            report = Report(results=[one.result for one in sent], trouble=trouble, started_at=started_at)
            checks = [
                *_answers(sent, report, books),
                *balance(books),
                _leaks(gateway, metrics),
            ]
            idle = await idle_descriptors(gateway, before, _IDLE_SECONDS)
            found.append(
                Soaked(
                    seconds=seconds,
                    sent=sent,
                    trouble=trouble,
                    disturbances=disturbances,
                    killed=killed,
                    checks=checks,
                    trends=[*trends(samples, seconds), *idle],
                )
            )
    except GatewayError as error:  # it complained, or did not stop
        if not found:
            raise
        return replace(found[0], complaint=str(error))
    return found[0]


def _workers() -> dict[str, SimulatedWorker]:
    ports = free_ports(len(SHORT) + len(LONG) + len(OTHER))
    kinds = (
        (SHORT, ("--gpu", "h100-sxm", "--max-model-len", "16384")),
        (LONG, ("--gpu", "h200-sxm", "--max-model-len", "131072")),
        (OTHER, ("--gpu", "h100-sxm", "--model", OTHER_MODEL, "--shape", MODEL)),
    )
    return {
        name: SimulatedWorker(name, port=ports.pop(), options=(*options, "--speed", "2"))
        for names, options in kinds
        for name in names
    }


def _embeddings(request: Received) -> Script:
    """What a worker with an embedding model answers; a simulated one has none."""
    inputs = json.loads(request.body)["input"]
    data = [{"object": "embedding", "index": index, "embedding": vector_of(text)} for index, text in enumerate(inputs)]
    tokens = sum(map(len, inputs))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    return [Send(plain(200, {"object": "list", "data": data, "model": EMBEDDING_MODEL, "usage": usage}))]


def _config(workers: dict[str, SimulatedWorker], pools: dict[str, Sequence[str]], embedder: ScriptedWorker) -> dict[str, Any]:
    def listed(names: Sequence[str]) -> list[dict[str, str]]:
        return [{"name": name, "url": workers[name].url} for name in names]

    bounds = {"short": _SHORT_TOKENS, "long": 131_072}
    return {
        "models": [
            {
                "name": MODEL,
                "pools": [{"name": name, "max_total_tokens": bounds[name], "workers": listed(pools[name])} for name in pools],
            },
            {"name": OTHER_MODEL, "workers": listed(OTHER)},
            {"name": EMBEDDING_MODEL, "workers": [embedder.url]},
        ],
        "keys": [key.listed() for key in KEYS],
        "limits": LIMITS,
    }


async def _at_rest(gateway: Gateway) -> Metrics:
    """The counters when nothing is in flight any more, or after the time for that."""
    with suppress(TimeoutError):
        return await gateway.metrics_when(lambda page: page.total("ridgeline_in_flight_requests") == 0, _QUIET_SECONDS)
    return await gateway.metrics()


async def _all_lines(gateway: Gateway) -> list[dict[str, Any]]:
    """Every request of the log, once no more come."""
    size = -1
    for _ in range(int(_QUIET_SECONDS)):
        await asyncio.sleep(1.0)
        if size == (size := gateway.log_path.stat().st_size):
            break
    return [line for line in gateway.log_lines() if "outcome" in line]


async def _pages(workers: dict[str, SimulatedWorker], trouble: Sequence[Trouble]) -> dict[str, Metrics]:
    """The metrics pages of the workers. One that was killed or removed has no count of the whole run, and is left out."""
    touched = {one.worker for one in trouble if one.kind in (Fault.KILL, Fault.REMOVE)}
    found = {}
    async with aiohttp.ClientSession(trust_env=False) as session:
        for name in workers.keys() - touched:
            async with session.get(workers[name].url + "/metrics") as answer:
                found[name] = Metrics(await answer.text())
    return found


def _answers(sent: Sequence[Sent], report: Report, books: Books) -> list[Check]:
    """What clients got: nothing wrong, and nothing cut or refused without a reason that is known."""
    excused = {one.request_id for one in books.in_flight_when_killed()}
    unexplained = {id(one) for one in report.unexplained()}
    cut = [
        one for one in sent if id(one.result) in unexplained and one.request_id not in excused and not _had_begun(one, report)
    ]
    refused = [
        one for one in sent if one.result.verdict is Verdict.REFUSED and not one.is_limited and one.request_id not in excused
    ]
    return [
        nobody("answers with a wrong byte", [one for one in sent if one.result.verdict is Verdict.WRONG]),
        nobody("answers or errors of another request", strays(sent)),
        nobody("answers cut without a fault of their worker", cut),
        nobody("requests refused by other than their quota", refused),
    ]


def _had_begun(one: Sent, report: Report) -> bool:
    """Whether something came too late for another worker, as a response begins before its tokens: an error, or the silence of
    a slowed worker until its call of a tool, which a response has in one piece, is whole."""
    return one.endpoint == RESPONSES.endpoint and report.met(one.result, {Fault.ERROR_EVENT, Fault.SLOW})


def _leaks(gateway: Gateway, metrics: Metrics) -> Check:
    """No mark of any prompt stands where none belongs."""
    texts = (gateway.log_path.read_bytes(), gateway.stderr.encode(), metrics.text.encode())
    return Check(
        name="marks of prompts in log, standard error and metrics",
        expected=0,
        found=sum(len(MARK.findall(text)) for text in texts),
    )
