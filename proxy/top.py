"""`ridgeline top`: asks a running gateway for its fleet again and again and draws it in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from dashboards.live.shown import Fleet
from dashboards.terminal.screen import screen
from proxy.doctor.asking import ask, open_session
from proxy.doctor.observations import Answer, Failure, plain

_PATIENCE_SECONDS = 5.0
_LINES_AROUND = 14  # headline, findings, heads: what is no worker


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why there is no fleet to show."""

    text: str


def top(url: str, token: str | None, ca: Path | None, *, every_seconds: float, once: bool, console: Console) -> int:
    """Show the fleet until interrupted, or once. Returns the exit status: 1 when it was to be shown once and could not be,
    2 when the file of ``ca`` is none of certificates."""
    try:
        trust = True if ca is None else ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        reason = (
            "it holds no certificate in PEM" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or error
        )
        _complain(f"--ca {ca}: {reason}; name the file of the CA that signed the certificate of admin_tls")
        return 2
    if once:
        seen = asyncio.run(_look_once(url, token, trust))
        if isinstance(seen, Unseen):
            _complain(seen.text)
            return 1
        console.print(screen(seen, most_workers=10_000))
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(url, token, trust, every_seconds, console))
    return 0


def _complain(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)


async def _look_once(url: str, token: str | None, trust: ssl.SSLContext | bool) -> Fleet | Unseen:
    async with open_session() as session:
        reply = await ask(session, url.rstrip("/") + "/api/fleet", _PATIENCE_SECONDS, key=token, tls=trust)
        return fleet_of(reply, url)


async def _watch(url: str, token: str | None, trust: ssl.SSLContext | bool, every_seconds: float, console: Console) -> None:
    drawing = Drawing(lambda: console.height - _LINES_AROUND)
    async with open_session() as session:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                reply = await ask(session, url.rstrip("/") + "/api/fleet", _PATIENCE_SECONDS, key=token, tls=trust)
                live.update(drawing.next(fleet_of(reply, url), monotonic()), refresh=True)
                await asyncio.sleep(every_seconds)


class Drawing:
    """What is on the screen: the last fleet that was seen, and above it for how long it has not been seen any more."""

    def __init__(self, most_workers: Callable[[], int]) -> None:
        self._most_workers = most_workers
        self._last: Fleet | None = None
        self._seen_at = 0.0

    def next(self, seen: Fleet | Unseen, now: float) -> RenderableType:
        """The screen after one more look."""
        if isinstance(seen, Fleet):
            self._last, self._seen_at = seen, now
            return self._fleet(seen)
        lost = Text(seen.text, style="bold red")
        if self._last is None:
            return lost
        age = Text(f"what follows is {now - self._seen_at:.0f} s old", style="red")
        return Group(lost, age, Text(), self._fleet(self._last))

    def _fleet(self, fleet: Fleet) -> Group:
        return screen(fleet, most_workers=max(3, self._most_workers()))


def fleet_of(reply: Answer | Failure, url: str) -> Fleet | Unseen:
    """The fleet in an answer, or why there is none and what to do about it."""
    where = plain(url)
    if reply is Failure.UNTRUSTED:
        return Unseen(
            f"the certificate at {where} is not trusted for that name: name the file of its CA with --ca FILE, "
            "and a host that the certificate names with --url"
        )
    if reply is Failure.BROKEN and url.lower().startswith("http://"):
        return Unseen(f"{where} does not answer in plain HTTP: with admin_tls its URL begins with https://; --url")
    if isinstance(reply, Failure):
        return Unseen(
            f"no gateway answers at {where} ({reply.name.lower()}): is it running, and is this its admin_listen? --url"
        )
    if reply.status in {401, 403}:
        return Unseen(f"{where} answers {reply.status}: it wants its admin token in RIDGELINE_ADMIN_TOKEN, or another --url")
    if reply.status != 200:
        return Unseen(f"{where} answers {reply.status} to /api/fleet: this is not the admin listener of a gateway; --url")
    try:
        return msgspec.json.decode(reply.body, type=Fleet)
    except msgspec.DecodeError as error:
        return Unseen(f"{where} is a gateway of another version: {plain(str(error))}")
