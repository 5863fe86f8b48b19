"""A model on GPUs: what is read once a step, what each token and each pair costs, all precomputed from shape and widths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from roofline.gpu import Gpu
from roofline.kv_cache import KvWidth, kv_width
from roofline.precision import Precision, Width
from roofline.quantization import WeightScheme
from roofline.rates import Rates
from roofline.reach import EVERYTHING, Reach
from roofline.shape import (
    Attention,
    Experts,
    LatentAttention,
    LayerGroup,
    Matrix,
    ModelShape,
    Recurrence,
    WeightKind,
)
from roofline.terms import AttentionTerm, WeightTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How the GPUs of one worker share the work.

    ``tensor`` GPUs split every matrix, ``pipeline`` stages split the layers, ``data`` ranks each hold the weights but for
    routed experts, and their own sequences. Routed experts are split over tensor x data GPUs; ``expert``: spread whole.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} parallelism is a count of at least 1, not {getattr(self, name)}")

    @property
    def gpus(self) -> int:
        """GPUs of one worker."""
        return self.tensor * self.pipeline * self.data

    @property
    def at_once(self) -> int:
        """GPUs that work on one step at the same time; the stages of a pipeline take turns."""
        return self.tensor * self.data


class Deployment:
    """One worker: a shape, its widths, and the GPUs it runs on.

    ``weights`` is the scheme in force (the checkpoint's own, or another one), ``kv`` how the cache is stored. Immutable;
    terms are computed on first use and kept.
    """

    def __init__(
        self,
        shape: ModelShape,
        gpu: Gpu,
        *,
        weights: WeightScheme | None = None,
        kv: KvWidth | None = None,
        parallelism: Parallelism | None = None,
    ) -> None:
        self.shape = shape
        self.gpu = gpu
        self.weights = weights or shape.scheme
        self.kv = kv or kv_width("auto", shape)
        self.parallelism = parallelism or Parallelism()

    def __repr__(self) -> str:
        sharing = self.parallelism
        return (
            f"<Deployment {self.shape.name} {self.weights.name} kv {self.kv.name} on {sharing.gpus} x {self.gpu.id}"
            f" (tensor {sharing.tensor}, pipeline {sharing.pipeline}, data {sharing.data})>"
        )

    @cached_property
    def weight_terms(self) -> tuple[WeightTerm, ...]:
        """Weights by kind, width and routing, summed over the layers."""
        sums: dict[tuple[WeightKind, Width, Experts | None], float] = defaultdict(float)
        for group in self.shape.groups:
            for matrix in group.matrices:
                experts = group.experts if matrix.kind is WeightKind.EXPERT else None
                for layer in group.layers:
                    sums[matrix.kind, self._width(matrix, layer), experts] += matrix.parameters
        for matrix in self.shape.outside:
            sums[matrix.kind, self._width(matrix), None] += matrix.parameters
        return tuple(self._weight_term(*key, parameters) for key, parameters in sums.items())

    @cached_property
    def attention_terms(self) -> tuple[AttentionTerm, ...]:
        """Attention by kind and reach, summed over the layers."""
        layers: dict[Attention | LatentAttention, int] = defaultdict(int)
        for group in self.shape.groups:
            if isinstance(group.mixer, Attention | LatentAttention):
                layers[group.mixer] += len(group.layers)
        return tuple(term for mixer, count in layers.items() for term in self._attention(mixer, count))

    @cached_property
    def recurrence_flop_per_token(self) -> float:
        """Updating and reading recurrent states, all layers."""
        return sum(layers * mixer.flop_per_token for layers, mixer in self._recurrences)

    @cached_property
    def state_bytes(self) -> float:
        """What a step reads (and writes) of one sequence's state in linear-attention and Mamba layers; it does not grow.

        In the model's own format, to which vLLM's "auto" resolves: with a state in fp32 (`roofline.kv_cache` makes room for
        that) a step is slower, never faster.
        """
        elements = sum(layers * (mixer.state_elements + mixer.convolution_elements) for layers, mixer in self._recurrences)
        return elements * self.shape.native.bytes_each

    @cached_property
    def weight_bytes(self) -> float:
        """Weights as stored, all GPUs together, each weight once. A tied head is stored with the embedding."""
        return sum(term.bytes for term in self.weight_terms if not (self.shape.is_tied and term.kind is WeightKind.HEAD))

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """Cache of one more token of a short sequence, all layers; layers with a window stop growing at it."""
        return sum(term.bytes_per_token for term in self.attention_terms)

    @cached_property
    def exchange_seconds_per_token(self) -> float:
        """Of one token of a step, at the full rate of one direction of the link; see `roofline.expected`."""
        link = self.gpu.link_bytes_per_second or self.gpu.pcie_bytes_per_second
        return self.exchanged_bytes_per_token / link if link else 0.0

    @cached_property
    def exchanged_bytes_per_token(self) -> float:
        """What passes through every GPU's link, in one direction, for one token that its data-parallel rank computes."""
        sharing, shape = self.parallelism, self.shape
        activation = shape.hidden_size * shape.native.bytes_each
        parts = sum(len(group.layers) * ((group.mixer is not None) + _has_feed_forward(group)) for group in shape.groups)
        moved = parts * 2 * (sharing.tensor - 1) / sharing.tensor * activation
        if sharing.expert and sharing.data > 1:
            others = (sharing.at_once - 1) / sharing.at_once
            routed = sum(len(group.layers) * group.experts.chosen for group in shape.groups if group.experts is not None)
            moved += 2 * routed * others * activation / sharing.tensor
        return moved

    @cached_property
    def rates(self) -> Rates:
        """All of it as coefficients, for `roofline.cost`."""
        return Rates.of(self)

    @cached_property
    def native_flop_per_second(self) -> float:
        """Peak of one GPU for numbers in the model's own format."""
        return self.gpu.peak(self.shape.native.math)

    @property
    def ridge_flop_per_byte(self) -> float:
        """Ridge point of this GPU for the format in which most of the weights are multiplied."""
        largest = max((term for term in self.weight_terms if term.flop_per_use), key=lambda term: term.parameters)
        return largest.flop_per_second / self.gpu.memory_bytes_per_second

    @property
    def _recurrences(self) -> list[tuple[int, Recurrence]]:
        return [(len(group.layers), group.mixer) for group in self.shape.groups if isinstance(group.mixer, Recurrence)]

    def _width(self, matrix: Matrix, layer: int = 0) -> Width:
        if matrix.kind is WeightKind.VECTOR:
            return self.shape.native
        module = matrix.module.replace("{layer}", str(layer))
        return self.weights.width(module, is_expert=matrix.kind is WeightKind.EXPERT)

    def _weight_term(self, kind: WeightKind, width: Width, experts: Experts | None, parameters: float) -> WeightTerm:
        share = experts.chosen / experts.count if experts else 1.0
        multiplied = kind not in (WeightKind.EMBEDDING, WeightKind.VECTOR)
        return WeightTerm(
            kind=kind,
            width=width,
            parameters=int(parameters),
            bytes=parameters * width.bytes_each,
            flop_per_use=2.0 * parameters * share if multiplied else 0.0,
            flop_per_second=self.gpu.peak(width.math),
            experts=experts,
        )

    def _attention(self, mixer: Attention | LatentAttention, layers: int) -> Iterator[AttentionTerm]:
        speed = self.gpu.peak(self.kv.math(self.shape.native.math))
        if isinstance(mixer, Attention):
            yield AttentionTerm(
                name="attention scores" if mixer.window_tokens is None else "attention scores, windowed",
                layers=layers,
                reach=Reach(mixer.window_tokens, mixer.is_chunked),
                flop_per_pair=layers * mixer.flop_per_pair,
                absorbed_flop_per_pair=None,
                expansion_flop_per_token=0.0,
                bytes_per_token=layers * self.kv.bytes_per_token(mixer),
                kv_heads=mixer.kv_heads,
                flop_per_second=speed,
            )
            return
        yield AttentionTerm(
            name="attention scores",
            layers=layers,
            reach=Reach(mixer.index_top_tokens),
            flop_per_pair=layers * mixer.expanded_flop_per_pair,
            absorbed_flop_per_pair=layers * mixer.absorbed_flop_per_pair,
            expansion_flop_per_token=layers * mixer.expansion_flop_per_token,
            bytes_per_token=layers * self.kv.bytes_per_token(mixer),
            kv_heads=1,
            flop_per_second=speed,
        )
        if mixer.index_heads:  # sparse attention scores every token, in fp8, before it attends to some
            yield AttentionTerm(
                name="index scores",
                layers=layers,
                reach=EVERYTHING,
                flop_per_pair=layers * mixer.index_flop_per_pair,
                absorbed_flop_per_pair=None,
                expansion_flop_per_token=0.0,
                bytes_per_token=layers * self.kv.index_bytes_per_token(mixer),
                kv_heads=1,
                flop_per_second=self.gpu.peak(Precision.FP8),
            )


def _has_feed_forward(group: LayerGroup) -> bool:
    kinds = {WeightKind.FFN, WeightKind.EXPERT, WeightKind.SHARED_EXPERT}
    return any(matrix.kind in kinds for matrix in group.matrices)
