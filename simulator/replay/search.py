"""Which boundary and division would have served recorded requests best, why, and how much that depends on chance.

Layouts are compared on a part of the trace, the best one and what is there now on all of it. What counts is the share of
requests that got what they should (`Targets`), whoever they are: a layout that helps short ones at the cost of long ones loses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simulator.engine.timing import Part, work_of
from simulator.hardware import Placement
from simulator.replay.layouts import Layout, Result, Targets, one_pool, recorded_layout, result_of, run, two_pools
from simulator.replay.shapes import Shape, arrivals_of, in_order, output_budget, total_tokens, window
from simulator.virtual.served import Served, quantiles

SEARCH_REQUESTS = 6_000
_BOUNDARIES = tuple(1024 << power for power in range(9))  # 1,024 to 262,144
_LEAST_LONG_RATIO, _MOST_LONG_RATIO = 0.002, 0.7  # share of requests above a boundary that is worth trying
_ALL_SPLITS_WORKERS = 5
_DECODE_WEIGHT = 20.0  # an output token among others costs a worker about as much as so many prompt tokens
_ALIKE_RATIO = 0.002  # boundaries that divide all but so few requests alike are tried once
_LEAST_GAIN_RATIO = 0.005  # of met requests: below it nothing is worth a change
_EVEN_RATIO = 0.003  # layouts that differ by less are even
_NEAR_RATIO = 0.01  # boundaries that lose no more are as good in practice
_TPOT_FACTOR = 1.5  # P99 over median that is felt
_TTFT_FACTOR = 3.0  # of what a prompt takes alone
_TTFT_BASE_SECONDS = 0.5
_LOADS = (0.8, 1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. Empty tuples and ``None``: find out."""

    shapes: Sequence[Shape]  # in order, the first at 0
    placement: Placement
    workers: int
    policies: tuple[str, ...]  # the first is the one that is there now
    boundaries: tuple[int, ...] = ()
    short_workers: int | None = None
    tpot_target_seconds: float | None = None
    ttft_target_seconds: float | None = None
    search_requests: int = SEARCH_REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCheck:
    """The suggestion and what is there now, if as many requests came in another time."""

    load_ratio: float
    before_met_ratio: float
    after_met_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found. Ratios of a `Result` in ``tried`` are of a part of the trace, the others of all of it."""

    targets: Targets
    budget_tokens: int
    before: Result  # as it is: of the pools that the records come from, else of one pool
    after: Result | None  # of the suggestion; None: stay
    tried: tuple[Result, ...]
    policies: tuple[Result, ...]  # one pool with each policy
    recorded: Result | None  # of the pools that the records come from; None: they tell of fewer than two
    near_boundaries: tuple[int, ...]  # as good in practice, with the same division
    alike_boundaries: tuple[int, ...]  # that divide these requests just as the suggested one
    loads: tuple[LoadCheck, ...]
    search_requests: int


def search(question: Question, tell: Callable[[str], None] = lambda what: None) -> Answer:
    """Try, choose, and check. ``tell`` is told what is being tried. Takes a second for some 8,000 requests and layout."""
    budget = output_budget(question.shapes)
    part = window(question.shapes, question.search_requests)
    trial = _Trial(part, budget, question.placement)
    totals = [total_tokens(shape, budget) for shape in part]
    one = one_pool(question.workers, question.policies[0])
    recorded = recorded_layout(question.shapes, question.policies[0])
    now = recorded or one
    tell(now.name)
    served = trial.serve(now)
    widest = max(totals, default=1)
    targets = targets_of(question, served)
    groups = list(boundary_groups(question.boundaries or _BOUNDARIES, totals, chosen=bool(question.boundaries)))
    tried: list[tuple[Result, tuple[int, ...]]] = []
    for group in groups:
        boundary = group[len(group) // 2]
        for short in splits(question, part, totals, boundary):
            layout = two_pools(question.workers, short, boundary, question.policies[0])
            tell(layout.name)
            tried.append((trial.result(layout, boundary, targets), group))
    before = result_of(now, served, totals, widest, targets)
    policies = [before] if recorded is None else []
    for policy in question.policies[len(policies) :]:
        layout = one_pool(question.workers, policy)
        tell(layout.name)
        policies.append(trial.result(layout, widest, targets))
    best = _best(before, [result for result, _ in tried] + ([] if recorded is None else policies[:1]))
    return _answer(question, budget, targets, trial, tried, tuple(policies), before, best, tell)


def targets_of(question: Question, served: Sequence[Served]) -> Targets:
    """As asked; else TPOT up to 1.5 times today's median, and TTFT up to 3 times a prompt's own time and half a second."""
    tpot = question.tpot_target_seconds
    if tpot is None:
        median = quantiles(one.tpot_seconds for one in served).p50
        tpot = _TPOT_FACTOR * (median or 1.0)
    if question.ttft_target_seconds is not None:
        return Targets(tpot_seconds=tpot, ttft_base_seconds=question.ttft_target_seconds, ttft_seconds_per_token=0.0)
    each = prefill_seconds_per_token(question.placement)
    return Targets(tpot_seconds=tpot, ttft_base_seconds=_TTFT_BASE_SECONDS, ttft_seconds_per_token=_TTFT_FACTOR * each)


def prefill_seconds_per_token(placement: Placement) -> float:
    """In a full step."""
    timer, tokens = placement.timer, placement.step_tokens
    return timer.seconds(work_of([Part(0, tokens, 1)], timer)) / tokens


def boundary_groups(boundaries: Sequence[int], totals: Sequence[int], *, chosen: bool) -> Iterator[tuple[int, ...]]:
    """Boundaries worth trying, those that divide the requests alike together. ``chosen``: the user named them."""
    count = len(totals)
    group: list[int] = []
    long_before = -1
    for boundary in sorted(set(boundaries)):
        long = sum(total > boundary for total in totals)
        if not 0 < long < count or (not chosen and not _LEAST_LONG_RATIO * count <= long <= _MOST_LONG_RATIO * count):
            continue
        if group and (chosen or abs(long_before - long) > _ALIKE_RATIO * count):
            yield tuple(group)
            group = []
        group.append(boundary)
        long_before = long
    if group:
        yield tuple(group)


def splits(question: Question, shapes: Sequence[Shape], totals: Sequence[int], boundary: int) -> list[int]:
    """How many workers for short requests are worth trying: all divisions of few workers, else those near the work's own."""
    workers = question.workers
    if question.short_workers is not None:
        return [question.short_workers]
    if workers <= _ALL_SPLITS_WORKERS:
        return list(range(1, workers))
    work = [shape.prompt_tokens - (shape.cached_tokens or 0) + _DECODE_WEIGHT * shape.output_tokens for shape in shapes]
    whole = sum(work)
    long = sum(own for own, total in zip(work, totals, strict=True) if total > boundary)
    fair = workers - round(workers * long / whole) if whole else workers // 2
    return sorted({min(workers - 1, max(1, fair + step)) for step in (-1, 0, 1)})


class _Trial:
    """One part of the trace, served again and again."""

    def __init__(self, shapes: Sequence[Shape], budget: int, placement: Placement, *, faster: float = 1.0) -> None:
        shapes = in_order(shapes, faster=faster)
        self._arrivals = arrivals_of(shapes, budget)
        self._totals = [total_tokens(shape, budget) for shape in shapes]
        self._placement = placement

    def serve(self, layout: Layout) -> list[Served]:
        return run(layout, self._arrivals, self._placement)

    def result(self, layout: Layout, split_tokens: int, targets: Targets) -> Result:
        return result_of(layout, self.serve(layout), self._totals, split_tokens, targets)


def _best(before: Result, tried: Sequence[Result]) -> Result | None:
    """The one that serves most requests well; of even ones the smoothest. ``None`` if that is no more than today."""
    if not tried:
        return None
    most = max(result.met_ratio for result in tried)
    if most < before.met_ratio + _LEAST_GAIN_RATIO:
        return None
    even = [result for result in tried if result.met_ratio >= most - _EVEN_RATIO]
    return min(even, key=lambda result: result.short.stall_ratio or 1e9)


def _answer(
    question: Question,
    budget: int,
    targets: Targets,
    trial: _Trial,
    tried: Sequence[tuple[Result, tuple[int, ...]]],
    policies: tuple[Result, ...],
    first: Result,
    best: Result | None,
    tell: Callable[[str], None],
) -> Answer:
    """``first``: as it is, on a part of the trace."""
    part_is_all = len(question.shapes) <= question.search_requests
    now = first.layout
    recorded = first if now.is_recorded else None
    whole = trial if part_is_all else _Trial(question.shapes, budget, question.placement)
    tell(f"{now.name}, all requests")
    widest = max((total_tokens(shape, budget) for shape in question.shapes), default=1)
    boundary = widest if best is None else best.layout.boundary_tokens or widest
    if best is None:
        return Answer(
            targets=targets,
            budget_tokens=budget,
            before=first if part_is_all else whole.result(now, boundary, targets),
            after=None,
            tried=tuple(result for result, _ in tried),
            policies=policies,
            recorded=recorded,
            near_boundaries=(),
            alike_boundaries=(),
            loads=(),
            search_requests=min(len(question.shapes), question.search_requests),
        )
    before = whole.result(now, boundary, targets)
    tell(f"{best.layout.name}, all requests")
    after = best if part_is_all else whole.result(best.layout, boundary, targets)
    part = window(question.shapes, question.search_requests)
    loads = []
    for load in _LOADS:
        tell(f"{best.layout.name}, {load:.0%} of the load")
        other = _Trial(part, budget, question.placement, faster=load)
        now_met, best_met = (other.result(layout, boundary, targets).met_ratio for layout in (now, best.layout))
        loads.append(LoadCheck(load_ratio=load, before_met_ratio=now_met, after_met_ratio=best_met))
    short = best.layout.parts[0].workers
    same = [(result, group) for result, group in tried if result.layout.parts[0].workers == short]
    near = [at for result, group in same if result.met_ratio >= best.met_ratio - _NEAR_RATIO for at in group]
    return Answer(
        targets=targets,
        budget_tokens=budget,
        before=before,
        after=after,
        tried=tuple(result for result, _ in tried),
        policies=policies,
        recorded=recorded,
        near_boundaries=tuple(sorted(near)),
        alike_boundaries=next((group for result, group in same if result is best), ()),
        loads=tuple(loads),
        search_requests=min(len(question.shapes), question.search_requests),
    )
