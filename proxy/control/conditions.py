"""Tells when serving processes begin and cease to leave a worker out, which they never write down themselves."""

from __future__ import annotations

import asyncio
import logging

from proxy.control.view import GatewayView
from routing.health import Condition

_log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0

_WHY = {
    Condition.ERRORS: "its requests fail, or no connection can be made",
    Condition.SILENCE: "it takes requests and says nothing",
}


class ConditionWatch:
    """One per control process."""

    def __init__(self, view: GatewayView) -> None:
        self._view = view
        self._left_out: dict[str, Condition] = {}

    def __repr__(self) -> str:
        return f"<ConditionWatch, left out: {list(self._left_out)}>"

    async def run(self) -> None:
        """Look every second until cancelled. A fault of ours in one look is logged and does not end it."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                self.look()
            except Exception:
                _log.exception("the conditions of the workers could not be read")

    def look(self) -> None:
        """Write a line for each worker that is left out for another reason than at the last look, or not any more."""
        before = self._left_out
        conditions = self._view.conditions()
        self._left_out = {name: condition for name, (condition, count) in conditions.items() if count}
        for name, condition in self._left_out.items():
            if before.get(name) is not condition:
                _log.warning("worker %s gets no new requests: %s", name, _WHY[condition])
        for name in before:
            if name in conditions and name not in self._left_out:
                _log.info("worker %s gets requests again", name)
