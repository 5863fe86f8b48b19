"""What one GPU can do at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from roofline.precision import Precision


class Certainty(StrEnum):
    """How far a figure may be trusted: vendor sheet and a second source; one source or a conflict; derived."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


# Where a GPU has no path for a format, engines fall back to the next wider one that it has (weights stay narrow in memory).
_FALLBACKS: Mapping[Precision, tuple[Precision, ...]] = {
    Precision.FP4: (Precision.BF16, Precision.FP16, Precision.FP32),
    Precision.FP8: (Precision.BF16, Precision.FP16, Precision.FP32),
    Precision.INT8: (Precision.BF16, Precision.FP16, Precision.FP32),
    Precision.BF16: (Precision.FP16, Precision.FP32),
    Precision.FP16: (Precision.BF16, Precision.FP32),
    Precision.FP32: (),
}

_NARROW = frozenset({Precision.FP4, Precision.FP8, Precision.INT8})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Peaks of one device as sold: dense (no structured sparsity), FP32 accumulation where the part distinguishes.

    A measured rate is lower than any of them: large matrix products reach 0.75-0.85 of the tensor peak, streaming reads
    0.8-0.92 of the bandwidth. ``link_bytes_per_second`` is one direction of the GPU-to-GPU link of one GPU (half of what
    data sheets print); 0 where there is none and traffic goes over PCIe; ``None`` where nothing is published.
    """

    id: str  # lower-case, hyphens: "h100-sxm"
    names: tuple[str, ...]  # as the driver tells it
    dense_flop_per_second: Mapping[Precision, float]  # formats without a hardware path are absent
    memory_bytes_per_second: float
    memory_bytes: float | None  # None: as much as the machine has (CPU)
    link_bytes_per_second: float | None = None
    pcie_bytes_per_second: float | None = None  # one direction
    driver_memory_bytes: int | None = None  # what the driver reports as total; often above memory_bytes: vendors sell GiB as GB
    compute_capability: str = ""
    sparse_flop_per_second: Mapping[Precision, float] = field(default_factory=dict)  # headline figures, never used as a peak
    source: str = ""
    peaks_certainty: Certainty = Certainty.LOW
    bandwidth_certainty: Certainty = Certainty.LOW
    note: str = ""

    def math(self, wanted: Precision) -> Precision:
        """The fastest format in which this GPU can multiply operands stored as ``wanted``: that one, or a wider one.

        Operands can always be widened, which pays where the narrow path is missing or slow (int8 on V100 and B300).
        ``ValueError`` if it has none at all.
        """
        own = self.dense_flop_per_second.get(wanted, 0.0)
        wider = next((precision for precision in _FALLBACKS[wanted] if precision in self.dense_flop_per_second), None)
        if own and not (wanted in _NARROW and wider is not None and self.dense_flop_per_second[wider] > own):
            return wanted
        if wider is None:
            raise ValueError(f"no peak is known for the GPU {self.id} at {wanted} or any format that could stand in for it")
        return wider

    def peak(self, wanted: Precision) -> float:
        """FLOP per second at which operands meant for ``wanted`` are multiplied at most; see `math`."""
        return self.dense_flop_per_second[self.math(wanted)]

    def ridge_flop_per_byte(self, precision: Precision) -> float:
        """Ridge point: arithmetic intensity above which a kernel of this format is bound by compute, below by memory."""
        return self.peak(precision) / self.memory_bytes_per_second
