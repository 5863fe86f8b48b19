"""Published measurements of vLLM, run again in virtual time: closed loops, and batches that begin together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from roofline.expected import DEFAULT_LOSSES
from simulator.arrivals import Arrival, AtOnce, Closed, Pace, paced
from simulator.draws import Draws
from simulator.engine.engine import Engine, EngineSettings
from simulator.engine.prefix import BlockRuns, Prompt
from simulator.engine.roofline_timing import RooflineTimer, kv_cache_tokens
from simulator.virtual.fleet import simulate
from simulator.virtual.served import Served
from tests.roofline.measured import setting

ROUNDS = 10  # requests of each user
NIGHTLY = (32, 128)  # tokens in and out of the latency test, which tells the mean time of a whole batch over its output


@dataclass(frozen=True)
class Compared:
    """One measurement and its simulation, in seconds. TTFT: ``None`` where it was not measured."""

    name: str
    concurrency: int
    tpot_measured: float
    tpot: float
    ttft_measured: float | None
    ttft: float

    @property
    def tpot_error(self) -> float:
        """Relative to the measurement; above 0: the simulation is slower."""
        return self.tpot / self.tpot_measured - 1

    @property
    def ttft_error(self) -> float | None:
        return None if self.ttft_measured is None else self.ttft / self.ttft_measured - 1


def compared(name: str, request_overhead_seconds: float = 0.0, stream_overhead_seconds: float = 0.0) -> Compared:
    """Simulate what was measured."""
    at = setting(name)
    losses = replace(DEFAULT_LOSSES["vllm"], request_overhead_seconds=request_overhead_seconds)
    timer = RooflineTimer(at.deployment, losses, stream_overhead_seconds=stream_overhead_seconds)
    measured, concurrency = at.point["measured"] / 1e3, at.batch
    if "osl" not in at.point:
        prompt, output = NIGHTLY
        served = _run(timer, [(prompt, output)] * concurrency, AtOnce())
        return Compared(name, concurrency, measured, fmean(one.e2e_seconds or 0.0 for one in served) / output, None, 0.0)
    draws = Draws(0, name)
    lengths = [
        (round(at.point["isl"] * draws.uniform(0.8, 1.0)), round(at.point["osl"] * draws.uniform(0.8, 1.0)))
        for _ in range(concurrency * ROUNDS)
    ]
    served = _run(timer, lengths, Closed(users=concurrency, pause_seconds=0.0, ramp_seconds=0.0))
    return Compared(
        name,
        concurrency,
        measured,
        fmean(one.tpot_seconds or 0.0 for one in served),
        at.point["ttft_measured_ms"] / 1e3,
        fmean(one.ttft_seconds or 0.0 for one in served),
    )


def _run(timer: RooflineTimer, lengths: list[tuple[int, int]], pace: Pace) -> list[Served]:
    requests = [
        Arrival(at_seconds=0.0, prompt=Prompt(tokens=prompt, blocks=BlockRuns(()), digest=b""), output_tokens=output)
        for prompt, output in lengths
    ]
    arrivals = paced(([one] for one in requests), pace, Draws(0))
    engine = Engine(
        EngineSettings(timer=timer, kv_tokens=kv_cache_tokens(timer.deployment), max_num_seqs=1024, step_tokens=8192)
    )
    return simulate([engine], arrivals, lambda _arrival, _fleet: 0)
