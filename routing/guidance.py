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
    """Of one worker, by its name."""

    max_requests: float | None = None  # in flight at once, so that it runs at its best; None: not known
    max_tokens: float | None = None  # their prompts and output budgets together, so that its KV cache holds them


class Guidance(msgspec.Struct, frozen=True, gc=False):
    """Everything of one moment."""

    models: dict[str, ModelGuidance] = {}
    pools: dict[str, PoolGuidance] = {}  # by `pool_key`
    workers: dict[str, WorkerGuidance] = {}


NO_GUIDANCE = Guidance()


def pool_key(model: str, pool: str) -> str:
    """The key of a pool: both names, with a newline between them, which neither can have."""
    return f"{model}\n{pool}"
