"""Which layer of a model is what: full, windowed or linear attention, Mamba; dense or mixture-of-experts feed-forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from roofline.models.families import Family
from roofline.models.fields import ConfigFields

Kind = TypeVar("Kind")


class MixerKind(Enum):
    """What mixes tokens in a layer."""

    NONE = "none"
    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    LINEAR = "linear"  # gated delta net
    MAMBA = "mamba"


class FfnKind(Enum):
    """What follows the mixer in a layer."""

    NONE = "none"
    DENSE = "dense"
    MOE = "moe"


class LayerKind(NamedTuple):
    """One layer; a block that is only half a layer has ``NONE`` for the other half."""

    mixer: MixerKind
    ffn: FfnKind
    shares_index: bool = False  # sparse attention that looks where the layer before looked


# Names in lists of layer types. In some lists "linear_attention" stands for Mamba: the config's other fields tell.
_MIXERS = {
    "full_attention": MixerKind.FULL,
    "attention": MixerKind.FULL,
    "deepseek_sparse_attention": MixerKind.FULL,
    "sliding_attention": MixerKind.SLIDING,
    "chunked_attention": MixerKind.CHUNKED,
    "linear_attention": MixerKind.LINEAR,
    "mamba": MixerKind.MAMBA,
    "mamba2": MixerKind.MAMBA,
}
_HALVES = {  # Nemotron-H: every block is half a layer
    "M": LayerKind(MixerKind.MAMBA, FfnKind.NONE),
    "mamba": LayerKind(MixerKind.MAMBA, FfnKind.NONE),
    "linear_attention": LayerKind(MixerKind.MAMBA, FfnKind.NONE),
    "*": LayerKind(MixerKind.FULL, FfnKind.NONE),
    "attention": LayerKind(MixerKind.FULL, FfnKind.NONE),
    "full_attention": LayerKind(MixerKind.FULL, FfnKind.NONE),
    "-": LayerKind(MixerKind.NONE, FfnKind.DENSE),
    "mlp": LayerKind(MixerKind.NONE, FfnKind.DENSE),
    "E": LayerKind(MixerKind.NONE, FfnKind.MOE),
    "moe": LayerKind(MixerKind.NONE, FfnKind.MOE),
}


def layer_kinds(fields: ConfigFields, family: Family) -> tuple[LayerKind, ...]:
    """What each layer is, in order. ``ValueError`` for a type of layer that is not known or a list that is too short."""
    if family.has_half_layers:
        return _halves(fields)
    layers = fields.count("layers")
    mixers = _mixers(fields, family, layers)
    if family.is_mixer_only:
        return tuple(LayerKind(mixer, FfnKind.NONE) for mixer in mixers)
    is_moe = _moe_rule(fields, layers)
    shares_index = _index_sharing(fields, layers)
    return tuple(
        LayerKind(mixer, FfnKind.MOE if is_moe(layer) else FfnKind.DENSE, shares_index[layer])
        for layer, mixer in enumerate(mixers)
    )


def window_tokens(fields: ConfigFields, family: Family) -> int | None:
    """How many tokens a layer with a sliding window attends to, itself included; ``None`` if no layer has one."""
    if not fields.flag("use_sliding_window", not family.is_window_opt_in):
        return None
    return fields.optional_count("sliding_window")


def _halves(fields: ConfigFields) -> tuple[LayerKind, ...]:
    blocks = fields.text("hybrid_override_pattern") or fields.words("block_types")
    if blocks is None:
        raise fields.refuse("it needs hybrid_override_pattern or layers_block_type, which say what each block is")
    if fields.amount("layers", len(blocks)) != len(blocks):
        raise fields.refuse(f"it lists {len(blocks)} blocks and says that it has {fields.amount('layers')} layers")
    return tuple(_known(fields, _HALVES, block) for block in blocks)


def _mixers(fields: ConfigFields, family: Family, layers: int) -> list[MixerKind]:
    if 0 in (fields.numbers("attn_type_list") or ()):  # MiniMax: lightning attention
        raise fields.refuse("attn_type_list has layers without softmax attention")
    if (types := fields.words("block_types", layers)) is not None:
        return _listed(fields, family, types[:layers])
    if family.is_mixer_only:
        return [MixerKind.MAMBA] * layers
    if fields.has("attn_layer_period"):  # Jamba
        period, offset = fields.count("attn_layer_period"), fields.amount("attn_layer_offset")
        return [MixerKind.FULL if layer % period == offset else MixerKind.MAMBA for layer in range(layers)]
    if (full := fields.numbers("attn_layer_indices")) is not None:  # Bamba
        return [MixerKind.FULL if layer in full else MixerKind.MAMBA for layer in range(layers)]
    if every := fields.optional_count("full_attention_interval") or family.linear_every:
        return [MixerKind.LINEAR if (layer + 1) % every else MixerKind.FULL for layer in range(layers)]
    if fields.has("attention_chunk_size"):
        return _chunked(fields, layers)
    has_window = window_tokens(fields, family) is not None
    return _sliding(fields, family, layers) if has_window else [MixerKind.FULL] * layers


def _listed(fields: ConfigFields, family: Family, types: tuple[str, ...]) -> list[MixerKind]:
    mixers = [_known(fields, _MIXERS, name) for name in types]
    if not fields.has("linear_num_value_heads") and fields.has("mamba_heads"):
        mixers = [MixerKind.MAMBA if mixer is MixerKind.LINEAR else mixer for mixer in mixers]
    if MixerKind.SLIDING in mixers:
        fields.require("sliding_window")
    if MixerKind.CHUNKED in mixers:
        fields.require("attention_chunk_size")
    if window_tokens(fields, family) is None:  # use_sliding_window: false
        mixers = [MixerKind.FULL if mixer is MixerKind.SLIDING else mixer for mixer in mixers]
    return mixers


def _chunked(fields: ConfigFields, layers: int) -> list[MixerKind]:
    """Llama 4: layers without rotary positions attend to everything."""
    if fields.values.get("no_rope_layers"):  # an empty list stands for the default
        rotary = fields.numbers("no_rope_layers", layers) or ()
        return [MixerKind.CHUNKED if has else MixerKind.FULL for has in rotary[:layers]]
    every = fields.count_or("no_rope_layer_interval", 4)
    return [MixerKind.CHUNKED if (layer + 1) % every else MixerKind.FULL for layer in range(layers)]


def _sliding(fields: ConfigFields, family: Family, layers: int) -> list[MixerKind]:
    pattern = fields.values.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: "LLLG", local and global
        return [MixerKind.FULL if pattern[layer % len(pattern)] == "G" else MixerKind.SLIDING for layer in range(layers)]
    every = fields.optional_count("window_pattern") or family.full_every
    if every:
        return [MixerKind.SLIDING if (layer + 1) % every else MixerKind.FULL for layer in range(layers)]
    first = fields.amount("max_window_layers", 28) if family.is_window_opt_in else 0  # Qwen 2: the layers below it are full
    return [MixerKind.FULL if layer < first else MixerKind.SLIDING for layer in range(layers)]


def _moe_rule(fields: ConfigFields, layers: int) -> Callable[[int], bool]:
    """Whether a layer has experts; each family has its own way to say so."""
    if not fields.optional_count("experts") or not fields.flag("enable_moe_block", True):
        return lambda layer: False
    if types := fields.words("mlp_layer_types", layers):
        return lambda layer: types[layer] == "sparse"
    if chosen := fields.numbers("moe_layers"):
        return lambda layer: layer in chosen
    if step := fields.optional_count("interleave_moe_layer_step"):
        return lambda layer: (layer + 1) % step == 0
    if fields.has("expert_layer_period"):
        period, offset = fields.count("expert_layer_period"), fields.amount("expert_layer_offset")
        return lambda layer: layer % period == offset
    if fields.has("moe_layer_start_index"):
        return _moe_range(fields, layers)
    if fields.has("decoder_sparse_step") or fields.has("mlp_only_layers"):
        every, dense = fields.count_or("decoder_sparse_step", 1), fields.numbers("mlp_only_layers") or ()
        return lambda layer: layer not in dense and (layer + 1) % every == 0
    first = fields.amount("first_k_dense_replace")
    if isinstance(fields.values.get("moe_layer_freq"), list):
        marks = fields.numbers("moe_layer_freq", layers) or ()
        return lambda layer: layer >= first and bool(marks[layer])
    frequency = fields.count_or("moe_layer_freq", 1)
    return lambda layer: layer >= first and layer % frequency == 0


def _moe_range(fields: ConfigFields, layers: int) -> Callable[[int], bool]:
    """ERNIE 4.5: from one layer to another, the last one included; -1 is the last of all."""
    first, interval = fields.amount("moe_layer_start_index"), fields.count_or("moe_layer_interval", 1)
    last = layers - 1 if fields.values.get("moe_layer_end_index", -1) == -1 else fields.amount("moe_layer_end_index")
    return lambda layer: first <= layer <= last and (layer + 1) % interval == 0


def _index_sharing(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Which layers of sparse attention have no indexer of their own (GLM-5 and later)."""
    if types := fields.words("indexer_types", layers):
        return tuple(kind == "shared" for kind in types)
    if pattern := fields.text("index_topk_pattern"):
        if len(pattern) < layers:
            raise fields.refuse(f"index_topk_pattern has {len(pattern)} letters for {layers} layers")
        return tuple(letter == "S" for letter in pattern)
    every, offset = fields.count_or("index_topk_freq", 1), fields.amount("index_skip_topk_offset", 2)
    return tuple(max(layer - offset + 1, 0) % every != 0 for layer in range(layers))


def _known(fields: ConfigFields, kinds: Mapping[str, Kind], name: str) -> Kind:
    if name not in kinds:
        raise fields.refuse(f"layers of type {name!r} are not known here; known are {', '.join(kinds)}")
    return kinds[name]
