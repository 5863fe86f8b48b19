"""Counts a finished request into the arrays: the one place where figures of records become cells.

Runs in the serving process, once per request, so it is written for cost: offsets are looked up when the module is loaded,
and an observation is a bisection and two additions, of floats, since whole numbers would have to be converted each time.
"""

from __future__ import annotations

from bisect import bisect_left

from routing.topology import NO_POOL, UNKNOWN_MODEL, Topology
from telemetry.labels import LABELS
from telemetry.layout import Layout, bounds, offset, slot
from telemetry.measurements import Measurements
from telemetry.record import CountResult, Misroute, NoToken, Outcome, Phase, PrefillResult, Rejection, RequestRecord

_ENDPOINTS = {name: index for index, name in enumerate(LABELS["endpoint"])}
_OUTCOMES = {outcome: index for index, outcome in enumerate(Outcome)}
_REJECTED = _OUTCOMES[Outcome.REJECTED]

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
_PREFILL_LEGS = {result: slot("ridgeline_prefill_legs_total", result=result) for result in PrefillResult}
_SLOW_CLIENT = offset("ridgeline_slow_client_streams_total")

_Histogram = tuple[int, tuple[float, ...], int]  # first cell within its block, bounds, the cell of the sum
_Kind = tuple[int, int | None, int, _Histogram | None]
"""Of a model, pool and endpoint: the blocks of their route and pool, the cell of the first outcome, the times of answers.

Blocks and cells count from the first of all; only the times are None for an endpoint that has none.
"""


def _histogram(name: str, **labels: str) -> _Histogram:
    first, limits = slot(name, **labels) if labels else offset(name), bounds(name)
    return first, limits, first + len(limits) + 1


_TTFT = _histogram("ridgeline_ttft_seconds")
_TTFT_VISIBLE = _histogram("ridgeline_ttft_visible_seconds")
_UPSTREAM_TTFT = _histogram("ridgeline_upstream_ttft_seconds")
_TPOT = _histogram("ridgeline_tpot_seconds")
_ITL = _histogram("ridgeline_itl_seconds")
_CHUNK_GAP = _histogram("ridgeline_chunk_gap_seconds")
_STALL = _histogram("ridgeline_stall_ratio")
_E2E = {name: _histogram("ridgeline_e2e_seconds", endpoint=name) for name in LABELS["ridgeline_e2e_seconds.endpoint"]}
_QUEUE = _histogram("ridgeline_queue_seconds")
_PREFILL_LEG = _histogram("ridgeline_prefill_leg_seconds")
_CONNECT = _histogram("ridgeline_connect_seconds")
_CLIENT_WAIT = _histogram("ridgeline_client_wait_seconds")
_QUEUE_FIRST, _CONNECT_FIRST, _CLIENT_WAIT_FIRST = _QUEUE[0], _CONNECT[0], _CLIENT_WAIT[0]
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

    __slots__ = ("_cells", "_key_bases", "_kinds", "_pool_bases", "_route_bases", "_worker_bases")

    def __init__(self, cells: memoryview[float], layout: Layout, topology: Topology) -> None:
        self._cells = cells
        # By name, since a request may end under another topology than it began under.
        self._route_bases = {route: layout.route_base(index) for index, route in enumerate(topology.routes)}
        self._pool_bases = {(pool.model, pool.name): layout.pool_base(pool.index) for pool in topology.pools}
        self._worker_bases = {worker.name: layout.worker_base(worker.index) for worker in topology.workers}
        self._kinds: dict[tuple[str, str, str], _Kind] = {}
        self._key_bases = {key.name: layout.key_base(key.index) for key in topology.keys}

    def count(self, record: RequestRecord, found: Measurements | None) -> None:
        """Count one finished request. ``found`` is what its last attempt's meter gave back, if it had one.

        What the topology does not have any more is counted as an unknown model; a removed worker or key has no figures.
        """
        cells = self._cells
        kind = (record.model, record.pool, record.endpoint)
        route, base, requests, e2e = self._kinds.get(kind) or self._learn_kind(*kind)
        outcome = _OUTCOMES[record.outcome]
        cells[requests + outcome] += 1.0
        if outcome == _REJECTED and record.reason is not None:
            cells[route + _REJECTIONS[record.reason]] += 1.0
        if record.phase is not None:
            cells[route + _GONE[record.phase]] += 1.0
        if record.no_token is not None:
            cells[route + _NO_TOKEN[record.no_token]] += 1.0
        if record.key is not None:
            self._count_key(record, outcome)
        if base is None:
            return
        self._count_tokens(base, record)
        observe = self._observe
        # Who was refused without having been sent anywhere says nothing about how long answers take.
        if e2e is not None and record.e2e_seconds is not None and record.worker is not None:
            first, limits, total = e2e
            cells[first + bisect_left(limits, record.e2e_seconds)] += 1.0
            cells[total] += record.e2e_seconds
        queue, connect, client_wait = record.queue_seconds, record.connect_seconds, record.client_wait_seconds
        if queue:
            observe(base, _QUEUE, queue)
        elif queue is not None:  # nearly always 0: the first bucket
            cells[base + _QUEUE_FIRST] += 1.0
        if connect:
            observe(base, _CONNECT, connect)
        elif connect is not None:
            cells[base + _CONNECT_FIRST] += 1.0
        if client_wait:
            observe(base, _CLIENT_WAIT, client_wait)
        elif client_wait is not None:
            cells[base + _CLIENT_WAIT_FIRST] += 1.0
        overhead = record.overhead_seconds
        if overhead is not None:
            first, limits, total = _OVERHEAD
            cells[base + first + bisect_left(limits, overhead)] += 1.0
            cells[base + total] += overhead
        if record.stream:
            self._count_stream(base, record)
        if record.misroute is not None:
            cells[base + _MISROUTES[record.misroute]] += 1.0
        if record.prefill_result is not None:
            cells[base + _PREFILL_LEGS[record.prefill_result]] += 1.0
            if record.prefill_leg_seconds is not None:
                observe(base, _PREFILL_LEG, record.prefill_leg_seconds)
        if record.count_result is not None:
            cells[base + _COUNTS[record.count_result]] += 1.0
        if found is None:
            return
        if found.faults:
            cells[_PARSE_ERRORS] += found.faults
        if found.gap_counts is not None:
            first, _, total = _ITL if found.gaps_are_per_token else _CHUNK_GAP
            first += base
            for bucket, count in enumerate(found.gap_counts):
                if count:
                    cells[first + bucket] += count
            cells[base + total] += found.gap_sum_seconds

    def _learn_kind(self, model: str, pool: str, endpoint: str) -> _Kind:
        """Where requests of a model, pool and endpoint are counted; remembered for the next one."""
        name = (model, pool)
        route = self._route_bases.get(name)
        if route is None:
            route = self._route_bases[UNKNOWN_MODEL, NO_POOL]
        requests = route + _REQUESTS + _ENDPOINTS[endpoint] * len(_OUTCOMES)
        base, e2e = self._pool_bases.get(name), _E2E.get(endpoint)
        if base is not None and e2e is not None:
            first, limits, total = e2e
            e2e = (base + first, limits, base + total)
        kind = self._kinds[model, pool, endpoint] = (route, base, requests, e2e)
        return kind

    def _count_stream(self, base: int, record: RequestRecord) -> None:
        observe = self._observe
        ttft, upstream_ttft, tpot = record.ttft_seconds, record.upstream_ttft_seconds, record.tpot_seconds
        if ttft is not None:
            observe(base, _TTFT, ttft)
        if record.ttft_visible_seconds is not None:
            observe(base, _TTFT_VISIBLE, record.ttft_visible_seconds)
        if record.stall_ratio is not None:
            observe(base, _STALL, record.stall_ratio)
        if upstream_ttft is not None:
            observe(base, _UPSTREAM_TTFT, upstream_ttft)
        if tpot is not None:
            observe(base, _TPOT, tpot)
        at_worker = None if record.worker is None else self._worker_bases.get(record.worker)
        if at_worker is None:
            return
        if upstream_ttft is not None:
            observe(at_worker, _WORKER_TTFT, upstream_ttft)
        if tpot is not None:
            observe(at_worker, _WORKER_TPOT, tpot)

    def count_slow_client(self) -> None:
        """One stream was left out of TPOT because its client was slow."""
        self._cells[_SLOW_CLIENT] += 1.0

    def _observe(self, base: int, histogram: _Histogram, value: float) -> None:
        first, limits, total = histogram
        cells = self._cells
        cells[base + first + bisect_left(limits, value)] += 1.0
        cells[base + total] += value

    def _count_tokens(self, base: int, record: RequestRecord) -> None:
        cells = self._cells
        prompt, completion, cached = record.prompt_tokens, record.completion_tokens, record.cached_tokens
        if record.prompt_is_estimate:
            cells[base + _PROMPT] += prompt or 0
        elif prompt is not None:
            tokens = float(prompt)
            cells[base + _PROMPT] += tokens
            first, limits, total = _PROMPT_LENGTH
            cells[base + first + bisect_left(limits, tokens)] += 1.0
            cells[base + total] += tokens
            if record.estimated_prompt_tokens:
                first, limits, total = _ESTIMATE_ERROR
                error = tokens / record.estimated_prompt_tokens
                cells[base + first + bisect_left(limits, error)] += 1.0
                cells[base + total] += error
            if cached is None:
                cells[base + _CACHE_UNKNOWN] += 1.0
            else:
                cells[base + _CACHE_KNOWN] += tokens
                if cached:
                    cells[base + _CACHED] += cached
        if completion is not None:
            tokens = float(completion)
            cells[base + _COMPLETION] += tokens
            if not record.completion_is_estimate:
                first, limits, total = _COMPLETION_LENGTH
                cells[base + first + bisect_left(limits, tokens)] += 1.0
                cells[base + total] += tokens

    def _count_key(self, record: RequestRecord, outcome: int) -> None:
        base = self._key_bases.get(record.key or "")
        if base is None:
            return
        cells = self._cells
        cells[base + _KEY_REQUESTS + outcome] += 1.0
        if record.prompt_tokens:
            cells[base + _KEY_PROMPT] += record.prompt_tokens
        if record.completion_tokens:
            cells[base + _KEY_COMPLETION] += record.completion_tokens
        if record.cached_tokens:
            cells[base + _KEY_CACHED] += record.cached_tokens
