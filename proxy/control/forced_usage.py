"""Which workers may send usage to everybody in a way that only a stream without the question tells: an adviser, by version."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from proxy.control.fleet import Fleet
from routing.guidance import Guidance, WorkerGuidance
from telemetry.record import RequestRecord

_NUMBERS = re.compile(r"(\d{1,4})\.(\d{1,4})")
_FIRST, _ENDED = (0, 11), (0, 22)  # 0.10 forces it only on who sends stream_options; 0.22 puts it into every event


def leaves_it_open(version: str) -> bool:
    """Whether a vLLM of this version may have been told to send usage in the last event, asked or not."""
    found = _NUMBERS.match(version)
    return found is not None and _FIRST <= (int(found[1]), int(found[2])) < _ENDED


class UsageAdviser:
    """Learns from versions alone."""

    def __repr__(self) -> str:
        return "<UsageAdviser>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Requests teach it nothing."""

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Name the run of each worker that has to be tried, for it may have other flags after another start."""
        workers = dict(guidance.workers)
        for name, (version, started) in fleet.engine_runs().items():
            if leaves_it_open(version):
                told = workers.get(name, WorkerGuidance())
                workers[name] = msgspec.structs.replace(told, usage_trial=f"{version} {started}")
        return msgspec.structs.replace(guidance, workers=workers)
