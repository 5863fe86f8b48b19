"""Families of the catalogue about requests that are sent to two workers; only pools that hedge have them."""

from __future__ import annotations

from dataclasses import replace

from telemetry.family import Family, Scope, counter

_FAMILIES = (
    counter(
        "hedges_total",
        Scope.POOL,
        "Streams that were sent to a second worker as well because the first was late, by what became of that.",
        "result",
    ),
    counter(
        "hedges_withheld_total",
        Scope.POOL,
        "Streams that were late and were not sent to a second worker, by why not.",
        "reason",
    ),
    counter(
        "hedge_wasted_seconds_total",
        Scope.POOL,
        "Time that workers had requests for nothing because another one began to answer them: asked to called off.",
    ),
    counter(
        "hedge_wasted_prompt_tokens_total",
        Scope.POOL,
        "Estimated prompt tokens of those requests: the most that was computed for nothing.",
    ),
)

HEDGING: tuple[Family, ...] = tuple(replace(family, is_of_hedging=True) for family in _FAMILIES)
