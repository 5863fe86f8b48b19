"""What a simulated worker runs on: the model's shape on GPUs, timed by `roofline` and with the KV cache that these leave it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from roofline.capacity.memory import UTILIZATION_RATIO, MemorySettings
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES, Losses
from roofline.gpu import Gpu
from roofline.gpu_given import resolve_gpu
from roofline.gpu_names import UnknownGpu
from roofline.models.known import KnownModel, UnknownModel
from roofline.written import Written, deployment_of
from simulator.engine.roofline_timing import RooflineTimer, Scale, kv_cache_tokens
from simulator.model_files import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """How the model lies on the GPUs of one worker, and how these fall short of their peaks. ``None``: not said.

    The constants are those of the *simulated* GPU. A gateway before it believes its own.
    """

    gpus: int | None = None  # of the worker; None: what the parallel sizes make
    tensor_parallel_size: int | None = None
    is_expert_parallel: bool = False
    weight_dtype: str | None = None
    kv_cache_dtype: str | None = None
    memory_utilization_ratio: float = UTILIZATION_RATIO
    engine: str = "vllm"  # whose `roofline.expected.DEFAULT_LOSSES`
    scale: Scale = Scale()  # noqa: RUF009 -- immutable
    request_overhead_seconds: float | None = None  # instead of the engine's losses'
    stream_overhead_seconds: float = 0.0  # more before the queue for each other request in flight

    def losses(self) -> Losses:
        """The engine's, changed as told. ``ValueError`` for an engine without any."""
        if self.engine not in DEFAULT_LOSSES:
            raise ValueError(f"unknown engine {self.engine!r}; there are losses of {', '.join(DEFAULT_LOSSES)}")
        losses = DEFAULT_LOSSES[self.engine]
        if self.request_overhead_seconds is None:
            return losses
        return replace(losses, request_overhead_seconds=self.request_overhead_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A model on its GPUs: what an engine needs to know of them."""

    timer: RooflineTimer  # of one data-parallel rank
    kv_tokens: int  # of one rank
    max_model_len: int | None  # that the model allows; None: not known
    max_num_seqs: int  # as asked, or vLLM's default for the GPU
    step_tokens: int
    steps_together: bool = False  # data-parallel ranks share the model's experts


def place(
    model: str,
    shape: str | None,
    gpu: str,
    hardware: Hardware,
    *,
    ranks: int = 1,
    block_tokens: int = 16,
    max_num_seqs: int | None = None,
    step_tokens: int | None = None,
    kv_tokens: int | None = None,
) -> Placement:
    """Put the model of this ``shape`` (a known name, a config.json or its folder; ``None``: known as ``model``) on GPUs.

    ``kv_tokens`` outranks the estimate. ``ValueError`` says what is not known, does not fit or cannot be, and what to give
    instead; ``OSError`` if a file cannot be read.
    """
    known = _known(model, shape)
    written = Written(
        weight_dtype=hardware.weight_dtype,
        kv_dtype=hardware.kv_cache_dtype,
        gpus=hardware.gpus,
        tensor=hardware.tensor_parallel_size,
        data=ranks,
        is_expert_parallel=hardware.is_expert_parallel,
    )
    whole = deployment_of(known, _gpu(gpu), written)
    memory = MemorySettings(
        utilization_ratio=hardware.memory_utilization_ratio,
        max_batched_tokens=step_tokens,
        max_sequences=max_num_seqs,
        block_tokens=block_tokens,
    )
    limits = memory.limits(whole.gpu)
    sharing = replace(whole.parallelism, data=1)
    one = Deployment(whole.shape, whole.gpu, weights=whole.weights, kv=whole.kv, parallelism=sharing)
    return Placement(
        timer=RooflineTimer(one, hardware.losses(), hardware.scale, stream_overhead_seconds=hardware.stream_overhead_seconds),
        kv_tokens=kv_cache_tokens(whole, memory) if kv_tokens is None else kv_tokens,
        max_model_len=known.shape.max_context_tokens,
        max_num_seqs=limits.sequences,
        step_tokens=limits.batched_tokens,
        steps_together=ranks > 1 and any(group.experts is not None for group in whole.shape.groups),
    )


def _gpu(spec: str) -> Gpu:
    try:
        return resolve_gpu(spec)
    except UnknownGpu as error:
        raise ValueError(f"{error}; as an option: --gpu bf16=9.9e14,bandwidth=3.35e12,memory=80e9") from None


def _known(model: str, shape: str | None) -> KnownModel:
    if shape is not None:
        return load_model(shape, Path())
    try:
        return load_model(model, Path())
    except UnknownModel as error:
        raise ValueError(f"{error}; give --shape, such as --shape llama-3.1-8b: --model may then be any name") from None
