"""Weight schemes by the names that people give them, for models whose config says nothing or is to be overridden."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from roofline.precision import BF16, FP8, FP8_BLOCK128, FP16, FP32, INT8, MXFP4, MXFP8, NVFP4, Precision, Width
from roofline.quantization.scheme import EXPERTS, LINEAR, LINEAR_AND_HEAD, Rule, WeightScheme, scheme_of
from roofline.quantization.widths import integer, multiplied_in, nf4

_WHOLE: Mapping[str, Width] = {
    "bf16": BF16,
    "bfloat16": BF16,
    "fp16": FP16,
    "float16": FP16,
    "half": FP16,
    "fp32": FP32,
    "float32": FP32,
}


def _linear(width: Width) -> tuple[Rule, ...]:
    return (Rule(width=width, parts=LINEAR),)


def _experts(width: Width, rest: Width | None = None) -> tuple[Rule, ...]:
    return (Rule(width=width, parts=EXPERTS), *(_linear(rest) if rest else ()))


def _int4(native: Width, math: Precision | None = None, *, has_zero_points: bool = False) -> tuple[Rule, ...]:
    return _linear(integer(4, 128, math or native.math, native=native, has_zero_points=has_zero_points))


def _int8(native: Width) -> Width:
    return integer(8, None, native.math, native=native)


_NARROW: Mapping[str, Callable[[Width], tuple[Rule, ...]]] = {
    "fp8": lambda native: _linear(FP8),
    "fp8-block": lambda native: _linear(FP8_BLOCK128),
    "fp8-weight-only": lambda native: _linear(multiplied_in(FP8, native.math)),
    "mxfp8": lambda native: _linear(MXFP8),
    "int8": lambda native: _linear(INT8),
    "int8-weight-only": lambda native: _linear(_int8(native)),
    "int8-weight-only-all": lambda native: (Rule(width=_int8(native), parts=LINEAR_AND_HEAD),),
    "int4": _int4,
    "int4-fp8": lambda native: _int4(native, Precision.FP8),
    "awq": lambda native: _int4(native, has_zero_points=True),
    "gptq": _int4,
    "nf4": lambda native: _linear(nf4(native.math, is_double=False)),
    "nf4-double": lambda native: _linear(nf4(native.math, is_double=True)),
    "mxfp4": lambda native: _linear(MXFP4),
    "mxfp4-experts": lambda native: _experts(MXFP4),
    "nvfp4": lambda native: _linear(NVFP4),
    "nvfp4-weight-only": lambda native: _linear(multiplied_in(NVFP4, native.math)),
    "nvfp4-experts": lambda native: _experts(NVFP4),
    "nvfp4-experts-fp8": lambda native: _experts(NVFP4, FP8),
}
_ALIASES = {
    "fp8-block128": "fp8-block",
    "w8a8": "int8",
    "int8-w8a8": "int8",
    "w8a16": "int8-weight-only",
    "w4a16": "int4",
    "w4a8": "int4-fp8",
    "w4a8-awq": "int4-fp8",
    "bnb-4bit": "nf4",
    "w4a16-nvfp4": "nvfp4-weight-only",
}
_GROUPED = re.compile(r"int([2-8])-g(\d+)\Z")

NAMES = ("auto", *_WHOLE, *_NARROW, "int4-g128 (any bits and group)")


def named_scheme(name: str, native: Width) -> WeightScheme:
    """The scheme of a name such as "fp8", "awq", "int4-g64" or "mxfp4-experts"; upper case and underscores are taken too.

    Linear layers of the blocks are narrow; head, embedding, routers and norms stay in the model's own format (the head is
    narrow only in "int8-weight-only-all"). "bf16", "fp16" and "fp32" are the format of everything, "auto" is ``native``.
    ``ValueError`` names the nearest and all others.
    """
    written = name.strip().lower().replace("_", "-")
    known = _ALIASES.get(written, written)
    if known == "auto":
        return scheme_of(native, ())
    if known in _WHOLE:
        return scheme_of(_WHOLE[known], ())
    if known in _NARROW:
        return scheme_of(native, _NARROW[known](native), name=written)
    if (grouped := _GROUPED.match(known)) and int(grouped[2]) > 0:
        width = integer(int(grouped[1]), int(grouped[2]), native.math, native=native)
        return scheme_of(native, _linear(width), name=written)
    near = get_close_matches(written, (*_WHOLE, *_NARROW, *_ALIASES), n=1)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"weight dtype {name!r} is not known{meant} Known: {', '.join(NAMES)}")
