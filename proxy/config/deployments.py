"""What the workers of each pool are, as far as the configuration says: model, GPU, formats and parallelism together."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from proxy.config.pools import ModelConfig, PoolConfig
from proxy.config.settings import Config
from roofline.deployment import Deployment
from roofline.gpu_given import resolve_gpu
from roofline.written import Written, deployment_of
from simulator.model_files import load_model

_log = logging.getLogger(__name__)

PoolName = tuple[str, str]
"""Model and pool."""


def deployments_of(config: Config, directory: Path) -> Mapping[PoolName, Deployment]:
    """The deployments of all pools whose GPU and model are known. Paths in the configuration are below ``directory``."""
    found: dict[PoolName, Deployment] = {}
    for model in config.models:
        for pool in model.pools_in_force:
            if pool.gpu is None:
                continue
            try:
                found[model.name, pool.name] = deployment_of_pool(model, pool, directory)
            except (ValueError, OSError) as error:
                if model.shape is not None:  # found when the file was read, unless a file that it names has changed since
                    _log.warning("limits of pool %s of %s are not known: %s", pool.name, model.name, error)
    return found


def deployment_of_pool(model: ModelConfig, pool: PoolConfig, directory: Path) -> Deployment:
    """The workers of one pool. ``ValueError`` or ``OSError`` that says what is not known of them."""
    if pool.gpu is None:
        raise ValueError("its gpu is not given")
    known = load_model(model.name if model.shape is None else model.shape, directory)
    written = Written(
        weight_dtype=pool.weight_dtype, kv_dtype=pool.kv_dtype, gpus=pool.gpus_per_worker, tensor=pool.tensor_parallel
    )
    return deployment_of(known, resolve_gpu(pool.gpu), written)
