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


class PoolGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one pool, by model and pool name."""


class WorkerGuidance(msgspec.Struct, frozen=True, gc=False):
    """Of one worker, by its name."""


class Guidance(msgspec.Struct, frozen=True, gc=False):
    """Everything of one moment."""

    models: dict[str, ModelGuidance] = {}
    pools: dict[str, PoolGuidance] = {}  # by `pool_key`
    workers: dict[str, WorkerGuidance] = {}


NO_GUIDANCE = Guidance()


def pool_key(model: str, pool: str) -> str:
    """The key of a pool: both names, with a newline between them, which neither can have."""
    return f"{model}\n{pool}"
