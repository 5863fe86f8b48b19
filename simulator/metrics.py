"""What a simulated worker counts of its requests, in vLLM's terms and buckets. There is one `Ledger` for each engine."""

from __future__ import annotations

from bisect import bisect_left

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
# and of tokens, choices, preemptions
LENGTH_BOUNDS = tuple(float(first * 10**power) for power in range(5) for first in (1, 2, 5))[:-1]
STEP_BOUNDS = (1.0, *(float(1 << power) for power in range(3, 15)))
CHOICES_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
HTTP_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
)
# of the simulator's own
LAG_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")


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


class Ledger:
    """What one engine's driver measures, by its own clock. Requests that a client aborted are in none of the histograms."""

    def __init__(self) -> None:
        self.ttft_seconds = Histogram(TTFT_BOUNDS)  # arrival -> first token
        self.itl_seconds = Histogram(ITL_BOUNDS)  # between two outputs of the engine for a request
        self.tpot_seconds = Histogram(ITL_BOUNDS)  # first token -> last, by tokens behind the first; 0 for one token
        self.e2e_seconds = Histogram(E2E_BOUNDS)  # arrival -> last token
        self.queue_seconds = Histogram(E2E_BOUNDS)  # arrival -> first scheduled
        self.inference_seconds = Histogram(E2E_BOUNDS)  # first scheduled -> last token
        self.prefill_seconds = Histogram(E2E_BOUNDS)  # first scheduled -> first token
        self.decode_seconds = Histogram(E2E_BOUNDS)  # first token -> last
        self.prompt_tokens = Histogram(LENGTH_BOUNDS)
        self.computed_tokens = Histogram(LENGTH_BOUNDS)  # of the prompt, cached ones left out
        self.generation_tokens = Histogram(LENGTH_BOUNDS)
        self.most_generation_tokens = Histogram(LENGTH_BOUNDS)  # of a request's choices the longest
        self.asked_tokens = Histogram(LENGTH_BOUNDS)  # max_tokens
        self.asked_choices = Histogram(CHOICES_BOUNDS)  # n
        self.preemptions = Histogram(PREEMPTION_BOUNDS)
        self.step_tokens = Histogram(STEP_BOUNDS)  # computed or generated in a step
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.external_queried_tokens = 0  # asked of another worker's KV cache

    def __repr__(self) -> str:
        return f"<Ledger {self.finished}>"


class Lag:
    """How far the worker's own slowness distorts its timing."""

    def __init__(self) -> None:
        self.seconds = Histogram(LAG_BOUNDS)  # a step's tokens were due -> all of them were handed to their sockets
        self.lost_seconds = 0.0  # time that steps were delayed: too far behind to catch up, or a request came that late

    def __repr__(self) -> str:
        return f"<Lag {self.seconds!r}, {self.lost_seconds:.3f} s lost>"


class HandlerStats:
    """The requests that one path and method has answered."""

    def __init__(self) -> None:
        self.durations = Histogram((0.1, 0.5, 1.0))
        self.by_status: dict[str, int] = {}  # "2xx", "4xx", ...
        self.request_bytes = 0
        self.response_bytes = 0  # as declared; streams declare nothing

    def __repr__(self) -> str:
        return f"<HandlerStats {self.by_status}>"


class HttpStats:
    """What the server itself counts."""

    def __init__(self) -> None:
        self.durations = Histogram(HTTP_BOUNDS)
        self.handlers: dict[tuple[str, str], HandlerStats] = {}  # by path (or "none") and method

    def __repr__(self) -> str:
        return f"<HttpStats {self.handlers}>"

    def count(self, path: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int) -> None:
        """Count one answer; ``seconds`` from the request's last byte to the answer's last."""
        self.durations.observe(seconds)
        stats = self.handlers.setdefault((path, method), HandlerStats())
        stats.durations.observe(seconds)
        kind = f"{status // 100}xx"
        stats.by_status[kind] = stats.by_status.get(kind, 0) + 1
        stats.request_bytes += request_bytes
        stats.response_bytes += response_bytes
