"""Fleets of workers whose health is followed, and what befalls them."""

from __future__ import annotations

from dataclasses import replace

from routing.health import FleetHealth
from routing.topology import HealthRules, Topology
from tests.routing.topologies import a_model, a_pool, a_topology

RULES = HealthRules(slow_start_seconds=0.0)


def a_fleet(workers: int = 4, rules: HealthRules = RULES) -> FleetHealth:
    """The health of one pool of ``workers``, of which nothing is known yet."""
    return FleetHealth(the_topology(workers, rules))


def the_topology(workers: int = 4, rules: HealthRules = RULES) -> Topology:
    """One model with one pool of workers ``w-0``, ``w-1`` and so on."""
    return replace(a_topology(a_model(a_pool(*range(workers)))), health=rules)


def look(fleet: FleetHealth, now: float, *, down: tuple[int, ...] = (), foreign: tuple[int, ...] = ()) -> None:
    """Look at all workers at ``now``: those ``down`` fail their probe, those ``foreign`` are left out by other processes."""
    fleet.look(now, [0.0 if at in down else 1.0 for at in range(len(fleet.workers))], foreign)


def fail(fleet: FleetHealth, times: int = 5, result: str = "failed", now: float = 0.0, name: str = "w-0") -> None:
    """As many attempts at one worker end with ``result``, all at ``now``."""
    for _ in range(times):
        fleet.failed(name, result, now)
