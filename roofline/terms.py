"""Weights of a kind and attention of a kind, summed over the layers that are alike."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.precision import Width
from roofline.reach import Reach
from roofline.shape import Experts, WeightKind


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTerm:
    """All weights of one kind that are stored alike."""

    kind: WeightKind
    width: Width
    parameters: int
    bytes: float
    flop_per_use: float  # for one token (for one wanted position: the head); of routed experts the chosen ones only
    flop_per_second: float  # peak of one GPU for it
    experts: Experts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTerm:
    """Attention of all layers that are alike, or the index scores of sparse ones: work per pair and bytes per cached token."""

    name: str
    layers: int
    reach: Reach
    flop_per_pair: float  # all layers; expanded, where there is a choice
    absorbed_flop_per_pair: float | None  # MLA: the other way to compute the same
    expansion_flop_per_token: float  # MLA, expanded: per past token
    bytes_per_token: float  # all layers
    kv_heads: int  # on how many GPUs the cache can be split; 1 for MLA: every rank keeps all of it
    flop_per_second: float
