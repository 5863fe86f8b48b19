"""The part of control that holds finished requests against their limits, and says why those that deviate were slow."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isnan, nan
from statistics import median
from typing import NamedTuple

import msgspec

from proxy.config.deployments import PoolName
from proxy.control.calibrating import Calibrations, has_clean_tpot, has_clean_ttft, key_of
from roofline.calibration.calibration import CalibrationKey
from roofline.deployment import Deployment
from roofline.limits import prefill_limit
from routing.topology import Topology
from telemetry.advice import Advice
from telemetry.advice import Lately as PoolLately
from telemetry.buckets import ATTAINED_BOUNDS
from telemetry.diagnosis import CauseName, Diagnosis, WorkerState, diagnose
from telemetry.judgement import Held, Judgement, Yardstick, judge
from telemetry.labels import LABELS, LENGTH_CLASSES
from telemetry.layout import Layout, slot
from telemetry.prefix_drift import PrefillSeconds
from telemetry.record import Outcome, RequestRecord

_log = logging.getLogger(__name__)

_RECENT = 32  # requests of a worker that its medians are taken over
_LEAST_RECENT = 12  # below, a median says nothing
_PROBES = 256  # changes of a worker's gauges that are remembered: some twenty minutes of them
_STEP = 8  # medians are taken anew after so many

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


class _Probed:
    """What probes have said of a worker's queue and cache: a request may have suffered long before it ended."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=_PROBES)  # instant, waiting, usage; only what changed

    def look(self, unix_seconds: float, waiting: float, kv_usage: float) -> None:
        """Note what is there now."""
        if isnan(waiting) and isnan(kv_usage):
            return
        if not self._seen or self._seen[-1][1:] != (waiting, kv_usage):
            self._seen.append((unix_seconds, waiting, kv_usage))

    def peak(self, since: float) -> tuple[float | None, float | None]:
        """The greatest of each from then on; ``None``: not known."""
        waiting = kv_usage = None
        for at, one, other in reversed(self._seen):
            waiting = one if waiting is None or one > waiting else waiting
            kv_usage = other if kv_usage is None or other > kv_usage else kv_usage
            if at <= since:
                break
        return waiting, kv_usage


class _Lately:
    """What the last requests of one worker had in common."""

    __slots__ = ("attained", "contexts", "medians", "probed", "running", "taken", "usual_context", "usual_running")

    def __init__(self) -> None:
        self.attained: dict[str, deque[float]] = {figure: deque(maxlen=_RECENT) for figure in _ATTAINED}
        self.medians: dict[str, float] = dict.fromkeys(_ATTAINED, nan)
        self.running: deque[float] = deque(maxlen=4 * _RECENT)
        self.contexts: deque[float] = deque(maxlen=4 * _RECENT)
        self.probed = _Probed()
        self.taken = 0
        self.usual_running: float | None = None
        self.usual_context: float | None = None

    def take(self, record: RequestRecord, judgement: Judgement) -> None:
        """Remember one request; what it attained only where others' prompts were not in its way."""
        self.taken += 1
        if (held := judgement.ttft) is not None and has_clean_ttft(record) and not held.is_interval:
            self.attained["ttft"].append(held.attained_ratio)
        if (held := judgement.tpot) is not None and has_clean_tpot(record):
            self.attained["tpot"].append(held.attained_ratio)
        self.running.append(record.beside_decode_requests or 0.0)
        self.contexts.append(float(record.prompt_tokens or 0))

    def slower_ratio(self) -> float | None:
        """Measured over expected, of the figure that lost more; ``None`` if nothing is lost, or nothing known."""
        known = [attained for attained in self.medians.values() if attained > 0.0]
        return 1.0 / min(known) if known and min(known) < 1.0 else None

    def forget_ratios(self) -> None:
        """What was attained until now was measured by another yardstick."""
        for figure, ratios in self.attained.items():
            ratios.clear()
            self.medians[figure] = nan


class _Place(NamedTuple):
    pool_base: int
    worker_base: int
    peers: tuple[str, ...]


class Judge:
    """One per control process. `know` whenever the configuration changes, `adopt` before records; `take` every record."""

    def __init__(self, calibrations: Calibrations | None = None) -> None:
        self.calibrations = Calibrations() if calibrations is None else calibrations
        self._yardsticks: dict[PoolName, Yardstick] = {}
        self._keys: dict[PoolName, CalibrationKey] = {}
        self._cells: memoryview[float] | None = None
        self._places: dict[tuple[str, str, str], _Place] = {}
        self._lately: dict[str, _Lately] = {}
        self._topology: Topology | None = None
        self._pools: dict[PoolName, PoolLately] = {}

    def __repr__(self) -> str:
        return f"<Judge of {len(self._yardsticks)} pools>"

    def know(self, deployments: Mapping[PoolName, Deployment]) -> None:
        """What the workers of each pool are from now on; requests of other pools are not judged."""
        self._keys = {name: key_of(deployment) for name, deployment in deployments.items()}
        self._yardsticks = {
            name: Yardstick(deployment=each, losses=self.calibrations.losses_of(self._keys[name]))
            for name, each in deployments.items()
        }

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
        pools = {(pool.model, pool.name) for pool in topology.pools}
        self._pools = {name: lately for name, lately in self._pools.items() if name in pools}

    def yardstick_of(self, model: str, pool: str) -> Yardstick | None:
        """What the requests of a pool are held against; ``None`` if that is not known."""
        return self._yardsticks.get((model, pool))

    def hardware(self) -> dict[PoolName, str]:
        """What each worker of a pool is, where that is known: "h100-sxm", "4 x h100-sxm"."""
        gpus = {name: each.deployment for name, each in self._yardsticks.items()}
        return {
            name: each.gpu.id if each.parallelism.gpus == 1 else f"{each.parallelism.gpus} x {each.gpu.id}"
            for name, each in gpus.items()
        }

    def prefill_of(self, model: str, pool: str) -> PrefillSeconds | None:
        """Expected prefill at a pool's workers, from tokens and those of them that are cached; ``None`` if not known."""
        yardstick = self._yardsticks.get((model, pool))
        if yardstick is None:
            return None
        deployment, losses = yardstick.deployment, yardstick.losses
        return lambda tokens, cached: (
            prefill_limit(deployment, losses, prompt_tokens=tokens, cached_tokens=cached).expected_seconds
        )

    def look(self, unix_seconds: float) -> None:
        """Note what probes say of every worker now; about once a second."""
        cells = self._cells
        if cells is not None:
            for (_, _, worker), place in self._places.items():
                base = place.worker_base
                lately = self._lately.setdefault(worker, _Lately())
                lately.probed.look(unix_seconds, cells[base + _WAITING], cells[base + _KV_USAGE])

    def take(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Give the records back with their limits and, if they deviate, the causes. A fault of ours leaves one as it was."""
        found = []
        for record in records:
            try:
                found.append(self._judged(record))
                if record.outcome is Outcome.OK and record.worker is not None:
                    self._pools.setdefault((record.model, record.pool), PoolLately()).take(found[-1])
            except Exception:
                _log.exception("request %s could not be judged", record.request_id)
                found.append(record)
        return found

    def advice(self) -> dict[str, tuple[Advice, ...]]:
        """What the recent requests of each pool suggest to set otherwise, by model and pool."""
        return {
            f"{model}/{pool}": lately.advise(self._yardsticks.get((model, pool)))
            for (model, pool), lately in self._pools.items()
        }

    def _judged(self, record: RequestRecord) -> RequestRecord:
        pool, worker = (record.model, record.pool), record.worker
        yardstick = self._yardsticks.get(pool)
        if yardstick is None or worker is None:
            return record
        judgement = judge(record, yardstick)
        if judgement.ttft is judgement.tpot is judgement.e2e is None:
            return record
        lately = self._lately.setdefault(worker, _Lately())
        place = self._places.get((record.model, record.pool, worker))
        has_reference = self.calibrations.has_reference(self._keys[pool])
        diagnoses = diagnose(record, judgement, yardstick, self._state(record, lately, place, has_reference=has_reference))
        if self.calibrations.learn(self._keys[pool], worker, record, judgement, yardstick):
            self._take_references()
        lately.take(record, judgement)
        if lately.taken % _STEP == 0:
            self._renew(lately)
        if place is not None:
            self._count(record, judgement, diagnoses, lately, place)
        return _with_limits(record, judgement, diagnoses)

    def accept(self, worker: str) -> None:
        """Judge all that are like this worker by what it does lately. ``LookupError`` if nothing is known of it."""
        self.calibrations.accept(worker)
        self._take_references()

    def _take_references(self) -> None:
        for pool, yardstick in self._yardsticks.items():
            losses = self.calibrations.losses_of(self._keys[pool])
            if losses is not yardstick.losses:
                self._yardsticks[pool] = replace(yardstick, losses=losses)
                for worker, lately in self._lately.items():
                    if (*pool, worker) in self._places:
                        lately.forget_ratios()  # held against other losses

    def _state(self, record: RequestRecord, lately: _Lately, place: _Place | None, *, has_reference: bool) -> WorkerState:
        usual_running, usual_context = lately.usual_running, lately.usual_context
        own_ratio = lately.slower_ratio() if has_reference else None
        if place is None:
            return WorkerState(own_ratio=own_ratio, usual_running=usual_running, usual_context_tokens=usual_context)
        waiting, kv_usage = lately.probed.peak(record.ended_unix_seconds - (record.e2e_seconds or 0.0))
        return WorkerState(
            waiting_requests=waiting,
            kv_usage_ratio=kv_usage,
            peers_ratio=self._against_peers(lately, place.peers),
            own_ratio=own_ratio,
            usual_running=usual_running,
            usual_context_tokens=usual_context,
        )

    def _against_peers(self, lately: _Lately, peers: tuple[str, ...]) -> float | None:
        """How much slower the worker is lately than the median of its peers, at its own work; ``None`` without any."""
        for figure, own in lately.medians.items():
            others = [
                peer.medians[figure]
                for name in peers
                if (peer := self._lately.get(name)) is not None and not isnan(peer.medians[figure])
            ]
            if others and own > 0.0 and (ratio := median(others) / own) > 1.0:
                return ratio
        return None

    def _renew(self, lately: _Lately) -> None:
        for figure, ratios in lately.attained.items():
            lately.medians[figure] = median(ratios) if len(ratios) >= _LEAST_RECENT else nan
        if len(lately.running) >= _LEAST_RECENT:
            lately.usual_running = median(lately.running)
            lately.usual_context = median(lately.contexts)

    def _count(
        self,
        record: RequestRecord,
        judgement: Judgement,
        diagnoses: tuple[Diagnosis, ...],
        lately: _Lately,
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
            cells[place.worker_base + cell] = lately.medians[figure]


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
