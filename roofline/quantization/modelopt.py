"""Checkpoints of NVIDIA's Model Optimizer: hf_quant_config.json, or the same inside config.json."""

from __future__ import annotations

from collections import defaultdict

from roofline.precision import FP8, INT8, MXFP4, MXFP8, NVFP4, Precision, Width
from roofline.quantization.compressed import group_rules
from roofline.quantization.fields import Section
from roofline.quantization.names import Modules, below_root, named_by_glob
from roofline.quantization.scheme import ALL, LINEAR_AND_HEAD, Rule, WeightScheme, kept, scheme_of
from roofline.quantization.widths import fp8, integer, multiplied_in

# Names as in modelopt/torch/export/quant_utils.py; vLLM serves those in vllm/model_executor/layers/quantization/modelopt.py.
_FIXED_ALGORITHMS = {
    "fp8": FP8,
    "fp8_per_channel_per_token": FP8,
    "w8a8_sq_per_channel": INT8,
    "mxfp8": MXFP8,
    "w4a8_mxfp4_fp8": MXFP4,
    "nvfp4": NVFP4,
    "nvfp4_awq": NVFP4,
    "w4a8_nvfp4_fp8": multiplied_in(NVFP4, Precision.FP8),
}
_BLOCK_ALGORITHMS = ("fp8_pb_wo", "fp8_block_scales")
_AWQ_ALGORITHMS = ("w4a16_awq", "w4a8_awq")
_NVFP4_WEIGHT_ONLY = "w4a16_nvfp4"
_MIXED = "mixed_precision"
_ALGORITHMS = (*_FIXED_ALGORITHMS, *_BLOCK_ALGORITHMS, *_AWQ_ALGORITHMS, _NVFP4_WEIGHT_ONLY)
_NVFP4_GROUP = 16


def read_modelopt(config: Section, native: Width) -> WeightScheme:
    """``quant_algo`` for all linear layers, the head too unless it is excluded; "MIXED_PRECISION" goes module by module."""
    inner = config.section("quantization") or config
    algorithm = inner.choice("quant_algo", (*_ALGORITHMS, _MIXED))
    rules = [kept(named_by_glob(_excluded(inner)))]
    if algorithm == _MIXED:
        rules.extend(_rules_per_layer(inner, native))
    else:
        if algorithm == "nvfp4" and _is_weight_only(inner):
            algorithm = _NVFP4_WEIGHT_ONLY
        rules.append(Rule(width=_width(inner, algorithm, native), parts=LINEAR_AND_HEAD))
    return scheme_of(native, rules, kv_dtype=_kv_dtype(inner))


def _excluded(config: Section) -> tuple[str, ...]:
    """Names and shell patterns; the key depends on the version that exported."""
    keys = ("exclude_modules", "ignore", "modules_to_not_convert")
    return tuple(name for key in keys for name in config.names(key))


def _rules_per_layer(config: Section, native: Width) -> list[Rule]:
    """Modules that are not listed stay native. A mixture's experts are listed one by one or as one module."""
    if "quantized_layers" not in config:
        if "config_groups" in config:
            return group_rules(config, native)
        raise config.wrong(
            "quantized_layers", "a mapping of modules to their quant_algo (some exports keep it in quant_cfg.json)"
        )
    named: dict[Width, list[str]] = defaultdict(list)
    for name, layer in config.sections("quantized_layers"):
        algorithm = layer.choice("quant_algo", (*_ALGORITHMS, "unquantized"))
        if algorithm != "unquantized":
            named[_width(layer, algorithm, native)].append(below_root(name))
    return [Rule(width=width, parts=ALL, modules=Modules(names=frozenset(names))) for width, names in named.items()]


def _width(config: Section, algorithm: str, native: Width) -> Width:
    if algorithm in _BLOCK_ALGORITHMS:
        block = config.integer("group_size", default=128)
        return fp8((block, block), Precision.FP8)
    if algorithm in _AWQ_ALGORITHMS:
        has_zero_points = config.flag("has_zero_point", default=False)
        math = Precision.FP8 if algorithm == "w4a8_awq" else native.math
        return integer(4, config.integer("group_size", default=128), math, native=native, has_zero_points=has_zero_points)
    if "nvfp4" in algorithm and config.integer("group_size", default=_NVFP4_GROUP) != _NVFP4_GROUP:
        raise config.wrong("group_size", f"{_NVFP4_GROUP}, the only one of NVFP4")
    return multiplied_in(NVFP4, native.math) if algorithm == _NVFP4_WEIGHT_ONLY else _FIXED_ALGORITHMS[algorithm]


def _is_weight_only(config: Section) -> bool:
    """Some exports say "NVFP4" and leave activations alone in every group; vLLM then runs W4A16."""
    groups = list(config.sections("config_groups"))
    return bool(groups) and all("input_activations" not in group for _, group in groups)


def _kv_dtype(config: Section) -> str | None:
    """What vLLM's "auto" becomes: fp8 or nvfp4; formats that it does not have leave the cache native, as in vLLM."""
    scheme = config.section("kv_cache_scheme")
    if scheme is not None:
        formats = {(8, "float"): "fp8", (4, "float"): "nvfp4"}
        return formats.get((scheme.integer("num_bits", default=8), scheme.text("type", default="float")))
    named = config.text("kv_cache_quant_algo", default="none")
    return named if named in ("fp8", "nvfp4") else None
