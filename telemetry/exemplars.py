"""Exemplars: for each bucket of the latency histograms the newest sampled request in it, so that a graph leads to a trace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.labels import LABELS
from telemetry.layout import bounds
from telemetry.record import RequestRecord

MOST_BUCKETS = 20_000
"""Exemplars kept at most, over all pools; beyond that the one that came first goes."""

_E2E = "ridgeline_e2e_seconds"
_E2E_ENDPOINTS = {endpoint: index for index, endpoint in enumerate(LABELS[f"{_E2E}.endpoint"])}
_FIGURES = (
    ("ridgeline_ttft_seconds", "ttft_seconds"),
    ("ridgeline_ttft_visible_seconds", "ttft_visible_seconds"),
    ("ridgeline_upstream_ttft_seconds", "upstream_ttft_seconds"),
    ("ridgeline_tpot_seconds", "tpot_seconds"),
)
_BOUNDS = {name: bounds(name) for name in (_E2E, *(name for name, _ in _FIGURES))}
FAMILIES = frozenset(_BOUNDS)
"""The families that have exemplars; all are kept per pool."""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation and the trace it belongs to."""

    trace_id: str
    value: float  # seconds
    unix_seconds: float


Place = tuple[str, str, str]  # family, model, pool
ByBucket = Mapping[tuple[int, int], Exemplar]  # by combination of closed labels, and bucket


class Exemplars:
    """The exemplars of one gateway: only sampled records leave one, because only their trace can be looked up."""

    def __init__(self, most: int = MOST_BUCKETS) -> None:
        self._most = most
        self._count = 0
        self._places: dict[Place, dict[tuple[int, int], Exemplar]] = {}

    def __repr__(self) -> str:
        return f"<Exemplars {len(self)}>"

    def __len__(self) -> int:
        return self._count

    def add(self, record: RequestRecord) -> None:
        """Take a record in; one that was not sampled changes nothing."""
        if record.trace is None:
            return
        for family, figure in _FIGURES:
            self._put(record, family, 0, getattr(record, figure))
        if record.endpoint in _E2E_ENDPOINTS:
            self._put(record, _E2E, _E2E_ENDPOINTS[record.endpoint], record.e2e_seconds)

    def of(self, family: str, model: str, pool: str) -> ByBucket:
        """The exemplars of one family in one pool."""
        return self._places.get((family, model, pool), {})

    def _put(self, record: RequestRecord, family: str, combination: int, value: float | None) -> None:
        if value is None or record.trace_id is None:
            return
        place = (family, record.model, record.pool)
        buckets = self._places.setdefault(place, {})
        key = (combination, bisect_left(_BOUNDS[family], value))
        if key not in buckets:
            if self._count >= self._most:
                self._forget_oldest()
                buckets = self._places.setdefault(place, {})
            self._count += 1
        buckets[key] = Exemplar(record.trace_id, value, record.ended_unix_seconds)

    def _forget_oldest(self) -> None:
        place, buckets = next(iter(self._places.items()))
        if buckets:
            del buckets[next(iter(buckets))]
            self._count -= 1
        if not buckets:
            del self._places[place]
