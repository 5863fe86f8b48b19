"""The part of control that watches how prompts begin: what hit each could expect, what lost it, and texts that have changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from proxy.control.steady_clock import SteadyClock
from routing.topology import Topology
from telemetry.layout import Layout, slot
from telemetry.prefix_drift import LEAST_FOLLOWERS, Drift, DriftKind, Lost, Observation, PrefillSeconds, PrefixDrifts
from telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

_DRIFT = {kind: slot("ridgeline_prefix_drift_total", kind=kind) for kind in DriftKind}
_LOST = {reason: slot("ridgeline_cache_lost_total", reason=reason) for reason in Lost}
_MISSED = slot("ridgeline_prefix_drift_missed_seconds_total")
_RESTARTS = slot("ridgeline_worker_restarts_total")


@dataclass(slots=True)
class _Restarts:
    """A worker's count of restarts, as last seen."""

    base: int
    count: float


class DriftWatch:
    """One per control process. `adopt` before records, `look` about once a second; `take` every record, before it is judged.

    ``prefill_of`` gives the expected prefill of a pool, if that is known.
    """

    def __init__(
        self,
        prefill_of: Callable[[str, str], PrefillSeconds | None] = lambda _model, _pool: None,
        clock: SteadyClock | None = None,
    ) -> None:
        self._prefill_of = prefill_of
        self._clock = clock or SteadyClock()
        self._families = PrefixDrifts()
        self._topology: Topology | None = None
        self._cells: memoryview[float] | None = None
        self._pools: dict[tuple[str, str], int] = {}
        self._restarts: dict[str, _Restarts] = {}

    def __repr__(self) -> str:
        return f"<DriftWatch {self._families}>"

    def adopt(self, topology: Topology, cells: memoryview[float]) -> None:
        """Count in these cells, which are laid out for this topology. Cheap when nothing has changed."""
        if topology is self._topology:
            return
        self._topology, self._cells = topology, cells
        layout = Layout.of(topology)
        self._pools = {(pool.model, pool.name): layout.pool_base(pool.index) for pool in topology.pools}
        before = self._restarts
        self._restarts = {}
        for worker in topology.workers:
            base = layout.worker_base(worker.index)
            known = before.get(worker.name)
            self._restarts[worker.name] = _Restarts(base, cells[base + _RESTARTS] if known is None else known.count)

    def look(self) -> None:
        """Note which workers have been restarted since the last look: what they had cached is gone."""
        cells = self._cells
        if cells is None:
            return
        for name, restarts in self._restarts.items():
            count = cells[restarts.base + _RESTARTS]
            if count != restarts.count:
                restarts.count = count
                self._families.note_restart(name, self._clock.now())

    def take(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Give the records back with what hit they could expect, and why they did not get it."""
        found = []
        for record in records:
            try:
                found.append(self._watched(record))
            except Exception:
                _log.exception("the beginning of request %s could not be looked at", record.request_id)
                found.append(record)
        return found

    def drifts(self) -> list[Drift]:
        """All that are told, the latest last; instants are those of the steady clock."""
        return self._families.drifts()

    def view(self) -> list[Drift]:
        """The same for people: by the wall clock as it goes now."""
        shift = self._clock.set_by_seconds
        return [msgspec.structs.replace(one, since=one.since + shift, until=one.until + shift) for one in self.drifts()]

    def _watched(self, record: RequestRecord) -> RequestRecord:
        beginning, worker, prompt = record.beginning, record.prefix_worker, record.prompt_tokens
        if beginning is None or worker is None or prompt is None or record.prompt_is_estimate or record.is_batch:
            return record
        observation = Observation(
            at=self._clock.at(record.ended_unix_seconds),
            model=record.model,
            key=record.key,
            worker=worker,
            family=beginning.family,
            length_bytes=beginning.length_bytes,
            sketch=beginning.sketch,
            prompt_tokens=prompt,
            cached_tokens=record.cached_tokens,
            is_salted=beginning.is_salted,
        )
        missed_before = self._families.missed_seconds
        expected, lost = self._families.expected_cached_tokens(observation), self._families.lost(observation)
        # What a miss costs at a prefill stage is not known: it may have other GPUs than the pool.
        prefill = None if record.is_prefilled_elsewhere else self._prefill_of(record.model, record.pool)
        drift = self._families.observe(observation, prefill)
        base = self._pools.get((record.model, record.pool))
        if base is not None and self._cells is not None:
            self._cells[base + _MISSED] += self._families.missed_seconds - missed_before
            if lost is not None:
                self._cells[base + _LOST[lost]] += 1
            if drift is not None and drift.requests == LEAST_FOLLOWERS:
                self._cells[base + _DRIFT[drift.kind]] += 1
                _tell(drift)
        if expected is None and lost is None:
            return record
        return msgspec.structs.replace(record, expected_cached_tokens=expected, cache_lost=lost)


def _tell(drift: Drift) -> None:
    _log.warning(
        "the system prompt of requests to %s has changed: %s near byte %d, %+d bytes; keys: %s",
        drift.model,
        drift.kind,
        drift.position_bytes,
        drift.change_bytes,
        ", ".join(name or "none" for name in drift.keys),
    )
