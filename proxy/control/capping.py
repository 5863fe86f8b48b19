"""How much each worker should be given, which control tells serving processes: the limits model, applied to the fleet as it is.

Tokens follow the KV cache: as the worker's own metrics page gives its size, or as the GPU and the shape of the model say.
Requests follow the knee at the mean context of what the pool has been asked lately, where GPU and shape are known. Where
nothing is known, nothing is said; nor is it before the pool has had some requests, since it depends on what they are like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, floor, log
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proxy.config.deployments import PoolName, deployments_of
from proxy.config.settings import Config
from proxy.control.fleet import Fleet
from roofline.capacity.admission import cap_requests, cap_tokens
from roofline.expected import DEFAULT_LOSSES
from routing.guidance import Guidance, WorkerGuidance
from telemetry.record import RequestRecord

if TYPE_CHECKING:
    from roofline.deployment import Deployment

_LEAST_REQUESTS = 20  # before a mean means something
_MEMORY_REQUESTS = 500  # over which the mean is taken
_STEP = log(1.05)  # caps move in steps of 5 %, or every request would change them
_LOSSES = DEFAULT_LOSSES["vllm"]


class Usual:
    """What a pool's recent requests are like, on average: their context, and what they counted for in flight."""

    __slots__ = ("_budget", "_context", "_count")

    def __init__(self) -> None:
        self._count = 0
        self._context = 0.0
        self._budget = 0.0

    def __repr__(self) -> str:
        return f"<Usual {self._context:.0f} tokens of context, {self._budget:.0f} of budget, {self._count} requests>"

    def add(self, context_tokens: float, budget_tokens: float) -> None:
        """Take one request in: the prompt and half of the completion, and the prompt and output budget it was counted with."""
        self._count += 1
        share = 1 / min(self._count, _MEMORY_REQUESTS)
        self._context += (context_tokens - self._context) * share
        self._budget += (budget_tokens - self._budget) * share

    @property
    def context_tokens(self) -> float | None:
        """The mean context; ``None`` while too few are known."""
        return self._context if self._count >= _LEAST_REQUESTS and self._context > 0 else None

    @property
    def budget_per_context(self) -> float | None:
        """By how much budgets overstate contexts, at least 1; ``None`` while too few are known."""
        return max(1.0, self._budget / self._context) if self.context_tokens is not None else None


class CapAdviser:
    """One per control process. ``read_config`` gives the configuration in force, ``directory`` is where its paths begin."""

    def __init__(self, read_config: Callable[[], Config], directory: Path) -> None:
        self._read_config = read_config
        self._directory = directory
        self._config: Config | None = None
        self._deployments: Mapping[PoolName, Deployment] = {}
        self._usual: dict[tuple[str, str], Usual] = {}

    def __repr__(self) -> str:
        return f"<CapAdviser {self._usual}>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn what requests are like."""
        for record in records:
            prompt, completion, budget = record.prompt_tokens, record.completion_tokens, record.load_tokens
            if record.worker is not None and prompt is not None and completion is not None and budget is not None:
                usual = self._usual.get((record.model, record.pool))
                if usual is None:
                    usual = self._usual[record.model, record.pool] = Usual()
                usual.add(prompt + completion / 2, budget)

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Add the caps of each worker of a pool that wants them derived."""
        config = self._read_config()
        if config is not self._config:
            self._config = config
            self._deployments = deployments_of(config, self._directory)
        pools = {(pool.model, pool.name) for pool in fleet.topology.pools}
        self._usual = {where: usual for where, usual in self._usual.items() if where in pools}
        workers, told = dict(guidance.workers), fleet.kv_tokens()
        for pool in fleet.topology.pools:
            where = (pool.model, pool.name)
            usual = self._usual.get(where)
            if not pool.admission.derives or usual is None or usual.context_tokens is None:
                continue
            deployment = self._deployments.get(where)
            requests = None
            if deployment is not None:
                requests = _steady(cap_requests(deployment, _LOSSES, round(usual.context_tokens)))
            computed = _kv_tokens(deployment)
            for worker in pool.workers:
                kv_tokens = told.get(worker.name) or computed
                if kv_tokens or requests:
                    workers[worker.name] = msgspec.structs.replace(
                        workers.get(worker.name, WorkerGuidance()),
                        max_requests=requests,
                        max_tokens=_steady(cap_tokens(kv_tokens, usual.budget_per_context or 1.0)) if kv_tokens else None,
                    )
        return msgspec.structs.replace(guidance, workers=workers)


def _steady(cap: float) -> float:
    """The cap in steps, a whole number and at least 1."""
    return float(max(1, round(exp(floor(log(max(cap, 1.0)) / _STEP + 1e-9) * _STEP))))


def _kv_tokens(deployment: Deployment | None) -> float | None:
    if deployment is None:
        return None
    from roofline.capacity.memory import memory_budget  # noqa: PLC0415 - only for those who name a GPU

    try:
        return float(memory_budget(deployment).tokens()) or None
    except ValueError:  # the GPU's memory is not known
        return None
