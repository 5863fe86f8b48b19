"""Memory that one GPU needs beside weights and cache: activations, sampling, CUDA graphs, what the runtime keeps.

An estimate, since engines measure it at their start: vLLM runs one step of as many tokens as it may ever compute at once, takes
the peak, and gives the cache what is left. A rule of thumb says 2 to 6 GB; the estimate says where in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from roofline.deployment import Deployment
from roofline.gpu import Gpu
from roofline.shape import LayerGroup, WeightKind

RULE_OF_THUMB_BYTES = (2e9, 6e9)
_MIB, _GIB = float(1 << 20), float(1 << 30)

# Logits in the model's format, then fp32 copies: converted, filtered by top-k and top-p, as probabilities. Samplers that sort
# the vocabulary (vLLM up to about 0.11) hold two to three times as many.
_SAMPLING_FP32_COPIES = 3
# 0.22 to 0.29 MiB per layer and captured graph in published start-up logs of dense models of 32 to 80 layers.
_GRAPH_BYTES_PER_LAYER = 0.25 * _MIB
_LARGEST_GRAPH_TOKENS = 512
# Published logs show 0.15 to 0.35 GiB outside of PyTorch's allocator; the CUDA context itself (about 0.5 GiB) exists before
# vLLM takes stock, and so lies in the part of the memory that --gpu-memory-utilization leaves alone.
_RUNTIME_BYTES = 0.25 * _GIB
_EXCHANGE_BUFFER_BYTES = 0.25 * _GIB  # NCCL and custom all-reduce, once GPUs exchange results
CONTEXT_BYTES = 0.5 * _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """How much an engine computes at once: vLLM's --max-num-batched-tokens and --max-num-seqs."""

    batched_tokens: int
    sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Bytes on one GPU beside weights and cache, by what needs them. Estimated, not measured."""

    limits: EngineLimits
    layer_bytes: float  # the widest layer's activations, for all batched tokens
    sampling_bytes: float  # logits and their copies, for all sequences
    hidden_bytes: float  # output of the last layer, held while sampling
    graph_bytes: float  # 0 with --enforce-eager
    graphs: int
    runtime_bytes: float

    @property
    def activation_bytes(self) -> float:
        """Peak of a step: layers and sampling come one after the other."""
        return max(self.layer_bytes, self.sampling_bytes + self.hidden_bytes)

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.activation_bytes + self.graph_bytes + self.runtime_bytes


def engine_limits(gpu: Gpu) -> EngineLimits:
    """vLLM's defaults for its server (0.33), which depend on the memory of the device; A100 and GB10 count as small."""
    memory = gpu.driver_memory_bytes or gpu.memory_bytes or 0.0
    if memory >= 160 * _GIB:
        return EngineLimits(batched_tokens=16384, sequences=1024)
    if memory >= 70 * _GIB and not any(small in gpu.id for small in ("a100", "gb10")):
        return EngineLimits(batched_tokens=8192, sequences=1024)
    return EngineLimits(batched_tokens=2048, sequences=256)


def reserve(deployment: Deployment, limits: EngineLimits, *, is_eager: bool = False) -> Reserve:
    """What one GPU needs beside weights and cache.

    Layer: ``tokens x (2 hidden + widest part / tensor) x bytes``; the width of a part is what its matrices put out and take in
    beside the hidden vector: for a gated feed-forward part its three intermediate vectors. Sampling: ``sequences x vocabulary
    x (bytes + 3 x 4)``. Graphs: ``layers x graphs x 0.25 MiB``. ``ValueError`` for limits below one.
    """
    if limits.batched_tokens < 1 or limits.sequences < 1:
        raise ValueError(f"an engine computes at least one token of one sequence at once, not {limits}")
    shape, sharing = deployment.shape, deployment.parallelism
    each = shape.native.bytes_each
    widest = max(_widest_part(group, shape.hidden_size) for group in shape.groups)
    graphs = 0 if is_eager else captured_graphs(limits)
    stage_share = 1 / sharing.pipeline
    return Reserve(
        limits=limits,
        layer_bytes=limits.batched_tokens * (2 * shape.hidden_size + widest / sharing.tensor) * each,
        sampling_bytes=min(limits.sequences, limits.batched_tokens)
        * shape.vocabulary_size
        * (each + _SAMPLING_FP32_COPIES * 4.0),
        hidden_bytes=limits.batched_tokens * shape.hidden_size * each,
        graph_bytes=shape.layers * stage_share * graphs * _GRAPH_BYTES_PER_LAYER,
        graphs=graphs,
        runtime_bytes=_RUNTIME_BYTES + (_EXCHANGE_BUFFER_BYTES if sharing.gpus > 1 else 0.0),
    )


def captured_graphs(limits: EngineLimits) -> int:
    """CUDA graphs that vLLM captures: one per batch size for mixed steps, and one more where all sequences decode.

    Sizes: 1, 2, 4, every 8 below 256, every 16 up to twice the sequences, 512 at most.
    """
    largest = min(2 * limits.sequences, _LARGEST_GRAPH_TOKENS, limits.batched_tokens)
    sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST_GRAPH_TOKENS + 1, 16)) if size <= largest]
    return len(sizes) + len([size for size in sizes if size <= limits.sequences])


def _widest_part(group: LayerGroup, hidden: int) -> float:
    """Numbers per token that the widest part of a layer holds beside the hidden vector."""
    rows: dict[WeightKind, float] = {}
    for matrix in group.matrices:
        if matrix.kind in (WeightKind.ATTENTION, WeightKind.MIXER, WeightKind.FFN, WeightKind.SHARED_EXPERT):
            rows[matrix.kind] = rows.get(matrix.kind, 0.0) + matrix.parameters / hidden
        elif matrix.kind is WeightKind.EXPERT and group.experts is not None:
            rows[matrix.kind] = rows.get(matrix.kind, 0.0) + matrix.parameters / group.experts.count / hidden
    if group.experts is not None and WeightKind.EXPERT in rows:  # one copy of each token per chosen expert
        rows[WeightKind.EXPERT] = group.experts.chosen * max(rows[WeightKind.EXPERT], hidden)
    return max(rows.values(), default=0.0)
