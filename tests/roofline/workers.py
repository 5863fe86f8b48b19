"""Deployments that the tests of memory and capacity share: real models on real cards, and losses with round figures."""

from __future__ import annotations

from roofline.deployment import Deployment, Parallelism
from roofline.expected import Losses
from roofline.gpu_names import find_gpu
from roofline.kv_cache import kv_width
from roofline.models.known import find_shape
from roofline.quantization import named_scheme

NO_LOSSES = Losses(
    compute_efficiency_ratio=1.0, memory_efficiency_ratio=1.0, layer_overhead_seconds=0.0, parallel_layer_overhead_seconds=0.0
)


def eta(ratio: float, compute_ratio: float | None = None) -> Losses:
    """Shares of the peaks, and no overheads."""
    return Losses(
        compute_efficiency_ratio=compute_ratio or ratio,
        memory_efficiency_ratio=ratio,
        layer_overhead_seconds=0.0,
        parallel_layer_overhead_seconds=0.0,
    )


def a_worker(model: str, gpu: str, *, weights: str | None = None, kv: str = "auto", **parallelism: int | bool) -> Deployment:
    shape = find_shape(model)
    return Deployment(
        shape,
        find_gpu(gpu),
        weights=named_scheme(weights, shape.native) if weights else None,
        kv=kv_width(kv, shape),
        parallelism=Parallelism(**parallelism),  # type: ignore[arg-type]  # counts and one flag
    )
