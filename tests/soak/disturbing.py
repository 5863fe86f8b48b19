"""What is done to the gateway itself meanwhile: reloads all the time, and its processes killed in the first third of the run.

Later than that nothing is killed, so that the same processes can be watched over the middle and the last third.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import yaml

from tests.integration.gateway import Gateway
from tests.integration.load import eventually

_KILLS_EVERY_SECONDS = 45.0
_RELOADS_EVERY_SECONDS = (3.0, 9.0)


class Kind(StrEnum):
    """One sort of disturbance."""

    RELOAD = "reload"  # another configuration and SIGHUP
    KILL_SERVING = "serving killed"
    KILL_CONTROL = "control killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One thing to do, so many seconds from the start of the run."""

    kind: Kind
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A process that was killed. Instants are monotonic seconds."""

    kind: Kind
    pid: int
    killed_at: float
    back_at: float


def draw_disturbances(seconds: float, seed: int, *, kills: bool) -> list[Disturbance]:
    """Reloads all along; with ``kills`` of serving and control in turn, one of each at least, all in the first third."""
    dice = Random(seed)
    third = seconds / 3
    count = 2 * max(1, int(third / _KILLS_EVERY_SECONDS / 2)) if kills else 0
    found = [
        Disturbance(kind=(Kind.KILL_SERVING, Kind.KILL_CONTROL)[number % 2], at_seconds=third * (number + 0.5) / count)
        for number in range(count)
    ]
    now = dice.uniform(*_RELOADS_EVERY_SECONDS)
    while now < seconds - 2:
        found.append(Disturbance(kind=Kind.RELOAD, at_seconds=now))
        now += dice.uniform(*_RELOADS_EVERY_SECONDS)
    return sorted(found, key=lambda one: one.at_seconds)


async def disturb(
    gateway: Gateway, disturbances: list[Disturbance], started_at: float, admin: asyncio.Lock, seed: int
) -> list[Killed]:
    """Do all of it, each when its time comes; nobody may use the admin listener while control is away."""
    dice = Random(seed)
    killed: list[Killed] = []
    for number, one in enumerate(disturbances):
        await asyncio.sleep(max(0.0, started_at + one.at_seconds - time.monotonic()))
        if one.kind is Kind.RELOAD:
            _reload(gateway, token_gap_seconds=4 + number % 2)
        else:
            async with admin:
                killed.append(await _kill(gateway, one.kind, dice))
    return killed


def _reload(gateway: Gateway, **limits: float) -> None:
    gateway.config["limits"] = {**gateway.config["limits"], **limits}
    fresh = gateway.config_path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(gateway.config))
    fresh.replace(gateway.config_path)
    gateway.supervisor.send_signal(signal.SIGHUP)


async def _kill(gateway: Gateway, kind: Kind, dice: Random) -> Killed:
    before = gateway.processes
    pid = dice.choice(before.serving) if kind is Kind.KILL_SERVING else before.control
    assert pid is not None, "control is away although nobody killed it"
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        now = gateway.processes
        return pid not in (*now.serving, now.control) and now.control is not None and len(now.serving) == len(before.serving)

    await eventually(is_back)
    await gateway.ready(gateway.observe_url)
    return Killed(kind=kind, pid=pid, killed_at=killed_at, back_at=time.monotonic())
