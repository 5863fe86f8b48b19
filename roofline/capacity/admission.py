"""How much a gateway should have running at one worker: what its cache holds, and the batch that its GPU makes good use of.

An engine queues by itself what it cannot run, so a gateway that gives it everything loses nothing in throughput. What it loses
is the choice: a request that waits in an engine cannot go to a worker that is free earlier, and nobody else's can go first. A
gateway that gives it too little leaves the GPU half used. The ratios lie between; docs/decisions has the evidence.
"""

from __future__ import annotations

from roofline.capacity.knee import knee
from roofline.deployment import Deployment
from roofline.expected import Losses

FILL_RATIO = 0.95
"""Share of the cache that requests in flight fill on average."""
KNEE_RATIO = 4.0
"""Requests over the batch at the knee: there, throughput is 4 / (1 + 4) = 80 % of what any batch could reach."""


def cap_tokens(kv_tokens: float, budget_per_context: float) -> float:
    """Prompts and output budgets that a worker with room for so many cached tokens should have at once.

    ``budget_per_context`` is by how much a request's prompt and budget overstate its mean context (prompt and half of what it
    generates): budgets are what it may take at most, and some clients always declare the same large one.
    """
    return kv_tokens * FILL_RATIO * budget_per_context


def cap_requests(deployment: Deployment, losses: Losses, mean_context_tokens: int) -> float:
    """Requests that a worker should have at once, of this mean context (prompt and half of the completion, in tokens)."""
    return knee(deployment, losses, max(1, mean_context_tokens)).batch * KNEE_RATIO
