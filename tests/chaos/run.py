"""A gateway under mixed load while its workers are killed, hung, slowed, drained and removed: what its clients saw of that."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from tests.chaos.client import Question, Result, Verdict, ask, ask_oracle, draw_bodies
from tests.chaos.trouble import FAULTS, Kind, Trouble, draw_trouble
from tests.chaos.workers import MODEL, SimulatedWorker, simulated_workers
from tests.integration.gateway import Gateway, free_ports, running_gateway

SHORT, LONG = ("short-1", "short-2", "short-3"), ("long-1", "long-2")
_SHORT_TOKENS, _LONG_TOKENS = (50, 1500), (18_000, 22_000)
_BOUND = 12_000  # tokens, between the pools
_AFTER_SECONDS = 1.5  # so long after trouble ends what began before it may still fail by it
LIMITS = {"first_byte_seconds": 4, "token_gap_seconds": 4, "connect_seconds": 2, "drain_seconds": 10}
HEDGING = {"after_seconds": 0.3, "budget_ratio": 0.3}


@dataclass(slots=True)
class Report:
    """What came of a run."""

    results: list[Result] = field(default_factory=list)
    trouble: list[Trouble] = field(default_factory=list)
    started_at: float = 0.0
    in_flight: float = 0.0  # over all workers, when all clients have gone
    in_flight_tokens: float = 0.0
    records: Counter[str] = field(default_factory=Counter)  # by outcome
    hedges: Counter[str] = field(default_factory=Counter)  # requests that were sent to two workers, by what became of that

    def count(self, verdict: Verdict) -> int:
        """Requests that ended so."""
        return sum(one.verdict is verdict for one in self.results)

    def unexplained(self) -> list[Result]:
        """Answers that were cut although nothing that cuts was done to their worker at the time."""
        cutting = {kind for kind in Kind if kind.cuts}
        return [one for one in self.results if one.verdict is Verdict.CUT and not self.met(one, cutting)]

    def met(self, result: Result, kinds: Set[Kind]) -> bool:
        """Whether one of these was done to the worker of an answer at the time."""
        return any(
            trouble.kind in kinds
            and trouble.worker == result.worker
            and result.started_at < self.started_at + trouble.until_seconds + _AFTER_SECONDS
            and result.ended_at > self.started_at + trouble.from_seconds
            for trouble in self.trouble
        )

    def recoveries(self) -> list[dict[str, Any]]:
        """For each trouble: until when requests still suffered from it, and when its worker served again."""
        rows = []
        for one in self.trouble:
            begin, end = self.started_at + one.from_seconds, self.started_at + one.until_seconds
            own = [result for result in self.results if result.worker == one.worker]
            cut = [result.started_at for result in own if result.verdict is Verdict.CUT and begin <= result.started_at <= end]
            later = [result.started_at for result in own if result.verdict is Verdict.SERVED and result.started_at >= end]
            during = [result for result in self.results if begin <= result.started_at <= end]
            rows.append(
                {
                    "kind": one.kind.value,
                    "worker": one.worker,
                    "seconds": round(one.until_seconds - one.from_seconds, 1),
                    "requests_meanwhile": len(during),
                    "cut": sum(
                        begin <= result.ended_at <= end + _AFTER_SECONDS for result in own if result.verdict is Verdict.CUT
                    ),
                    "last_cut_began_after_seconds": round(max(cut) - begin, 2) if cut else None,
                    "slowest_served_seconds": round(
                        max(
                            (result.ended_at - result.started_at for result in during if result.verdict is Verdict.SERVED),
                            default=0.0,
                        ),
                        2,
                    ),
                    "served_again_after_seconds": round(min(later) - end, 2) if later else None,
                }
            )
        return rows


async def run_chaos(
    *,
    seconds: float,
    per_second: float,
    seed: int,
    lasts: tuple[float, float] = (4.0, 7.0),
    processes: int = 1,
    hedges: bool = False,
) -> Report:
    """Serve mixed load for so long, with trouble that each time lasts between these seconds."""
    ports = free_ports(len(SHORT) + len(LONG) + 1)
    workers = {
        name: SimulatedWorker(name, port=ports.pop(), options=("--gpu", gpu, "--max-model-len", str(longest), "--speed", "2"))
        for names, gpu, longest in ((SHORT, "h100-sxm", 16_384), (LONG, "h200-sxm", 131_072))
        for name in names
    }
    oracle = SimulatedWorker("oracle", port=ports.pop(), options=("--gpu", "h200-sxm", "--speed", "200"))
    pools: dict[str, Sequence[str]] = {"short": SHORT, "long": LONG}
    config = {
        "models": [
            {
                "name": MODEL,
                "pools": [
                    {"name": name, "max_total_tokens": bound, "workers": [_listed(workers[one]) for one in pools[name]]}
                    for name, bound in (("short", _BOUND), ("long", 131_072))
                ],
            }
        ],
        "limits": LIMITS,
        "hedging": HEDGING if hedges else {},
    }
    async with simulated_workers(*workers.values(), oracle), running_gateway(config, processes=processes) as gateway:
        questions = await ask_oracle(oracle.url, draw_bodies(160, _SHORT_TOKENS, seed))
        long_questions = await ask_oracle(oracle.url, draw_bodies(12, _LONG_TOKENS, seed + 1))
        report = Report(trouble=draw_trouble(pools, seconds, lasts, seed), started_at=time.monotonic())
        async with asyncio.TaskGroup() as group:
            for one in report.trouble:
                group.create_task(make_trouble(one, workers[one.worker], gateway, report.started_at))
            report.results = await _load(gateway, questions, long_questions, seconds, per_second, seed)
        metrics = await gateway.metrics_when(
            lambda page: page.total("ridgeline_in_flight_requests") == 0 and page.total("ridgeline_in_flight_tokens") == 0, 10.0
        )
        report.in_flight = metrics.total("ridgeline_in_flight_requests")
        report.in_flight_tokens = metrics.total("ridgeline_in_flight_tokens")
        lines = await gateway.records(len(report.results))
        report.records = Counter(line["outcome"] for line in lines)
        report.hedges = Counter(line["hedge"] for line in lines if line["hedge"] is not None)
    return report


async def _load(
    gateway: Gateway,
    questions: Sequence[Question],
    long_questions: Sequence[Question],
    seconds: float,
    per_second: float,
    seed: int,
) -> list[Result]:
    dice = Random(seed)
    ends_at = time.monotonic() + seconds
    timeout = aiohttp.ClientTimeout(total=60)
    tasks: list[asyncio.Task[Result]] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(trust_env=False, timeout=timeout, connector=connector) as session:
        while time.monotonic() < ends_at:
            await asyncio.sleep(dice.expovariate(per_second))
            question = dice.choice(long_questions if dice.random() < 0.1 else questions)
            leaves = dice.randint(1, 20) if dice.random() < 0.05 else None
            streams = leaves is not None or dice.random() < 0.8
            tasks.append(
                asyncio.create_task(ask(session, gateway.base_url, question, streams=streams, leaves_after_events=leaves))
            )
        return list(await asyncio.gather(*tasks))


async def make_trouble(
    trouble: Trouble, worker: SimulatedWorker, gateway: Gateway, started_at: float, admin: asyncio.Lock | None = None
) -> None:
    """Make the trouble when its time comes, and end it. Who holds ``admin`` keeps it from the admin listener meanwhile."""
    admin = admin or asyncio.Lock()
    await asyncio.sleep(max(0.0, started_at + trouble.from_seconds - time.monotonic()))
    match trouble.kind:
        case Kind.KILL:
            await worker.kill()
        case Kind.REMOVE:
            async with admin:
                await _tell(gateway, "POST", f"/api/workers/{worker.name}/drain")
                await asyncio.sleep(1.0)
                await _tell(gateway, "DELETE", f"/api/workers/{worker.name}")
        case kind:
            await worker.set_faults(FAULTS[kind])
    await asyncio.sleep(max(0.0, started_at + trouble.until_seconds - time.monotonic()))
    match trouble.kind:
        case Kind.KILL:
            await worker.start()
        case Kind.REMOVE:
            place = {"model": MODEL, "pool": trouble.pool, "url": worker.url, "name": worker.name}
            async with admin:
                await _tell(gateway, "POST", "/api/workers", place)
        case _:
            await worker.set_faults({})


async def _tell(gateway: Gateway, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.request(method, gateway.admin_url + path, json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()


def _listed(worker: SimulatedWorker) -> dict[str, str]:
    return {"name": worker.name, "url": worker.url}
