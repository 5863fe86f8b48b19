"""The ``/metrics`` page of a simulated worker, in vLLM's names and labels: only the families that its engine has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from simulator.engine import Totals
from simulator.prefix import BLOCK_TOKENS

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

# vLLM's own bounds, in seconds
TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
ITL_BOUNDS = (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),)
E2E_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Observations counted by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} observations, sum {self.sum:.6g}>"

    def observe(self, value: float) -> None:
        """Count one observation; a value equal to a bound lies below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True, kw_only=True)
class Latencies:
    """What the driver measures, by its own clock, of requests that were not aborted."""

    ttft_seconds: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))  # arrival -> first token
    itl_seconds: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS))  # between two tokens of a request
    e2e_seconds: Histogram = field(default_factory=lambda: Histogram(E2E_BOUNDS))  # arrival -> last token
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The engine at this moment."""

    running: int
    waiting: int
    kv_usage_ratio: float
    kv_blocks: int


def write_page(*, model: str, load: Load, totals: Totals, latencies: Latencies, created: float) -> str:
    """The whole page. ``created`` is when the worker started, in seconds since the epoch."""
    page = _Page({"engine": "0", "model_name": model}, created)
    page.gauge("num_requests_running", "Number of requests in model execution batches.", load.running)
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", load.waiting)
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", load.kv_usage_ratio)
    queried = "Prefix cache queries, in terms of number of queried tokens."
    page.counter("prefix_cache_queries", queried, totals.prefix_queried_tokens)
    hit = "Prefix cache hits, in terms of number of cached tokens."
    page.counter("prefix_cache_hits", hit, totals.prefix_hit_tokens)
    page.counter("num_preemptions", "Cumulative number of preemption from the engine.", 0)
    page.counter("prompt_tokens", "Number of prefill tokens processed.", totals.prompt_tokens)
    page.counter("generation_tokens", "Number of generation tokens processed.", totals.generation_tokens)
    page.counters("request_success", "Count of successfully processed requests.", "finished_reason", latencies.finished)
    ttft = "Histogram of time to first token in seconds."
    page.histogram("time_to_first_token_seconds", ttft, latencies.ttft_seconds)
    page.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", latencies.itl_seconds)
    page.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", latencies.e2e_seconds)
    settings = {
        "block_size": str(BLOCK_TOKENS),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "num_gpu_blocks": str(load.kv_blocks),
    }
    page.gauge("cache_config_info", "Information of the LLMEngine CacheConfig", 1, settings)
    return page.text()


class _Page:
    """Lines of the Prometheus text format, one family after another."""

    def __init__(self, labels: Mapping[str, str], created: float) -> None:
        self._labels = labels
        self._created = created
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join((*self._lines, ""))

    def gauge(self, name: str, text: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self._head(name, "gauge", text)
        self._sample(name, value, labels or {})

    def counter(self, name: str, text: str, value: float) -> None:
        self._head(f"{name}_total", "counter", text)
        self._sample(f"{name}_total", value, {})
        self._write_created(name, text, [{}])

    def counters(self, name: str, text: str, label: str, values: Mapping[str, int]) -> None:
        self._head(f"{name}_total", "counter", text)
        for key, value in values.items():
            self._sample(f"{name}_total", value, {label: key})
        self._write_created(name, text, [{label: key} for key in values])

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        self._head(name, "histogram", text)
        bounds = (*map(str, histogram.bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
            self._sample(f"{name}_bucket", count, {"le": bound})
        self._sample(f"{name}_count", sum(histogram.counts), {})
        self._sample(f"{name}_sum", histogram.sum, {})
        self._write_created(name, text, [{}])

    def _write_created(self, name: str, text: str, labels: Iterable[Mapping[str, str]]) -> None:
        self._head(f"{name}_created", "gauge", text)
        for more in labels:
            self._sample(f"{name}_created", self._created, more)

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines += (f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}")

    def _sample(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        pairs = sorted({**self._labels, **labels}.items())
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in pairs)
        self._lines.append(f"vllm:{name}{{{inside}}} {float(value)!r}")


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
