"""Checkpoints stored in few bits and widened before multiplying: AWQ, GPTQ, AutoRound, bitsandbytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from roofline.precision import INT8, MXFP4, MXFP8, Precision, Width
from roofline.quantization.fields import Section
from roofline.quantization.names import (
    EVERY,
    Modules,
    Part,
    below_root,
    named_by_path,
    named_exactly,
    named_in_part,
    regular_expression,
)
from roofline.quantization.scheme import ALL, LINEAR, LINEAR_AND_HEAD, Rule, WeightScheme, kept, scheme_of
from roofline.quantization.widths import fp8, integer, nf4

_NATIVE_BITS = 16
_REGEX_CHARACTERS = set(r"*+?^$()[]{}|\\")


def read_awq(config: Section, native: Width) -> WeightScheme:
    """``quant_method: awq``; the head only with ``lm_head: true``."""
    bits, group = _bits(config, "bits", "w_bit"), _group(config, "group_size", "q_group_size")
    width = integer(bits, group, native.math, native=native, has_zero_points=config.flag("zero_point", default=True))
    skipped = named_in_part(config.names("modules_to_not_convert"))
    return scheme_of(native, [kept(skipped), Rule(width=width, parts=_parts(config))], name=_called("awq", bits, group))


def read_gptq(config: Section, native: Width) -> WeightScheme:
    """``quant_method: gptq``; the head only with ``lm_head: true``.

    ``dynamic`` (GPTQModel) maps regular expressions to other parameters, or after "-:" names what stays native; the first
    that matches counts. ``modules_in_block_to_quantize`` names all that is converted.
    """
    bits, group, parts = _bits(config, "bits"), _group(config, "group_size"), _parts(config)
    rules: list[Rule] = []
    overrides = config.section("dynamic")
    for name in overrides.fields if overrides else ():
        modules = Modules(patterns=(regular_expression(name.removeprefix("-:").removeprefix("+:")),))
        if name.startswith("-:"):
            rules.append(kept(modules))
        elif overrides and (override := overrides.section(name)):
            rules.append(Rule(width=_gptq_width(override, config, native), parts=parts, modules=modules))
    only = config.names("modules_in_block_to_quantize")
    modules = Modules(patterns=tuple(re.compile(f".*{re.escape(below_root(name))}") for name in only)) if only else EVERY
    rules.append(Rule(width=_gptq_width(config, config, native), parts=parts, modules=modules))
    return scheme_of(native, rules, name=_called("gptq", bits, group))


def read_auto_round(config: Section, native: Width) -> WeightScheme:
    """``quant_method: auto-round``; ``extra_config`` gives single modules (the head too) other bits, 16 for not converted."""
    others = tuple(_auto_round_overrides(config, native))
    blocks = config.fields.get("block_name_to_quantize") or config.fields.get("to_quant_block_names")
    if isinstance(blocks, str):
        names: tuple[str, ...] = tuple(blocks.split(","))
    else:
        names = config.names("block_name_to_quantize", "to_quant_block_names")
    modules = Modules(patterns=tuple(re.compile(re.escape(name.strip())) for name in names)) if names else EVERY
    rest = Rule(width=_auto_round_width(config, config, native), parts=LINEAR, modules=modules)
    return scheme_of(native, [*others, rest])


def read_bitsandbytes(config: Section, native: Width) -> WeightScheme:
    """``quant_method: bitsandbytes``: ``load_in_4bit`` (widened before multiplying) or ``load_in_8bit`` (int8 products)."""
    is_narrow, is_byte = config.flag("load_in_4bit", default=False), config.flag("load_in_8bit", default=False)
    if is_narrow is is_byte:
        raise ValueError(f"{config.place}: exactly one of load_in_4bit and load_in_8bit should be true")
    is_double = config.flag("bnb_4bit_use_double_quant", default=False)
    if is_narrow:
        config.choice("bnb_4bit_quant_type", ("nf4", "fp4"), default="fp4")
    width = nf4(native.math, is_double=is_double) if is_narrow else INT8
    skipped = named_by_path(config.names("llm_int8_skip_modules"))
    return scheme_of(native, [kept(skipped), Rule(width=width, parts=LINEAR)], name=f"bitsandbytes {width.name}")


def _gptq_width(config: Section, base: Section, native: Width) -> Width:
    bits = _bits(config if "bits" in config else base, "bits")
    group = _group(config if "group_size" in config else base, "group_size")
    is_symmetric = config.flag("sym", default=base.flag("sym", default=True))
    return integer(bits, group, native.math, native=native, has_zero_points=not is_symmetric)


def _auto_round_overrides(config: Section, native: Width) -> Iterator[Rule]:
    for name, other in config.sections("extra_config"):
        is_expression = not _REGEX_CHARACTERS.isdisjoint(name)
        modules = Modules(patterns=(regular_expression(f".*(?:{name})"),)) if is_expression else named_exactly([name])
        if "bits" in other and other.integer("bits") >= _NATIVE_BITS:
            yield kept(modules)
        else:
            yield Rule(width=_auto_round_width(other, config, native), parts=ALL, modules=modules)


def _auto_round_width(config: Section, base: Section, native: Width) -> Width:
    bits = _bits(config if "bits" in config else base, "bits")
    typed = config if "data_type" in config else base
    data_type = typed.text("data_type", default="int")
    sized = config if "group_size" in config else base
    if data_type.startswith("mx_fp") and bits in (4, 8):
        return MXFP4 if bits == 4 else MXFP8
    if data_type in ("fp", "fp8") and bits == 8:
        return fp8(sized.pair("group_size"), Precision.FP8)
    if data_type != "int":
        raise typed.wrong("data_type", "int, mx_fp of 4 or 8 bits, or fp of 8")
    is_symmetric = config.flag("sym", default=base.flag("sym", default=True))
    return integer(bits, _group(sized, "group_size"), native.math, native=native, has_zero_points=not is_symmetric)


def _bits(config: Section, *keys: str) -> int:
    bits = config.integer(*keys, least=2)
    if bits > 8:
        raise config.wrong(keys[0], "2 to 8 bits")
    return bits


def _group(config: Section, *keys: str) -> int | None:
    """Weights of a row that share a scale; ``None`` for whole rows, which configs write as -1."""
    group = config.integer(*keys, least=-1)
    if group == 0:
        raise config.wrong(keys[0], "a number of weights, or -1 for whole rows")
    return None if group == -1 else group


def _parts(config: Section) -> frozenset[Part]:
    return LINEAR_AND_HEAD if config.flag("lm_head", default=False) else LINEAR


def _called(method: str, bits: int, group: int | None) -> str:
    return f"{method} int{bits} g{group}" if group else f"{method} int{bits}"
