"""The shape of a model: its weight matrices by kind, and what each layer keeps per token or per sequence.

Values only. `roofline.models.config` makes one from a config.json, `roofline.models.known` knows common ones by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from roofline.precision import Width
from roofline.quantization import WeightScheme

RECURRENT_STATE_BYTES = 4.0  # room that is kept for recurrent states: some engines and models have them in fp32


class WeightKind(StrEnum):
    """What a matrix is for; decides when it is read and how often it is multiplied."""

    EMBEDDING = "embedding"  # looked up, one row a token
    HEAD = "head"  # only for positions whose next token is wanted
    ATTENTION = "attention"  # projections around softmax attention (MLA's down and up projections too)
    INDEXER = "indexer"  # what chooses the tokens of sparse attention
    MIXER = "mixer"  # projections of linear attention and Mamba layers
    FFN = "ffn"  # dense feed-forward
    SHARED_EXPERT = "shared_expert"  # experts that every token passes
    EXPERT = "expert"  # routed experts: top_k of them a token
    ROUTER = "router"
    VECTOR = "vector"  # norms, biases, small convolutions: read, hardly multiplied


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Weights of one module of one layer (all experts of the layer together, all norms of the layer together)."""

    module: str  # name as quantisation configs name it; "{layer}" and "{expert}" stand for the numbers
    kind: WeightKind
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with a cache of keys and values: MHA, GQA or MQA by the number of KV heads."""

    heads: int
    kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    window_tokens: int | None = None  # attends to at most so many tokens, itself included; None: to all
    is_chunked: bool = False  # the window starts anew at multiples of its size (Llama 4) instead of sliding

    @property
    def flop_per_pair(self) -> float:
        """Work for one query token against one token in reach: scores and weighted sum, all heads."""
        return 2.0 * self.heads * (self.qk_head_dim + self.v_head_dim)

    @property
    def cached_elements_per_token(self) -> int:
        """Numbers kept per token and layer."""
        return self.kv_heads * (self.qk_head_dim + self.v_head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed vector per token serves all heads and is replicated on every rank.

    Two ways to compute the same: *absorbed* works on the latent itself (many FLOP a pair, no expansion; decode), *expanded*
    makes keys and values per head first (few FLOP a pair, an expansion of every past token; prefill).
    """

    heads: int
    latent_dim: int  # kv_lora_rank
    rope_head_dim: int
    nope_head_dim: int
    v_head_dim: int
    index_heads: int = 0  # of sparse attention; 0: dense
    index_head_dim: int = 0
    index_top_tokens: int | None = None  # attends to at most so many tokens; None: to all

    @property
    def absorbed_flop_per_pair(self) -> float:
        """Work of one query token against one latent, all heads."""
        return 2.0 * self.heads * (2 * self.latent_dim + self.rope_head_dim)

    @property
    def expanded_flop_per_pair(self) -> float:
        """Work of one query token against one expanded key and value, all heads."""
        return 2.0 * self.heads * (self.nope_head_dim + self.rope_head_dim + self.v_head_dim)

    @property
    def expansion_flop_per_token(self) -> float:
        """Work of making keys and values of one past token from its latent (new tokens have it in their projections)."""
        return 2.0 * self.latent_dim * self.heads * (self.nope_head_dim + self.v_head_dim)

    @property
    def cached_elements_per_token(self) -> int:
        """Numbers kept per token and layer, without the index keys of sparse attention."""
        return self.latent_dim + self.rope_head_dim

    @property
    def index_flop_per_pair(self) -> float:
        """Work of scoring one past token for one query token."""
        return 2.0 * self.index_heads * self.index_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Linear attention (gated delta net) or Mamba-2: a state of fixed size per sequence instead of a cache that grows."""

    state_elements: int  # fp32
    convolution_elements: int  # in the model's own format
    flop_per_token: float  # update and read of the state for one token: the least, by recurrence


Mixer = Attention | LatentAttention | Recurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routing of one mixture-of-experts layer."""

    count: int
    chosen: int  # routed experts that each token passes; shared ones are matrices of their own kind


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that are alike in everything but their number."""

    layers: tuple[int, ...]
    mixer: Mixer | None  # None: a block with a feed-forward part only
    experts: Experts | None
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Everything about a language model that decides its time and memory. Vision and audio parts are left out.

    ``mtp_parameters`` counts multi-token-prediction layers: they are in the checkpoint, loaded only for speculative
    decoding, and part of no other figure here.
    """

    name: str
    hidden_size: int
    vocabulary_size: int
    max_context_tokens: int | None
    is_tied: bool  # head and embedding are one matrix: stored once, read every step
    native: Width  # format of whatever is not quantised, and of activations
    scheme: WeightScheme  # widths that the checkpoint itself asks for
    groups: tuple[LayerGroup, ...]
    outside: tuple[Matrix, ...]  # embedding, head (also when tied), final norm
    mtp_parameters: int = 0

    @property
    def layers(self) -> int:
        """How many layers there are; a block without a mixer or without a feed-forward part counts as one."""
        return sum(len(group.layers) for group in self.groups)

    def parameters(self, *kinds: WeightKind) -> int:
        """Parameters of these kinds, all layers; of all kinds if none is named. A tied head has none of its own."""
        wanted = set(kinds or WeightKind)
        inside = sum(
            len(group.layers) * matrix.parameters for group in self.groups for matrix in group.matrices if matrix.kind in wanted
        )
        outside = sum(
            matrix.parameters
            for matrix in self.outside
            if matrix.kind in wanted and not (self.is_tied and matrix.kind is WeightKind.HEAD)
        )
        return inside + outside

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes, both embeddings included: of routed experts only the chosen ones."""
        idle = sum(
            len(group.layers) * (matrix.parameters - matrix.parameters * group.experts.chosen // group.experts.count)
            for group in self.groups
            if group.experts is not None
            for matrix in group.matrices
            if matrix.kind is WeightKind.EXPERT
        )
        return self.parameters() - idle
