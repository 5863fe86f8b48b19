"""Signals and new configurations at random moments of a gateway's life, again and again, under load.

By hand: ``python -m tests.soak.signals --seconds 300``. Each round starts a gateway, does a few things to it at random instants
from its first moment on, ends it by SIGTERM, and looks at what is left. Exit status 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random

import yaml

from tests.integration.answers import chat_answer, usage_of
from tests.integration.gateway import Gateway
from tests.integration.load import eventually, paced
from tests.integration.raw_client import End, RawClient
from tests.integration.scene import CHAT, chat_body
from tests.integration.scripted_worker import Received, ScriptedWorker
from tests.integration.steps import Script, Send

_CLIENTS = 5
_START_SECONDS = 30.0
_STOP_SECONDS = 25.0
_JUST_BEFORE_SECONDS = 0.1  # so long before the end a client may still have been on its way
_JUST_UP_SECONDS = 0.5  # so long after all are up connections from before may still be waiting to be taken
_RUN_DIRECTORY = re.compile(r".*/ridgeline-[0-9a-f]{12}")
_LISTENERS = ("listen", "observe_listen", "admin_listen")
_AT_ONCE = 2


class Deed(StrEnum):
    """One thing to do to a gateway."""

    RELOAD = "SIGHUP to the supervisor"
    RELOAD_CONTROL = "SIGHUP to control"
    HANGUP_SERVING = "SIGHUP to a serving process"
    WRITE = "another configuration"
    WRITE_IN_PIECES = "another configuration in two writes"
    WRITE_NONSENSE = "a configuration that is none"
    END_CONTROL = "SIGTERM to control"
    END_SERVING = "SIGTERM to a serving process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is done in one round; seconds from the start of its process or from when it is up, none before the one before."""

    processes: int
    begins_when_up: bool
    deeds: tuple[tuple[float, Deed], ...]
    stops: tuple[float, ...]  # one or two SIGTERM


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request. Instants are monotonic seconds."""

    sent_at: float
    request_id: str | None = None
    is_whole: bool = False
    told: str = ""  # how it ended otherwise


@dataclass(slots=True, kw_only=True)
class Round:
    """What came of a plan."""

    plan: Plan
    asked: list[Asked] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    up_at: float | None = None  # monotonic seconds; None: its end came first


def draw_plan(dice: Random) -> Plan:
    """Half of the rounds begin with the process, the others when the gateway is up."""
    begins_when_up = dice.random() < 0.5
    now = dice.uniform(0.0, 1.0)
    deeds = []
    for _ in range(dice.randint(0, 4)):
        deeds.append((now, dice.choice(tuple(Deed))))
        now += dice.choice((0.0, dice.uniform(0.0, 0.6)))
    stops = [now + dice.uniform(0.0, 1.0)]
    if dice.random() < 0.3:
        stops.append(stops[0] + dice.uniform(0.0, 0.3))
    return Plan(processes=dice.choice((1, 2)), begins_when_up=begins_when_up, deeds=tuple(deeds), stops=tuple(stops))


async def play(plan: Plan, dice: Random) -> Round:
    """One round."""
    found = Round(plan=plan)
    with tempfile.TemporaryDirectory(prefix="ridgeline-signals-") as folder:
        async with ScriptedWorker(_script) as one, ScriptedWorker(_script) as other:
            config = {"models": [{"name": "tiny", "workers": [one.url, other.url]}], "limits": {"drain_seconds": 10}}
            gateway = Gateway(config, Path(folder), processes=plan.processes, environ={})
            await gateway.start()
            seen: Counter[str] = Counter()
            watching = asyncio.create_task(_watch(gateway, seen, found))
            if plan.begins_when_up:
                await eventually(lambda: found.up_at is not None, _START_SECONDS)
            began_at = time.monotonic()
            clients = [asyncio.create_task(_ask_on(gateway, found.asked, Random(dice.random()))) for _ in range(_CLIENTS)]
            for at, deed in plan.deeds:
                await _sleep_until(began_at + at)
                await _do(gateway, deed, dice)
            for at in plan.stops:
                await _sleep_until(began_at + at)
                with suppress(ProcessLookupError):
                    gateway.supervisor.send_signal(signal.SIGTERM)
            stopped_at = began_at + plan.stops[0]
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    status = await gateway.supervisor.wait()
            except TimeoutError:
                found.faults.append("it still runs")
                gateway.supervisor.kill()
                status = await gateway.supervisor.wait()
            watching.cancel()
            await asyncio.gather(*clients)
            # It looks into those of others, too, whether they have been left; its own is the one that it holds all the time.
            run_directories = {name for name, _ in seen.most_common(1)}
            found.faults += [
                *_of_the_end(gateway, status, found, has_begun=bool(run_directories)),
                *await _left(gateway, run_directories),
                *_lost(found, gateway, stopped_at),
            ]
            if found.faults:
                found.faults.append(f"plan: {plan}; standard error:\n{gateway.stderr}")
    return found


def _script(request: Received) -> Script:
    return paced(6, 0.05) if b'"stream": true' in request.body else [Send(chat_answer("x", usage=usage_of(5, 1)))]


async def _sleep_until(instant: float) -> None:
    await asyncio.sleep(max(0.0, instant - time.monotonic()))


async def _watch(gateway: Gateway, seen: Counter[str], found: Round) -> None:
    """Count how often the supervisor holds which run directory, and note when all was up."""
    while True:
        seen.update(_held_by(gateway.supervisor.pid))
        if found.up_at is None and "ridgeline is up" in gateway.stderr:
            found.up_at = time.monotonic()
        await asyncio.sleep(0.01)


def _held_by(pid: int) -> set[str]:
    with suppress(OSError):
        links = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
        return {link for link in links if _RUN_DIRECTORY.fullmatch(link)}
    return set()


async def _ask_on(gateway: Gateway, asked: list[Asked], dice: Random) -> None:
    """Ask on connections of one request each until the gateway has ended."""
    while gateway.supervisor.returncode is None:
        await asyncio.sleep(dice.uniform(0.0, 0.05))
        try:
            client = await RawClient.connect(gateway.base_url)
        except OSError:
            continue  # nobody listens yet, or any more
        async with client:
            one = Asked(sent_at=time.monotonic())
            streams = dice.random() < 0.5
            try:
                answer = await client.request("POST", CHAT, chat_body(stream=streams), timeout_seconds=20)
            except (OSError, TimeoutError) as error:
                one.told = type(error).__name__
            else:
                ends = b"data: [DONE]\n\n" if streams else b"}"
                one.is_whole = answer.end is End.COMPLETE and answer.status == 200 and answer.body.endswith(ends)
                one.request_id = None if answer.head is None else answer.head.get("x-request-id")
                one.told = answer.end.value if answer.head is None else f"{answer.end.value} {answer.status}"
            asked.append(one)


async def _do(gateway: Gateway, deed: Deed, dice: Random) -> None:
    """Do it if there is somebody to do it to."""
    now = gateway.processes
    match deed:
        case Deed.RELOAD:
            _send(now.supervisor, signal.SIGHUP)
        case Deed.RELOAD_CONTROL:
            _send(now.control, signal.SIGHUP)
        case Deed.HANGUP_SERVING:
            _send(dice.choice(now.serving or (None,)), signal.SIGHUP)
        case Deed.END_CONTROL:
            _send(now.control, signal.SIGTERM)
        case Deed.END_SERVING:
            _send(dice.choice(now.serving or (None,)), signal.SIGTERM)
        case Deed.WRITE | Deed.WRITE_IN_PIECES | Deed.WRITE_NONSENSE:
            gateway.config["limits"] = {**gateway.config["limits"], "token_gap_seconds": dice.randint(10, 99)}
            text = yaml.safe_dump(gateway.config)
            if deed is Deed.WRITE:
                fresh = gateway.config_path.with_suffix(".new")
                fresh.write_text(text)
                fresh.replace(gateway.config_path)
                return
            gateway.config_path.write_text("models: [" if deed is Deed.WRITE_NONSENSE else text[: len(text) // 2])
            await asyncio.sleep(dice.uniform(0.0, 0.2))
            gateway.config_path.write_text(text)


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _of_the_end(gateway: Gateway, status: int, found: Round, *, has_begun: bool) -> list[str]:
    """0; also what a bad file gives where it had not been up, and a signal before there was anything to leave behind."""
    bad = any(deed in (Deed.WRITE_IN_PIECES, Deed.WRITE_NONSENSE) for _, deed in found.plan.deeds)
    allowed = {0, *((2, 78) if bad and found.up_at is None else ())}
    allowed |= set() if has_begun else {-signal.SIGTERM, -signal.SIGHUP}
    faults = [] if status in allowed else [f"exit status {status}, not one of {sorted(allowed)}"]
    return [*faults, *(["a traceback"] if "Traceback" in gateway.stderr else [])]


async def _left(gateway: Gateway, run_directories: set[str]) -> list[str]:
    """Processes, run directories and addresses that should not be there any more."""
    names = {str(gateway.config_path), *run_directories}
    with suppress(TimeoutError):
        await eventually(lambda: not _processes_of(names), 2.0)
    faults = [f"left behind: {line}" for line in _processes_of(names)]
    faults += [f"{path} is still there" for path in sorted(run_directories) if os.path.exists(path)]  # noqa: ASYNC240, PTH110
    for name in _LISTENERS:
        host, _, port = gateway.config[name].rpartition(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, int(port)))
                sock.listen()
            except OSError as error:
                faults.append(f"the address of {name} is not free: {error.strerror}")
    return faults


def _processes_of(names: set[str]) -> list[str]:
    """Command lines of living processes that name one of these."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if names & set(words):
                found.append(" ".join(words))
    return found


def _lost(found: Round, gateway: Gateway, stopped_at: float) -> list[str]:
    """Requests that were there in time and were not served, and served ones without a line in the log."""
    deeds = {deed for _, deed in found.plan.deeds}
    faults = []
    # Connections that nobody has taken when a serving process is told to end wait for the next one; the end may forestall it.
    if Deed.END_SERVING not in deeds and found.up_at is not None and found.up_at < stopped_at - _JUST_UP_SECONDS:
        lost = [one for one in found.asked if not one.is_whole and one.sent_at < stopped_at - _JUST_BEFORE_SECONDS]
        faults += [f"sent {stopped_at - one.sent_at:.2f} s before the end: {one.told}" for one in lost]
    if Deed.END_CONTROL not in deeds:
        logged = Counter(line["request_id"] for line in gateway.log_lines() if "outcome" in line)
        whole = [one.request_id for one in found.asked if one.is_whole]
        faults += [f"{logged[name]} lines for request {name}" for name in whole if name and logged[name] != 1]
    return faults


async def run_rounds(*, seconds: float, seed: int, most: int | None = None) -> list[Round]:
    """Play for so long, at most so many rounds, two at a time."""
    dice = Random(seed)
    ends_at = time.monotonic() + seconds
    rounds: list[Round] = []

    async def play_on() -> None:
        while time.monotonic() < ends_at and (most is None or len(started) < most):
            own = Random(dice.random())
            started.append(draw_plan(own))
            rounds.append(await play(started[-1], own))

    started: list[Plan] = []
    await asyncio.gather(*(play_on() for _ in range(_AT_ONCE)))
    return rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.signals", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rounds = asyncio.run(run_rounds(seconds=options.seconds, seed=options.seed))
    asked = [one for each in rounds for one in each.asked]
    deeds = Counter(deed.value for each in rounds for _, deed in each.plan.deeds)
    print(f"{len(rounds)} gateways, {sum(each.up_at is not None for each in rounds)} of them came up before their end")
    print(f"done to them: {', '.join(f'{count} {name}' for name, count in deeds.most_common())}")
    stops, whole = sum(len(each.plan.stops) for each in rounds), sum(one.is_whole for one in asked)
    print(f"{stops} SIGTERM; {len(asked)} requests, {whole} served")
    bad = [each for each in rounds if each.faults]
    for each in bad:
        print("", *each.faults, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
