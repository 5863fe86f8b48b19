"""When the likely number is not enough, and what a demand becomes once its prompt has been counted, or could not be."""

from __future__ import annotations

from operator import mul

import msgspec

from routing.demand import Demand
from routing.estimate import Coefficients, TokenEstimate
from routing.topology import Model

_TEMPLATE_FEATURES = 3  # the first of `FEATURES`: request, messages, tools


def depends_on_count(model: Model, demand: Demand) -> bool:
    """Whether the two ends of the interval would be given different pools."""
    found = demand.estimate
    if found.least == found.most:
        return False
    output = demand.output_tokens
    for pool in model.pools[:-1]:
        limit = pool.max_total_tokens
        if limit is not None and found.least + output <= limit < found.most + output:
            return True
    return False


def counted(demand: Demand, tokens: int, coefficients: Coefficients | None) -> Demand:
    """The demand of a prompt whose texts have so many tokens. What a template adds is as learned; None: it is among them."""
    if coefficients is not None and demand.prompt is not None:
        prompt = demand.prompt
        added = sum(map(mul, prompt.counts[:_TEMPLATE_FEATURES], coefficients.weights))
        tokens += max(0, round(added))
    return msgspec.structs.replace(demand, estimate=TokenEstimate(tokens, tokens, tokens), guess=demand.estimate.tokens)


def uncounted(demand: Demand) -> Demand:
    """The same when it could not be counted in time: the pool is chosen for the most that it may be."""
    found = demand.estimate
    return msgspec.structs.replace(demand, estimate=TokenEstimate(found.most, found.least, found.most), guess=found.tokens)
