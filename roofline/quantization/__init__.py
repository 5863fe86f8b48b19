"""Which width every module's weights are stored at, and so at which precision they are multiplied.

From the quantisation config of a checkpoint (`scheme_from_config`) or by name (`named_scheme`). What is converted follows
vLLM, since its speed is what is held against the limits: versions up to 0.33 were read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roofline.precision import Width
from roofline.quantization.compressed import read_compressed_tensors
from roofline.quantization.fields import Section
from roofline.quantization.floats import read_fbgemm_fp8, read_fp8, read_mxfp4, read_mxfp8
from roofline.quantization.integers import read_auto_round, read_awq, read_bitsandbytes, read_gptq
from roofline.quantization.modelopt import read_modelopt
from roofline.quantization.named import named_scheme
from roofline.quantization.quark import read_quark
from roofline.quantization.scheme import WeightScheme, scheme_of

__all__ = ["WeightScheme", "named_scheme", "scheme_from_config"]

_READERS: Mapping[str, Callable[[Section, Width], WeightScheme]] = {
    "fp8": read_fp8,
    "fbgemm-fp8": read_fbgemm_fp8,
    "mxfp8": read_mxfp8,
    "mxfp4": read_mxfp4,
    "awq": read_awq,
    "gptq": read_gptq,
    "auto-round": read_auto_round,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "modelopt": read_modelopt,
    "quark": read_quark,
}
_ALIASES = {
    "deepseek-v4-fp8": "fp8",
    "gpt-oss-mxfp4": "mxfp4",
    "awq-marlin": "awq",
    "gptq-marlin": "gptq",
    "autoround": "auto-round",
    "intel/auto-round": "auto-round",
    "inc": "auto-round",
    "bnb": "bitsandbytes",
    "modelopt-fp4": "modelopt",
    "modelopt-mxfp8": "modelopt",
    "modelopt-mixed": "modelopt",
}
# Files beside config.json and old exports do not name their method: a field that only it has.
_SIGNS = (
    ("quantization", "modelopt"),
    ("quant_algo", "modelopt"),
    ("config_groups", "compressed-tensors"),
    ("w_bit", "awq"),
    ("zero_point", "awq"),
    ("desc_act", "gptq"),
    ("load_in_4bit", "bitsandbytes"),
    ("load_in_8bit", "bitsandbytes"),
)


def scheme_from_config(quantization: Mapping[str, object] | None, native: Width) -> WeightScheme:
    """The scheme of ``quantization_config`` in a config.json, or of modelopt's whole hf_quant_config.json.

    ``None`` or empty: everything is ``native``, the format of the rest of the model. ``ValueError`` names a method that is not
    known, or the field that is missing or wrong.
    """
    if not quantization:
        return scheme_of(native, ())
    method = _method(quantization)
    reader = _READERS.get(_ALIASES.get(method, method))
    if reader is None:
        raise ValueError(
            f"quantisation method {method!r} is not known; known are {', '.join(_READERS)}. "
            'Say how the weights are stored by weight_dtype, for example "int4-g128"'
        )
    return reader(Section(quantization, f"quantization_config ({method})"), native)


def _method(quantization: Mapping[str, object]) -> str:
    written = quantization.get("quant_method")
    if isinstance(written, str) and written:
        return written.lower().replace("_", "-")
    for field, method in _SIGNS:
        if quantization.get(field) is not None:
            return method
    raise ValueError(
        f"quantization_config has no quant_method; it should name one of {', '.join(_READERS)}. "
        'Say how the weights are stored by weight_dtype, for example "int4-g128"'
    )
