"""What the code of each model family fixes and its config.json does not say: biases, norms, defaults, module names.

Source: the public implementations in huggingface/transformers, ``src/transformers/models/<model_type>``, and for the types that
it does not have, the modelling code beside the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from roofline.models import modules as names
from roofline.models.modules import ModuleNames


class QkNorm(Enum):
    """Norms of queries and keys."""

    PER_HEAD = "per head"  # one vector as long as a head, shared by the heads
    ALL_HEADS = "all heads"  # one number for every dimension of every head
    WEIGHTLESS = "weightless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Traits of models of one type; the defaults are those of Llama, which most others follow.

    A bias is there or not, or is there if the config field of that name is true.
    """

    names: ModuleNames = names.LLAMA
    is_tied: bool = False  # head and embedding, if the config does not say
    layer_norms: int = 2  # of a layer with both parts, each as long as the hidden size
    norm_vectors: int = 1  # 2: with biases, 0: without weights
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    ffn_bias: bool | str = "mlp_bias"
    head_bias: bool | str = False
    qk_norm: QkNorm = QkNorm.PER_HEAD  # what it is like if there is one
    has_qk_norm: bool = False  # if the config does not say
    ffn_matrices: int = 3  # 2: without a gate
    ffn_multiple: int | None = None  # of the hidden size, if the config does not say
    ffn_divisor: int = 1  # Qwen 1 counts both halves of the gate
    position_rows: int | None = None  # learned positions, so many more than the context is long
    has_embedding_norm: bool = False
    is_multi_query: bool = False  # if the config does not say
    is_new_decoder: bool = False  # Falcon from 40B on: groups of queries and two norms; if the config does not say
    has_sinks: bool = False  # one more score per head
    has_query_gate: bool = False  # q_proj has twice the rows
    is_window_opt_in: bool = False  # a sliding_window counts only if use_sliding_window is true
    full_every: int | None = None  # of the layers with a window, every so manieth attends to everything
    linear_every: int | None = None  # linear attention except in every so manieth layer
    has_half_layers: bool = False  # every block is a mixer or a feed-forward part, as a list says
    is_mixer_only: bool = False  # no feed-forward parts
    has_score_bias: bool = False  # a correction per routed expert
    has_expert_bias: bool = False  # experts and router have biases
    shared_experts: int = 0  # if the config does not say
    has_shared_gate: bool = False
    inner_defaults: Mapping[str, object] = field(default_factory=dict)  # what multimodal configs leave out of their text model
    refusal: str | None = None  # why models of this type cannot be counted from the fields


_QWEN_2 = Family(qkv_bias=True, out_bias=False, is_window_opt_in=True)
_QWEN_3 = Family(has_qk_norm=True, is_window_opt_in=True)
_QWEN_3_NEXT = replace(
    _QWEN_3, names=names.QWEN_MOE, has_query_gate=True, linear_every=4, has_shared_gate=True, is_window_opt_in=False
)
_QWEN_3_5 = replace(_QWEN_3_NEXT, names=names.QWEN_3_5)
_QWEN_MOE = replace(_QWEN_2, names=names.QWEN_MOE, has_shared_gate=True)
_GEMMA = Family(is_tied=True)
_GEMMA_2 = replace(_GEMMA, layer_norms=4, full_every=2)
_GEMMA_3 = replace(
    _GEMMA_2,
    has_qk_norm=True,
    full_every=6,
    inner_defaults={"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
)
_GEMMA_4 = replace(_GEMMA_3, names=names.GEMMA_4, inner_defaults={"hidden_size_per_layer_input": 256})
_GLM = Family(names=names.GLM_4, out_bias=False)
_GLM_MOE = Family(out_bias=False, has_score_bias=True)
_DEEPSEEK = Family()
_DEEPSEEK_V3 = Family(has_score_bias=True)
_MIXTRAL = Family(names=names.MIXTRAL)
_LLAMA_4 = Family(names=names.LLAMA_4, qk_norm=QkNorm.WEIGHTLESS, shared_experts=1)
_COHERE = Family(is_tied=True, layer_norms=1, qk_norm=QkNorm.ALL_HEADS)
_OLMO_2 = Family(qk_norm=QkNorm.ALL_HEADS, has_qk_norm=True)
_GRANITE_MOE = Family(names=names.GRANITE_MOE, is_tied=True)
_ERNIE = Family(is_tied=True, qkv_bias="use_bias", out_bias="use_bias", ffn_bias="use_bias")
_BIASED = Family(
    norm_vectors=2, qkv_bias=True, out_bias=True, ffn_bias=True, ffn_matrices=2, ffn_multiple=4, is_tied=True, names=names.GPT_2
)
_GPT_2 = replace(_BIASED, position_rows=0)
_FALCON = replace(
    _BIASED, names=names.BLOOM, qkv_bias="bias", out_bias="bias", ffn_bias="bias", is_multi_query=True, layer_norms=1
)
_NEMOTRON_H = Family(names=names.NEMOTRON_H, ffn_matrices=2, has_score_bias=True, has_half_layers=True)

_ENCODER = "an encoder has another shape than a decoder with a cache"
_OWN_SHAPE = "layers of this type have parts that the config fields known here do not describe"

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        inner_defaults={  # LLaVA
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 32000,
        }
    ),
    "mistral": Family(inner_defaults={"num_attention_heads": 32}),  # Pixtral
    "qwen": Family(names=names.QWEN, qkv_bias=True, out_bias=False, ffn_bias=False, ffn_divisor=2),
    "qwen2": _QWEN_2,
    "qwen2_vl": _QWEN_2,
    "qwen2_vl_text": _QWEN_2,
    "qwen2_5_vl": _QWEN_2,
    "qwen2_5_vl_text": _QWEN_2,
    "qwen2_5_omni_text": _QWEN_2,
    "mimo": _QWEN_2,
    "qwen2_moe": _QWEN_MOE,
    "qwen3": _QWEN_3,
    "qwen3_moe": _QWEN_3,
    "qwen3_vl_text": _QWEN_3,
    "qwen3_vl_moe_text": _QWEN_3,
    "qwen3_omni_moe_text": _QWEN_3,
    "qwen3_next": _QWEN_3_NEXT,
    "qwen3_5": _QWEN_3_5,
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_5_moe": _QWEN_3_5,
    "qwen3_5_moe_text": _QWEN_3_5,
    "mixtral": _MIXTRAL,
    "minimax_m2": replace(_MIXTRAL, qk_norm=QkNorm.ALL_HEADS, has_qk_norm=True, has_score_bias=True),
    "phimoe": replace(_MIXTRAL, norm_vectors=2, head_bias="lm_head_bias"),
    "phi3": Family(names=names.PHI_3, qkv_bias=False, out_bias=False),
    "phi": replace(_BIASED, names=names.PHI, layer_norms=1, is_tied=False, head_bias=True),
    "gemma": _GEMMA,
    "gemma2": _GEMMA_2,
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "gemma4": _GEMMA_4,
    "gemma4_text": _GEMMA_4,
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, full_every=4),
    "olmo": Family(norm_vectors=0),
    "olmo2": _OLMO_2,
    "olmo3": replace(_OLMO_2, full_every=4),
    "olmoe": _OLMO_2,
    "glm": _GLM,
    "glm4": replace(_GLM, layer_norms=4),
    "glm4_moe": _GLM_MOE,
    "glm4v_moe_text": _GLM_MOE,
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm_moe_dsa": _DEEPSEEK_V3,
    "chatglm": Family(
        names=names.CHATGLM,
        qkv_bias="add_qkv_bias",
        out_bias="add_bias_linear",
        ffn_bias="add_bias_linear",
        is_multi_query=False,
    ),
    "deepseek": _DEEPSEEK,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "dots1": replace(_DEEPSEEK_V3, has_qk_norm=True),
    "llama4": _LLAMA_4,
    "llama4_text": _LLAMA_4,
    "gpt_oss": Family(names=names.GPT_OSS, has_sinks=True, full_every=2, has_expert_bias=True),
    "nemotron_h": _NEMOTRON_H,
    "nemotron": Family(names=names.UP_DOWN, norm_vectors=2, ffn_matrices=2),
    "arcee": Family(names=names.UP_DOWN, ffn_matrices=2),
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "granitemoehybrid": _GRANITE_MOE,
    "bamba": Family(names=names.BAMBA),
    "jamba": Family(names=names.JAMBA),
    "mamba2": Family(names=names.MAMBA_2, is_tied=True, is_mixer_only=True),
    "starcoder2": replace(
        _BIASED, names=names.STARCODER_2, qkv_bias="use_bias", out_bias="use_bias", ffn_bias="use_bias", ffn_multiple=None
    ),
    "stablelm": Family(norm_vectors=2, qkv_bias="use_qkv_bias", out_bias=False, ffn_bias=False),
    "seed_oss": Family(out_bias="attention_out_bias"),
    "exaone4": Family(has_qk_norm=True, full_every=4),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(_ERNIE, has_score_bias=True),
    "minicpm": Family(is_tied=True),
    "smollm3": Family(is_tied=True, is_window_opt_in=True),
    "internlm": Family(qkv_bias="bias", out_bias="bias"),
    "internlm2": Family(names=names.INTERNLM_2, qkv_bias="bias", out_bias="bias"),
    "internlm3": Family(qkv_bias="qkv_bias", out_bias="bias", ffn_bias="bias"),
    "baichuan": Family(names=names.BAICHUAN),
    "gpt2": _GPT_2,
    "gpt_bigcode": replace(_GPT_2, is_multi_query=True),
    "gptj": replace(_BIASED, names=names.GPT_J, layer_norms=1, qkv_bias=False, out_bias=False, is_tied=False, head_bias=True),
    "gpt_neox": replace(_BIASED, names=names.GPT_NEOX, is_tied=False),
    "bloom": replace(_BIASED, names=names.BLOOM, has_embedding_norm=True),
    "opt": replace(_BIASED, names=names.OPT, position_rows=2, ffn_multiple=None),
    "falcon": _FALCON,
    "RefinedWebModel": _FALCON,
    "RefinedWeb": replace(_FALCON, is_new_decoder=True),
    "mpt": replace(_BIASED, names=names.MPT, norm_vectors=1, qkv_bias=False, out_bias=False, ffn_bias=False),
    "dbrx": Family(names=names.DBRX),
    **dict.fromkeys(
        (
            *("bert", "roberta", "xlm-roberta", "camembert", "modernbert", "deberta", "deberta-v2", "distilbert", "electra"),
            *("albert", "mpnet", "nomic_bert", "xlm", "roformer", "funnel", "longformer", "big_bird", "eurobert", "new"),
            *("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "whisper", "speech_to_text", "m2m_100", "marian"),
            *("clip", "siglip", "siglip2", "vit", "dinov2", "swin", "clap", "wav2vec2", "hubert"),
        ),
        Family(refusal=_ENCODER),
    ),
    **dict.fromkeys(
        (
            *("gemma3n", "gemma3n_text", "deci", "decilm", "nemotron-nas", "openelm", "zamba", "zamba2", "falcon_h1", "hymba"),
            *("mamba", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "recurrent_gemma", "lfm2", "lfm2_moe", "plamo2"),
            *("kimi_linear", "minimax", "minimax_text_01", "minimax_m1", "longcat_flash", "arctic", "mllama_text_model"),
            *("deepseek_v4", "gpt_neo", "apertus", "xlnet", "hunyuan_v1_moe"),
        ),
        Family(refusal=_OWN_SHAPE),
    ),
}
DEFAULT = Family()
