"""What checkpoints call the modules of a layer. Quantisation configs name modules that way, so matrices carry these names."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """Names within a model and within a layer. A name alone in a tuple stands for a matrix that is several in one.

    ``attention``, ``ffn``, ``router``, ``expert``, ``shared``, ``linear`` and ``mamba`` follow the layer's name; the names of
    matrices follow those.
    """

    layer: str = "model.layers.{layer}"
    embedding: str = "model.embed_tokens"
    positions: str = "model.embed_positions"
    head: str = "lm_head"
    final_norm: str = "model.norm"
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    ffn: str = "mlp"
    ffn_in: tuple[str, ...] = ("gate_proj", "up_proj")
    ffn_out: str = "down_proj"
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{expert}"
    expert_in: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_out: str = "down_proj"
    shared: str = "mlp.shared_experts"
    shared_in: tuple[str, ...] = ("gate_proj", "up_proj")
    shared_out: str = "down_proj"
    linear: str = "linear_attn"
    linear_in: tuple[str, ...] = ("in_proj_qkvz", "in_proj_ba")
    mamba: str = "mamba"


_FUSED = ("gate_up_proj",)

LLAMA = ModuleNames()
QWEN_MOE = replace(LLAMA, shared="mlp.shared_expert")
QWEN_3_5 = replace(QWEN_MOE, linear_in=("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"))
MIXTRAL = replace(
    LLAMA,
    router="block_sparse_moe.gate",
    expert="block_sparse_moe.experts.{expert}",
    expert_in=("w1", "w3"),
    expert_out="w2",
)
PHI_3 = replace(LLAMA, qkv=("qkv_proj",), ffn_in=_FUSED)
GLM_4 = replace(LLAMA, ffn_in=_FUSED)
BAICHUAN = replace(LLAMA, qkv=("W_pack",))
GPT_OSS = replace(LLAMA, router="mlp.router", expert="mlp.experts", expert_in=_FUSED)
LLAMA_4 = replace(
    LLAMA,
    ffn="feed_forward",
    router="feed_forward.router",
    expert="feed_forward.experts",
    expert_in=_FUSED,
    shared="feed_forward.shared_expert",
)
GEMMA_4 = replace(LLAMA, router="router.proj", expert="experts", expert_in=_FUSED)
GRANITE_MOE = replace(
    LLAMA,
    ffn="shared_mlp",
    ffn_in=("input_linear",),
    ffn_out="output_linear",
    router="block_sparse_moe.router.layer",
    expert="block_sparse_moe",
    expert_in=("input_linear",),
    expert_out="output_linear",
    shared="shared_mlp",
    shared_in=("input_linear",),
    shared_out="output_linear",
)
JAMBA = replace(LLAMA, ffn="feed_forward", router="feed_forward.router", expert="feed_forward.experts.{expert}")
BAMBA = replace(LLAMA, ffn="feed_forward")
NEMOTRON_H = replace(
    LLAMA,
    layer="backbone.layers.{layer}",
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    attention="mixer",
    ffn="mixer",
    ffn_in=("up_proj",),
    router="mixer.gate",
    expert="mixer.experts.{expert}",
    expert_in=("up_proj",),
    shared="mixer.shared_experts",
    shared_in=("up_proj",),
    mamba="mixer",
)
INTERNLM_2 = replace(
    LLAMA,
    embedding="model.tok_embeddings",
    attention="attention",  # its head is "output" in checkpoints; quantisation lists say lm_head
    qkv=("wqkv",),
    out="wo",
    ffn="feed_forward",
    ffn_in=("w1", "w3"),
    ffn_out="w2",
)
CHATGLM = replace(
    LLAMA,
    layer="transformer.encoder.layers.{layer}",
    embedding="transformer.embedding.word_embeddings",
    head="transformer.output_layer",
    final_norm="transformer.encoder.final_layernorm",
    attention="self_attention",
    qkv=("query_key_value",),
    out="dense",
    ffn_in=("dense_h_to_4h",),
    ffn_out="dense_4h_to_h",
)
_TRANSFORMER_H = replace(
    LLAMA,
    layer="transformer.h.{layer}",
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    attention="attn",
    qkv=("c_attn",),
    out="c_proj",
    ffn_in=("c_fc",),
    ffn_out="c_proj",
)
GPT_2 = _TRANSFORMER_H
GPT_J = replace(_TRANSFORMER_H, qkv=("q_proj", "k_proj", "v_proj"), out="out_proj", ffn_in=("fc_in",), ffn_out="fc_out")
QWEN = replace(_TRANSFORMER_H, ffn_in=("w1", "w2"))
BLOOM = replace(
    _TRANSFORMER_H,
    embedding="transformer.word_embeddings",
    attention="self_attention",
    qkv=("query_key_value",),
    out="dense",
    ffn_in=("dense_h_to_4h",),
    ffn_out="dense_4h_to_h",
)
GPT_NEOX = replace(
    BLOOM,
    layer="gpt_neox.layers.{layer}",
    embedding="gpt_neox.embed_in",
    head="embed_out",
    final_norm="gpt_neox.final_layer_norm",
    attention="attention",
)
OPT = replace(
    LLAMA,
    layer="model.decoder.layers.{layer}",
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    final_norm="model.decoder.final_layer_norm",
    out="out_proj",
    ffn="",
    ffn_in=("fc1",),
    ffn_out="fc2",
)
PHI = replace(LLAMA, out="dense", ffn_in=("fc1",), ffn_out="fc2")
STARCODER_2 = replace(LLAMA, ffn_in=("c_fc",), ffn_out="c_proj")
UP_DOWN = replace(LLAMA, ffn_in=("up_proj",), expert_in=("up_proj",), shared_in=("up_proj",))
MPT = replace(
    LLAMA,
    layer="transformer.blocks.{layer}",
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.norm_f",
    attention="attn",
    qkv=("Wqkv",),
    out="out_proj",
    ffn="ffn",
    ffn_in=("up_proj",),
)
DBRX = replace(
    LLAMA,
    layer="transformer.blocks.{layer}",
    embedding="transformer.wte",
    final_norm="transformer.norm_f",
    attention="norm_attn_norm.attn",
    qkv=("Wqkv",),
    out="out_proj",
    router="ffn.router.layer",
    expert="ffn.experts.mlp",
    expert_in=("w1", "v1"),
    expert_out="w2",
)
MAMBA_2 = replace(
    LLAMA, layer="backbone.layers.{layer}", embedding="backbone.embeddings", final_norm="backbone.norm_f", mamba="mixer"
)

# The part that multimodal checkpoints put before the names of the language model; everything else is "language_model."
_INSIDE_MODEL = frozenset({"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "gemma4", "glm4v", "glm4v_moe"})
_SAME_AS_ALONE = frozenset({"qwen2_vl", "qwen2_5_vl"})


def within(names: ModuleNames, around: tuple[str, ...]) -> ModuleNames:
    """The names of a language model inside these models, outermost first."""
    prefix = ""
    for model_type in around:
        if "omni" in model_type and not prefix:
            prefix = "thinker."
        elif model_type in _INSIDE_MODEL:
            return replace(
                names,
                layer=names.layer.replace("model.", "model.language_model.", 1),
                embedding=names.embedding.replace("model.", "model.language_model.", 1),
                final_norm=names.final_norm.replace("model.", "model.language_model.", 1),
            )
        elif model_type not in _SAME_AS_ALONE and not prefix:
            prefix = "language_model."
    if not prefix:
        return names
    return replace(
        names,
        layer=prefix + names.layer,
        embedding=prefix + names.embedding,
        positions=prefix + names.positions,
        head=prefix + names.head,
        final_norm=prefix + names.final_norm,
    )
