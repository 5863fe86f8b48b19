"""Checkpoints of AMD's Quark (``quant_method: quark``)."""

from __future__ import annotations

from roofline.precision import Precision, Width
from roofline.quantization.fields import Section
from roofline.quantization.names import Modules, named_by_glob, named_exactly
from roofline.quantization.scheme import LINEAR, Rule, WeightScheme, kept, scheme_of
from roofline.quantization.widths import fp4, fp8, integer, mxfp8

_INTEGERS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
_INPUTS = {"fp8_e4m3": Precision.FP8, "int8": Precision.INT8, "fp4": Precision.FP4}
_MXFP8_GROUP = 32


def read_quark(config: Section, native: Width) -> WeightScheme:
    """``layer_quant_config`` by shell patterns first, then ``global_quant_config``; never the head, as in vLLM."""
    skipped = config.names("exclude")
    expressions = named_exactly(name for name in skipped if name.startswith("re:"))
    plain = named_by_glob(name for name in skipped if not name.startswith("re:"))
    rules = [kept(Modules(runs=plain.runs, patterns=plain.patterns + expressions.patterns))]
    for name, layer in config.sections("layer_quant_config"):
        if "weight" in layer:
            rules.append(Rule(width=_width(layer, native), parts=LINEAR, modules=named_by_glob([name])))
    everywhere = config.section("global_quant_config")
    if everywhere is not None and "weight" in everywhere:
        rules.append(Rule(width=_width(everywhere, native), parts=LINEAR))
    if len(rules) == 1:
        raise config.wrong("global_quant_config", "a mapping with the weight's dtype and qscheme")
    return scheme_of(native, rules, kv_dtype=_kv_dtype(config))


def _width(layer: Section, native: Width) -> Width:
    stages = _stages(layer, "weight")
    inputs = _stages(layer, "input_tensors")
    math = _INPUTS[inputs[0].choice("dtype", _INPUTS)] if inputs else native.math
    # Two stages tell how it was made; stored is the narrowest: NVFP4 is fp4 then fp8 scales, W4A8 is fp8 then int4.
    weight = min(stages, key=_bits)
    dtype = weight.choice("dtype", (*_INTEGERS, "fp8_e4m3", "fp4"))
    group = weight.integer("group_size") if weight.text("qscheme", default="per_tensor") == "per_group" else None
    if dtype in _INTEGERS:
        has_zero_points = not weight.flag("symmetric", default=True)
        return integer(_INTEGERS[dtype], group, math, native=native, has_zero_points=has_zero_points)
    if dtype == "fp4":
        narrow = fp4(group or 0, math)
        if narrow is None:
            raise weight.wrong("group_size", "16 (NVFP4) or 32 (MXFP4) for fp4")
        return narrow
    return mxfp8(math) if group == _MXFP8_GROUP else fp8(weight.pair("block_size"), math)


def _stages(layer: Section, key: str) -> list[Section]:
    """A tensor's format: one mapping, or a list of them."""
    written = layer.fields.get(key)
    if isinstance(written, list):
        stages = {str(number): stage for number, stage in enumerate(written)}
        return [stage for _, stage in Section({key: stages}, layer.place).sections(key)]
    single = layer.section(key)
    return [] if single is None else [single]


def _bits(stage: Section) -> int:
    dtype = stage.text("dtype")
    return 4 if dtype.endswith("4") else 8


def _kv_dtype(config: Section) -> str | None:
    export = config.section("export")
    patterns = export.names("kv_cache_group") if export else ()
    for name, layer in config.sections("layer_quant_config"):
        outputs = layer.section("output_tensors")
        if name in patterns and outputs is not None and outputs.text("dtype") == "fp8_e4m3":
            return "fp8"
    return None
