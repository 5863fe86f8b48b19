"""Checkpoints of llm-compressor (``quant_method: compressed-tensors``): groups of modules, each with its own format."""

from __future__ import annotations

import re

from roofline.precision import Precision, Width
from roofline.quantization.fields import Section
from roofline.quantization.names import EVERY, Part, named_exactly
from roofline.quantization.scheme import ALL, EXPERTS, LINEAR, LINEAR_AND_HEAD, Rule, WeightScheme, kept, scheme_of
from roofline.quantization.widths import fp4, fp8, grouped_fp8, integer, mxfp8

_STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")
_CLASS_NAME = re.compile(r"[A-Z]\w*\Z")
_MXFP4_GROUP = 32
_MXFP8_GROUP = 32


def read_compressed_tensors(config: Section, native: Width) -> WeightScheme:
    """The first group that names a module counts, before any that names its class; ``ignore`` comes before both.

    As in vLLM the class "Linear" does not include the head, which is narrow only where a group names it.
    """
    _refuse_sparse(config)
    skipped = named_exactly(config.names("ignore"))
    return scheme_of(native, [kept(skipped), *group_rules(config, native)], kv_dtype=kv_dtype(config))


def group_rules(config: Section, native: Width) -> list[Rule]:
    """What ``config_groups`` gives to which modules. ``ValueError`` if there are no groups."""
    groups = list(config.sections("config_groups"))
    if not groups:
        raise config.wrong("config_groups", "a mapping of at least one group with its targets and weights")
    by_name: list[Rule] = []
    by_class: list[Rule] = []
    for _, group in groups:
        targets = group.names("targets")
        if not targets:
            raise group.wrong("targets", "a list of module names, classes and regular expressions")
        weights = group.section("weights")
        if weights is None or all(target.endswith("Attention") for target in targets):
            continue  # a group for the KV cache or for activations only
        width = group_width(group, weights, native)
        classes = [target for target in targets if _CLASS_NAME.match(target)]
        plain = [target for target in targets if target not in set(classes) and not target.startswith("re:")]
        expressions = [target for target in targets if target.startswith("re:")]
        by_name.append(Rule(width=width, parts=ALL, modules=named_exactly(plain)))
        by_name.append(Rule(width=width, parts=LINEAR_AND_HEAD, modules=named_exactly(expressions)))
        by_class.extend(Rule(width=width, parts=_parts_of_class(group, target), modules=EVERY) for target in classes)
    return by_name + [rule for rule in by_class if rule.parts]


def group_width(group: Section, weights: Section, native: Width) -> Width:
    """How the weights of a group are stored; with ``input_activations`` they are multiplied in that format."""
    bits, kind = weights.integer("num_bits", default=8), weights.choice("type", ("int", "float"), default="int")
    size = _group_size(weights)
    inputs = _activations(group)
    if kind == "int":
        if bits not in range(2, 9):
            raise weights.wrong("num_bits", "2 to 8 for integers")
        has_zero_points = not weights.flag("symmetric", default=True)
        return integer(bits, size, inputs or native.math, native=native, has_zero_points=has_zero_points)
    if bits == 4:
        # vLLM narrows the activations of MXFP4 itself where the GPU has the format, whatever the config says of them.
        narrow = fp4(size or 0, inputs or (Precision.FP4 if size == _MXFP4_GROUP else native.math))
        if narrow is None:
            raise weights.wrong("group_size", "16 (NVFP4) or 32 (MXFP4) for 4-bit floats")
        return narrow
    if bits != 8:
        raise weights.wrong("num_bits", "4 or 8 for floats")
    if size == _MXFP8_GROUP and str(weights.fields.get("scale_dtype")).endswith("uint8"):
        return mxfp8(Precision.FP8)
    if size:
        return grouped_fp8(size, inputs or native.math)
    return fp8(_block(weights), inputs or native.math)


def kv_dtype(config: Section) -> str | None:
    """How ``kv_cache_scheme`` stores the KV cache: "fp8", or ``None`` where it says nothing."""
    scheme = config.section("kv_cache_scheme")
    if scheme is None:
        return None
    if scheme.integer("num_bits", default=8) != 8 or scheme.choice("type", ("int", "float"), default="float") != "float":
        raise config.wrong("kv_cache_scheme", "floats of 8 bits, the only narrow KV cache of compressed-tensors that vLLM has")
    return "fp8"


def _refuse_sparse(config: Section) -> None:
    sparsity = config.section("sparsity_config")
    kept_dense = sparsity is None or not sparsity.fields or sparsity.text("format", default="dense") == "dense"
    if not kept_dense or "24" in config.text("format", default="dense"):
        raise ValueError(
            f"{config.place}: weights of 2:4 sparsity are not known here, nor to vLLM any more; "
            "say how they are stored with weight_dtype"
        )


def _group_size(weights: Section) -> int | None:
    """Weights of a row that share a scale; ``None``: other strategies."""
    size = weights.integer("group_size", default=-1, least=-1)
    default = "block" if "block_structure" in weights else "group" if size > 0 else "channel"
    strategy = weights.choice("strategy", _STRATEGIES, default=default)
    if strategy not in ("group", "tensor_group"):
        return None
    if size < 1:
        raise weights.wrong("group_size", f'a positive number of weights for the strategy "{strategy}"')
    return size


def _block(weights: Section) -> tuple[int, int] | None:
    if weights.fields.get("strategy") != "block" and "block_structure" not in weights:
        return None
    written = weights.fields.get("block_structure")
    if isinstance(written, str) and re.fullmatch(r"\d+x\d+", written):  # older versions: "128x128"
        rows, columns = written.split("x")
        return int(rows), int(columns)
    block = weights.pair("block_structure")
    if block is None:
        raise weights.wrong("block_structure", '[rows, columns] for the strategy "block"')
    return block


def _activations(group: Section) -> Precision | None:
    """The format in which inputs are multiplied; ``None``: the model's own."""
    inputs = group.section("input_activations")
    if inputs is None:
        return None
    bits, kind = inputs.integer("num_bits", default=8), inputs.choice("type", ("int", "float"), default="int")
    if kind == "int" and "output_activations" in group:
        return None  # rounded on the way in and out, multiplied wide (vLLM: CompressedTensorsWNA8O8Int)
    known = {("float", 8): Precision.FP8, ("float", 4): Precision.FP4, ("int", 8): Precision.INT8}
    if (kind, bits) not in known:
        raise inputs.wrong("num_bits", "8, or 4 for floats: no other format of activations has a peak here")
    return known[kind, bits]


def _parts_of_class(group: Section, target: str) -> frozenset[Part]:
    if target == "Linear":
        return LINEAR
    if "experts" in target.lower() or "moe" in target.lower():
        return EXPERTS
    if target.endswith("Embedding"):
        return frozenset({Part.EMBEDDING})
    if target.startswith("Conv") or target.endswith("Attention"):
        return frozenset()
    raise group.wrong("targets", f'module names, "re:" expressions, or the classes Linear and Embedding; "{target}" is neither')
