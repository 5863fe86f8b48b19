"""Counts a finished request into the arrays: the one place where figures of records become cells.

Runs in the serving process, once per request, so it is written for cost: offsets are looked up when the module is loaded,
and an observation is a bisection and two additions.
"""

from __future__ import annotations

from bisect import bisect_left

from routing.topology import NO_POOL, UNKNOWN_MODEL, Topology
from telemetry.labels import LABELS
from telemetry.layout import Layout, bounds, offset, slot
from telemetry.measurements import Measurements
from telemetry.record import CountResult, Misroute, NoToken, Outcome, Phase, Rejection, RequestRecord

_ENDPOINTS = {name: index for index, name in enumerate(LABELS["endpoint"])}
_OUTCOMES = {outcome: index for index, outcome in enumerate(Outcome)}

_REQUESTS = offset("ridgeline_requests_total")
_REJECTIONS: dict[str, int] = {reason: slot("ridgeline_rejections_total", reason=reason) for reason in Rejection}
_GONE = {phase: slot("ridgeline_client_gone_total", phase=phase) for phase in Phase}
_NO_TOKEN = {reason: slot("ridgeline_no_token_total", reason=reason) for reason in NoToken}

_PROMPT = offset("ridgeline_prompt_tokens_total")
_COMPLETION = offset("ridgeline_completion_tokens_total")
_CACHED = offset("ridgeline_cached_tokens_total")
_CACHE_KNOWN = offset("ridgeline_cache_known_prompt_tokens_total")
_CACHE_UNKNOWN = offset("ridgeline_cache_unknown_requests_total")

_KEY_PROMPT = slot("ridgeline_key_tokens_total", kind="prompt")
_KEY_COMPLETION = slot("ridgeline_key_tokens_total", kind="completion")
_KEY_CACHED = slot("ridgeline_key_tokens_total", kind="cached")
_KEY_REQUESTS = offset("ridgeline_key_requests_total")

_PARSE_ERRORS = offset("ridgeline_parse_errors_total")
_MISROUTES = {direction: slot("ridgeline_misroutes_total", direction=direction) for direction in Misroute}
_COUNTS = {result: slot("ridgeline_exact_counts_total", result=result) for result in CountResult}
_SLOW_CLIENT = offset("ridgeline_slow_client_streams_total")

_Histogram = tuple[int, tuple[float, ...]]  # first cell within its block, bounds


def _histogram(name: str) -> _Histogram:
    return offset(name), bounds(name)


_TTFT = _histogram("ridgeline_ttft_seconds")
_TTFT_VISIBLE = _histogram("ridgeline_ttft_visible_seconds")
_UPSTREAM_TTFT = _histogram("ridgeline_upstream_ttft_seconds")
_TPOT = _histogram("ridgeline_tpot_seconds")
_ITL = _histogram("ridgeline_itl_seconds")
_CHUNK_GAP = _histogram("ridgeline_chunk_gap_seconds")
_STALL = _histogram("ridgeline_stall_ratio")
_E2E = {
    name: (slot("ridgeline_e2e_seconds", endpoint=name), bounds("ridgeline_e2e_seconds"))
    for name in LABELS["ridgeline_e2e_seconds.endpoint"]
}
_QUEUE = _histogram("ridgeline_queue_seconds")
_CONNECT = _histogram("ridgeline_connect_seconds")
_CLIENT_WAIT = _histogram("ridgeline_client_wait_seconds")
_OVERHEAD = _histogram("ridgeline_overhead_seconds")
_PROMPT_LENGTH = _histogram("ridgeline_prompt_length_tokens")
_COMPLETION_LENGTH = _histogram("ridgeline_completion_length_tokens")
_ESTIMATE_ERROR = _histogram("ridgeline_estimate_error_ratio")
_WORKER_TTFT = _histogram("ridgeline_worker_ttft_seconds")
_WORKER_TPOT = _histogram("ridgeline_worker_tpot_seconds")

GAP_BOUNDS = bounds("ridgeline_itl_seconds")
"""Buckets in which a meter has to count gaps so that they can be added up here."""


class Recorder:
    """Adds records to one process's array, which nobody else writes to."""

    __slots__ = ("_cells", "_key_bases", "_pool_bases", "_route_bases", "_worker_bases")

    def __init__(self, cells: memoryview[float], layout: Layout, topology: Topology) -> None:
        self._cells = cells
        # By name, since a request may end under another topology than it began under.
        self._route_bases = {route: layout.route_base(index) for index, route in enumerate(topology.routes)}
        self._pool_bases = {(pool.model, pool.name): layout.pool_base(pool.index) for pool in topology.pools}
        self._worker_bases = {worker.name: layout.worker_base(worker.index) for worker in topology.workers}
        self._key_bases = {key.name: layout.key_base(key.index) for key in topology.keys}

    def count(self, record: RequestRecord, found: Measurements | None) -> None:
        """Count one finished request. ``found`` is what its last attempt's meter gave back, if it had one.

        What the topology does not have any more is counted as an unknown model; a removed worker or key has no figures.
        """
        cells = self._cells
        name = (record.model, record.pool)
        route = self._route_bases.get(name)
        if route is None:
            route = self._route_bases[UNKNOWN_MODEL, NO_POOL]
        base = self._pool_bases.get(name)
        outcome = _OUTCOMES[record.outcome]
        cells[route + _REQUESTS + _ENDPOINTS[record.endpoint] * len(_OUTCOMES) + outcome] += 1
        if record.outcome is Outcome.REJECTED and record.reason is not None:
            cells[route + _REJECTIONS[record.reason]] += 1
        if record.phase is not None:
            cells[route + _GONE[record.phase]] += 1
        if record.no_token is not None:
            cells[route + _NO_TOKEN[record.no_token]] += 1
        if record.key is not None:
            self._count_key(record, outcome)
        if base is None:
            return
        self._count_tokens(base, record)
        observe = self._observe
        # Who was refused without having been sent anywhere says nothing about how long answers take.
        if record.e2e_seconds is not None and record.endpoint in _E2E and record.worker is not None:
            observe(base, _E2E[record.endpoint], record.e2e_seconds)
        for histogram, value in (
            (_QUEUE, record.queue_seconds),
            (_CONNECT, record.connect_seconds),
            (_CLIENT_WAIT, record.client_wait_seconds),
        ):
            if value:
                observe(base, histogram, value)
            elif value is not None:  # nearly always 0: the first bucket
                cells[base + histogram[0]] += 1
        if record.overhead_seconds is not None:
            observe(base, _OVERHEAD, record.overhead_seconds)
        if record.stream:
            self._count_stream(base, record)
        if record.misroute is not None:
            cells[base + _MISROUTES[record.misroute]] += 1
        if record.count_result is not None:
            cells[base + _COUNTS[record.count_result]] += 1
        if found is not None and found.faults:
            cells[_PARSE_ERRORS] += found.faults
        if found is not None and found.gap_counts is not None:
            first, limits = _ITL if found.gaps_are_per_token else _CHUNK_GAP
            first += base
            for bucket, count in enumerate(found.gap_counts):
                if count:
                    cells[first + bucket] += count
            cells[first + len(limits) + 1] += found.gap_sum_seconds

    def _count_stream(self, base: int, record: RequestRecord) -> None:
        observe = self._observe
        if record.ttft_seconds is not None:
            observe(base, _TTFT, record.ttft_seconds)
        if record.ttft_visible_seconds is not None:
            observe(base, _TTFT_VISIBLE, record.ttft_visible_seconds)
        if record.stall_ratio is not None:
            observe(base, _STALL, record.stall_ratio)
        if record.upstream_ttft_seconds is not None:
            observe(base, _UPSTREAM_TTFT, record.upstream_ttft_seconds)
        if record.tpot_seconds is not None:
            observe(base, _TPOT, record.tpot_seconds)
        at_worker = None if record.worker is None else self._worker_bases.get(record.worker)
        if at_worker is None:
            return
        if record.upstream_ttft_seconds is not None:
            observe(at_worker, _WORKER_TTFT, record.upstream_ttft_seconds)
        if record.tpot_seconds is not None:
            observe(at_worker, _WORKER_TPOT, record.tpot_seconds)

    def count_slow_client(self) -> None:
        """One stream was left out of TPOT because its client was slow."""
        self._cells[_SLOW_CLIENT] += 1

    def _observe(self, base: int, histogram: _Histogram, value: float) -> None:
        first, limits = histogram
        first += base
        cells = self._cells
        cells[first + bisect_left(limits, value)] += 1
        cells[first + len(limits) + 1] += value

    def _count_tokens(self, base: int, record: RequestRecord) -> None:
        cells = self._cells
        prompt, completion, cached = record.prompt_tokens, record.completion_tokens, record.cached_tokens
        if record.prompt_is_estimate:
            cells[base + _PROMPT] += prompt or 0
        elif prompt is not None:
            cells[base + _PROMPT] += prompt
            self._observe(base, _PROMPT_LENGTH, prompt)
            if record.estimated_prompt_tokens:
                self._observe(base, _ESTIMATE_ERROR, prompt / record.estimated_prompt_tokens)
            if cached is None:
                cells[base + _CACHE_UNKNOWN] += 1
            else:
                cells[base + _CACHE_KNOWN] += prompt
                if cached:
                    cells[base + _CACHED] += cached
        if completion is not None:
            cells[base + _COMPLETION] += completion
            if not record.completion_is_estimate:
                self._observe(base, _COMPLETION_LENGTH, completion)

    def _count_key(self, record: RequestRecord, outcome: int) -> None:
        base = self._key_bases.get(record.key or "")
        if base is None:
            return
        cells = self._cells
        cells[base + _KEY_REQUESTS + outcome] += 1
        if record.prompt_tokens:
            cells[base + _KEY_PROMPT] += record.prompt_tokens
        if record.completion_tokens:
            cells[base + _KEY_COMPLETION] += record.completion_tokens
        if record.cached_tokens:
            cells[base + _KEY_CACHED] += record.cached_tokens
