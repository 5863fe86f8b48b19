"""The part of control that holds finished requests against their limits, and says why those that deviate were slow."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from proxy.config.deployments import PoolName
from proxy.control.calibrating import Calibrations
from proxy.control.lately import SHOWN, Lately
from proxy.control.standards import Standard, Standards
from proxy.control.steady_clock import SteadyClock
from roofline.deployment import Deployment
from roofline.limits import prefill_limit
from routing.topology import Topology
from telemetry.advice import Advice
from telemetry.advice import Lately as PoolLately
from telemetry.buckets import ATTAINED_BOUNDS
from telemetry.causes import CauseName, Usual, WorkerState
from telemetry.diagnosis import Diagnosis, diagnose
from telemetry.gpus_lately import GpusLately
from telemetry.judgement import Held, Judgement, judge
from telemetry.labels import LABELS, LENGTH_CLASSES
from telemetry.layout import Layout, slot
from telemetry.prefix_drift import PrefillSeconds
from telemetry.record import Outcome, RequestRecord

_log = logging.getLogger(__name__)

_LENGTH_BOUNDS = tuple(LENGTH_CLASSES.values())
_TTFT, _TPOT = (
    [slot(f"ridgeline_{figure}_attained_ratio", length=name) for name in LENGTH_CLASSES] for figure in ("ttft", "tpot")
)
_E2E = slot("ridgeline_e2e_attained_ratio")
_SUM = len(ATTAINED_BOUNDS) + 1
_DEVIATIONS = {
    (figure, cause): slot("ridgeline_deviations_total", figure=figure, cause=cause)
    for figure in LABELS["figure"]
    for cause in CauseName
}
_DEVIATION_SECONDS: dict[str, int] = {
    cause.value: slot("ridgeline_deviation_seconds_total", cause=cause) for cause in CauseName if cause is not CauseName.FACTS
}
_BEATEN = {figure: slot("ridgeline_floor_beaten_total", figure=figure) for figure in ("ttft", "tpot")}
_ATTAINED = {figure: slot("ridgeline_worker_attained_ratio", figure=figure) for figure in ("ttft", "tpot")}
_WAITING, _KV_USAGE = slot("ridgeline_worker_waiting_requests"), slot("ridgeline_worker_kv_usage_ratio")


class _Place(NamedTuple):
    pool_base: int
    worker_base: int
    peers: tuple[str, ...]


class Judge:
    """One per control process. `know` whenever the configuration changes, `adopt` before records; `take` every record."""

    def __init__(self, calibrations: Calibrations | None = None, clock: SteadyClock | None = None) -> None:
        self.calibrations = Calibrations() if calibrations is None else calibrations
        self._clock = clock or SteadyClock()
        self.standards = Standards(self.calibrations)
        self._cells: memoryview[float] | None = None
        self._places: dict[tuple[str, str, str], _Place] = {}
        self._lately: dict[str, Lately] = {}
        self._topology: Topology | None = None
        self._pools: dict[PoolName, PoolLately] = {}
        self._revised: list[RequestRecord] = []
        self.gpus: Mapping[str, GpusLately] = {}  # by worker, of those whose GPUs are seen

    def __repr__(self) -> str:
        return f"<Judge by {self.standards}>"

    def know(self, deployments: Mapping[PoolName, Deployment]) -> None:
        """What the workers of each pool are from now on; requests of other pools are not judged."""
        self.standards.know(deployments)

    def adopt(self, topology: Topology, cells: memoryview[float]) -> None:
        """Count in these cells, which are laid out for this topology. Cheap when nothing has changed."""
        if topology is self._topology:
            return
        self._topology = topology
        layout = Layout.of(topology)
        self._cells = cells
        self._places = {
            (pool.model, pool.name, worker.name): _Place(
                layout.pool_base(pool.index),
                layout.worker_base(worker.index),
                tuple(other.name for other in pool.workers if other is not worker),
            )
            for pool in topology.pools
            for worker in pool.workers
        }
        names = {worker.name for worker in topology.workers}
        self._lately = {name: lately for name, lately in self._lately.items() if name in names}
        self.calibrations.keep_only(names)
        self.standards.adopt(topology)
        pools = {(pool.model, pool.name) for pool in topology.pools}
        self._pools = {name: lately for name, lately in self._pools.items() if name in pools}

    def prefill_of(self, model: str, pool: str) -> PrefillSeconds | None:
        """Expected prefill at a pool's workers, from tokens and those of them that are cached; ``None`` if not known."""
        standard = self.standards.of_pool(model, pool)
        if standard is None:
            return None
        deployment, losses = standard.yardstick.deployment, standard.yardstick.losses
        return lambda tokens, cached: (
            prefill_limit(deployment, losses, prompt_tokens=tokens, cached_tokens=cached).expected_seconds
        )

    def look(self) -> None:
        """Note what probes say of every worker now; about once a second."""
        self.calibrations.look()
        cells, now = self._cells, self._clock.now()
        if cells is not None:
            for (_, _, worker), place in self._places.items():
                base = place.worker_base
                lately = self._lately.get(worker)
                if lately is None:
                    lately = self._lately[worker] = Lately()
                lately.probed.look(now, cells[base + _WAITING], cells[base + _KV_USAGE])

    def take(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Give the records back with their limits and, if they deviate, the causes. A fault of ours leaves one as it was."""
        found = []
        for record in records:
            try:
                found.append(self._judged(record))
                if record.outcome is Outcome.OK and record.worker is not None:
                    self._lately_of(record.model, record.pool).take(found[-1])
            except Exception:
                _log.exception("request %s could not be judged", record.request_id)
                found.append(record)
        return found

    def _lately_of(self, model: str, pool: str) -> PoolLately:
        known = self._pools.get((model, pool))
        if known is None:
            known = self._pools[model, pool] = PoolLately()
        return known

    def advice(self) -> dict[str, tuple[Advice, ...]]:
        """What the recent requests of each pool suggest to set otherwise, by model and pool."""
        return {
            f"{model}/{pool}": lately.advise(None if standard is None else standard.yardstick)
            for (model, pool), lately in self._pools.items()
            for standard in (self.standards.of_pool(model, pool),)
        }

    def _judged(self, record: RequestRecord) -> RequestRecord:
        worker = record.worker
        standard = None if worker is None else self.standards.of(record.model, record.pool, worker)
        if standard is None or worker is None:
            return record
        yardstick = standard.yardstick
        judgement = judge(record, yardstick)
        if judgement.ttft is judgement.tpot is judgement.e2e is None:
            return record
        lately = self._lately.get(worker)
        if lately is None:
            lately = self._lately[worker] = Lately()
        if lately.standard is not standard:
            lately.measure_by(standard)
        place = self._places.get((record.model, record.pool, worker))
        diagnoses = self._diagnosed(record, judgement, lately, place, standard)
        if self.calibrations.learn(standard.key, worker, record, judgement, yardstick):
            self.standards.renew()
        if diagnoses and diagnoses[0].causes[0].name == CauseName.UNEXPLAINED:
            lately.puzzle(record, judgement)
        if lately.take(record, judgement) and lately.puzzles:
            self._reconsider(lately, place, standard)
        if place is not None:
            self._count(record, judgement, diagnoses, lately, place)
        return _with_limits(record, judgement, diagnoses)

    def revised(self) -> list[RequestRecord]:
        """Records given back earlier whose causes are known better by now, each once. To be asked after each `take`."""
        revised, self._revised = self._revised, []
        return revised

    def _diagnosed(
        self, record: RequestRecord, judgement: Judgement, lately: Lately, place: _Place | None, standard: Standard
    ) -> tuple[Diagnosis, ...]:
        usual = Usual(lately.usual_running, lately.usual_context)
        return diagnose(record, judgement, standard.yardstick, usual, lambda: self._state(record, lately, place, standard))

    def _reconsider(self, lately: Lately, place: _Place | None, standard: Standard) -> None:
        """The first slow requests of a worker come before its medians tell that it is slow: they are explained by it, too."""
        for puzzle in lately.open_puzzles():
            diagnoses = self._diagnosed(puzzle.record, puzzle.judgement, lately, place, standard)
            if diagnoses and diagnoses[0].causes[0].name != CauseName.UNEXPLAINED:
                lately.puzzles.remove(puzzle)
                self._revised.append(_with_limits(puzzle.record, puzzle.judgement, diagnoses))

    def accept(self, worker: str) -> None:
        """Judge all that are like this worker by what it does lately. ``LookupError`` if nothing is known of it."""
        self.calibrations.accept(worker)
        self.standards.renew()

    def _state(self, record: RequestRecord, lately: Lately, place: _Place | None, standard: Standard) -> WorkerState:
        own_ratio = lately.slower_ratio() if standard.has_reference else None
        if place is None:
            return WorkerState(own_ratio=own_ratio)
        began = self._clock.at(record.ended_unix_seconds) - (record.e2e_seconds or 0.0)
        waiting, kv_usage = lately.probed.peak(began)
        peers = (peer for name in place.peers if (peer := self._lately.get(name)) is not None)
        gpus = self.gpus.get(record.worker or "")
        alike = [self.gpus[name] for name in place.peers if name in self.gpus] if gpus is not None else []
        return WorkerState(
            waiting_requests=waiting,
            kv_usage_ratio=kv_usage,
            peers_ratio=lately.slower_than(peers),
            own_ratio=own_ratio,
            clock_ratio=None if gpus is None else gpus.clock_ratio(began, alike),
            clock_is_limited=gpus is not None and gpus.is_limited(began),
            dram_active_ratio=None if gpus is None else gpus.dram_active_ratio(began),
        )

    def _count(
        self,
        record: RequestRecord,
        judgement: Judgement,
        diagnoses: tuple[Diagnosis, ...],
        lately: Lately,
        place: _Place,
    ) -> None:
        cells = self._cells
        if cells is None:
            return
        length = bisect_left(_LENGTH_BOUNDS, record.prompt_tokens or 0)
        for held, first in (
            (judgement.ttft, _TTFT[length]),
            (judgement.tpot, _TPOT[length]),
            (judgement.e2e, _E2E),
        ):
            if held is not None and not held.is_interval:
                ratio = held.attained_ratio
                cells[place.pool_base + first + bisect_left(ATTAINED_BOUNDS, ratio)] += 1
                cells[place.pool_base + first + _SUM] += ratio
        for figure, held in (("ttft", judgement.ttft), ("tpot", judgement.tpot)):
            if held is not None and held.floor_ratio < 1.0:
                cells[place.worker_base + _BEATEN[figure]] += 1
        for diagnosis in diagnoses:
            cells[place.pool_base + _DEVIATIONS[diagnosis.figure, CauseName(diagnosis.causes[0].name)]] += 1
            for cause in diagnosis.causes:
                if (cell := _DEVIATION_SECONDS.get(cause.name)) is not None:
                    cells[place.pool_base + cell] += cause.seconds
        for figure, cell in _ATTAINED.items():
            cells[place.worker_base + cell] = lately.medians[SHOWN[figure]]


def _with_limits(record: RequestRecord, judgement: Judgement, diagnoses: tuple[Diagnosis, ...]) -> RequestRecord:
    figures: dict[str, float | None] = {}
    for name, held in zip(judgement._fields, judgement, strict=True):
        if isinstance(held, Held):
            figures[f"{name}_floor_seconds"] = held.floor_seconds
            figures[f"{name}_reference_seconds"] = held.reference_seconds
            figures[f"{name}_expected_seconds"] = held.expected_seconds
    return msgspec.structs.replace(
        record,
        **figures,
        deviations=tuple(diagnosis.figure for diagnosis in diagnoses),
        causes=diagnoses[0].causes if diagnoses else (),
    )
