"""What control has learned and serving processes route by: plain coefficients, sent as one value whenever they change.

Nothing in it has to be there. A serving process that has none yet, or whose control process is away, routes by defaults.
"""

from __future__ import annotations

import msgspec

from routing.estimate import Coefficients


class ModelGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one model, by its name."""

    tokens: Coefficients | None = None  # what its prompts' tokens are made of; None: nothing is learned yet
    output_tokens: dict[str, int] = {}  # learned output budget by the name of the key; "" for all others


class Speed(msgspec.Struct, frozen=True, gc=False):
    """What work takes on one worker of a pool; seconds, all at least 0."""

    prefill_token_seconds: float  # computing one token of a prompt
    step_seconds: float  # one step for nobody: weights and overheads
    running_seconds: float  # what one more running request adds to a step
    context_token_seconds: float  # what one more token in the KV cache of a running request adds to a step
    chunk_tokens: int = 8192  # of a prompt in one step, at most


class PoolGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one pool, by model and pool name. ``None`` is not known."""

    least_model_len: int | None = None  # smallest `WorkerGuidance.max_model_len` of its workers, as far as they are known
    most_model_len: int | None = None  # the largest, if all of them are known
    speed: Speed | None = None
    prefill_ratio: float = 0.1  # share of the tokens in flight that is still to be computed, 0 to 1
    cached_ratio: float = 0.0  # share of a prompt that its home has cached, 0 to 1
    moved: dict[int, str] = {}  # workers by affinity: who delivered what its home had lost
    hedge_seconds: tuple[float | None, ...] = ()  # to the first token, a quantile, by class of length; empty: not asked for


class WorkerGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one worker, by its name. ``None`` is not known. Rates are the lowest that are usual there, in tokens a second."""

    max_model_len: int | None = None  # prompt and output tokens of one request that it can hold, as it says itself
    prefill_tokens_per_second: float | None = None  # prompt tokens until the first token, waiting and all
    decode_tokens_per_second: float | None = None  # of one answer
    max_requests: float | None = None  # in flight at once, so that it runs at its best
    max_tokens: float | None = None  # their prompts and output budgets together, so that its KV cache holds them
    usage_trial: str | None = None  # names a run of it that may send usage to everybody; one stream has to tell


UNKNOWN_PACE = WorkerGuidance()


class Guidance(msgspec.Struct, frozen=True, gc=False):
    """Everything of one moment."""

    models: dict[str, ModelGuidance] = {}
    pools: dict[str, PoolGuidance] = {}  # by `pool_key`
    workers: dict[str, WorkerGuidance] = {}


NO_GUIDANCE = Guidance()


def pool_key(model: str, pool: str) -> str:
    """The key of a pool: both names, with a newline between them, which neither can have."""
    return f"{model}\n{pool}"
