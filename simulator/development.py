"""The control endpoints that vLLM has in development mode: pausing, aborting requests, emptying the prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.answering import Answering
from simulator.answers import Answers, json_body
from simulator.drive import Driver
from simulator.sockets import Handler, Reply, Request
from simulator.wire import small as wire_small


class DevelopmentEndpoints:
    """Their handlers; ``running`` are the answers that have not ended, by request id, and changes from outside."""

    def __init__(
        self, driver: Driver, running: Mapping[str, Answering], forget_prefixes: Callable[[], None], answers: Answers
    ) -> None:
        self._driver = driver
        self._running = running
        self._forget_prefixes = forget_prefixes
        self._answers = answers

    def __repr__(self) -> str:
        return f"<DevelopmentEndpoints of {self._driver!r}>"

    def routes(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/pause": {"POST": self._pause},
            "/resume": {"POST": self._resume},
            "/is_paused": {"GET": self._is_paused},
            "/abort_requests": {"POST": self._abort_requests},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
        }

    def _pause(self, request: Request, reply: Reply) -> None:
        self._driver.engine.is_paused = True
        self._answers.give(request, reply, 200, b'{"status":"paused"}')

    def _resume(self, request: Request, reply: Reply) -> None:
        self._driver.engine.is_paused = False
        self._driver.wake()
        self._answers.give(request, reply, 200, b'{"status":"resumed"}')

    def _is_paused(self, request: Request, reply: Reply) -> None:
        self._answers.give(request, reply, 200, wire_small.flag_body("is_paused", self._driver.engine.is_paused))

    def _abort_requests(self, request: Request, reply: Reply) -> None:
        wanted = wire_small.read_request_ids(json_body(request))
        found = [one for key, one in self._running.items() if wanted & {key, f"chatcmpl-{key}", f"cmpl-{key}"}]
        for answering in found:
            answering.abort()
        self._answers.give(request, reply, 200, wire_small.aborted_body(len(found)))

    def _reset_prefix_cache(self, request: Request, reply: Reply) -> None:
        self._forget_prefixes()
        self._answers.give(request, reply, 200, b'{"success":true}')
