"""The seconds of a slow request, shared out among causes: what was measured, what follows from lengths, what the worker did.

No cause gets more than is left by those before it.
"""

from __future__ import annotations

from roofline.limits import Surroundings, decode_limit, prefill_limit
from telemetry.causes import CauseName, WorkerState
from telemetry.judgement import Yardstick
from telemetry.record import Cause, RequestRecord

KV_FULL_RATIO = 0.95
_KV_SCARCE_RATIO = 0.85
_SLOWER_RATIO = 1.15  # below it a worker counts as its own kind
_LOW_CLOCK_RATIO = 0.7  # of the usual clock: under full load a GPU keeps within its power by going that far down ...
_LIMITED_CLOCK_RATIO = 0.9  # ... and by some percent all the time
_MEMORY_AT_PEAK_RATIO = 0.75  # of the cycles; NVIDIA says that 0.8 is what can be reached
_MEMORY_AT_REST_RATIO = 0.6  # below, it is not the memory that a step waits for
_LAG_SECONDS = 0.005  # of the gateway's own work; more is a loop that was held


class Shares:
    """Seconds to be shared out; each cause takes at most what is left."""

    def __init__(self, seconds: float) -> None:
        self.left = self.total = seconds
        self._taken: dict[CauseName, float] = {}

    def take(self, cause: CauseName, seconds: float | None) -> None:
        """Give a cause what it explains."""
        if seconds is not None and (taken := min(seconds, self.left)) > 0.0:
            self._taken[cause] = self._taken.get(cause, 0.0) + taken
            self.left -= taken

    def taken(self, cause: CauseName) -> float:
        """What a cause has got so far."""
        return self._taken.get(cause, 0.0)

    def causes(self) -> tuple[Cause, ...]:
        """Everything, the most first, and what is left as unexplained."""
        taken = self._taken if self.left <= 0.0 else {**self._taken, CauseName.UNEXPLAINED: self.left}
        return tuple(Cause(cause, seconds) for cause, seconds in sorted(taken.items(), key=lambda item: -item[1]))


def take_waits(shares: Shares, record: RequestRecord) -> None:
    """What was measured before the worker had the request."""
    shares.take(CauseName.GATEWAY_QUEUE, record.queue_seconds)
    shares.take(CauseName.CONNECT, record.connect_seconds)
    shares.take(CauseName.LOOP_LAG, (record.overhead_seconds or 0.0) - _LAG_SECONDS)
    shares.take(CauseName.PREFILL_STAGE, record.prefill_leg_seconds)
    shares.take(CauseName.FAILED_ATTEMPTS, record.failed_attempts_seconds)


def before_first_token(record: RequestRecord, yardstick: Yardstick) -> int:
    """Prompt tokens of others that were computed before or with its own: all ahead, and a step of those that joined."""
    return (record.ahead_tokens or 0) + min(record.joined_tokens or 0, yardstick.chunk_tokens)


def take_others(
    shares: Shares,
    record: RequestRecord,
    yardstick: Yardstick,
    state: WorkerState,
    tokens: int | None,
    around: Surroundings,
) -> None:
    """The prompts of others, as many tokens in all: how they were cut does not matter beside their sum.

    They may have been partly computed when the request came. At a worker that is slower than it should be, they explain no more
    than they would have taken at its proper pace.
    """
    if not tokens:
        return
    mean = max(1, round(max(record.beside_prefill_prompt_tokens or 0.0, record.beside_decode_prompt_tokens or 0.0)))
    length = min(tokens, mean)
    each = prefill_seconds(yardstick, length, 0, around)
    own = _step(yardstick, around) if around.running else 0.0  # decoding goes on in the same steps
    slower = max(state.own_ratio or 1.0, state.peers_ratio or 1.0, 1.0 / (state.clock_ratio or 1.0))
    most = shares.left / slower if slower > _SLOWER_RATIO else shares.left
    shares.take(CauseName.OTHERS_PREFILL, min(most, max(0.0, each - own) * tokens / length))


def take_engine(
    shares: Shares,
    record: RequestRecord,
    yardstick: Yardstick,
    state: WorkerState,
    others_tokens: int | None,
    around: Surroundings,
    expected_seconds: float,
    computing_seconds: float,
) -> None:
    """What the worker did: others' prompts, its pace, and whatever it let the request wait for beyond that.

    A queue that the worker told is taken as told; one that only its gauge shows gets what nothing else explains.
    ``computing_seconds`` are those of the expected ones that the GPU's clock decides over.
    """
    take_others(shares, record, yardstick, state, others_tokens, around)
    has_waiting = (state.waiting_requests or 0.0) >= 1.0
    # Who waits for blocks leaves some free: those of a prompt that does not fit.
    is_full = (state.kv_usage_ratio or 0.0) >= (_KV_SCARCE_RATIO if has_waiting else KV_FULL_RATIO)
    queue = CauseName.KV_PRESSURE if is_full else CauseName.ENGINE_QUEUE
    told = record.worker_queue_seconds
    shares.take(queue, told)
    take_clocks(shares, state, computing_seconds)
    take_worker(shares, state, expected_seconds)
    if told is None and has_waiting:
        shares.take(queue, shares.left)


def take_clocks(shares: Shares, state: WorkerState, computing_seconds: float) -> None:
    """What a clock below the usual one makes longer: whatever is computed, the prompts of others too."""
    ratio = state.clock_ratio
    if ratio is not None and 0.0 < ratio < (_LIMITED_CLOCK_RATIO if state.clock_is_limited else _LOW_CLOCK_RATIO):
        shares.take(CauseName.GPU_CLOCKS, (computing_seconds + shares.taken(CauseName.OTHERS_PREFILL)) * (1.0 / ratio - 1.0))


def take_memory(shares: Shares, state: WorkerState, expected_seconds: float) -> None:
    """Of tokens that wait for memory: it is at its peak, or its GPUs are held down so far that they do not keep it busy."""
    busy = state.dram_active_ratio
    if busy is not None and busy >= _MEMORY_AT_PEAK_RATIO:
        shares.take(CauseName.GPU_BANDWIDTH, shares.left)
    elif state.clock_is_limited and (busy is None or busy < _MEMORY_AT_REST_RATIO):
        take_clocks(shares, state, expected_seconds)


def take_worker(shares: Shares, state: WorkerState, expected_seconds: float) -> None:
    """What is known to be wrong with the worker: itself first, since what its reference knows is nearer than its peers.

    It was slower at the prompts of others, too.
    """
    seconds = expected_seconds + shares.taken(CauseName.OTHERS_PREFILL)
    for cause, ratio in ((CauseName.SLOWER_THAN_ITSELF, state.own_ratio), (CauseName.SLOWER_THAN_PEERS, state.peers_ratio)):
        if ratio is not None and ratio > _SLOWER_RATIO:
            shares.take(cause, seconds * (ratio - 1.0))
            return


def _step(yardstick: Yardstick, around: Surroundings) -> float:
    return decode_seconds(yardstick, max(1, around.context_tokens), 2, around)


def prefill_seconds(yardstick: Yardstick, prompt: int, cached: int, around: Surroundings) -> float:
    """Expected seconds of the prefill of such a prompt, with what runs beside it."""
    limit = prefill_limit(yardstick.deployment, yardstick.losses, prompt_tokens=prompt, cached_tokens=cached, around=around)
    return limit.expected_seconds


def decode_seconds(yardstick: Yardstick, prompt: int, completion: int, around: Surroundings) -> float:
    """Expected seconds of a token behind such a prompt, with what runs beside it."""
    limit = decode_limit(
        yardstick.deployment, yardstick.losses, context_tokens=prompt, completion_tokens=completion, around=around
    )
    return limit.expected_seconds
