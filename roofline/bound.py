"""The least time that work can take: whichever of compute and memory is slower, and the same operator by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roofline.gpu import Gpu
from roofline.work import Work

Binds = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds for all steps of some work on all GPUs pooled, compute and memory perfectly overlapped."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """The slower of the two; nothing that really does this work is faster."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def binds(self) -> Binds:
        """Which of the two it is."""
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"


def bound(work: Work, gpu: Gpu, gpus: int = 1) -> Bound:
    """Roofline of the whole: every operator at its own peak one after another, all bytes at full bandwidth, overlapped."""
    compute = sum(operator.flop / operator.flop_per_second for operator in work.operators)
    return Bound(compute / gpus, work.bytes / (gpus * gpu.memory_bytes_per_second))


def operator_seconds(work: Work, gpu: Gpu, gpus: int = 1) -> dict[str, float]:
    """Roofline of each operator by itself: its slower of compute and memory, without overlap between operators.

    A second view, never below `bound` in sum: it shows where the time goes, but a clever engine may beat it by running
    operators side by side, so it is no floor. Operators of one name are added up.
    """
    seconds: dict[str, float] = {}
    for operator in work.operators:
        alone = max(operator.flop / operator.flop_per_second, operator.bytes / gpu.memory_bytes_per_second) / gpus
        seconds[operator.name] = seconds.get(operator.name, 0.0) + alone
    return seconds
