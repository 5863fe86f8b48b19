"""The ``/metrics`` page of a simulated worker, in vLLM's names, labels and order, and its own lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from simulator.dialect import Dialect
from simulator.engine.values import EngineSettings, Totals
from simulator.metrics import HandlerStats, Histogram, HttpStats, Lag, Ledger

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_VLLM = "vllm:"
_OWN = "ridgeline_simulator_"
_WAITING = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred "
    "by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting."
)
_SLEEP = (
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means "
    "sleep level 1; discard_all = 1 means sleep level 2."
)
_CACHE_SETTINGS = (  # that are the same for every simulated worker
    "_block_size_resolved=True cache_dtype=auto cache_hit_alignment_tokens=None "
    "enable_mamba_shared_prefix_checkpoint=False gpu_memory_utilization=0.92 hash_block_size=None "
    "is_attention_free=False kv_cache_dtype_skip_layers=[] kv_cache_layout=None kv_cache_memory_bytes=None "
    "kv_offloading_backend=native kv_offloading_size=None kv_sharing_fast_prefill=False mamba_block_size=None "
    "mamba_cache_dtype=auto mamba_cache_mode=none mamba_page_size_padded=None mamba_ssm_cache_dtype=auto "
    "num_cpu_blocks=None num_gpu_blocks_override=None prefix_cache_retention_interval=0 "
    "prefix_caching_hash_algo=sha256 prefix_match_unit=None replayssm_buffer_len=16 skip_page_size_padded=None "
    "sliding_window=None swa_bounded_replay=True use_kda_recoverssm=False use_replayssm=False "
    "user_specified_block_size=False "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """One engine at this moment."""

    running: int
    waiting: int
    kv_usage_ratio: float
    totals: Totals
    ledger: Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a page tells."""

    model: str
    created: float  # when the worker started, seconds since the epoch
    settings: EngineSettings
    max_model_len: int
    engines: Sequence[EngineView]
    rejections: Mapping[str, int]
    tool_calls: Mapping[tuple[str, str], int]  # by mode and outcome
    lag: Lag
    http: HttpStats
    cache_settings: Mapping[str, str] = field(default_factory=dict)  # labels of cache_config_info, instead of vLLM's defaults


def write_page(snapshot: Snapshot, dialect: Dialect) -> str:
    """The whole page."""
    page = _Page(snapshot, dialect)
    _gauges(page)
    _counters(page)
    _histograms(page)
    _cache_settings(page)
    _server(page)
    return page.text()


def _gauges(page: _Page) -> None:
    page.gauge("num_requests_running", "Number of requests in model execution batches.", lambda one: one.running)
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", lambda one: one.waiting)
    page.gauges("num_requests_waiting_by_reason", _WAITING, "reason", lambda one: {"capacity": one.waiting, "deferred": 0})
    awake = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    page.gauges("engine_sleep_state", _SLEEP, "sleep_state", lambda _: awake)
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", lambda one: one.kv_usage_ratio)


def _counters(page: _Page) -> None:
    queried = "Prefix cache queries, in terms of number of queried tokens."
    page.counter("prefix_cache_queries", queried, lambda one: one.totals.prefix_queried_tokens)
    hit = "Prefix cache hits, in terms of number of cached tokens."
    page.counter("prefix_cache_hits", hit, lambda one: one.totals.prefix_hit_tokens)
    external = "External prefix cache {} from KV connector cross-instance cache sharing, in terms of number of {} tokens."
    page.counter(
        "external_prefix_cache_queries", external.format("queries", "queried"), lambda one: one.ledger.external_queried_tokens
    )
    page.counter("external_prefix_cache_hits", external.format("hits", "cached"), lambda one: one.totals.fetched_tokens)
    page.counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", lambda _: 0)
    page.counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", lambda _: 0)
    preempted = "Cumulative number of preemption from the engine."
    page.counter("num_preemptions", preempted, lambda one: one.totals.preemptions)
    page.counter("prompt_tokens", "Number of prefill tokens processed.", lambda one: sum(_by_source(one).values()))
    page.counters("prompt_tokens_by_source", "Number of prompt tokens by source.", "source", _by_source)
    cached = "Number of cached prompt tokens (local + external)."
    page.counter("prompt_tokens_cached", cached, lambda one: sum(_cached(one).values()))
    tiers = (
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p "
        "(transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
        "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits."
    )
    page.counters("prompt_tokens_cached_by_source", tiers, "source", _cached)
    page.counter("generation_tokens", "Number of generation tokens processed.", lambda one: one.totals.generation_tokens)
    done = "Count of successfully processed requests."
    page.counters("request_success", done, "finished_reason", lambda one: one.ledger.finished)
    if page.snapshot.settings.speculation is not None:
        page.counter("spec_decode_num_drafts", "Number of spec decoding drafts.", lambda one: one.totals.drafts)
        page.counter("spec_decode_num_draft_tokens", "Number of draft tokens.", lambda one: one.totals.drafted_tokens)
        page.counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", lambda one: one.totals.accepted_tokens)
        by_position = "Accepted tokens per draft position."
        page.counters("spec_decode_num_accepted_tokens_per_pos", by_position, "position", _accepted)
    model, calls = {"model_name": page.snapshot.model}, page.snapshot.tool_calls
    rejected = [({**model, "reason": reason}, count) for reason, count in page.snapshot.rejections.items()]
    text = "Number of admission attempts rejected by a queue limit, by reason."
    page.family("admission_rejections", "counter", text, rejected)
    parsed = [
        ({"mode": mode, **model, "outcome": outcome, "request_type": kind}, calls.get((mode, outcome), 0) if not number else 0)
        for mode in ("streaming", "non_streaming")
        for outcome in ("tool_call", "no_tool_call")
        for number, kind in enumerate(("chat_completions", "responses", "other"))
    ]
    text = (
        "Total number of ToolParser invocations. Non-streaming increments once per choice; streaming increments once per delta."
    )
    page.family("tool_call_parser_invocations", "counter", text, parsed)


def _by_source(one: EngineView) -> dict[str, int]:
    """Prompt tokens by where they came from."""
    cached = _cached(one)
    computed = max(0, one.totals.prompt_tokens - cached["device"] - cached["p2p"])
    return {"local_compute": computed, "local_cache_hit": cached["device"], "external_kv_transfer": cached["p2p"]}


def _cached(one: EngineView) -> dict[str, int]:
    hits, external = one.totals.prefix_hit_tokens, one.totals.fetched_tokens
    return {"device": hits, "host": 0, "p2p": external, "disk": 0, "external_unspecified": 0}


def _accepted(one: EngineView) -> dict[str, int]:
    return {str(position): count for position, count in enumerate(one.totals.accepted_by_position)}


def _histograms(page: _Page) -> None:
    page.histogram("request_prompt_tokens", "Number of prefill tokens processed.", lambda one: one.prompt_tokens)
    page.histogram("request_generation_tokens", "Number of generation tokens processed.", lambda one: one.generation_tokens)
    page.histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", lambda one: one.step_tokens)
    most = "Histogram of maximum number of requested generation tokens."
    page.histogram("request_max_num_generation_tokens", most, lambda one: one.most_generation_tokens)
    page.histogram("request_params_n", "Histogram of the n request parameter.", lambda one: one.asked_choices)
    page.histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lambda one: one.asked_tokens)
    page.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", lambda one: one.ttft_seconds)
    itl = "Histogram of inter-token latency in seconds."
    page.histogram("inter_token_latency_seconds", itl, lambda one: one.itl_seconds)
    tpot = "Histogram of time_per_output_token_seconds per request."
    page.histogram("request_time_per_output_token_seconds", tpot, lambda one: one.tpot_seconds)
    page.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda one: one.e2e_seconds)
    phase = "Histogram of time spent in {} phase for request."
    page.histogram("request_queue_time_seconds", phase.format("WAITING"), lambda one: one.queue_seconds)
    page.histogram("request_inference_time_seconds", phase.format("RUNNING"), lambda one: one.inference_seconds)
    page.histogram("request_prefill_time_seconds", phase.format("PREFILL"), lambda one: one.prefill_seconds)
    page.histogram("request_decode_time_seconds", phase.format("DECODE"), lambda one: one.decode_seconds)
    preempted = "Histogram of the number of times a request was preempted."
    page.histogram("request_num_preemptions", preempted, lambda one: one.preemptions)
    computed = "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
    page.histogram("request_prefill_kv_computed_tokens", computed, lambda one: one.computed_tokens)


def _cache_settings(page: _Page) -> None:
    settings, longest = page.snapshot.settings, page.snapshot.max_model_len
    tokens = settings.kv_blocks * settings.block_tokens
    varying = {
        "block_size": str(settings.block_tokens),
        "effective_attention_block_size": str(settings.block_tokens),
        "enable_prefix_caching": str(settings.caches_prefixes),
        "kv_cache_max_concurrency": str(tokens / longest),
        "kv_cache_size_tokens": str(tokens),
        "num_gpu_blocks": str(settings.kv_blocks),
    }
    fixed = dict(pair.split("=") for pair in _CACHE_SETTINGS.split())
    samples = [
        ({**fixed, **page.snapshot.cache_settings, **varying, "engine": str(number)}, 1)
        for number, _ in enumerate(page.snapshot.engines)
    ]
    page.family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", samples)


def _server(page: _Page) -> None:
    text = "Start time of the process since unix epoch in seconds."
    page.family("process_start_time_seconds", "gauge", text, [({}, page.snapshot.created)], prefix="")
    http = page.snapshot.http
    requests = [
        ({"handler": path, "method": method, "status": status}, count)
        for (path, method), stats in http.handlers.items()
        for status, count in stats.by_status.items()
    ]
    page.family("http_requests", "counter", "Total number of requests by method, status and handler.", requests, prefix="")
    sizes = "Content length of {} by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. "
    page.sums("http_request_size_bytes", sizes.format("incoming requests"), lambda stats: stats.request_bytes)
    page.sums("http_response_size_bytes", sizes.format("outgoing responses"), lambda stats: stats.response_bytes)
    fine = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
    page.buckets("http_request_duration_highr_seconds", fine, [({}, http.durations)], prefix="")
    coarse = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "  # sic
    by_handler = [({"handler": key[0], "method": key[1]}, stats.durations) for key, stats in http.handlers.items()]
    page.buckets("http_request_duration_seconds", coarse, by_handler, prefix="")
    lag = page.snapshot.lag
    text = "From the instant at which a step's tokens were due to that at which all of them had been handed to their sockets."
    page.buckets("lag_seconds", text, [({}, lag.seconds)], prefix=_OWN)
    text = "Time by which steps were delayed because the simulator was too late to catch up."
    page.family("lost_seconds", "counter", text, [({}, lag.lost_seconds)], prefix=_OWN)


class _Page:
    """Lines of the Prometheus text format, one family after another."""

    def __init__(self, snapshot: Snapshot, dialect: Dialect) -> None:
        self.snapshot = snapshot
        self._dialect = dialect
        self._lines: list[str] = []
        self._engines = [
            ({"engine": str(number), "model_name": snapshot.model}, one) for number, one in enumerate(snapshot.engines)
        ]

    def text(self) -> str:
        return "\n".join((*self._lines, ""))

    def gauge(self, name: str, text: str, value: Callable[[EngineView], float]) -> None:
        self.family(name, "gauge", text, [(labels, value(one)) for labels, one in self._engines])

    def gauges(self, name: str, text: str, label: str, values: Callable[[EngineView], Mapping[str, float]]) -> None:
        self.family(name, "gauge", text, self._labelled(label, values))

    def counter(self, name: str, text: str, value: Callable[[EngineView], float]) -> None:
        self.family(name, "counter", text, [(labels, value(one)) for labels, one in self._engines])

    def counters(self, name: str, text: str, label: str, values: Callable[[EngineView], Mapping[str, float]]) -> None:
        self.family(name, "counter", text, self._labelled(label, values))

    def histogram(self, name: str, text: str, histogram: Callable[[Ledger], Histogram]) -> None:
        self.buckets(name, text, [(labels, histogram(one.ledger)) for labels, one in self._engines])

    def family(
        self, name: str, kind: str, text: str, samples: Sequence[tuple[Mapping[str, str], float]], *, prefix: str = _VLLM
    ) -> None:
        for used in self._names(name):
            whole = prefix + used + ("_total" if kind == "counter" else "")
            self._head(whole, kind, text)
            for labels, value in samples:
                self._sample(whole, value, labels)
            if kind == "counter":
                self._write_created(prefix + used, text, [labels for labels, _ in samples])

    def buckets(
        self, name: str, text: str, samples: Sequence[tuple[Mapping[str, str], Histogram]], *, prefix: str = _VLLM
    ) -> None:
        for used in self._names(name):
            whole = prefix + used
            self._head(whole, "histogram", text)
            for labels, histogram in samples:
                bounds = (*(str(float(bound)) for bound in histogram.bounds), "+Inf")
                for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
                    self._sample(f"{whole}_bucket", count, {**labels, "le": bound})
                self._sample(f"{whole}_count", sum(histogram.counts), labels)
                self._sample(f"{whole}_sum", histogram.sum, labels)
            self._write_created(whole, text, [labels for labels, _ in samples])

    def sums(self, name: str, text: str, total: Callable[[HandlerStats], float]) -> None:
        """A summary over the requests of each path, without quantiles."""
        by_path: dict[str, list[HandlerStats]] = {}
        for (path, _), stats in self.snapshot.http.handlers.items():
            by_path.setdefault(path, []).append(stats)
        self._head(name, "summary", text)
        for path, found in by_path.items():
            labels = {"handler": path}
            self._sample(f"{name}_count", sum(sum(stats.durations.counts) for stats in found), labels)
            self._sample(f"{name}_sum", sum(map(total, found)), labels)
        self._write_created(name, text, [{"handler": path} for path in by_path])

    def _names(self, name: str) -> list[str]:
        """Under which names the imitated version has a family."""
        older = [old for old, new in self._dialect.older_names.items() if new == name]
        return older if name in self._dialect.missing_families else [*older, name]

    def _labelled(
        self, label: str, values: Callable[[EngineView], Mapping[str, float]]
    ) -> list[tuple[Mapping[str, str], float]]:
        return [({**labels, label: key}, value) for labels, one in self._engines for key, value in values(one).items()]

    def _write_created(self, name: str, text: str, labels: Iterable[Mapping[str, str]]) -> None:
        self._head(f"{name}_created", "gauge", text)
        for each in labels:
            self._sample(f"{name}_created", self.snapshot.created, each)

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}")

    def _sample(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in sorted(labels.items()))
        self._lines.append(f"{name}{{{inside}}} {float(value)!r}" if inside else f"{name} {float(value)!r}")


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
