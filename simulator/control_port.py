"""The control port of a simulated worker, on loopback only: faults at run time.

``GET /faults`` tells what is in force and how many requests it has hit, ``PUT /faults`` takes a JSON object as
`simulator.faults.Faults` has it and replaces all faults, ``DELETE /faults`` ends them. ``DELETE /prefixes`` empties the prefix
cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from simulator.faults import NO_FAULTS, Faults, read_faults
from simulator.sockets import Reply, Request
from simulator.wire.common import encode

if TYPE_CHECKING:
    from simulator.server import RunningWorker

_HEADERS = [("content-type", "application/json")]


class ControlPort:
    """The handler of the control port's requests."""

    def __init__(self, running: RunningWorker) -> None:
        self._running = running
        self._changes: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<ControlPort of {self._running!r}>"

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        match request.path, request.method:
            case "/faults", "GET":
                self._tell(reply)
            case "/faults", "PUT":
                try:
                    faults = read_faults(request.body)
                except ValueError as error:
                    reply.answer(400, encode({"error": str(error)}), _HEADERS)
                else:
                    self._start(self._change(faults, reply))
            case "/faults", "DELETE":
                self._start(self._change(NO_FAULTS, reply))
            case "/prefixes", "DELETE":
                self._running.worker.forget_prefixes()
                self._tell(reply)
            case ("/faults", _) | ("/prefixes", _):
                allowed = "DELETE, GET, PUT" if request.path == "/faults" else "DELETE"
                reply.answer(405, encode({"error": f"use {allowed}"}), [("allow", allowed), *_HEADERS])
            case _:
                reply.answer(404, encode({"error": "there are /faults and /prefixes here"}), _HEADERS)

    async def _change(self, faults: Faults, reply: Reply) -> None:
        try:
            await self._running.apply(faults)
        except OSError as error:
            reply.answer(409, encode({"error": f"the worker's port cannot be had again: {error.strerror}"}), _HEADERS)
        else:
            self._tell(reply)

    def _tell(self, reply: Reply) -> None:
        switch = self._running.worker.switch
        found = {"faults": switch.faults.as_object(), "requests_seen": switch.seen, "requests_hit": switch.hit}
        reply.answer(200, encode(found), _HEADERS)

    def _start(self, change: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
