"""Tells serving processes how slow each worker usually is, so that their limits on its silence are no shorter than its work."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.control.fleet import Fleet
from routing.guidance import Guidance, WorkerGuidance
from routing.pace import WorkerPace
from telemetry.record import Outcome, RequestRecord


class PaceAdviser:
    """Learns from the streams that went well."""

    def __init__(self) -> None:
        self._paces: dict[str, WorkerPace] = {}

    def __repr__(self) -> str:
        return f"<PaceAdviser of {len(self._paces)} workers>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn from finished requests."""
        for record in records:
            if record.outcome is Outcome.OK and record.stream and record.worker is not None:
                pace = self._paces.setdefault(record.worker, WorkerPace())
                prompt = None if record.prompt_is_estimate else record.prompt_tokens
                prompt = None if record.is_prefilled_elsewhere else prompt
                pace.take(prompt, record.cached_tokens, record.upstream_ttft_seconds, record.tpot_seconds)

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Add what is known of the workers that are there; others are forgotten."""
        names = {worker.name for worker in fleet.topology.workers}
        self._paces = {name: pace for name, pace in self._paces.items() if name in names}
        workers = dict(guidance.workers)
        for name, pace in self._paces.items():
            if pace.prefill.known is not None or pace.decode.known is not None:
                workers[name] = msgspec.structs.replace(
                    workers.get(name, WorkerGuidance()),
                    prefill_tokens_per_second=pace.prefill.known,
                    decode_tokens_per_second=pace.decode.known,
                )
        return msgspec.structs.replace(guidance, workers=workers)
