"""Quantisation configs as published, the modules they speak of, and the widths that follow."""

from __future__ import annotations

from typing import Any

from roofline.precision import Precision, Width

Q = "model.layers.3.self_attn.q_proj"
O_PROJ = "model.layers.3.self_attn.o_proj"
DENSE = "model.layers.0.mlp.down_proj"
GATE = "model.layers.3.mlp.gate_proj"
EXPERT = "model.layers.3.mlp.experts.{expert}.gate_proj"
STACKED = "model.layers.3.mlp.experts.gate_up_proj"
SHARED = "model.layers.3.mlp.shared_experts.up_proj"
ROUTER = "model.layers.3.mlp.gate"
HEAD = "lm_head"
EMBEDDING = "model.embed_tokens"
Config = dict[str, Any]


INT4_G128 = Width(name="int4-g128", bytes_each=0.5 + 2 / 128, math=Precision.BF16)
INT4_G32 = Width(name="int4-g32", bytes_each=0.5 + 2 / 32, math=Precision.BF16)
INT4_G128_ZP = Width(name="int4-g128-zp", bytes_each=0.5 + 2.5 / 128, math=Precision.BF16)
INT4_G128_FP8 = Width(name="int4-g128-fp8-math", bytes_each=0.5 + 2 / 128, math=Precision.FP8)
INT8_G128 = Width(name="int8-g128", bytes_each=1 + 2 / 128, math=Precision.BF16)
INT8_WEIGHT_ONLY = Width(name="int8-channel", bytes_each=1.0, math=Precision.BF16)
FP8_WEIGHT_ONLY = Width(name="fp8-weight-only", bytes_each=1.0, math=Precision.BF16)
NVFP4_WEIGHT_ONLY = Width(name="nvfp4-weight-only", bytes_each=0.5625, math=Precision.BF16)
MXFP4_W4A4 = Width(name="mxfp4-fp4-math", bytes_each=0.53125, math=Precision.FP4)
NF4 = Width(name="nf4", bytes_each=0.5 + 4 / 64, math=Precision.BF16)
NF4_DOUBLE = Width(name="nf4-double", bytes_each=0.5 + (8 / 64 + 32 / (64 * 256)) / 8, math=Precision.BF16)


def weights(bits: int, kind: str, strategy: str, **more: object) -> Config:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


def inputs(bits: int, kind: str, strategy: str = "token", **more: object) -> Config:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": True, **more}


def compressed(
    weight: Config, activations: Config | None = None, *, ignore: tuple[str, ...] = ("lm_head",), **more: object
) -> Config:
    group = {"targets": ["Linear"], "weights": weight, "input_activations": activations, "output_activations": None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": list(ignore), **more}


DEEPSEEK_V3: Config = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
QWEN3_30B_FP8: Config = DEEPSEEK_V3 | {
    "modules_to_not_convert": ["lm_head"]
    + [f"model.layers.{n}.{part}" for n in range(48) for part in ("input_layernorm", "mlp.gate", "post_attention_layernorm")]
}
MINIMAX_M2: Config = DEEPSEEK_V3 | {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}
GPT_OSS: Config = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4",
}
FP8_DYNAMIC = compressed(
    weights(8, "float", "channel", observer="minmax", group_size=None), inputs(8, "float"), format="float-quantized"
)
W4A16 = compressed(weights(4, "int", "group", group_size=128, actorder="weight"), format="pack-quantized")
W8A8 = compressed(weights(8, "int", "channel"), inputs(8, "int"), format="int-quantized")
FP8_KV = compressed(
    weights(8, "float", "tensor"),
    inputs(8, "float", "tensor") | {"dynamic": False},
    format="float-quantized",
    kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False},
)
LLAMA_NVFP4 = compressed(
    weights(4, "float", "tensor_group", group_size=16),
    inputs(4, "float", "tensor_group", group_size=16) | {"dynamic": "local"},
    format="nvfp4-pack-quantized",
)
KIMI_K2_THINKING = compressed(
    weights(4, "int", "group", group_size=32),
    ignore=("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"),
    format="pack-quantized",
)
LLAMA_4_FP8 = compressed(
    weights(8, "float", "channel"),
    inputs(8, "float"),
    ignore=("re:.*lm_head", "re:.*self_attn", "re:.*router", "re:.*vision_model.*", "re:.*multi_modal_projector.*"),
)
QWEN_AWQ: Config = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
MIXTRAL_AWQ: Config = QWEN_AWQ | {"modules_to_not_convert": ["gate"]}
QWEN_GPTQ: Config = {
    "batch_size": 1,
    "bits": 4,
    "damp_percent": 0.01,
    "desc_act": False,
    "exllama_config": {"version": 1},
    "group_size": 128,
    "modules_in_block_to_quantize": None,
    "quant_method": "gptq",
    "sym": True,
    "true_sequential": True,
}
UNSLOTH_4BIT: Config = {
    "_load_in_4bit": True,
    "_load_in_8bit": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "llm_int8_enable_fp32_cpu_offload": False,
    "llm_int8_has_fp16_weight": False,
    "llm_int8_skip_modules": ["lm_head", "multi_modal_projector", "model.layers.3.self_attn"],
    "llm_int8_threshold": 6.0,
    "load_in_4bit": True,
    "load_in_8bit": False,
    "quant_method": "bitsandbytes",
}
NVIDIA_QWEN3_32B: Config = {
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]},
}
NVIDIA_DEEPSEEK_V3: Config = {
    "producer": {"name": "modelopt", "version": "0.27.0"},
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head", "model.embed_tokens", "model.norm", "model.layers.61*"]
        + [f"model.layers.{n}.self_attn*" for n in range(61)]
        + [f"model.layers.{n}.mlp.gate" for n in range(3, 61)]
        + [f"model.layers.{n}.{norm}" for n in range(61) for norm in ("input_layernorm", "post_attention_layernorm")],
    },
}
NVIDIA_LLAMA_FP8: Config = {
    "producer": {"name": "modelopt", "version": "0.19.0"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
}
MODELOPT_MIXED: Config = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "ignore": ["mtp*", "model.layers.5*"],
    "quantized_layers": {
        "model.language_model.layers.3.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "model.language_model.layers.5.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "model.language_model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.language_model.layers.0.mlp.down_proj": {"quant_algo": "W4A8_AWQ", "group_size": 128},
        "lm_head": {"quant_algo": "NVFP4", "group_size": 16},
    },
}
LLAMA_405B_FBGEMM: Config = {
    "quant_method": "fbgemm_fp8",
    "activation_scale_ub": 1200.0,
    "modules_to_not_convert": [f"model.layers.{n}.self_attn.{p}_proj" for n in range(126) for p in "qkvo"]
    + [f"model.layers.{n}.mlp.{p}_proj" for n in (0, 125) for p in ("gate", "up", "down")]
    + ["lm_head.weight"],
}
QUARK_SPEC = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "symmetric": None}
AMD_MXFP4: Config = {
    "quant_method": "quark",
    "global_quant_config": {"weight": QUARK_SPEC, "input_tensors": QUARK_SPEC | {"is_dynamic": True}, "bias": None},
    "exclude": ["lm_head", "re:model.layers.0.*", "*.self_attn.o_proj"],
    "layer_quant_config": {
        "*k_proj": {"weight": QUARK_SPEC, "output_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
        "*shared_experts*": {
            "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
            "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
        },
    },
    "export": {"kv_cache_group": ["*k_proj", "*v_proj"]},
}
AUTO_ROUND: Config = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "block_name_to_quantize": "model.layers",
    "extra_config": {
        "model.layers.3.self_attn.o_proj": {"bits": 8},
        r".*shared_experts.*": {"bits": 16, "data_type": "float"},
        "lm_head": {"bits": 4, "group_size": 32},
    },
}


def groups(*targets_and_weights: tuple[list[str], Config | None], ignore: tuple[str, ...] = ()) -> Config:
    named = {
        f"group_{number}": {"targets": targets, "weights": weight}
        for number, (targets, weight) in enumerate(targets_and_weights)
    }
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore)}


INT4_ARGS, INT8_ARGS = weights(4, "int", "group", group_size=128), weights(8, "int", "channel")
