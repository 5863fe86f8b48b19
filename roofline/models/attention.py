"""Weights and cache of softmax attention: grouped queries (`attention_part`) and a compressed latent (`latent_part`)."""

from __future__ import annotations

from roofline.models.families import Family, QkNorm
from roofline.models.fields import ConfigFields
from roofline.models.layers import LayerKind, MixerKind, window_tokens
from roofline.models.part import Part, has_bias, matrices, module
from roofline.shape import Attention, LatentAttention, Matrix, WeightKind


def attention_part(fields: ConfigFields, family: Family, kind: LayerKind) -> Part:
    """Attention of one layer. ``ValueError`` if heads and dimensions do not fit each other."""
    if fields.has("kv_lora_rank"):
        return latent_part(fields, family, kind)
    hidden, heads = fields.count("hidden_size"), fields.count("heads")
    kv_heads, head_dim = _kv_heads(fields, family), _head_dim(fields)
    shares_kv_weights = False
    if kind.mixer is MixerKind.FULL:  # Gemma 4: layers without a window have larger and fewer heads
        head_dim = fields.count_or("global_head_dim", head_dim)
        kv_heads = fields.count_or("num_global_key_value_heads", kv_heads)
        shares_kv_weights = fields.flag("attention_k_eq_v", False)
    if heads % kv_heads:
        raise fields.refuse(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    v_head_dim = fields.count_or("v_head_dim", head_dim)
    has_gate = fields.flag("attn_output_gate", family.has_query_gate)
    q_rows, k_rows, v_rows = heads * head_dim * (2 if has_gate else 1), kv_heads * head_dim, kv_heads * v_head_dim
    rows = (q_rows, k_rows) if shares_kv_weights else (q_rows, k_rows, v_rows)
    out_rows = heads * v_head_dim

    path = module(family.names.layer, family.names.attention)
    names = family.names.qkv[: len(rows)]
    vectors = sum(rows) if has_bias(fields, family.qkv_bias) else 0
    vectors += hidden if has_bias(fields, family.out_bias) else 0
    vectors += heads if family.has_sinks else 0
    if fields.flag("qk_norm", family.has_qk_norm):
        vectors += {
            QkNorm.PER_HEAD: 2 * head_dim,
            QkNorm.ALL_HEADS: (heads + kv_heads) * head_dim,
            QkNorm.WEIGHTLESS: 0,
        }[family.qk_norm]
    window = {
        MixerKind.SLIDING: window_tokens(fields, family),
        MixerKind.CHUNKED: fields.optional_count("attention_chunk_size"),
    }.get(kind.mixer)
    return Part(
        matrices=(
            *matrices(path, names, WeightKind.ATTENTION, tuple(hidden * count for count in rows)),
            *matrices(path, (family.names.out,), WeightKind.ATTENTION, (out_rows * hidden,)),
        ),
        vector_parameters=vectors,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            qk_head_dim=head_dim,
            v_head_dim=v_head_dim,
            window_tokens=window,
            is_chunked=kind.mixer is MixerKind.CHUNKED,
        ),
    )


def latent_part(fields: ConfigFields, family: Family, kind: LayerKind) -> Part:
    """Multi-head latent attention of one layer, with the indexer of sparse attention if there is one."""
    fields.require("heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    hidden, heads, latent = fields.count("hidden_size"), fields.count("heads"), fields.count("kv_lora_rank")
    nope, rope, v_dim = (fields.count(field) for field in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    query_latent = fields.optional_count("q_lora_rank")
    path = module(family.names.layer, family.names.attention)
    query_rows = heads * (nope + rope)
    sizes = {
        "kv_a_proj_with_mqa": hidden * (latent + rope),
        "kv_b_proj": latent * heads * (nope + v_dim),
        "o_proj": heads * v_dim * hidden,
    }
    vectors = latent  # kv_a_layernorm
    if query_latent is None:
        sizes["q_proj"] = hidden * query_rows
    else:
        sizes |= {"q_a_proj": hidden * query_latent, "q_b_proj": query_latent * query_rows}
        vectors += query_latent  # q_a_layernorm
    if fields.flag("attention_bias", False):
        vectors += (query_latent or 0) + latent + rope + hidden
    weights = [Matrix(module=module(path, name), kind=WeightKind.ATTENTION, parameters=size) for name, size in sizes.items()]

    top_tokens = fields.optional_count("index_topk")
    index_heads = index_dim = 0
    if top_tokens is not None and not kind.shares_index:
        fields.require("index_n_heads", "index_head_dim", "q_lora_rank")
        index_heads, index_dim = fields.count("index_n_heads"), fields.count("index_head_dim")
        index_sizes = {
            "wq_b": fields.count("q_lora_rank") * index_heads * index_dim,
            "wk": hidden * index_dim,
            "weights_proj": hidden * index_heads,
        }
        vectors += 2 * index_dim  # k_norm, a layer norm with bias
        weights += [
            Matrix(module=module(path, "indexer", name), kind=WeightKind.INDEXER, parameters=size)
            for name, size in index_sizes.items()
        ]
    return Part(
        matrices=tuple(weights),
        vector_parameters=vectors,
        mixer=LatentAttention(
            heads=heads,
            latent_dim=latent,
            rope_head_dim=rope,
            nope_head_dim=nope,
            v_head_dim=v_dim,
            index_heads=index_heads,
            index_head_dim=index_dim,
            index_top_tokens=top_tokens,
        ),
    )


def _kv_heads(fields: ConfigFields, family: Family) -> int:
    """Missing means one for every head (MHA). Falcon and StarCoder say "multi_query"; Falcon's field is wrong for its 7B."""
    is_grouped = fields.flag("new_decoder_architecture", family.is_new_decoder)
    if fields.flag("multi_query", family.is_multi_query) and not is_grouped:
        return 1
    heads = fields.count("heads")
    return fields.count_or("kv_heads", heads) if fields.flag("multi_query_attention", True) else heads


def _head_dim(fields: ConfigFields) -> int:
    """The field where it exists: the quotient is often something else (Qwen3-32B, Gemma 3 27B)."""
    if fields.has("head_dim"):
        return fields.count("head_dim")
    hidden, heads = fields.count("hidden_size"), fields.count("heads")
    if hidden % heads:
        raise fields.refuse(f"it lacks head_dim, and hidden size {hidden} is no multiple of {heads} heads")
    return hidden // heads
