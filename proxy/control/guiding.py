"""The part of control that tells serving processes what it has learned: every adviser adds what it knows, once a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from proxy.control.fleet import Fleet
from proxy.control.unwritten import RUN_DIRECTORY, Unwritten
from proxy.published import publish_guidance
from routing.guidance import NO_GUIDANCE, Guidance
from telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0


class Adviser(Protocol):
    """Learns from what has happened and adds to what requests are routed by."""

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn from finished requests."""

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Give back the guidance with this adviser's part, for the fleet as it is now."""


class Guide:
    """One per control process: feeds the advisers and publishes when what they say has changed."""

    def __init__(self, advisers: Sequence[Adviser], run_dir: Path, unwritten: Unwritten | None = None) -> None:
        self._unwritten = unwritten or Unwritten()
        self._advisers = advisers
        self._run_dir = run_dir
        self._published = NO_GUIDANCE

    def __repr__(self) -> str:
        return f"<Guide {self._advisers}>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Let every adviser learn. A fault in one is logged and keeps nothing from the others."""
        for adviser in self._advisers:
            try:
                adviser.take(records)
            except Exception:
                _log.exception("%r did not take its records", adviser)

    async def run(self, fleet: Fleet) -> None:
        """Publish every second until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            self.publish(fleet)

    def publish(self, fleet: Fleet) -> None:
        """Publish now, if there is anything new."""
        guidance = NO_GUIDANCE
        for adviser in self._advisers:
            try:
                guidance = adviser.advise(guidance, fleet)
            except Exception:
                _log.exception("%r gave no advice", adviser)
        if guidance == self._published:
            return
        try:
            publish_guidance(self._run_dir, guidance)
        except OSError as error:
            self._unwritten.failed(RUN_DIRECTORY, "guidance was not published", error)
        else:
            self._unwritten.went_well(RUN_DIRECTORY)
            self._published = guidance
