"""What the requests of each worker are held against: the deployment of its pool, and the reference of its engine's version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from proxy.config.deployments import PoolName
from proxy.control.calibrating import UNKNOWN_VERSION, Calibrations, key_of
from roofline.calibration.calibration import CalibrationKey
from roofline.deployment import Deployment
from routing.topology import Topology
from telemetry.judgement import Yardstick


class Standard(NamedTuple):
    """What all workers of one pool that run the same version of the engine are held against."""

    key: CalibrationKey
    yardstick: Yardstick
    has_reference: bool  # what they are judged by is what such workers did themselves


class Standards:
    """One per control process. A standard stays the same object for as long as nothing about it changes."""

    def __init__(self, calibrations: Calibrations) -> None:
        self._calibrations = calibrations
        self._deployments: Mapping[PoolName, Deployment] = {}
        self._versions: dict[str, str] = {}
        self._workers: dict[PoolName, tuple[str, ...]] = {}
        self._standards: dict[tuple[PoolName, str], Standard] = {}
        self._of_worker: dict[tuple[str, str, str], Standard | None] = {}  # by model, pool and worker
        self._of_pool: dict[PoolName, Standard | None] = {}

    def __repr__(self) -> str:
        return f"<Standards of {len(self._deployments)} pools, {len(self._standards)} in use>"

    def know(self, deployments: Mapping[PoolName, Deployment]) -> None:
        """What the workers of each pool are from now on; there is none of other pools."""
        self._deployments = dict(deployments)
        self._standards = {
            which: standard
            for which, standard in self._standards.items()
            if (now := deployments.get(which[0])) is not None and _facts(now) == _facts(standard.yardstick.deployment)
        }
        self._forget()

    def know_versions(self, versions: Mapping[str, str]) -> None:
        """Which version of the engine workers run, as far as they have said so; the others run what they ran.

        Cheap when nothing has changed.
        """
        if versions.items() <= self._versions.items():
            return
        self._versions.update(versions)
        self._forget()

    def adopt(self, topology: Topology) -> None:
        """Which workers each pool has; what others ran is forgotten."""
        names = {worker.name for worker in topology.workers}
        self._versions = {name: version for name, version in self._versions.items() if name in names}
        self._workers = {(pool.model, pool.name): tuple(worker.name for worker in pool.workers) for pool in topology.pools}
        self._forget()

    def version_of(self, worker: str) -> str | None:
        """The version that a worker runs; ``None`` if it has not said so."""
        return self._versions.get(worker)

    def of(self, model: str, pool: str, worker: str) -> Standard | None:
        """That of one worker; ``None`` if GPU or shape are not known."""
        which = (model, pool, worker)
        try:
            return self._of_worker[which]
        except KeyError:
            found = self._of_worker[which] = self._find((model, pool), self._versions.get(worker, UNKNOWN_VERSION))
            return found

    def of_pool(self, model: str, pool: str) -> Standard | None:
        """That of most of a pool's workers; ``None`` if GPU or shape are not known."""
        name = (model, pool)
        if name not in self._of_pool:
            versions = Counter(self._versions.get(worker, UNKNOWN_VERSION) for worker in self._workers.get(name, ()))
            (version, _), *_ = versions.most_common(1) or [(UNKNOWN_VERSION, 0)]
            self._of_pool[name] = self._find(name, version)
        return self._of_pool[name]

    def hardware(self) -> dict[PoolName, str]:
        """What each worker of a pool is, where that is known: "h100-sxm", "4 x h100-sxm"."""
        return {
            name: each.gpu.id if each.parallelism.gpus == 1 else f"{each.parallelism.gpus} x {each.gpu.id}"
            for name, each in self._deployments.items()
        }

    def renew(self) -> None:
        """Take up references that have been accepted meanwhile."""
        for which, standard in self._standards.items():
            losses = self._calibrations.losses_of(standard.key)
            if losses is not standard.yardstick.losses:
                self._standards[which] = _standard(standard.key, standard.yardstick.deployment, self._calibrations)
        self._forget()

    def _find(self, pool: PoolName, version: str) -> Standard | None:
        deployment = self._deployments.get(pool)
        if deployment is None:
            return None
        which = (pool, version)
        if which not in self._standards:
            key = key_of(deployment, version)
            self._calibrations.inherit(key)
            self._standards[which] = _standard(key, deployment, self._calibrations)
        return self._standards[which]

    def _forget(self) -> None:
        """Who has which is to be found anew."""
        self._of_worker = {}
        self._of_pool = {}


def _facts(deployment: Deployment) -> tuple[object, ...]:
    """All that a deployment is made of."""
    return deployment.shape, deployment.gpu, deployment.weights, deployment.kv, deployment.parallelism


def _standard(key: CalibrationKey, deployment: Deployment, calibrations: Calibrations) -> Standard:
    yardstick = Yardstick(deployment=deployment, losses=calibrations.losses_of(key))
    return Standard(key, yardstick, calibrations.has_reference(key))
