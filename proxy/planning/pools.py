"""The pools of a gateway's configuration as workers to plan: one for each pool whose GPU is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proxy.config.pools import ModelConfig, PoolConfig
from proxy.config.settings import load_config
from roofline.deployment import Deployment
from roofline.gpu import Gpu
from roofline.gpu_given import resolve_gpu
from roofline.models.known import KnownModel
from roofline.written import Written, deployment_of
from simulator.model_files import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """One pool and what each of its workers is."""

    title: str
    model: KnownModel
    weight_dtype: str | None
    deployment: Deployment
    workers: int


def pools_of(path: Path, environ: Mapping[str, str], *, total_tokens: int) -> tuple[tuple[PlannedPool, ...], tuple[str, ...]]:
    """The pools that can be planned for requests of ``total_tokens``, and what was left out and why.

    `ConfigError` for a file with problems, ``ValueError`` for a model, GPU or format that means nothing.
    """
    config = load_config(path, environ)
    found: list[PlannedPool] = []
    notices: list[str] = []
    for model in config.models:
        for pool in model.pools_in_force:
            title = f"{model.name}/{pool.name}"
            if pool.gpu is None:
                notices.append(f"{title} says nothing of its GPU (gpu: h100-sxm)")
            elif pool.max_total_tokens is not None and total_tokens > pool.max_total_tokens:
                most = pool.max_total_tokens
                notices.append(f"{title} takes requests of at most {most:,} tokens, and these have {total_tokens:,}")
            else:
                gpu = resolve_gpu(pool.gpu)
                found.append(_planned(title if len(config.models) > 1 else pool.name, model, pool, gpu, path.parent))
    return tuple(found), tuple(notices)


def _planned(title: str, model: ModelConfig, pool: PoolConfig, gpu: Gpu, directory: Path) -> PlannedPool:
    try:
        known = load_model(model.name if model.shape is None else model.shape, directory)
    except ValueError as error:
        raise ValueError(f"model {model.name}: {error}") from None
    written = Written(
        weight_dtype=pool.weight_dtype, kv_dtype=pool.kv_dtype, gpus=pool.gpus_per_worker, tensor=pool.tensor_parallel
    )
    deployment = deployment_of(known, gpu, written)
    workers = len(pool.listed_workers) or 1  # those that are found are not known here
    return PlannedPool(
        title=f"{title}: {workers} x {deployment.parallelism.gpus} x {gpu.id}",
        model=known,
        weight_dtype=pool.weight_dtype,
        deployment=deployment,
        workers=workers,
    )
