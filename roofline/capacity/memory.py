"""Whether a model fits its GPUs, and how many tokens and sequences the cache has room for.

In the order in which it is estimated by hand: weights, what else the engine needs, and what that leaves for the cache.

    cache = device memory x utilization - weights - reserve

Numbers are of the GPU that runs out first; the others of its stage hold the same, those of other stages have room to spare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from roofline.capacity.rank_memory import BLOCK_TOKENS, Rank, mtp_bytes, ranks
from roofline.capacity.reserve import CONTEXT_BYTES, EngineLimits, Reserve, engine_limits, reserve
from roofline.capacity.splits import splits_evenly, tensor_sizes
from roofline.deployment import Deployment, Parallelism
from roofline.gpu import Gpu
from roofline.shape import ModelShape

# vLLM's --gpu-memory-utilization (0.90 up to 0.18). A share of all memory that CUDA reports, whoever else uses it.
UTILIZATION_RATIO = 0.92
KV_SHARE_MINIMUM_RATIO = 0.30  # of device memory; with less, a few long requests fill the cache
# CUDA reports less than the driver (NVML, nvidia-smi): 0.35 to 0.5 GiB on RTX 3090, 4090, 5090, L40S and H100 in start-up logs.
_HIDDEN_FROM_CUDA_BYTES = 0.45 * (1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """What an operator tells the engine about memory. Bytes are per GPU; ``None`` leaves a choice to the engine.

    ``ValueError`` for a utilization outside of (0, 1], negative bytes, and a block without tokens.
    """

    utilization_ratio: float = UTILIZATION_RATIO  # --gpu-memory-utilization
    max_batched_tokens: int | None = None  # --max-num-batched-tokens
    max_sequences: int | None = None  # --max-num-seqs
    is_eager: bool = False  # --enforce-eager: no CUDA graphs
    is_mtp_loaded: bool = False  # multi-token-prediction layers, for speculative decoding
    offloaded_bytes: float = 0.0  # --cpu-offload-gb: weights kept in the host's memory
    kv_cache_bytes: float | None = None  # --kv-cache-memory-bytes: decides alone, whatever the utilization
    block_tokens: int = BLOCK_TOKENS  # --block-size
    device_bytes: float | None = None  # what CUDA reports, if it is known better than from the GPU's figures

    def __post_init__(self) -> None:
        if not 0.0 < self.utilization_ratio <= 1.0:
            raise ValueError(
                f"utilization_ratio is a share of device memory above 0 and at most 1, not {self.utilization_ratio}"
            )
        if self.offloaded_bytes < 0 or (self.kv_cache_bytes or 0.0) < 0:
            raise ValueError(f"bytes are at least 0, not {self.offloaded_bytes} offloaded and {self.kv_cache_bytes} of cache")
        if self.block_tokens < 1:
            raise ValueError(f"a block has at least one token, not {self.block_tokens}")

    def limits(self, gpu: Gpu) -> EngineLimits:
        """How much the engine computes at once: as told, else vLLM's defaults for the GPU."""
        defaults = engine_limits(gpu)
        return EngineLimits(
            batched_tokens=defaults.batched_tokens if self.max_batched_tokens is None else self.max_batched_tokens,
            sequences=defaults.sequences if self.max_sequences is None else self.max_sequences,
        )


DEFAULT_SETTINGS = MemorySettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """How the memory of the fullest GPU is used. Bytes are of one GPU; tokens and sequences are of the whole worker."""

    deployment: Deployment
    settings: MemorySettings
    device_bytes: float  # what CUDA reports
    device_source: str  # where that figure is from
    rank: Rank
    weight_bytes: float  # on the GPU: without what is offloaded, with multi-token-prediction layers if loaded
    mtp_bytes: float  # part of the above
    offloaded_bytes: float  # weights kept in the host's memory
    reserve: Reserve
    kv_bytes: float  # 0 if nothing is left

    @property
    def usable_bytes(self) -> float:
        """What the engine may use: device memory x utilization."""
        return self.device_bytes * self.settings.utilization_ratio

    @property
    def outside_bytes(self) -> float:
        """What the engine leaves alone: the CUDA context (about 0.5 GiB) and other processes must do with it."""
        return self.device_bytes - self.usable_bytes

    @property
    def missing_bytes(self) -> float:
        """What weights and reserve need beyond what may be used; 0 if they fit."""
        return max(0.0, self.weight_bytes + self.reserve.total_bytes - self.usable_bytes)

    @property
    def fits(self) -> bool:
        """Whether there is room for one block of cache."""
        return self.kv_bytes >= self.rank.sequence_bytes(1, self.settings.block_tokens)

    @property
    def leaves_room_for_context(self) -> bool:
        """Whether the CUDA context fits into what the engine leaves alone; if not, the engine does not start or dies later."""
        return self.outside_bytes >= CONTEXT_BYTES

    @property
    def kv_share_ratio(self) -> float:
        """Cache as a share of device memory, to be held against `KV_SHARE_MINIMUM_RATIO`."""
        return self.kv_bytes / self.device_bytes

    @property
    def has_kv_reserve(self) -> bool:
        """Whether at least 30 % of the device are left for the cache."""
        return self.kv_share_ratio >= KV_SHARE_MINIMUM_RATIO

    @property
    def kv_bytes_per_token(self) -> float:
        """Cache of one more token on this GPU, while no window is full."""
        return self.rank.kv_bytes_per_token

    def sequence_bytes(self, total_tokens: int) -> float:
        """Cache of one sequence on this GPU, in whole blocks. ``total_tokens``: prompt and the longest completion allowed."""
        if total_tokens < 1:
            raise ValueError(f"a sequence has at least one token, not {total_tokens}")
        return self.rank.sequence_bytes(total_tokens, self.settings.block_tokens)

    def concurrency(self, total_tokens: int, shared_tokens: int = 0) -> float:
        """Sequences of ``total_tokens`` that the cache of the whole worker holds, not rounded (vLLM: "maximum concurrency").

        ``total_tokens`` is prompt and longest completion, never the prompt alone. The first ``shared_tokens`` are the same for
        all and kept once; whole blocks of them count. ``ValueError`` unless 0 <= shared < total.
        """
        whole = self.sequence_bytes(total_tokens)
        if not 0 <= shared_tokens < total_tokens:
            raise ValueError(f"a shared prefix is shorter than the {total_tokens} tokens of its sequences, not {shared_tokens}")
        shared = self.rank.shared_bytes(shared_tokens, self.settings.block_tokens)
        own = whole - shared
        return self.deployment.parallelism.data * max(0.0, self.kv_bytes - shared) / own

    def sequences(self, total_tokens: int, shared_tokens: int = 0) -> int:
        """The same in whole sequences; each data-parallel rank rounds down for itself."""
        data = self.deployment.parallelism.data
        return data * int(self.concurrency(total_tokens, shared_tokens) / data)

    def tokens(self, sequence_tokens: int | None = None) -> int:
        """Tokens that the cache of the whole worker holds, in whole blocks.

        Models with windows or recurrent states hold more tokens the longer their sequences are: the figure is for sequences of
        ``sequence_tokens`` (``None``: the longest the model allows), as vLLM reports it.
        """
        if self.rank.grows_evenly:
            blocks = (
                int(self.kv_bytes / (self.kv_bytes_per_token * self.settings.block_tokens)) if self.kv_bytes_per_token else 0
            )
            return blocks * self.settings.block_tokens * self.deployment.parallelism.data
        length = sequence_tokens or self.deployment.shape.max_context_tokens or 1
        return int(self.concurrency(length) * length / self.settings.block_tokens) * self.settings.block_tokens


def memory_budget(deployment: Deployment, settings: MemorySettings = DEFAULT_SETTINGS) -> MemoryBudget:
    """How the memory of a worker's fullest GPU is used.

    ``ValueError`` for a device whose memory is not known, and for heads that the tensor parallelism does not divide.
    """
    tensor = deployment.parallelism.tensor
    if not splits_evenly(deployment.shape, tensor):
        possible = ", ".join(map(str, tensor_sizes(deployment.shape)))
        raise ValueError(
            f"{deployment.shape.name} cannot be split over {tensor} GPUs; its heads and layers divide by {possible}"
        )
    size, source = (settings.device_bytes, "given") if settings.device_bytes is not None else _device_bytes(deployment.gpu)
    limits = settings.limits(deployment.gpu)
    beside = reserve(deployment, limits, is_eager=settings.is_eager)
    budgets = []
    for rank in ranks(deployment):
        is_last = rank.stage == deployment.parallelism.pipeline - 1
        extra = mtp_bytes(deployment) if settings.is_mtp_loaded and is_last else 0.0
        offloaded = min(settings.offloaded_bytes, rank.weight_bytes)
        weights = rank.weight_bytes + extra - offloaded
        left = size * settings.utilization_ratio - weights - beside.total_bytes
        budgets.append(
            MemoryBudget(
                deployment=deployment,
                settings=settings,
                device_bytes=size,
                device_source=source,
                rank=rank,
                weight_bytes=weights,
                mtp_bytes=extra,
                offloaded_bytes=offloaded,
                reserve=beside,
                kv_bytes=max(0.0, left) if settings.kv_cache_bytes is None else settings.kv_cache_bytes,
            )
        )
    length = deployment.shape.max_context_tokens or settings.block_tokens
    # All stages hold the same tokens, so the one with the least room decides; without any room, the one that lacks most.
    return min(budgets, key=lambda budget: (budget.kv_bytes / (budget.sequence_bytes(length) or 1.0), -budget.missing_bytes))


def smallest_fit(
    deployment: Deployment,
    *,
    sequence_tokens: int,
    settings: MemorySettings = DEFAULT_SETTINGS,
    node_gpus: int = 8,
    most_gpus: int = 128,
) -> MemoryBudget | None:
    """The fewest GPUs that hold one sequence: tensor parallelism within a node, and pipeline stages beyond it.

    ``None`` if ``most_gpus`` do not suffice. Data parallelism is left out, since it does not make anything fit.
    """
    for sharing in _candidates(deployment.shape, node_gpus, most_gpus):
        trial = Deployment(deployment.shape, deployment.gpu, weights=deployment.weights, kv=deployment.kv, parallelism=sharing)
        budget = memory_budget(trial, settings)
        if budget.fits and budget.concurrency(sequence_tokens) >= 1.0:
            return budget
    return None


def _candidates(shape: ModelShape, node_gpus: int, most_gpus: int) -> Iterator[Parallelism]:
    inside = [Parallelism(tensor=size) for size in tensor_sizes(shape, node_gpus)]
    largest = inside[-1].tensor
    stages = range(2, min(shape.layers, most_gpus // largest) + 1)
    return chain(inside, (Parallelism(tensor=largest, pipeline=count) for count in stages))


def _device_bytes(gpu: Gpu) -> tuple[float, str]:
    if gpu.driver_memory_bytes is not None:
        if gpu.compute_capability:
            return (
                gpu.driver_memory_bytes - _HIDDEN_FROM_CUDA_BYTES,
                "what the driver reports, less 0.45 GiB that CUDA does not",
            )
        return float(gpu.driver_memory_bytes), "what the driver reports"
    if gpu.memory_bytes is None:
        raise ValueError(f"the memory of {gpu.id} is not known; say how many bytes there are by device_bytes")
    return gpu.memory_bytes, "data sheet"
