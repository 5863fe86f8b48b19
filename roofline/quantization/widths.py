"""Bytes per weight of the formats whose width has parameters: bits, group or block size, zero points.

What belongs to a whole matrix, a row or a column (one scale, the order of GPTQ's columns) is left out: far below 0.1 percent
of any matrix worth counting, and the shape of the matrix would have to be known.
"""

from __future__ import annotations

from roofline.precision import FP8, FP8_BLOCK128, INT8, MXFP4, MXFP8, NVFP4, Precision, Width

_GROUP_SCALE_BYTES = 2.0  # fp16 or bf16
_BLOCK_SCALE_BYTES = 4.0  # fp32
# bitsandbytes: an fp32 maximum per 64 weights; double quantisation stores it as a byte, with an fp32 per 256 of those.
_NF4_BYTES = 0.5 + 4.0 / 64
_NF4_DOUBLE_BYTES = 0.5 + 1.0 / 64 + 4.0 / (64 * 256)


def integer(bits: int, group: int | None, math: Precision, *, native: Width, has_zero_points: bool = False) -> Width:
    """Packed integers: a 16-bit scale per ``group`` weights of a row, and a zero point of ``bits`` bits where there are any.

    ``None``: scales per row or matrix. AWQ, GPTQ, compressed-tensors and AutoRound store alike. GPTQ files have zero points
    also where they are symmetric; those are not read, so they are not counted.
    """
    if bits == 8 and group is None and math is Precision.INT8:
        return INT8
    per_group = _GROUP_SCALE_BYTES + (bits / 8 if has_zero_points else 0.0)
    name = f"int{bits}-g{group}" if group else f"int{bits}-channel"
    if has_zero_points and group:
        name += "-zp"
    return Width(name=_told(name, math, native.math), bytes_each=bits / 8 + (per_group / group if group else 0.0), math=math)


def fp8(block: tuple[int, int] | None, math: Precision) -> Width:
    """Bytes with an fp32 scale per block of rows by columns; ``None``: scales per matrix, row or column."""
    if block == (128, 128):
        width = FP8_BLOCK128
    elif block:
        rows, columns = block
        size = f"{rows}" if rows == columns else f"{rows}x{columns}"
        width = Width(name=f"fp8-block{size}", bytes_each=1.0 + _BLOCK_SCALE_BYTES / (rows * columns), math=Precision.FP8)
    else:
        width = FP8
    return multiplied_in(width, math)


def grouped_fp8(group: int, math: Precision) -> Width:
    """Bytes with a 16-bit scale per ``group`` weights of a row."""
    each = 1.0 + _GROUP_SCALE_BYTES / group
    return multiplied_in(Width(name=f"fp8-g{group}", bytes_each=each, math=Precision.FP8), math)


def fp4(group: int, math: Precision) -> Width | None:
    """E2M1 numbers, told apart by their groups: NVFP4 has 16, MXFP4 has 32; ``None`` for any other."""
    known = {16: NVFP4, 32: MXFP4}
    return multiplied_in(known[group], math) if group in known else None


def nf4(math: Precision, *, is_double: bool) -> Width:
    """4-bit floats of bitsandbytes (nf4 and fp4 alike), widened before they are multiplied."""
    return Width(
        name="nf4-double" if is_double else "nf4", bytes_each=_NF4_DOUBLE_BYTES if is_double else _NF4_BYTES, math=math
    )


def mxfp8(math: Precision) -> Width:
    """E4M3 numbers with an E8M0 scale per 32."""
    return multiplied_in(MXFP8, math)


def multiplied_in(width: Width, math: Precision) -> Width:
    """The same storage, multiplied in another format."""
    if width.math is math:
        return width
    return Width(name=_told(width.name, math, width.math), bytes_each=width.bytes_each, math=math)


def _told(name: str, math: Precision, usual: Precision) -> str:
    """A name that also says the format of the multiplication where it is not the usual one."""
    if math is usual:
        return name
    wide = math in (Precision.FP32, Precision.BF16, Precision.FP16)
    return f"{name}-weight-only" if wide else f"{name}-{math.value}-math"
