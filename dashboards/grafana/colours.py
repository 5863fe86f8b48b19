"""One colour for one meaning, on every board."""

from __future__ import annotations

from enum import Enum

from telemetry.causes import CauseName
from telemetry.record import Outcome


class Colour(Enum):
    """Meanings, by the name of a colour in Grafana's palette or its hexadecimal value."""

    # judgement
    GOOD = "green"
    WARNING = "orange"
    BAD = "red"
    UNKNOWN = "#8e8e8e"
    PLAIN = "text"  # no judgement
    # places in a distribution: shades of one colour
    P50 = "light-blue"
    P95 = "blue"
    P99 = "dark-blue"
    MEAN = "purple"
    # what is counted
    HIT = "dark-green"
    RUNNING = "semi-dark-green"
    WAITING = "yellow"
    PROMPT = "light-purple"
    COMPLETION = "dark-purple"
    LIMIT = "dark-red"


_OUTCOMES: dict[str, str] = {
    Outcome.OK: Colour.GOOD.value,
    Outcome.CLIENT_ERROR: "#8e8e8e",
    Outcome.CLIENT_GONE: "#b8b8b8",
    Outcome.REJECTED: "orange",
    Outcome.WORKER_BUSY: "light-orange",
    Outcome.SHUTDOWN: "light-yellow",
    Outcome.TIMEOUT: "light-red",
    Outcome.STALLED: "super-light-red",
    Outcome.TRUNCATED: "semi-dark-red",
    Outcome.ABORTED: "#c27ba0",
    Outcome.WORKER_ERROR: "red",
    Outcome.INTERNAL_ERROR: "dark-red",
}

_CAUSES: dict[str, str] = {
    CauseName.GATEWAY_QUEUE: "dark-yellow",
    CauseName.CONNECT: "light-yellow",
    CauseName.LOOP_LAG: "#c27ba0",
    CauseName.PREFILL_STAGE: "light-blue",
    CauseName.FAILED_ATTEMPTS: "light-red",
    CauseName.SLOW_CLIENT: "#b8b8b8",
    CauseName.MISSED_PREFIX: "dark-green",
    CauseName.ENGINE_QUEUE: "yellow",
    CauseName.OTHERS_PREFILL: "light-purple",
    CauseName.BATCH: "light-blue",
    CauseName.CONTEXT: "dark-blue",
    CauseName.KV_PRESSURE: "orange",
    CauseName.GPU_CLOCKS: "semi-dark-red",
    CauseName.GPU_BANDWIDTH: "semi-dark-orange",
    CauseName.SLOWER_THAN_PEERS: "red",
    CauseName.SLOWER_THAN_ITSELF: "dark-red",
    CauseName.FACTS: "dark-purple",
    CauseName.UNEXPLAINED: "#8e8e8e",
}

BY_LABEL: dict[str, dict[str, str]] = {"outcome": _OUTCOMES, "cause": _CAUSES}
"""Colours of the values of closed labels whose meaning a reader knows by heart after a week."""
