"""The last hour, minute by minute and pool by pool, from the counters that `/metrics` shows.

Nothing is counted for it: once a minute the counters are read, and what they grew by was that minute. Quantiles are read off
the histograms as Prometheus does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from telemetry.labels import LABELS
from telemetry.layout import Layout, bounds, slot
from telemetry.points import Array, Snapshot
from telemetry.record import Outcome

MINUTES = 60
PoolName = tuple[str, str]

_OUTCOMES = tuple(Outcome)
_ENDPOINTS = len(LABELS["endpoint"])
_REQUESTS = slot("ridgeline_requests_total", endpoint=LABELS["endpoint"][0], outcome=_OUTCOMES[0])
_TTFT, _TPOT = slot("ridgeline_ttft_seconds"), slot("ridgeline_tpot_seconds")
_TTFT_BOUNDS, _TPOT_BOUNDS = bounds("ridgeline_ttft_seconds"), bounds("ridgeline_tpot_seconds")
_CACHED, _KNOWN = slot("ridgeline_cached_tokens_total"), slot("ridgeline_cache_known_prompt_tokens_total")
_COMPLETION = slot("ridgeline_completion_tokens_total")
_DEVIATIONS = slot("ridgeline_deviations_total", figure=LABELS["figure"][0], cause=LABELS["cause"][0])
_DEVIATION_CELLS = len(LABELS["figure"]) * len(LABELS["cause"])
_FINE = frozenset({Outcome.OK, Outcome.CLIENT_GONE, Outcome.CLIENT_ERROR, Outcome.SHUTDOWN})


class Minute(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One minute of one pool. ``None`` where nothing was measured."""

    begins_unix_seconds: float
    requests: int
    failed: int  # refused, or by the worker's or the gateway's fault
    deviations: int  # figures far from what was expected
    completion_tokens: int
    ttft_p50_seconds: float | None
    ttft_p99_seconds: float | None
    tpot_p50_seconds: float | None
    tpot_p99_seconds: float | None
    hit_ratio: float | None
    hit_known_tokens: int
    is_over: bool = True  # False: counts go on growing until the minute is


class _Reading:
    """The counters of one pool at one instant."""

    __slots__ = ("deviations", "outcomes", "tokens", "tpot", "ttft")

    def __init__(self, serving: Sequence[Array], control: Array | None, route_base: int, pool_base: int) -> None:
        first = route_base + _REQUESTS
        counts = _summed(serving, first, _ENDPOINTS * len(_OUTCOMES))
        self.outcomes = [sum(counts[index :: len(_OUTCOMES)]) for index in range(len(_OUTCOMES))]
        self.ttft = _summed(serving, pool_base + _TTFT, len(_TTFT_BOUNDS) + 1)
        self.tpot = _summed(serving, pool_base + _TPOT, len(_TPOT_BOUNDS) + 1)
        self.tokens = [sum(array[pool_base + cell] for array in serving) for cell in (_CACHED, _KNOWN, _COMPLETION)]
        at = pool_base + _DEVIATIONS
        self.deviations = 0.0 if control is None else sum(control[at : at + _DEVIATION_CELLS])


def _summed(arrays: Sequence[Array], first: int, cells: int) -> list[float]:
    if not arrays:
        return [0.0] * cells
    return [sum(values) for values in zip(*(array[first : first + cells] for array in arrays), strict=True)]


class Hour:
    """One per control process; `look` at least once a minute."""

    def __init__(self) -> None:
        self._minutes: dict[PoolName, deque[Minute]] = {}
        self._last: dict[PoolName, _Reading] = {}
        self._began: float | None = None

    def __repr__(self) -> str:
        return f"<Hour of {len(self._minutes)} pools>"

    def look(self, snapshot: Snapshot, now_unix_seconds: float) -> bool:
        """Read the counters if a minute is over; returns whether one was."""
        minute = now_unix_seconds // 60 * 60
        if self._began is not None and minute == self._began:
            return False
        readings = _readings(snapshot)
        if self._began is not None:
            for name, reading in readings.items():
                if name in self._last:
                    made = _minute(self._began, self._last[name], reading)
                    self._minutes.setdefault(name, deque(maxlen=MINUTES)).append(made)
        self._minutes = {name: minutes for name, minutes in self._minutes.items() if name in readings}
        self._last, self._began = readings, minute
        return True

    def view(self, snapshot: Snapshot) -> dict[PoolName, list[Minute]]:
        """The minutes of each pool, oldest first, the one that is not over last."""
        if self._began is None:
            return {}
        now = {
            name: [_minute(self._began, self._last[name], reading, is_over=False)]
            for name, reading in _readings(snapshot).items()
            if name in self._last
        }
        return {name: [*self._minutes.get(name, ()), *current] for name, current in now.items()}

    def of(self, model: str, pool: str) -> Sequence[Minute]:
        """The whole minutes of one pool, oldest first."""
        return self._minutes.get((model, pool), ())


def _readings(snapshot: Snapshot) -> dict[PoolName, _Reading]:
    layout = Layout.of(snapshot.topology)
    serving = [array for array in snapshot.arrays if array is not None]
    routes = {route: index for index, route in enumerate(snapshot.topology.routes)}
    return {
        (pool.model, pool.name): _Reading(
            serving, snapshot.control, layout.route_base(routes[pool.model, pool.name]), layout.pool_base(pool.index)
        )
        for pool in snapshot.topology.pools
    }


def _minute(begins: float, before: _Reading, after: _Reading, *, is_over: bool = True) -> Minute:
    # A process whose arrays could not be read is missing in one of the two: nothing is below nothing.
    outcomes = list(_grown(before.outcomes, after.outcomes))
    ttft, tpot = list(_grown(before.ttft, after.ttft)), list(_grown(before.tpot, after.tpot))
    cached, known, completion = _grown(before.tokens, after.tokens)
    return Minute(
        begins_unix_seconds=begins,
        requests=int(sum(outcomes)),
        failed=int(sum(count for outcome, count in zip(_OUTCOMES, outcomes, strict=True) if outcome not in _FINE)),
        deviations=int(max(0.0, after.deviations - before.deviations)),
        completion_tokens=int(completion),
        ttft_p50_seconds=histogram_quantile(_TTFT_BOUNDS, ttft, 0.5),
        ttft_p99_seconds=histogram_quantile(_TTFT_BOUNDS, ttft, 0.99),
        tpot_p50_seconds=histogram_quantile(_TPOT_BOUNDS, tpot, 0.5),
        tpot_p99_seconds=histogram_quantile(_TPOT_BOUNDS, tpot, 0.99),
        hit_ratio=cached / known if known else None,
        hit_known_tokens=int(known),
        is_over=is_over,
    )


def _grown(before: Sequence[float], after: Sequence[float]) -> Iterator[float]:
    return (max(0.0, new - old) for old, new in zip(before, after, strict=True))


def histogram_quantile(upper_bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """What Prometheus' function of this name gives for these buckets, which are not cumulative; the last is +Inf.

    ``None`` of nothing.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted = share * total
    for index, upto in enumerate(accumulate(counts)):
        if upto >= wanted and counts[index]:
            if index == len(upper_bounds):
                break
            lower = upper_bounds[index - 1] if index else 0.0
            return lower + (upper_bounds[index] - lower) * (1.0 - (upto - wanted) / counts[index])
    return upper_bounds[-1]
