"""What one GPU of a worker holds: its share of the weights, and what it keeps per token and per sequence.

Shares follow vLLM (0.33 was read): matrices are split over the tensor-parallel GPUs; keys and values by their heads, and held
several times where there are fewer heads than GPUs; the latent of MLA, the down projections before it, routers, indexers and
norms by every GPU. Routed experts are split over all tensor x data GPUs, whole ones with expert parallelism. Pipeline stages
hold layers; the first holds the embedding, the last the head.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from roofline.capacity.splits import stage_layers
from roofline.deployment import Deployment, Parallelism
from roofline.shape import RECURRENT_STATE_BYTES, Attention, LatentAttention, LayerGroup, Matrix, Recurrence, WeightKind

BLOCK_TOKENS = 16  # tokens that vLLM keeps in one block unless told otherwise; the cache is handed out in blocks

_SPLIT_BY_TENSOR = (
    WeightKind.EMBEDDING,
    WeightKind.HEAD,
    WeightKind.ATTENTION,
    WeightKind.MIXER,
    WeightKind.FFN,
    WeightKind.SHARED_EXPERT,
)
_LATENT_DOWN_PROJECTIONS = ("q_a_proj", "kv_a_proj_with_mqa")  # one latent serves all heads


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShare:
    """Cache of the layers of one GPU that remember equally far back."""

    bytes_per_token: float  # all these layers
    window_tokens: int | None  # None: every token is kept

    def kept_tokens(self, total_tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
        """Tokens that a sequence of ``total_tokens`` occupies, in whole blocks; a window may begin in the midst of one."""
        everything = ceil(total_tokens / block_tokens) * block_tokens
        if self.window_tokens is None:
            return everything
        return min(everything, (ceil(self.window_tokens / block_tokens) + 1) * block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The fullest GPU of one pipeline stage."""

    stage: int
    layers: int
    weight_bytes: float
    cache: tuple[CacheShare, ...]
    state_bytes: float  # of linear attention and Mamba, per sequence, whatever its length

    @property
    def kv_bytes_per_token(self) -> float:
        """One more token of a sequence too short to fill any window."""
        return sum(share.bytes_per_token for share in self.cache)

    @property
    def grows_evenly(self) -> bool:
        """Whether every token of a sequence takes equally much: no windows and no states of fixed size."""
        return not self.state_bytes and all(share.window_tokens is None for share in self.cache)

    def sequence_bytes(self, total_tokens: int, block_tokens: int = BLOCK_TOKENS) -> float:
        """Cache and states of a sequence of ``total_tokens``: layers with a window stop growing at it."""
        return self.state_bytes + sum(
            share.bytes_per_token * share.kept_tokens(total_tokens, block_tokens) for share in self.cache
        )

    def shared_bytes(self, prefix_tokens: int, block_tokens: int = BLOCK_TOKENS) -> float:
        """Cache of a prefix that sequences share: whole blocks of it in layers that keep everything.

        Windows leave a prefix behind, and states are of one sequence each.
        """
        blocks = prefix_tokens // block_tokens
        return blocks * block_tokens * sum(share.bytes_per_token for share in self.cache if share.window_tokens is None)


def ranks(deployment: Deployment) -> tuple[Rank, ...]:
    """The fullest GPU of each pipeline stage, first to last. ``ValueError`` if there are more stages than layers."""
    stages = stage_layers(deployment.shape.layers, deployment.parallelism.pipeline)
    return tuple(_rank(deployment, stage, layers, len(stages)) for stage, layers in enumerate(stages))


def mtp_bytes(deployment: Deployment) -> float:
    """Multi-token-prediction layers on one GPU of the last stage, if loaded: stored as the other weights are on average."""
    shape, sharing = deployment.shape, deployment.parallelism
    if not shape.mtp_parameters:
        return 0.0
    return shape.mtp_parameters * deployment.weight_bytes / shape.parameters() / (sharing.tensor * sharing.data)


def _rank(deployment: Deployment, stage: int, held: range, stages: int) -> Rank:
    shape, sharing = deployment.shape, deployment.parallelism
    weights = sum(_outside_bytes(deployment, stage, stages))
    cache: dict[int | None, float] = defaultdict(float)
    state = 0.0
    for group in shape.groups:
        inside = [layer for layer in group.layers if layer in held]
        weights += sum(_layer_bytes(deployment, group, layer) for layer in inside)
        if isinstance(group.mixer, Attention | LatentAttention):
            window = group.mixer.window_tokens if isinstance(group.mixer, Attention) else None
            cache[window] += len(inside) * _cache_bytes_per_token(deployment, group.mixer)
        elif isinstance(group.mixer, Recurrence):
            convolution = group.mixer.convolution_elements * shape.native.bytes_each
            state += len(inside) * (group.mixer.state_elements * RECURRENT_STATE_BYTES + convolution) / sharing.tensor
    shares = tuple(CacheShare(bytes_per_token=size, window_tokens=window) for window, size in cache.items() if size)
    return Rank(stage=stage, layers=len(held), weight_bytes=weights, cache=shares, state_bytes=state)


def _outside_bytes(deployment: Deployment, stage: int, stages: int) -> Iterator[float]:
    is_first, is_last = stage == 0, stage == stages - 1
    for matrix in deployment.shape.outside:
        held = is_last
        if matrix.kind is WeightKind.EMBEDDING:
            held = is_first
        elif matrix.kind is WeightKind.HEAD and deployment.shape.is_tied:
            held = is_last and not is_first  # stages apart need a copy each
        if held:
            yield _matrix_bytes(deployment, matrix) * _share(matrix, None, deployment.parallelism)


def _layer_bytes(deployment: Deployment, group: LayerGroup, layer: int) -> float:
    sharing = deployment.parallelism
    total = attention = attention_parameters = 0.0
    for matrix in group.matrices:
        stored = _matrix_bytes(deployment, matrix, layer)
        total += stored * _share(matrix, group, sharing)
        if matrix.kind is WeightKind.ATTENTION:
            attention += stored
            attention_parameters += matrix.parameters
    if isinstance(group.mixer, Attention) and sharing.tensor > group.mixer.kv_heads and attention_parameters:
        keys_and_values = (
            deployment.shape.hidden_size * group.mixer.cached_elements_per_token * attention / attention_parameters
        )
        total += keys_and_values * (1 / group.mixer.kv_heads - 1 / sharing.tensor)
    return total


def _share(matrix: Matrix, group: LayerGroup | None, sharing: Parallelism) -> float:
    if matrix.kind is WeightKind.EXPERT:
        over = sharing.tensor * sharing.data
        if group is not None and group.experts is not None and sharing.expert:
            return ceil(group.experts.count / over) / group.experts.count
        return 1 / over
    if matrix.module.endswith(_LATENT_DOWN_PROJECTIONS) or matrix.kind not in _SPLIT_BY_TENSOR:
        return 1.0
    return 1 / sharing.tensor


def _matrix_bytes(deployment: Deployment, matrix: Matrix, layer: int = 0) -> float:
    if matrix.kind is WeightKind.VECTOR:
        return matrix.parameters * deployment.shape.native.bytes_each
    module = matrix.module.replace("{layer}", str(layer))
    return matrix.parameters * deployment.weights.width(module, is_expert=matrix.kind is WeightKind.EXPERT).bytes_each


def _cache_bytes_per_token(deployment: Deployment, mixer: Attention | LatentAttention) -> float:
    kept = deployment.kv.bytes_per_token(mixer)
    if isinstance(mixer, LatentAttention):
        return kept + deployment.kv.index_bytes_per_token(mixer)
    return kept / min(deployment.parallelism.tensor, mixer.kv_heads)
