"""What control has learned and serving processes route by: plain coefficients, sent as one value whenever they change.

Nothing in it has to be there. A serving process that has none yet, or whose control process is away, routes by defaults.
"""

from __future__ import annotations

import msgspec


class ModelGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one model, by its name."""


class PoolGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one pool, by model and pool name."""


class WorkerGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one worker, by its name. Rates are the lowest that are usual there, in tokens a second; None: not known."""

    prefill_tokens_per_second: float | None = None  # prompt tokens until the first token, waiting and all
    decode_tokens_per_second: float | None = None  # of one answer


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
