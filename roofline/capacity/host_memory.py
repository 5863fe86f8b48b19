"""The host's memory: what a worker needs of it, and what it costs to keep weights or cache there instead of on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.deployment import Deployment
from roofline.gpu import Gpu

# Resident sizes of vLLM's processes: about 1 GB for API server and engine together; a GPU worker's CUDA libraries and buffers.
_SERVER_BYTES = 1.2e9
_WORKER_BYTES = 3.0e9


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of the host's memory that one worker uses, all its GPUs together; an estimate."""

    processes_bytes: float
    pinned_bytes: float  # offloaded weights and cache: locked, never swapped
    staging_bytes: float  # checkpoint in the page cache while it loads: given back under pressure, so a wish and no need

    @property
    def needed_bytes(self) -> float:
        """Without what the system may drop."""
        return self.processes_bytes + self.pinned_bytes

    @property
    def comfortable_bytes(self) -> float:
        """With the whole checkpoint cached, so that a restart does not read it from the disk again."""
        return self.needed_bytes + self.staging_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadCost:
    """What moving bytes between host and GPU costs, at the full rate of one direction of the bus."""

    moved_bytes: float  # of one GPU
    pcie_bytes_per_second: float
    seconds: float  # every step for weights, once for the cache of a sequence

    def step_factor(self, step_seconds: float) -> float:
        """How many times longer a step of ``step_seconds`` takes if nothing of the transfer is hidden behind it."""
        return (step_seconds + self.seconds) / step_seconds


def host_memory(deployment: Deployment, *, offloaded_bytes: float = 0.0, kv_offload_bytes: float = 0.0) -> HostMemory:
    """What a worker needs of the host. ``offloaded_bytes`` is per GPU (--cpu-offload-gb), ``kv_offload_bytes`` in all.

    (vLLM: --kv-offloading-size is the sum over tensor-parallel GPUs. The option --swap-space of old versions was per GPU.)
    """
    gpus = deployment.parallelism.gpus
    return HostMemory(
        processes_bytes=_SERVER_BYTES * deployment.parallelism.data + _WORKER_BYTES * gpus,
        pinned_bytes=offloaded_bytes * gpus + kv_offload_bytes,
        staging_bytes=deployment.weight_bytes,
    )


def weight_offload_cost(gpu: Gpu, offloaded_bytes: float) -> OffloadCost | None:
    """Cost of weights that stay in the host's memory: they cross the bus in every step. ``None`` if its rate is not known.

    Routed experts cross only as far as they are chosen, so a mixture of experts pays less than this at small batches.
    """
    return _cost(gpu, offloaded_bytes)


def kv_offload_cost(gpu: Gpu, cache_bytes: float) -> OffloadCost | None:
    """Cost of bringing back a sequence's cache once; worth it where that is faster than computing the prompt again."""
    return _cost(gpu, cache_bytes)


def _cost(gpu: Gpu, moved_bytes: float) -> OffloadCost | None:
    if moved_bytes < 0:
        raise ValueError(f"bytes are at least 0, not {moved_bytes}")
    rate = gpu.pcie_bytes_per_second
    if not rate:
        return None
    return OffloadCost(moved_bytes=moved_bytes, pcie_bytes_per_second=rate, seconds=moved_bytes / rate)
