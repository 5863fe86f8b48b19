"""Causes provoked one at a time in a simulated fleet, and what the judge says of the requests that suffered.

Workers run in virtual time by the same engine as simulated ones do; the judge sees records, and each second what a probe would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import pytest

from routing.policy import POLICIES
from simulator import traces
from simulator.arrivals import Arrival, Poisson
from simulator.engine.engine import Engine, EngineSettings, Noise
from simulator.engine.prefix import prompt_of_text
from simulator.engine.roofline_timing import RooflineTimer, Scale
from simulator.virtual.fleet import Change, simulate
from simulator.virtual.routing import by_policy
from telemetry.causes import CauseName
from telemetry.dcgm import Gpus
from telemetry.gpus_lately import GpusLately
from telemetry.layout import slot
from telemetry.record import RequestRecord
from tests.proxy.control.test_judging import Court
from tests.proxy.virtual_records import records_of
from tests.telemetry.judged import YARDSTICK

WAITING, KV_USAGE = slot("ridgeline_worker_waiting_requests"), slot("ridgeline_worker_kv_usage_ratio")
PROBE_SECONDS = 1.0


@dataclass
class Run:
    """Two workers, what is sent to them, and what goes wrong from a moment on."""

    arrivals: list[Arrival]
    changes: list[Change] = field(default_factory=list)
    scale: Scale = field(default_factory=Scale)
    noise: float = 0.05
    settings: dict[str, object] = field(default_factory=dict)
    workers: int = 2
    gpus: Callable[[float], dict[str, Gpus]] = lambda _at: {}  # what exporters say at a time
    revised: list[RequestRecord] = field(default_factory=list)  # by the judge, later

    def judged(self) -> list[RequestRecord]:
        """Every record as the judge leaves it, in the order in which they end."""
        timer = RooflineTimer(YARDSTICK.deployment, scale=self.scale)
        base = {"kv_tokens": 400_000, "step_tokens": 8192, "max_num_seqs": 256, **self.settings}
        engines = [
            Engine(EngineSettings(timer=timer, noise=Noise(sigma=self.noise), seed=seed, **base))  # type: ignore[arg-type]
            for seed in range(self.workers)
        ]
        seen: list[tuple[float, list[tuple[float, float]]]] = []
        end = max(one.at_seconds for one in self.arrivals) + 60.0
        looks = [Change(at, self._look(at, seen)) for at in _every(PROBE_SECONDS, end)]
        choose = by_policy(POLICIES["least-load"], self.workers)
        served = simulate(engines, self.arrivals, choose, changes=[*looks, *self.changes])
        court = Court()
        lately: dict[str, GpusLately] = {}
        court.judge.gpus = lately
        found: list[RequestRecord] = []
        probe = 0
        for at, record in records_of(served, model="llama-3.1-8b", pool="short", name=lambda index: f"w-{index}"):
            while probe < len(seen) and seen[probe][0] <= at:
                for index, (waiting, usage) in enumerate(seen[probe][1]):
                    court.set_worker(index, WAITING, waiting)
                    court.set_worker(index, KV_USAGE, usage)
                court.clock.now = seen[probe][0]
                court.judge.look()
                for worker, gpus in self.gpus(court.clock.now).items():
                    lately.setdefault(worker, GpusLately()).look(court.clock.now, gpus)
                probe += 1
            court.clock.now = at
            found += court.judge.take([record])
            self.revised += court.judge.revised()
        return found

    @staticmethod
    def _look(at: float, seen: list[tuple[float, list[tuple[float, float]]]]) -> Callable[[Sequence[Engine]], object]:
        return lambda engines: seen.append((at, [(float(one.waiting), one.kv_usage_ratio) for one in engines]))


def _every(seconds: float, end: float) -> list[float]:
    return [number * seconds for number in range(1, int(end / seconds))]


def chats(count: int = 1200, per_second: float = 6.0) -> list[Arrival]:
    return traces.chat(count, Poisson(per_second=per_second))


def slowed(worker: int, factor: float, at: float) -> Change:
    def apply(engines: Sequence[Engine]) -> None:
        engines[worker].slow_factor = factor

    return Change(at, apply)


def singles(tokens: int, output: int, at: Sequence[float], kind: str) -> list[Arrival]:
    """Requests that share nothing with any other."""
    return [
        Arrival(
            at_seconds=instant,
            prompt=prompt_of_text((f"{kind} {number} " * tokens)[: tokens * 4]),
            output_tokens=output,
            kind=kind,
            session=10**6 + number,
        )
        for number, instant in enumerate(at)
    ]


def suffering(records: list[RequestRecord], figure: str, since: float) -> list[RequestRecord]:
    """Those whose first deviation is this figure, of the time when something was wrong."""
    return [one for one in records if one.ended_unix_seconds > since and one.deviations[:1] == (figure,)]


def shares(found: list[RequestRecord], cause: CauseName) -> tuple[float, float]:
    """How often the cause is named first, and the median share of the excess that it explains then."""
    first = [one for one in found if one.causes[0].name == cause]
    explained = [one.causes[0].seconds / sum(part.seconds for part in one.causes) for one in first]
    return len(first) / len(found), median(explained) if explained else 0.0


HALF = 100.0  # when it goes wrong; until then there is time to learn what is usual
LEARNING = 20.0  # so long after a worker has changed until a dozen of its requests have ended

SCENARIOS = {
    "a worker is slower than the other": (
        Run(chats(1500, 2.0), [slowed(1, 3.0, HALF)]),
        "tpot",
        CauseName.SLOWER_THAN_ITSELF,
        HALF + LEARNING,
    ),
    "a worker is slower than it was": (
        Run(chats(900, 0.7), [slowed(0, 3.0, 2 * HALF)], workers=1),
        "tpot",
        CauseName.SLOWER_THAN_ITSELF,
        2 * HALF + LEARNING,
    ),
    "the prompts of others": (
        Run([*chats(3000), *singles(40_000, 2, [HALF + 6.0 * number for number in range(14)], "long")]),
        "ttft",
        CauseName.OTHERS_PREFILL,
        HALF,
    ),
    "more wants to run than may": (
        Run(
            [*chats(500, 3.0), *singles(300, 300, [HALF + 0.02 * number for number in range(1500)], "burst")],
            settings={"max_num_seqs": 24},
        ),
        "ttft",
        CauseName.ENGINE_QUEUE,
        HALF,
    ),
    "a full cache": (
        Run(
            [*chats(400, 2.0), *singles(6_000, 900, [HALF + 0.25 * number for number in range(160)], "big")],
            settings={"kv_tokens": 90_000},
        ),
        "ttft",
        CauseName.KV_PRESSURE,
        HALF,
    ),
    "a larger batch": (
        Run(
            [*chats(700, 4.0), *singles(3_000, 1500, [HALF + 0.2 * number for number in range(400)], "burst")],
            settings={"kv_tokens": 4_000_000},
        ),
        "tpot",
        CauseName.BATCH,
        HALF,
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_cause_provoked_alone_is_named_first(name):
    """By nearly all that suffered, once it could be known, and it explains most of what was too much."""
    run, figure, cause, since = SCENARIOS[name]
    records = run.judged()
    found = suffering(records, figure, since)

    assert len(found) >= 20, Counter(one.causes[0].name for one in records if one.causes)
    named, explained = shares(found, cause)
    assert named >= 0.95, Counter(one.causes[0].name for one in found)
    assert explained >= 0.8


def test_two_causes_at_once_are_both_named():
    """A worker that is slow and gets the long prompts of others: both are named by nearly all that waited for those."""
    long = singles(40_000, 2, [2 * HALF + 15.0 * number for number in range(40)], "long")
    records = Run([*chats(900, 0.7), *long], [slowed(0, 3.0, 2 * HALF)], workers=1).judged()
    found = [one for one in suffering(records, "ttft", 2 * HALF + 2 * LEARNING) if (one.ahead_tokens or 0) > 30_000]

    assert len(found) >= 20
    both = {CauseName.SLOWER_THAN_ITSELF, CauseName.OTHERS_PREFILL}
    named = [both <= {cause.name for cause in one.causes} for one in found]
    assert sum(named) >= 0.95 * len(found), Counter(tuple(cause.name for cause in one.causes) for one in found)


def test_a_clock_that_is_held_down_is_named():
    """A worker at a third of its clock computes long prompts three times as slowly, and its exporter says so."""
    prompts = singles(30_000, 2, [5.0 * number for number in range(90)], "long")
    run = Run(prompts, [slowed(0, 3.0, HALF)], workers=1)
    clock = 1.98e9
    run.gpus = lambda at: {"w-0": Gpus(gpus=1, sm_clock_hertz=clock if at < HALF else clock / 3.0, utilisation_ratio=0.9)}

    found = suffering(run.judged(), "ttft", HALF + 10.0)

    assert len(found) >= 50
    often, explained = shares(found, CauseName.GPU_CLOCKS)
    assert often >= 0.95, Counter(one.causes[0].name for one in found)
    assert explained >= 0.8


def test_the_first_requests_of_a_worker_that_turned_slow_are_explained_afterwards():
    """They end before a dozen others have told that it is slow; once that is known, it is why they were."""
    run = Run(chats(1500, 2.0), [slowed(1, 3.0, HALF)])
    at_once = [one for one in suffering(run.judged(), "tpot", HALF) if one.worker == "w-1"]
    riddles = {one.request_id for one in at_once if one.causes[0].name == CauseName.UNEXPLAINED}
    solved = {one.request_id for one in run.revised if one.causes[0].name == CauseName.SLOWER_THAN_ITSELF}

    assert len(riddles) >= 5
    assert len(riddles & solved) >= 0.9 * len(riddles)
    assert len(run.revised) == len(solved) == len({one.request_id for one in run.revised})


@pytest.mark.parametrize(
    ("scale", "noise"),
    [
        (Scale(), 0.05),
        (Scale(), 0.25),
        (Scale(compute_factor=1.3, memory_factor=1.3, overhead_factor=1.3), 0.2),
        (Scale(compute_factor=0.77, memory_factor=0.77, overhead_factor=0.77), 0.2),
        (Scale(compute_factor=1.3, memory_factor=0.77), 0.1),
    ],
)
def test_healthy_workers_raise_no_flags(scale, noise):
    """Ten thousand requests, workers by a third faster or slower than published figures say, and steps that vary."""
    run = Run(chats(10_000, 2.0), scale=scale, noise=noise)
    records = run.judged()

    assert len(run.revised) < 0.002 * len(records)  # a fluke does not become its worker's fault
    flagged = [one for one in records if one.deviations]
    assert len(records) >= 9_900
    assert len(flagged) < 0.01 * len(records), Counter(one.causes[0].name for one in flagged)


def test_a_worker_that_slows_down_over_an_hour_is_not_calibrated_away():
    """From its own pace to two and a half times that, a little every minute: in the end it is flagged, by its reference."""
    steps = [slowed(0, 1.0 + 1.5 * minute / 60.0, 300.0 + 60.0 * minute) for minute in range(61)]
    records = Run(chats(4_000, 0.25), steps, workers=1).judged()

    late = [one for one in records if one.ended_unix_seconds > 300.0 + 3_600.0 and one.tpot_seconds is not None]
    found = suffering(late, "tpot", 0.0)
    assert len(late) >= 50
    assert len(found) >= 0.9 * len(late)
    assert shares(found, CauseName.SLOWER_THAN_ITSELF)[0] >= 0.95
