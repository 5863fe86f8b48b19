"""Whether shapes, GPUs and formats in a configuration mean something, so that a typing error is found before it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.config.errors import KeyPath
from proxy.config.file import Document, Tree

if TYPE_CHECKING:
    from roofline.models.known import KnownModel

_OF_POOLS = ("gpu", "gpus_per_worker", "tensor_parallel", "weight_dtype", "kv_dtype")


def limit_problems(document: Document) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield what is wrong with `shape` and with the GPU settings of pools: where, what, and what would be right.

    Values of the wrong type are left to the schema. A model whose shape is not given is known by its name or not at all; then
    only its GPUs are looked at.
    """
    models = document.tree.get("models")
    for at, model in enumerate(models if isinstance(models, list) else []):
        if isinstance(model, dict) and ("shape" in model or _names_gpus(model)):
            yield from _of_model(model, ("models", at), Path(document.source).parent)


def _names_gpus(model: Mapping[str, Tree]) -> bool:
    pools = model.get("pools")
    return isinstance(pools, list) and any(isinstance(pool, dict) and pool.keys() & set(_OF_POOLS) for pool in pools)


def _of_model(model: Mapping[str, Tree], path: KeyPath, directory: Path) -> Iterator[tuple[KeyPath, str, str]]:
    from simulator.model_files import load_model  # noqa: PLC0415 - tables of models and GPUs, only for those who name one

    known: KnownModel | None = None
    shape = model.get("shape")
    if isinstance(shape, str | dict):
        try:
            known = load_model(shape, directory)
        except (ValueError, OSError) as error:
            yield (*path, "shape"), *_halves(error)
    elif shape is None and isinstance(name := model.get("name"), str):
        try:
            known = load_model(name, directory)
        except (ValueError, OSError):
            known = None  # no fault: limits of this model stay unknown
    pools = model.get("pools")
    for index, pool in enumerate(pools if isinstance(pools, list) else []):
        if isinstance(pool, dict):
            yield from _of_pool(pool, (*path, "pools", index), known)


def _of_pool(pool: Mapping[str, Tree], path: KeyPath, known: KnownModel | None) -> Iterator[tuple[KeyPath, str, str]]:
    from roofline.gpu_given import resolve_gpu  # noqa: PLC0415
    from roofline.written import Written, deployment_of  # noqa: PLC0415

    spec = pool.get("gpu")
    if not isinstance(spec, str | dict):
        return
    try:
        gpu = resolve_gpu(spec)
    except ValueError as error:
        yield (*path, "gpu"), *_halves(error)
        return
    texts = [value if isinstance(value, str) else None for value in (pool.get("weight_dtype"), pool.get("kv_dtype"))]
    counts = [_count(pool.get("gpus_per_worker")), _count(pool.get("tensor_parallel"))]
    if known is None:
        return
    written = Written(weight_dtype=texts[0], kv_dtype=texts[1], gpus=counts[0], tensor=counts[1])
    try:
        deployment_of(known, gpu, written)
    except ValueError as error:
        yield path, *_halves(error)


def _count(value: Tree) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _halves(error: Exception) -> tuple[str, str]:
    """What is wrong and what would be right, which the core says in one sentence."""
    wrong, _, right = str(error).partition("; ")
    return wrong, right or "see docs/reference/configuration.md"
