"""What the page says of causes and outcomes, in words, and what to do about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from telemetry.causes import CauseName
from telemetry.record import Outcome, PrefillResult, RequestRecord


class Words(NamedTuple):
    """What something is, and what to do about it."""

    what: str
    advice: str


CAUSES: Mapping[str, Words] = {
    CauseName.GATEWAY_QUEUE: Words(
        "waiting in the gateway for a worker with room",
        "Add workers, or raise the pool's admission caps if its workers still have room.",
    ),
    CauseName.CONNECT: Words(
        "getting a connection to the worker",
        "Look at the network between gateway and worker, and at the worker's accept queue.",
    ),
    CauseName.LOOP_LAG: Words(
        "the gateway itself was late",
        "Give the gateway more CPU, or start more serving processes (--processes).",
    ),
    CauseName.PREFILL_STAGE: Words(
        "the prefill stage was asked first, and did not help",
        "Look at the workers of the stage (prefill_legs_total by result), or lower prefill.timeout_seconds.",
    ),
    CauseName.FAILED_ATTEMPTS: Words(
        "other workers were asked before, and failed or were late",
        "Look at the workers that failed or hung (attempts_total by worker), not at the one that answered.",
    ),
    CauseName.SLOW_CLIENT: Words(
        "the client read slowly",
        "Nothing to mend here: look at the client and the network to it.",
    ),
    CauseName.MISSED_PREFIX: Words(
        "a prefix-cache hit that could be expected was not delivered",
        "See whether the system prompt has changed (drifts), the worker was restarted, or its cache is full.",
    ),
    CauseName.ENGINE_QUEUE: Words(
        "waiting in the worker's own queue",
        "The worker has more than it can run: add workers, or lower the pool's admission caps so that others get it.",
    ),
    CauseName.OTHERS_PREFILL: Words(
        "prompts of others computed in the same steps",
        "Keep long prompts in a pool of their own, or lower --max-num-batched-tokens.",
    ),
    CauseName.BATCH: Words(
        "more sequences at once than usual",
        "Add workers, or cap the requests of each (admission).",
    ),
    CauseName.CONTEXT: Words(
        "a longer context than usual",
        "As it should be for such a context; long ones may want a pool of their own.",
    ),
    CauseName.KV_PRESSURE: Words(
        "the worker's KV cache was full",
        "Add workers, lower the caps of the pool, keep long contexts elsewhere, or store the cache in fp8.",
    ),
    CauseName.GPU_CLOCKS: Words(
        "the worker's GPUs run below their usual clock",
        "Look at heat, power cap and power supply of its machine (nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE); drain it "
        "if it stays so.",
    ),
    CauseName.GPU_BANDWIDTH: Words(
        "the memory of the worker's GPUs is at its peak, with more than is known here",
        "Look for another process on its GPUs, or another gateway before it; else its batch is too large: lower the caps.",
    ),
    CauseName.SLOWER_THAN_PEERS: Words(
        "the worker is slower than its peers",
        "Look at its GPU: clocks, power cap, temperature, another process; drain it if it stays so.",
    ),
    CauseName.SLOWER_THAN_ITSELF: Words(
        "the worker is slower than when its calibration was accepted",
        "Look at its GPU (clocks, power cap, temperature, another process) and at what was changed since; "
        "if that is how it is now, accept the new calibration.",
    ),
    CauseName.FACTS: Words(
        "faster than physics allows: the model, GPU or number format is not what is configured",
        "Correct gpu, shape, weight_dtype or kv_dtype of the pool; ridgeline doctor compares them with the worker.",
    ),
    CauseName.UNEXPLAINED: Words(
        "nothing that is known explains it",
        "Look at the worker's own log and at its GPU around that time.",
    ),
}

OUTCOMES: Mapping[str, Words] = {
    Outcome.OK: Words("ended well", ""),
    Outcome.CLIENT_ERROR: Words("the request was at fault", "The answer that the client got says what was wrong."),
    Outcome.REJECTED: Words("the gateway refused it", "The reason says which limit, key or pool refused it."),
    Outcome.WORKER_BUSY: Words(
        "the worker said it is busy (429 or 503)", "Add workers, or lower the pool's caps so that requests wait here."
    ),
    Outcome.WORKER_ERROR: Words("the worker failed", "Look at the worker's log around that time."),
    Outcome.TRUNCATED: Words(
        "the worker's answer stopped before it was complete", "The worker died or was stopped: look at its log and restarts."
    ),
    Outcome.STALLED: Words(
        "the worker fell silent between two tokens", "Its engine may hang behind a healthy /health: restart it."
    ),
    Outcome.TIMEOUT: Words("a limit ran out", "The reason names the limit; see what the worker did meanwhile."),
    Outcome.ABORTED: Words("the worker aborted the generation", "Look at the worker's log around that time."),
    Outcome.CLIENT_GONE: Words("the client closed its connection", "Nothing to mend here, unless clients give up waiting."),
    Outcome.SHUTDOWN: Words(
        "the gateway was ending, and its drain time was over", "Raise limits.drain_seconds if that is often."
    ),
    Outcome.INTERNAL_ERROR: Words("a fault of the gateway", "Please report it with the gateway's standard error."),
}


STAGE: Mapping[PrefillResult, str] = {
    PrefillResult.COMPUTED: "It computed the prompt, and the worker took its KV cache over",
    PrefillResult.LOST: "It computed the prompt in vain: the worker that had its KV cache failed",
    PrefillResult.NO_WORKER: "None of its workers takes requests now",
    PrefillResult.REFUSED: "It answered with an error",
    PrefillResult.FAILED: "It could not be reached, or gave no whole answer",
    PrefillResult.TIMEOUT: "It took longer than it may",
    PrefillResult.NOT_OFFERED: "It answered and named no blocks of a KV cache: it has no connector for them",
    PrefillResult.ABANDONED: "It had not answered when the request ended",
}
"""What became of the leg at a pool's prefill stage."""


def stage_words(record: RequestRecord) -> str | None:
    """A sentence about that; ``None`` for a request without such a leg."""
    result = record.prefill_result
    if result is None:
        return None
    who = "" if record.prefill_worker is None else f" ({record.prefill_worker})"
    took = "" if record.prefill_leg_seconds is None else f", in {seconds(record.prefill_leg_seconds)}"
    rest = "" if result in (PrefillResult.COMPUTED, PrefillResult.ABANDONED) else "; the worker computed the prompt itself"
    return f"{STAGE[result]}{who}{took}{rest}."


def cause_words(name: str) -> Words:
    """Words for a cause; its bare name for one that is not known."""
    return CAUSES.get(name) or Words(name.replace("_", " "), "")


def count(number: int, one: str, several: str | None = None) -> str:
    """A number with its noun: "1 request", "2 requests"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def seconds(value: float) -> str:
    """A duration as people read it: "7.4 ms", "1.24 s", "3 min"."""
    if value < 0.0995:
        return f"{value * 1000:.3g} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 100:
        return f"{value:.3g} s"
    if value < 3 * 3600:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h"


def how_long(value: float) -> str:
    """For how long something has been so, in whole seconds, minutes or hours and never 0."""
    return seconds(max(1.0, round(value)))


def percent(ratio: float) -> str:
    """A share as people read it."""
    return f"{ratio * 100:.0f} %"
