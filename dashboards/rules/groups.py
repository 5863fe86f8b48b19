"""All groups, in the order of the files."""

from __future__ import annotations

from dashboards.rules.alerts_cache import cache
from dashboards.rules.alerts_gateway import answers, gateway
from dashboards.rules.alerts_latency import latency
from dashboards.rules.alerts_workers import workers
from dashboards.rules.recorded import recordings
from dashboards.rules.rule import Alert, Clock, Group


def recording_groups(clock: Clock) -> tuple[Group, ...]:
    """What is computed ahead."""
    return (recordings(clock),)


def alert_groups(clock: Clock) -> tuple[Group, ...]:
    """What wakes people up."""
    return (answers(clock), latency(clock), cache(clock), workers(clock), gateway(clock))


def alert_names() -> list[str]:
    """Every alert once, in order."""
    rules = [rule for group in alert_groups(Clock()) for rule in group.rules]
    return list(dict.fromkeys(rule.name for rule in rules if isinstance(rule, Alert)))
