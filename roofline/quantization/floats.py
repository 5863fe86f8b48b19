"""Checkpoints in fp8, MXFP8 and MXFP4 by their own quantisation methods (DeepSeek, Qwen, MiniMax, Llama 405B, gpt-oss)."""

from __future__ import annotations

from roofline.precision import FP8, MXFP4, MXFP8, NVFP4, Precision, Width
from roofline.quantization.fields import Section
from roofline.quantization.names import named_by_path
from roofline.quantization.scheme import EXPERTS, LINEAR, Rule, WeightScheme, kept, scheme_of
from roofline.quantization.widths import fp8

_EXPERT_FORMATS = {"fp8": None, "fp4": MXFP4, "mxfp4": MXFP4, "nvfp4": NVFP4}


def read_fp8(config: Section, native: Width) -> WeightScheme:
    """``quant_method: fp8``: a scale per block if there is a ``weight_block_size``, else per matrix; the head stays native.

    vLLM skips whole names, transformers anything below or ending in a name; what is skipped by either is stored native.
    Experts may be stored narrower (DeepSeek-V4: ``expert_dtype``, from the model's config, or ``moe_quant_algo``).
    """
    block = config.pair("weight_block_size")
    scheme = config.choice("activation_scheme", ("dynamic", "static"), default="dynamic")
    if block and scheme == "static":
        raise config.wrong("activation_scheme", '"dynamic" where weights are scaled in blocks')
    narrower = next((key for key in ("expert_dtype", "store_dtype", "moe_quant_algo") if key in config), None)
    experts = _EXPERT_FORMATS[config.choice(narrower, _EXPERT_FORMATS)] if narrower else None
    rules = [kept(named_by_path(config.names("ignored_layers", "modules_to_not_convert")))]
    if experts:
        rules.append(Rule(width=experts, parts=EXPERTS))
    return scheme_of(native, [*rules, Rule(width=fp8(block, Precision.FP8), parts=LINEAR)])


def read_fbgemm_fp8(config: Section, native: Width) -> WeightScheme:
    """``quant_method: fbgemm_fp8`` (Meta's 405B): a scale per row."""
    skipped = named_by_path(config.names("modules_to_not_convert"))
    return scheme_of(native, [kept(skipped), Rule(width=FP8, parts=LINEAR)])


def read_mxfp8(config: Section, native: Width) -> WeightScheme:
    """``quant_method: mxfp8``."""
    skipped = named_by_path(config.names("ignored_layers", "modules_to_not_convert", "ignore"))
    return scheme_of(native, [kept(skipped), Rule(width=MXFP8, parts=LINEAR)])


def read_mxfp4(config: Section, native: Width) -> WeightScheme:
    """``quant_method: mxfp4`` (gpt-oss): routed experts only, in vLLM too whatever the list of what is not converted names."""
    skipped = named_by_path(config.names("modules_to_not_convert"))
    return scheme_of(native, [kept(skipped), Rule(width=MXFP4, parts=EXPERTS)])
