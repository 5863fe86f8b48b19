"""The shape of a model from its config.json, whatever family it is of.

Read are the config's fields and, for what they leave open, the traits of its ``model_type`` (`roofline.models.families`). A
type that is not known is read as a model like Llama with whatever else its fields say. Nothing is inferred from a model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roofline.models.attention import attention_part
from roofline.models.families import DEFAULT, FAMILIES, Family
from roofline.models.ffn import dense_part, experts_part
from roofline.models.fields import ConfigFields, language_model
from roofline.models.layers import FfnKind, LayerKind, MixerKind, layer_kinds
from roofline.models.modules import within
from roofline.models.part import Part, has_bias
from roofline.models.recurrent import delta_net_part, mamba_part
from roofline.precision import BF16, FP16, FP32, Width
from roofline.quantization import scheme_from_config
from roofline.shape import LayerGroup, Matrix, ModelShape, WeightKind

_FORMATS: Mapping[str, Width] = {"bfloat16": BF16, "float16": FP16, "half": FP16, "float32": FP32, "float": FP32, "auto": BF16}

# What these fields describe is in no shape here. Where one is set, the others would be counted wrongly in silence.
_NOT_UNDERSTOOD: Mapping[str, str] = {
    "hidden_size_per_layer_input": "adds an embedding to every layer (Gemma 3n, Gemma 4 E2B and E4B)",
    "num_kv_shared_layers": "lets layers use the cache of others",
    "block_configs": "gives every layer another shape (Nemotron NAS)",
    "cross_attention_layers": "attend to another model's output (Llama 3.2 Vision)",
    "hybrid_layer_pattern": "gives layers with a window other heads (MiMo V2)",
    "linear_attn_config": "describes linear attention of another kind (Kimi Linear)",
    "compress_ratios": "compresses the cache layer by layer (DeepSeek V4)",
}

_MOST_LAYERS = 2_000


def shape_from_config(config: Mapping[str, object], *, name: str) -> ModelShape:
    """What the model is made of, per layer and outside the layers. Vision and audio parts are left out.

    ``config`` is the parsed config.json, or the same fields written by hand; ``name`` is for messages and display only.
    ``ValueError`` that names the field if one is missing, malformed or describes an architecture that is not known here.
    """
    fields, around = language_model(config, name)
    model_type = fields.text("model_type") or ""
    family = FAMILIES.get(model_type, DEFAULT)
    if around:
        fields = replace(fields, values={**family.inner_defaults, **fields.values})
    family = _refine(fields, family)
    if model_type not in FAMILIES and not _is_decoder(config):
        raise fields.refuse(f"model_type {model_type!r} is not known, and its architectures are not of a language model")
    if family.refusal is not None:
        raise fields.refuse(f"model_type {model_type}: {family.refusal}")
    if fields.flag("is_encoder_decoder", False):
        raise fields.refuse("it is an encoder and a decoder, this model is of decoders only")
    family = replace(family, names=within(family.names, around))
    if fields.has("layers") and fields.count("layers") > _MOST_LAYERS:
        raise fields.refuse(f"it has more than {_MOST_LAYERS} layers, which no model has")
    fields.require("hidden_size", "vocabulary", *([] if fields.has("hybrid_override_pattern") else ["layers"]))
    kinds = layer_kinds(fields, family)
    _require_for(fields, family, kinds)
    native = _native(fields)
    return ModelShape(
        name=name,
        hidden_size=fields.count("hidden_size"),
        vocabulary_size=fields.count("vocabulary"),
        max_context_tokens=fields.optional_count("context"),
        is_tied=fields.flag("tie_word_embeddings", family.is_tied),
        native=native,
        scheme=scheme_from_config(fields.section("quantization"), native),
        groups=_groups(fields, family, kinds),
        outside=_outside(fields, family),
        mtp_parameters=_mtp_parameters(fields, family, kinds),
    )


def _refine(fields: ConfigFields, family: Family) -> Family:
    """Traits that depend on the config."""
    for field, meaning in _NOT_UNDERSTOOD.items():
        if fields.values.get(field):
            raise fields.refuse(f"its {field} {meaning}")
    if fields.amount("word_embed_proj_dim") not in (0, fields.amount("hidden_size")):
        raise fields.refuse("word_embed_proj_dim differs from hidden_size")
    if not fields.flag("parallel_attn", True):  # Falcon-RW
        return replace(family, layer_norms=2)
    if fields.flag("new_decoder_architecture", family.is_new_decoder):
        return replace(family, layer_norms=fields.count_or("num_ln_in_parallel_attn", 2))
    return family


def _require_for(fields: ConfigFields, family: Family, kinds: tuple[LayerKind, ...]) -> None:
    """One error for all fields that these layers need, rather than one after another."""
    needed = []
    if any(kind.mixer not in (MixerKind.NONE, MixerKind.LINEAR, MixerKind.MAMBA) for kind in kinds):
        needed.append("heads")
    has_size = fields.has("dense_ffn_size") or fields.has("shared_ffn_size") or family.ffn_multiple is not None
    if any(kind.ffn is FfnKind.DENSE for kind in kinds) and not has_size:
        needed.append("ffn_size")
    if any(kind.ffn is FfnKind.MOE for kind in kinds):
        needed.append("top_k")
        if not fields.has("expert_ffn_size") and "ffn_size" not in needed:
            needed.append("ffn_size")
    fields.require(*needed)


def _native(fields: ConfigFields) -> Width:
    text = (fields.text("dtype") or "auto").removeprefix("torch.")
    if text not in _FORMATS:
        raise fields.refuse(f"torch_dtype (or dtype) is {text!r}, it should be one of {', '.join(_FORMATS)}")
    return _FORMATS[text]


def _groups(fields: ConfigFields, family: Family, kinds: tuple[LayerKind, ...]) -> tuple[LayerGroup, ...]:
    numbers: dict[LayerKind, list[int]] = {}
    for layer, kind in enumerate(kinds):
        numbers.setdefault(kind, []).append(layer)
    return tuple(_group(fields, family, kind, tuple(layers)) for kind, layers in numbers.items())


def _group(fields: ConfigFields, family: Family, kind: LayerKind, layers: tuple[int, ...]) -> LayerGroup:
    mixer, ffn = _mixer_part(fields, family, kind), _ffn_part(fields, family, kind)
    norms = family.layer_norms if MixerKind.NONE is not kind.mixer and FfnKind.NONE is not kind.ffn else 1
    vectors = mixer.vector_parameters + ffn.vector_parameters + norms * family.norm_vectors * fields.count("hidden_size")
    return LayerGroup(
        layers=layers,
        mixer=mixer.mixer,
        experts=ffn.experts,
        matrices=(*mixer.matrices, *ffn.matrices, *_vectors(f"{family.names.layer}.norms_and_biases", vectors)),
    )


def _mixer_part(fields: ConfigFields, family: Family, kind: LayerKind) -> Part:
    match kind.mixer:
        case MixerKind.NONE:
            return Part()
        case MixerKind.LINEAR:
            return delta_net_part(fields, family)
        case MixerKind.MAMBA:
            return mamba_part(fields, family)
        case _:
            return attention_part(fields, family, kind)


def _ffn_part(fields: ConfigFields, family: Family, kind: LayerKind) -> Part:
    match kind.ffn:
        case FfnKind.NONE:
            return Part()
        case FfnKind.DENSE:
            return dense_part(fields, family)
        case FfnKind.MOE:
            return experts_part(fields, family)


def _outside(fields: ConfigFields, family: Family) -> tuple[Matrix, ...]:
    hidden, vocabulary, names = fields.count("hidden_size"), fields.count("vocabulary"), family.names
    vectors = hidden * family.norm_vectors * (2 if family.has_embedding_norm else 1)
    vectors += vocabulary if has_bias(fields, family.head_bias) else 0
    positions: tuple[Matrix, ...] = ()
    if family.position_rows is not None:
        rows = fields.count("context") + family.position_rows
        positions = (Matrix(module=names.positions, kind=WeightKind.EMBEDDING, parameters=rows * hidden),)
    return (
        Matrix(module=names.embedding, kind=WeightKind.EMBEDDING, parameters=vocabulary * hidden),
        *positions,
        Matrix(module=names.head, kind=WeightKind.HEAD, parameters=vocabulary * hidden),
        *_vectors(names.final_norm, vectors),
    )


def _vectors(module: str, parameters: int) -> tuple[Matrix, ...]:
    return (Matrix(module=module, kind=WeightKind.VECTOR, parameters=parameters),) if parameters else ()


def _mtp_parameters(fields: ConfigFields, family: Family, kinds: tuple[LayerKind, ...]) -> int:
    """Layers that predict further tokens: each is one more full layer, behind norms and a projection of two vectors to one.

    Copies of embedding and head that some checkpoints store with them are left out.
    """
    count = fields.amount("mtp_layers")
    if not count:
        return 0
    hidden = fields.count("hidden_size")
    ffn = FfnKind.MOE if any(kind.ffn is FfnKind.MOE for kind in kinds) else FfnKind.DENSE
    layer = _group(fields, family, LayerKind(MixerKind.FULL, ffn), (0,))
    return count * (sum(matrix.parameters for matrix in layer.matrices) + 2 * hidden * hidden + 3 * hidden)


def _is_decoder(config: Mapping[str, object]) -> bool:
    """Whether the config's ``architectures`` generate text, as far as they are told."""
    told = config.get("architectures")
    names = [name for name in told if isinstance(name, str)] if isinstance(told, list) else []
    return not names or any(name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) for name in names)
