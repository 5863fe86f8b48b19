"""How workers could be divided, and what came of the recorded requests there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from routing.topology import Model, Pool
from simulator.arrivals import Arrival
from simulator.engine.engine import Engine, EngineSettings
from simulator.hardware import Placement
from simulator.replay.shapes import Shape
from simulator.virtual.fleet import Choose, simulate
from simulator.virtual.routing import by_model, workers_named
from simulator.virtual.served import Quantiles, Served, quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One pool."""

    name: str
    workers: int
    max_total_tokens: int | None = None  # None: whatever the model takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Pools from the smallest to the largest, and the policy within them."""

    parts: tuple[Part, ...]
    policy: str
    names: tuple[str, ...] = ()  # of the workers, by whose hashes prefix-affinity chooses; empty: made-up ones
    is_recorded: bool = False  # requests go to the pool that served them then, whatever its boundary was

    @property
    def name(self) -> str:
        """In a few words."""
        if self.is_recorded:
            pools = " + ".join(f"{part.workers} in {part.name}" for part in self.parts)
            return f"as it is: {pools}, {self.policy}"
        if len(self.parts) == 1:
            return f"one pool of {self.parts[0].workers}, {self.policy}"
        pieces = [
            f"{part.workers} up to {part.max_total_tokens:,}" if part.max_total_tokens else f"{part.workers} above"
            for part in self.parts
        ]
        return f"{' + '.join(pieces)}, {self.policy}"

    @property
    def boundary_tokens(self) -> int | None:
        """Of the smallest pool; ``None`` for a single one."""
        return self.parts[0].max_total_tokens if len(self.parts) > 1 else None

    @property
    def workers(self) -> int:
        """Of all pools."""
        return sum(part.workers for part in self.parts)

    def model(self) -> Model:
        """For the gateway's routing functions."""
        named = workers_named(self.names or [f"worker-{number}" for number in range(self.workers)])
        pools, start = [], 0
        for index, part in enumerate(self.parts):
            pools.append(
                Pool(
                    index=index,
                    model="m",
                    name=part.name,
                    workers=named[start : start + part.workers],
                    max_total_tokens=part.max_total_tokens,
                    policy=self.policy,
                )
            )
            start += part.workers
        return Model(index=0, name="m", aliases=(), pools=tuple(pools))


def one_pool(workers: int, policy: str) -> Layout:
    """Everything together."""
    return Layout(parts=(Part(name="all", workers=workers),), policy=policy)


def two_pools(workers: int, short: int, boundary_tokens: int, policy: str) -> Layout:
    """So many of the workers for requests up to the boundary."""
    parts = (
        Part(name="short", workers=short, max_total_tokens=boundary_tokens),
        Part(name="long", workers=workers - short),
    )
    return Layout(parts=parts, policy=policy)


def recorded_layout(shapes: Sequence[Shape], policy: str) -> Layout | None:
    """The pools that served these requests, each with the workers that are told of; those of short requests first.

    ``None`` if fewer than two are told of, or one without its workers, or requests were for several models.
    """
    if len({shape.model for shape in shapes}) > 1:
        return None
    workers: dict[str, set[str]] = {}
    tokens: dict[str, list[int]] = {}
    for shape in shapes:
        if shape.pool is not None:
            workers.setdefault(shape.pool, set()).update(() if shape.worker is None else (shape.worker,))
            tokens.setdefault(shape.pool, []).append(shape.prompt_tokens)
    if len(workers) < 2 or not all(workers.values()):
        return None
    names = sorted(workers, key=lambda name: median(tokens[name]))
    return Layout(parts=tuple(Part(name=name, workers=len(workers[name])) for name in names), policy=policy, is_recorded=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of some requests; seconds, ``None`` where there is none."""

    requests: int
    ttft: Quantiles
    tpot: Quantiles

    @property
    def stall_ratio(self) -> float | None:
        """TPOT P99 over its median: what users feel as stutter."""
        if not self.tpot.p50 or self.tpot.p99 is None:
            return None
        return self.tpot.p99 / self.tpot.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What each request should get."""

    tpot_seconds: float
    ttft_base_seconds: float
    ttft_seconds_per_token: float  # of a prompt, uncached ones too: long prompts may take their time

    def ttft_seconds(self, prompt_tokens: int) -> float:
        """For a prompt of this length."""
        return self.ttft_base_seconds + self.ttft_seconds_per_token * prompt_tokens

    def are_met(self, one: Served) -> bool:
        """Whether it was served, and as fast."""
        if one.ended_at is None or one.ttft_seconds is None:
            return False
        tpot = one.tpot_seconds
        return one.ttft_seconds <= self.ttft_seconds(one.prompt_tokens) and (tpot is None or tpot <= self.tpot_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One layout under the recorded requests."""

    layout: Layout
    short: Figures  # requests up to the boundary that all layouts are compared at
    long: Figures  # the others
    met_ratio: float  # requests that got what they should, 0-1
    refused: int
    unfinished: int
    cached_ratio: float | None
    busy_ratios: tuple[float, ...] = ()  # of each pool: share of all computed tokens


def engines_for(placement: Placement, count: int) -> list[Engine]:
    """Fresh ones, alike."""
    settings = EngineSettings(
        timer=placement.timer,
        kv_tokens=placement.kv_tokens,
        max_num_seqs=placement.max_num_seqs,
        step_tokens=placement.step_tokens,
    )
    return [Engine(replace(settings, seed=number)) for number in range(count)]


def run(layout: Layout, arrivals: Sequence[Arrival], placement: Placement) -> list[Served]:
    """Serve them all by fresh engines, in virtual time."""
    engines, model = engines_for(placement, layout.workers), layout.model()
    return simulate(engines, arrivals, _as_recorded(model) if layout.is_recorded else by_model(model))


def _as_recorded(model: Model) -> Choose:
    """Among the workers of the pool that an arrival's kind names; of the last pool if it names none."""
    within = {pool.name: by_model(replace(model, pools=(pool,))) for pool in model.pools}
    last = within[model.pools[-1].name]
    return lambda arrival, fleet: within.get(arrival.kind, last)(arrival, fleet)


def result_of(layout: Layout, served: Sequence[Served], totals: Sequence[int], split_tokens: int, targets: Targets) -> Result:
    """Sum up. ``totals``: prompt and output budget of each request, in order; ``split_tokens`` tells short from long."""
    short = [one for one, total in zip(served, totals, strict=True) if total <= split_tokens]
    long = [one for one, total in zip(served, totals, strict=True) if total > split_tokens]
    done = [one for one in served if one.ended_at is not None]
    prompt = sum(one.prompt_tokens for one in done)
    return Result(
        layout=layout,
        short=_figures(short),
        long=_figures(long),
        met_ratio=sum(targets.are_met(one) for one in served) / len(served) if served else 0.0,
        refused=sum(one.worker is None for one in served),
        unfinished=sum(one.worker is not None and one.ended_at is None for one in served),
        cached_ratio=sum(one.cached_tokens for one in done) / prompt if prompt else None,
        busy_ratios=_busy(layout, done),
    )


def _figures(served: Sequence[Served]) -> Figures:
    return Figures(
        requests=len(served),
        ttft=quantiles(one.ttft_seconds for one in served),
        tpot=quantiles(one.tpot_seconds for one in served),
    )


def _busy(layout: Layout, served: Sequence[Served]) -> tuple[float, ...]:
    bounds, start = [], 0
    for part in layout.parts:
        start += part.workers
        bounds.append(start)
    work = [0] * len(bounds)
    for one in served:
        if one.worker is not None:
            pool = next(place for place, end in enumerate(bounds) if one.worker < end)
            work[pool] += one.prompt_tokens - one.cached_tokens + one.completion_tokens
    whole = sum(work)
    return tuple(part / whole if whole else 0.0 for part in work)
