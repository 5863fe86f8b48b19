"""Number formats: which peak a multiplication runs at, and how many bytes a stored number takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """The format of the operands of a multiplication; each GPU has a peak of its own for it, or none."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """How numbers are stored, and in which format they are multiplied.

    ``bytes_each`` includes what belongs to the format: scales and zero points. Weights that are only stored in a narrow
    format (AWQ, GPTQ, int8 weight-only) are multiplied in the wide one.
    """

    name: str  # as people write it: "bf16", "fp8", "int4-g128"
    bytes_each: float
    math: Precision


FP32 = Width(name="fp32", bytes_each=4.0, math=Precision.FP32)
BF16 = Width(name="bf16", bytes_each=2.0, math=Precision.BF16)
FP16 = Width(name="fp16", bytes_each=2.0, math=Precision.FP16)
FP8 = Width(name="fp8", bytes_each=1.0, math=Precision.FP8)  # one scale per tensor or channel: negligible
INT8 = Width(name="int8", bytes_each=1.0, math=Precision.INT8)
FP8_BLOCK128 = Width(name="fp8-block128", bytes_each=1.0 + 4.0 / (128 * 128), math=Precision.FP8)  # an fp32 scale per 128 x 128
MXFP8 = Width(name="mxfp8", bytes_each=1.0 + 1.0 / 32, math=Precision.FP8)  # an E8M0 scale per 32
# Multiplied by fp8 activations, at the fp8 rate; GPUs without that path widen the weights first and are slower.
MXFP4 = Width(name="mxfp4", bytes_each=0.5 + 1.0 / 32, math=Precision.FP8)  # 4.25 bit: an E8M0 scale per 32
NVFP4 = Width(name="nvfp4", bytes_each=0.5 + 1.0 / 16, math=Precision.FP4)  # 4.5 bit: an fp8 scale per 16, one fp32 per matrix
