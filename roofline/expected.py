"""What steps take on a healthy engine: the reference with calibrated losses.

    seconds = max(compute / compute_efficiency, memory / memory_efficiency)
              + steps x layers x (layer_overhead + parallel_layer_overhead if GPUs must exchange results)
              + bytes exchanged / link

The constants come from published measurements or from a calibration (`roofline.calibration`); derivation and error in
docs/theory.md, "Expected".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from roofline.cost import Cost, cost
from roofline.deployment import Deployment
from roofline.work import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """How far an engine stays below the peaks. Ratios lie in (0, 1], overheads are at least 0.

    ``error_ratio`` is the mean absolute error relative to the measurement, on the data the constants were fitted to.
    """

    compute_efficiency_ratio: float
    memory_efficiency_ratio: float
    layer_overhead_seconds: float  # each layer of each step: launches, scheduling
    parallel_layer_overhead_seconds: float  # in addition with tensor parallelism: start of two all-reduces
    request_overhead_seconds: float = 0.0  # once a request: tokenising, scheduling, first answer
    error_ratio: float | None = None  # None: not known
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("compute_efficiency_ratio", "memory_efficiency_ratio"):
            if not 0.0 < (ratio := getattr(self, name)) <= 1.0:
                raise ValueError(f"{name} lies above 0 and is at most 1, not {ratio}")
        for name in ("layer_overhead_seconds", "parallel_layer_overhead_seconds", "request_overhead_seconds"):
            if not (seconds := getattr(self, name)) >= 0.0:
                raise ValueError(f"{name} is at least 0, not {seconds}")


_FIT = "least squares over 1,092 published vLLM measurements, 9 model families, H100 to GB200 (aiconfigurator samples)"
_VLLM = Losses(
    compute_efficiency_ratio=0.46,
    memory_efficiency_ratio=0.70,
    layer_overhead_seconds=48.2e-6,
    parallel_layer_overhead_seconds=42.4e-6,
    error_ratio=0.157,
    source=_FIT,
)


def _unfitted(error_ratio: float) -> Losses:
    return Losses(
        compute_efficiency_ratio=_VLLM.compute_efficiency_ratio,
        memory_efficiency_ratio=_VLLM.memory_efficiency_ratio,
        layer_overhead_seconds=_VLLM.layer_overhead_seconds,
        parallel_layer_overhead_seconds=_VLLM.parallel_layer_overhead_seconds,
        error_ratio=error_ratio,
        source=f"constants of vLLM, not refitted: {_FIT}",
    )


# Before anything has been measured on the worker itself.
DEFAULT_LOSSES: Mapping[str, Losses] = MappingProxyType(
    {"vllm": _VLLM, "tensorrt-llm": _unfitted(0.266), "sglang": _unfitted(0.319)}
)


class Expected(NamedTuple):
    """Expected seconds of some steps, by the parts they are made of."""

    compute_or_memory_seconds: float
    overhead_seconds: float
    exchange_seconds: float

    @property
    def seconds(self) -> float:
        """From the first step's start to the last one's end."""
        return self.compute_or_memory_seconds + self.overhead_seconds + self.exchange_seconds


def expected(deployment: Deployment, spans: Sequence[Span], losses: Losses) -> Expected:
    """Expected time of the steps in which these spans ran together; never below their reference."""
    return expected_of(deployment, cost(deployment, spans), losses)


def expected_of(deployment: Deployment, done: Cost, losses: Losses) -> Expected:
    """The same for steps whose cost is known.

    Unlike the reference it counts what several GPUs each read: a KV cache that cannot be split, and the attention weights of
    data-parallel ranks.
    """
    per_layer = losses.layer_overhead_seconds
    exchanged = 0.0
    if deployment.rates.exchanges:
        per_layer += losses.parallel_layer_overhead_seconds
        exchanged = exchange_seconds(deployment, done.rank_tokens)
    return Expected(
        max(
            done.compute_seconds / losses.compute_efficiency_ratio,
            done.rank_memory_seconds / losses.memory_efficiency_ratio,
        ),
        done.layer_steps * per_layer,
        exchanged,
    )


def exchange_seconds(deployment: Deployment, tokens: float) -> float:
    """Moving activations of ``tokens`` tokens of one data-parallel rank, at the full rate of one direction of the link.

    Tensor parallelism: a ring all-reduce after each mixer and each feed-forward part, which moves 2 (n-1)/n of the activations
    through every GPU's link. Experts spread over data-parallel ranks: chosen x (n-1)/n of the activations out and back, split
    over the n links. Stages of a pipeline hand over one activation each, which is left out. 0 where GPUs share nothing or no
    link speed is known.
    """
    return tokens * deployment.exchange_seconds_per_token
