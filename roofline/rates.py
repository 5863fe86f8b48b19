"""A deployment's weights and layers as a handful of coefficients, added up once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from roofline.shape import WeightKind
from roofline.terms import AttentionTerm

if TYPE_CHECKING:
    from roofline.deployment import Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpertRates:
    bytes: float
    fewest_ratio: float  # chosen / count
    idle_ratio: float  # 1 - chosen / count


class AttentionRates(NamedTuple):
    """One attention term with what `roofline.cost` needs of it for every span."""

    term: AttentionTerm
    is_plain: bool  # not chunked: pairs and reads times these
    full_from: int  # past tokens from which on its window is full; -1: it reaches everything
    flop_per_pair: float
    flop_per_second: float  # one GPU
    absorbed_flop_per_pair: float  # only with an expansion
    expansion_flop_per_token: float  # 0 but for latents
    bytes_per_token: float
    copies: float  # further copies of the cache that GPUs read


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A deployment's weights and layers as coefficients."""

    token_flop: float
    token_seconds: float  # on one GPU
    expert_token_seconds: float  # of token_seconds, routed experts
    logit_flop: float
    logit_seconds: float
    step_bytes: float  # weights that every step reads, but for the head
    head_bytes: float
    experts: tuple[_ExpertRates, ...]
    attention: tuple[AttentionRates, ...]
    state_bytes: float
    bytes_per_second: float  # all GPUs that work at once
    rank_bytes_per_second: float  # of them, those of one data-parallel rank
    gpus: int
    rank_gpus: int
    data_ranks: int
    layers: int
    exchanges: bool  # whether GPUs pass activations to each other in every layer

    @classmethod
    def of(cls, deployment: Deployment) -> Rates:
        """The coefficients of a deployment."""
        sharing = deployment.parallelism
        terms = deployment.weight_terms
        every_token = [term for term in terms if term.kind is not WeightKind.HEAD]
        heads = [term for term in terms if term.kind is WeightKind.HEAD]
        always = [term for term in every_token if term.experts is None and term.kind is not WeightKind.EMBEDDING]
        routed = [(term.bytes, term.experts) for term in every_token if term.experts is not None]
        recurrence = deployment.recurrence_flop_per_token
        return cls(
            token_flop=sum(term.flop_per_use for term in every_token) + recurrence,
            token_seconds=sum(term.flop_per_use / term.flop_per_second for term in every_token)
            + recurrence / deployment.native_flop_per_second,
            expert_token_seconds=sum(
                term.flop_per_use / term.flop_per_second for term in every_token if term.experts is not None
            ),
            logit_flop=sum(term.flop_per_use for term in heads),
            logit_seconds=sum(term.flop_per_use / term.flop_per_second for term in heads),
            step_bytes=sum(term.bytes for term in always),
            head_bytes=sum(term.bytes for term in heads),
            experts=tuple(
                _ExpertRates(
                    bytes=size, fewest_ratio=experts.chosen / experts.count, idle_ratio=1.0 - experts.chosen / experts.count
                )
                for size, experts in routed
            ),
            attention=tuple(_attention(term, sharing.tensor) for term in deployment.attention_terms),
            state_bytes=deployment.state_bytes,
            bytes_per_second=sharing.at_once * deployment.gpu.memory_bytes_per_second,
            rank_bytes_per_second=sharing.tensor * deployment.gpu.memory_bytes_per_second,
            gpus=sharing.at_once,
            rank_gpus=sharing.tensor,
            data_ranks=sharing.data,
            layers=deployment.shape.layers,
            exchanges=sharing.tensor > 1 or (sharing.data > 1 and bool(routed)),
        )


def _attention(term: AttentionTerm, tensor: int) -> AttentionRates:
    reach = term.reach
    return AttentionRates(
        term=term,
        is_plain=not reach.is_chunked,
        full_from=-1 if reach.tokens is None else reach.tokens - 1,
        flop_per_pair=term.flop_per_pair,
        flop_per_second=term.flop_per_second,
        absorbed_flop_per_pair=term.absorbed_flop_per_pair or 0.0,
        expansion_flop_per_token=term.expansion_flop_per_token,
        bytes_per_token=term.bytes_per_token,
        copies=tensor / min(tensor, term.kv_heads) - 1.0,
    )
