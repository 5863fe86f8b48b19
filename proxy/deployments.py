"""What the workers of each pool are, as far as the configuration says: model, GPU, formats and parallelism together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proxy.config import Config, ModelConfig, PoolConfig
from roofline.deployment import Deployment
from roofline.gpu_given import resolve_gpu
from roofline.models.known import KnownModel
from roofline.written import Written, deployment_of
from simulator.model_files import load_model

PoolName = tuple[str, str]
"""Model and pool."""


def deployments_of(config: Config, directory: Path) -> Mapping[PoolName, Deployment]:
    """The deployments of all pools whose GPU and model are known. Paths in the configuration are below ``directory``.

    A validated configuration has no other; what cannot be made of it all the same is left out.
    """
    found: dict[PoolName, Deployment] = {}
    for model in config.models:
        known = _known(model, directory)
        if known is None:
            continue
        for pool in model.pools_in_force:
            deployment = _of_pool(pool, known)
            if deployment is not None:
                found[model.name, pool.name] = deployment
    return found


def _known(model: ModelConfig, directory: Path) -> KnownModel | None:
    try:
        return load_model(model.name if model.shape is None else model.shape, directory)
    except (ValueError, OSError):
        return None


def _of_pool(pool: PoolConfig, known: KnownModel) -> Deployment | None:
    if pool.gpu is None:
        return None
    written = Written(
        weight_dtype=pool.weight_dtype, kv_dtype=pool.kv_dtype, gpus=pool.gpus_per_worker, tensor=pool.tensor_parallel
    )
    try:
        return deployment_of(known, resolve_gpu(pool.gpu), written)
    except ValueError:
        return None
