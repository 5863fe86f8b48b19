"""Fields of public config.json files, with the parameters that their checkpoints hold.

Counts are those that the public implementations give for these configs, as model cards, papers and safetensors indexes have
them; of checkpoints that store a tied head twice, without the copy. They cover what the models known by name do not: other
field names, biases, norms, learned positions.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

_CHATGLM = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "ffn_hidden_size": 13696,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "add_qkv_bias": True,
    "add_bias_linear": False,
}
_DEEPSEEK_V2 = {
    "model_type": "deepseek_v2",
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
}


def plain(
    model_type: str, hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocabulary: int, **more: Any
) -> Config:
    """A config with the usual names."""
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        **more,
    }


def gpt(model_type: str, hidden: int, layers: int, heads: int, vocabulary: int, **more: Any) -> Config:
    """A config with the names of GPT-2."""
    return {"model_type": model_type, "n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary, **more}


CONFIGS: dict[str, tuple[int, Config]] = {
    # GPT-2 and what followed it: two matrices, biases, layer norms, learned positions
    "gpt2": (124_439_808, gpt("gpt2", 768, 12, 12, 50257, n_positions=1024, n_inner=None)),
    "gpt2-xl": (1_557_611_200, gpt("gpt2", 1600, 48, 25, 50257, n_positions=1024)),
    "bigcode/starcoder": (
        15_517_456_384,
        gpt("gpt_bigcode", 6144, 40, 48, 49152, n_inner=24576, n_positions=8192, multi_query=True),
    ),
    "EleutherAI/gpt-j-6b": (6_050_882_784, gpt("gptj", 4096, 28, 16, 50400, n_positions=2048, n_inner=None)),
    "facebook/opt-125m": (
        125_239_296,
        {
            "model_type": "opt",
            "hidden_size": 768,
            "word_embed_proj_dim": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "vocab_size": 50272,
        },
    ),
    "bigscience/bloom-560m": (
        559_214_592,
        {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880},
    ),
    "bigscience/bloom": (
        176_247_271_424,
        {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880},
    ),
    # the table of the Pythia and GPT-NeoX repositories
    "EleutherAI/pythia-6.9b": (6_857_302_016, plain("gpt_neox", 4096, 32, 32, 32, 16384, 50432, tie_word_embeddings=False)),
    "EleutherAI/gpt-neox-20b": (20_554_567_680, plain("gpt_neox", 6144, 44, 64, 64, 24576, 50432, tie_word_embeddings=False)),
    "tiiuae/falcon-7b": (
        6_921_720_704,
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_kv_heads": 71,  # as published; multi_query counts
            "multi_query": True,
            "new_decoder_architecture": False,
            "parallel_attn": True,
            "bias": False,
            "vocab_size": 65024,
        },
    ),
    "tiiuae/falcon-40b": (
        41_303_293_952,
        {
            "model_type": "RefinedWeb",
            "hidden_size": 8192,
            "n_layer": 60,
            "n_head": 128,
            "n_head_kv": 8,
            "parallel_attn": True,
            "bias": False,
            "vocab_size": 65024,
        },
    ),
    "tiiuae/falcon-rw-1b": (
        1_311_625_216,
        {
            "model_type": "falcon",
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "multi_query": False,
            "new_decoder_architecture": False,
            "parallel_attn": False,
            "alibi": True,
            "bias": True,
            "vocab_size": 50304,
        },
    ),
    "mosaicml/mpt-7b": (
        6_649_286_656,
        {
            "model_type": "mpt",
            "d_model": 4096,
            "n_layers": 32,
            "n_heads": 32,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "no_bias": True,
            "attn_config": {"alibi": True, "attn_type": "multihead_attention"},
            "vocab_size": 50432,
        },
    ),
    "microsoft/phi-2": (2_779_683_840, plain("phi", 2560, 32, 32, 32, 10240, 51200)),
    "bigcode/starcoder2-3b": (3_030_371_328, plain("starcoder2", 3072, 30, 24, 2, 12288, 49152, use_bias=True)),
    "bigcode/starcoder2-7b": (7_173_923_840, plain("starcoder2", 4608, 32, 36, 4, 18432, 49152, use_bias=True)),
    "stabilityai/stablelm-2-1_6b": (1_644_515_328, plain("stablelm", 2048, 24, 32, 32, 5632, 100352, use_qkv_bias=True)),
    # other names for the same things
    "THUDM/chatglm2-6b": (6_243_584_000, {**_CHATGLM, "num_layers": 28, "padded_vocab_size": 65024, "seq_length": 32768}),
    "THUDM/glm-4-9b": (9_399_951_360, {**_CHATGLM, "num_layers": 40, "padded_vocab_size": 151552, "seq_length": 131072}),
    "Qwen/Qwen-7B": (
        7_721_324_544,
        {
            "model_type": "qwen",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "kv_channels": 128,
            "intermediate_size": 22016,
            "no_bias": True,
            "vocab_size": 151936,
        },
    ),
    "internlm/internlm2-7b": (7_737_708_544, plain("internlm2", 4096, 32, 32, 8, 14336, 92544, bias=False)),
    "baichuan-inc/Baichuan2-7B": (7_505_973_248, plain("baichuan", 4096, 32, 32, 32, 11008, 125696)),
    "openbmb/MiniCPM-2B": (2_724_880_896, plain("minicpm", 2304, 40, 36, 36, 5760, 122753)),
    # norms, ties and heads of their own
    "meta-llama/Llama-3.2-1B": (
        1_235_814_400,
        plain("llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True),
    ),
    "mistralai/Mistral-Nemo-Base-2407": (12_247_782_400, plain("mistral", 5120, 40, 32, 8, 14336, 131072, head_dim=128)),
    "google/gemma-7b": (8_537_680_896, plain("gemma", 3072, 28, 16, 16, 24576, 256000, head_dim=256)),
    "google/gemma-2-9b": (9_241_705_984, plain("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096)),
    "google/gemma-2-27b": (27_227_128_320, plain("gemma2", 4608, 46, 32, 16, 36864, 256000, head_dim=128, sliding_window=4096)),
    "google/gemma-3-1b-it": (
        999_885_952,
        plain("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256, sliding_window=512, sliding_window_pattern=6),
    ),
    "google/gemma-4-31B": (
        30_697_345_280,
        plain(
            *("gemma4_text", 5376, 60, 32, 16, 21504, 262144),
            head_dim=256,
            global_head_dim=512,
            num_global_key_value_heads=4,
            attention_k_eq_v=True,
            hidden_size_per_layer_input=0,
            num_kv_shared_layers=0,
            enable_moe_block=False,
            sliding_window=1024,
        ),
    ),
    "microsoft/Phi-3-mini-4k": (3_821_079_552, plain("phi3", 3072, 32, 32, 32, 8192, 32064, sliding_window=2047)),
    "microsoft/Phi-4-mini": (3_836_021_760, plain("phi3", 3072, 32, 24, 8, 8192, 200064, tie_word_embeddings=True)),
    "CohereForAI/c4ai-command-r-v01": (34_980_831_232, plain("cohere", 8192, 40, 64, 64, 22528, 256000, use_qk_norm=False)),
    "CohereForAI/c4ai-command-r-plus": (103_810_674_688, plain("cohere", 12288, 64, 96, 8, 33792, 256000, use_qk_norm=True)),
    "allenai/OLMo-7B-hf": (6_888_095_744, plain("olmo", 4096, 32, 32, 32, 11008, 50304)),
    "allenai/OLMo-2-1124-7B": (7_298_617_344, plain("olmo2", 4096, 32, 32, 32, 11008, 100352)),
    "HuggingFaceTB/SmolLM3-3B": (3_075_098_624, plain("smollm3", 2048, 36, 16, 4, 11008, 128256)),
    # mixtures
    "Qwen/Qwen1.5-MoE-A2.7B": (
        14_315_784_192,
        plain(
            *("qwen2_moe", 2048, 24, 16, 16, 5632, 151936),
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts=60,
            num_experts_per_tok=4,
            decoder_sparse_step=1,
        ),
    ),
    "allenai/OLMoE-1B-7B": (
        6_919_161_856,
        plain("olmoe", 2048, 16, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8),
    ),
    "microsoft/Phi-3.5-MoE-instruct": (
        41_873_153_344,
        plain(
            *("phimoe", 4096, 32, 32, 8, 6400, 32064),
            num_local_experts=16,
            num_experts_per_tok=2,
            attention_bias=True,
            lm_head_bias=True,
        ),
    ),
    "databricks/dbrx-base": (
        131_596_523_520,
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_layers": 40,
            "n_heads": 48,
            "max_seq_len": 32768,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "model_type": ""},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "model_type": ""},
        },
    ),
    "deepseek-ai/deepseek-moe-16b-base": (
        16_375_728_128,
        plain(
            *("deepseek", 2048, 28, 16, 16, 10944, 102400),
            moe_intermediate_size=1408,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        15_706_484_224,
        {
            **_DEEPSEEK_V2,
            "hidden_size": 2048,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "q_lora_rank": None,
            "topk_method": "greedy",
        },
    ),
    "deepseek-ai/DeepSeek-V2": (
        235_741_434_880,
        {
            **_DEEPSEEK_V2,
            "hidden_size": 5120,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "q_lora_rank": 1536,
            "topk_method": "group_limited_greedy",
        },
    ),
    # Mamba
    "mistralai/Mamba-Codestral-7B-v0.1": (
        7_285_403_648,
        {
            "model_type": "mamba2",
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "use_bias": False,
            "vocab_size": 32768,
            "tie_word_embeddings": False,
        },
    ),
    "ai21labs/Jamba-v0.1": (
        51_570_323_328,
        plain(
            *("jamba", 4096, 32, 32, 8, 14336, 65536),
            num_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=256,
            mamba_conv_bias=True,
            mamba_proj_bias=False,
        ),
    ),
    "ibm-granite/granite-4.0-h-tiny": (
        6_939_037_248,
        plain(
            *("granitemoehybrid", 1536, 40, 12, 4, 512, 100352),
            num_local_experts=64,
            num_experts_per_tok=6,
            shared_intermediate_size=1024,
            layer_types=["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
            mamba_n_heads=48,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_d_conv=4,
            mamba_conv_bias=True,
            mamba_proj_bias=False,
        ),
    ),
}
