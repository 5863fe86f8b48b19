"""Widths of modules under the quantisation configs of published checkpoints; configs that are wrong or not known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from roofline.precision import BF16, FP8, FP8_BLOCK128, FP16, INT8, MXFP4, NVFP4, Width
from roofline.quantization import WeightScheme, scheme_from_config
from tests.facts import facts_in
from tests.roofline.quantization_configs import (
    AMD_MXFP4,
    AUTO_ROUND,
    DEEPSEEK_V3,
    DENSE,
    EMBEDDING,
    EXPERT,
    FP8_DYNAMIC,
    FP8_KV,
    GATE,
    GPT_OSS,
    HEAD,
    INT4_ARGS,
    INT4_G32,
    INT4_G128,
    INT4_G128_FP8,
    INT4_G128_ZP,
    INT8_ARGS,
    INT8_G128,
    KIMI_K2_THINKING,
    LLAMA_4_FP8,
    LLAMA_405B_FBGEMM,
    LLAMA_NVFP4,
    MINIMAX_M2,
    MIXTRAL_AWQ,
    MODELOPT_MIXED,
    MXFP4_W4A4,
    NF4_DOUBLE,
    NVFP4_WEIGHT_ONLY,
    NVIDIA_DEEPSEEK_V3,
    NVIDIA_LLAMA_FP8,
    NVIDIA_QWEN3_32B,
    O_PROJ,
    QWEN3_30B_FP8,
    QWEN_AWQ,
    QWEN_GPTQ,
    ROUTER,
    SHARED,
    STACKED,
    UNSLOTH_4BIT,
    W4A16,
    W8A8,
    Config,
    Q,
    compressed,
    groups,
    inputs,
    weights,
)

PUBLISHED: dict[str, tuple[Config, str, dict[str, Width]]] = {
    "deepseek-v3": (
        DEEPSEEK_V3,
        "fp8-block128",
        {Q: FP8_BLOCK128, DENSE: FP8_BLOCK128, EXPERT: FP8_BLOCK128, SHARED: FP8_BLOCK128, ROUTER: BF16, HEAD: BF16}
        | {"model.layers.3.self_attn.kv_a_layernorm": BF16, "model.layers.3.self_attn.kv_a_proj_with_mqa": FP8_BLOCK128}
        | {"model.layers.3.self_attn.indexer.wq_b": FP8_BLOCK128, "model.layers.3.self_attn.indexer.weights_proj": BF16},
    ),
    "deepseek-v4": (
        DEEPSEEK_V3 | {"expert_dtype": "fp4"},
        "mxfp4 experts + fp8-block128",
        {EXPERT: MXFP4, SHARED: FP8_BLOCK128},
    ),
    "qwen3-30b-fp8": (QWEN3_30B_FP8, "fp8-block128", {Q: FP8_BLOCK128, EXPERT: FP8_BLOCK128, ROUTER: BF16, HEAD: BF16}),
    "minimax-m2": (MINIMAX_M2, "fp8-block128", {Q: FP8_BLOCK128, EXPERT: FP8_BLOCK128, GATE: FP8_BLOCK128, ROUTER: BF16}),
    "gpt-oss": (
        GPT_OSS,
        "mxfp4 experts",
        {Q: BF16, STACKED: MXFP4, "model.layers.3.mlp.router": BF16, HEAD: BF16, EMBEDDING: BF16},
    ),
    "llama-fp8-dynamic": (FP8_DYNAMIC, "fp8", {Q: FP8, DENSE: FP8, EXPERT: FP8, ROUTER: BF16, HEAD: BF16, EMBEDDING: BF16}),
    "llama-w4a16": (W4A16, "int4-g128", {Q: INT4_G128, GATE: INT4_G128, HEAD: BF16}),
    "llama-w8a8": (W8A8, "int8", {Q: INT8, HEAD: BF16}),
    "llama-nvfp4": (LLAMA_NVFP4, "nvfp4", {Q: NVFP4, HEAD: BF16}),
    "llama-4-fp8": (
        LLAMA_4_FP8,
        "fp8",
        {
            "language_model.model.layers.3.self_attn.q_proj": BF16,
            "language_model.model.layers.3.feed_forward.experts.gate_up_proj": FP8,
            "language_model.model.layers.3.feed_forward.shared_expert.down_proj": FP8,
            "language_model.model.layers.3.feed_forward.router": BF16,
            "language_model.lm_head": BF16,
        },
    ),
    "kimi-k2-thinking": (
        KIMI_K2_THINKING,
        "int4-g32",
        {Q: BF16, SHARED: BF16, DENSE: BF16, EXPERT: INT4_G32, EXPERT.replace("{expert}", "17"): INT4_G32, HEAD: BF16},
    ),
    "qwen-awq": (QWEN_AWQ, "awq int4 g128", {Q: INT4_G128_ZP, GATE: INT4_G128_ZP, HEAD: BF16, EMBEDDING: BF16}),
    "mixtral-awq": (
        MIXTRAL_AWQ,
        "awq int4 g128",
        {
            "model.layers.3.block_sparse_moe.experts.{expert}.w1": INT4_G128_ZP,
            "model.layers.3.block_sparse_moe.gate": BF16,
            EXPERT: INT4_G128_ZP,
        },
    ),
    "qwen-gptq": (QWEN_GPTQ, "gptq int4 g128", {Q: INT4_G128, EXPERT: INT4_G128, ROUTER: BF16, HEAD: BF16}),
    "qwen-gptq-int8": (QWEN_GPTQ | {"bits": 8}, "gptq int8 g128", {Q: INT8_G128}),
    "unsloth": (UNSLOTH_4BIT, "bitsandbytes nf4-double", {Q: BF16, GATE: NF4_DOUBLE, DENSE: NF4_DOUBLE, HEAD: BF16}),
    "nvidia-qwen3-32b": (NVIDIA_QWEN3_32B, "nvfp4", {Q: NVFP4, DENSE: NVFP4, HEAD: BF16, EMBEDDING: BF16}),
    "nvidia-deepseek-v3": (
        NVIDIA_DEEPSEEK_V3,
        "nvfp4",
        {Q: BF16, O_PROJ: BF16, DENSE: NVFP4, EXPERT: NVFP4, SHARED: NVFP4, ROUTER: BF16, HEAD: BF16},
    ),
    "nvidia-llama-fp8": (NVIDIA_LLAMA_FP8, "fp8", {Q: FP8, HEAD: BF16}),
    "modelopt-mixed": (
        MODELOPT_MIXED,
        "nvfp4-weight-only + fp8 + int4-g128-fp8-math + nvfp4",
        {
            EXPERT: NVFP4_WEIGHT_ONLY,
            "model.layers.5.mlp.experts.{expert}.up_proj": BF16,
            "model.language_model.layers.3.mlp.experts.gate_up_proj": NVFP4_WEIGHT_ONLY,
            Q: FP8,
            O_PROJ: BF16,
            DENSE: INT4_G128_FP8,
            HEAD: NVFP4,
        },
    ),
    "llama-405b-fbgemm": (LLAMA_405B_FBGEMM, "fp8", {Q: BF16, GATE: FP8, DENSE: BF16, HEAD: BF16}),
    "amd-mxfp4": (
        AMD_MXFP4,
        "mxfp4-weight-only + fp8 + mxfp4-fp4-math",
        {Q: MXFP4_W4A4, EXPERT: MXFP4_W4A4, SHARED: FP8, DENSE: BF16, O_PROJ: BF16, HEAD: BF16},
    ),
    "auto-round": (
        AUTO_ROUND,
        "int8-g128 + int4-g32 + int4-g128",
        {Q: INT4_G128, O_PROJ: INT8_G128, SHARED: BF16, HEAD: INT4_G32, EXPERT: INT4_G128, "mtp.layers.0.mlp.up_proj": BF16},
    ),
}


@pytest.mark.parametrize(
    ("config", "module", "width"),
    [
        pytest.param(config, module, width, id=f"{model}-{module}")
        for model, (config, _, widths) in PUBLISHED.items()
        for module, width in widths.items()
    ],
)
def test_each_module_of_a_published_checkpoint_has_its_width(config: Config, module: str, width: Width) -> None:
    """Name, bytes per parameter and the format of the multiplication are as the checkpoint and vLLM have them."""
    assert width == scheme_from_config(config, BF16).width(module)


@pytest.mark.parametrize(("config", "name"), [pytest.param(*case[:2], id=model) for model, case in PUBLISHED.items()])
def test_a_scheme_is_called_what_a_person_would_call_it(config: Config, name: str) -> None:
    """The name says the formats, and of experts alone that it is only they."""
    assert name == scheme_from_config(config, BF16).name


@pytest.mark.parametrize("config", [None, {}])
def test_a_checkpoint_without_a_config_is_native(config: Config | None) -> None:
    """Nothing is narrow where no quantisation is named."""
    scheme = scheme_from_config(config, FP16)

    assert (scheme.width(Q), scheme.width(HEAD), scheme.name, scheme.kv_dtype) == (FP16, FP16, "fp16", None)


@pytest.mark.parametrize(
    ("config", "kv_dtype"),
    [
        (FP8_KV, "fp8"),
        (FP8_DYNAMIC, None),
        (FP8_DYNAMIC | {"kv_cache_scheme": None}, None),
        (NVIDIA_QWEN3_32B, "fp8"),
        (NVIDIA_DEEPSEEK_V3, None),
        (MODELOPT_MIXED, "fp8"),
        ({"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, None),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}}, None),
        (AMD_MXFP4, "fp8"),
        (AMD_MXFP4 | {"export": {"kv_cache_group": []}}, None),
        (DEEPSEEK_V3, None),
    ],
)
def test_the_cache_is_narrow_only_where_the_checkpoint_says_so(config: Config, kv_dtype: str | None) -> None:
    """The KV cache's format is what vLLM makes of "auto" for this checkpoint."""
    assert kv_dtype == scheme_from_config(config, BF16).kv_dtype


@pytest.mark.parametrize("method", ["gguf", "exl2", "hqq", "aqlm", "torchao", "bitnet"])
def test_an_unknown_method_is_named_with_a_way_out(method: str) -> None:
    """Whoever meets one learns which are known, and that a width can be given by hand."""
    with pytest.raises(ValueError, match=rf"'{method}' is not known; known are fp8, .*weight_dtype"):
        scheme_from_config({"quant_method": method}, BF16)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bits": 4}, "no quant_method"),
        (QWEN_AWQ | {"bits": "four"}, r"\(awq\): bits is 'four'; it should be an integer"),
        (QWEN_AWQ | {"group_size": True}, "group_size is True"),
        (QWEN_AWQ | {"bits": 16}, "bits is 16; it should be 2 to 8"),
        (QWEN_AWQ | {"group_size": None}, "group_size is missing"),
        (QWEN_AWQ | {"group_size": 0}, "group_size is 0; .* or -1"),
        (QWEN_AWQ | {"zero_point": "yes"}, "zero_point is 'yes'; it should be true or false"),
        (QWEN_AWQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'; it should be a list"),
        (QWEN_AWQ | {"modules_to_not_convert": [1]}, "a list of module names"),
        (QWEN_GPTQ | {"dynamic": {"+:(": {"bits": 8}}}, r"'\(', no regular expression"),
        (QWEN_GPTQ | {"dynamic": {"+:.*": {"bits": 99}}}, r"quantization_config \(gptq\).dynamic.+bits is 99"),
        (QWEN_GPTQ | {"dynamic": []}, "dynamic is .*a mapping"),
        (DEEPSEEK_V3 | {"weight_block_size": [128]}, r"weight_block_size is \[128\]; it should be two positive integers"),
        (DEEPSEEK_V3 | {"weight_block_size": [128, 0]}, "two positive integers"),
        (DEEPSEEK_V3 | {"activation_scheme": "static"}, "activation_scheme is 'static'"),
        (DEEPSEEK_V3 | {"activation_scheme": "lazy"}, "one of dynamic, static"),
        (DEEPSEEK_V3 | {"expert_dtype": "int3"}, "expert_dtype is 'int3'; it should be one of fp8, fp4"),
        ({"quant_method": "bitsandbytes"}, "exactly one of load_in_4bit and load_in_8bit"),
        (UNSLOTH_4BIT | {"load_in_8bit": True}, "exactly one of"),
        (UNSLOTH_4BIT | {"bnb_4bit_quant_type": "nf3"}, "bnb_4bit_quant_type is 'nf3'"),
        (AUTO_ROUND | {"data_type": "nv_fp"}, "data_type is 'nv_fp'"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        (groups(([], INT4_ARGS)), "group_0: targets is"),
        (groups((["MyModule"], INT4_ARGS)), '"MyModule" is neither'),
        (groups((["Linear"], INT4_ARGS), ignore=("re:*",)), "no regular expression"),
        (compressed(weights(4, "int", "group")), r'config_groups.group_0.weights: group_size is missing.*strategy "group"'),
        (compressed(weights(4, "int", "rows")), "strategy is 'rows'; it should be one of"),
        (compressed(weights(4, "nint", "channel")), "type is 'nint'"),
        (compressed(weights(16, "int", "channel")), "num_bits is 16"),
        (compressed(weights(6, "float", "channel")), "num_bits is 6; it should be 4 or 8"),
        (compressed(weights(4, "float", "group", group_size=64)), r"16 \(NVFP4\) or 32 \(MXFP4\)"),
        (compressed(weights(8, "float", "block")), "block_structure is missing"),
        (compressed(INT4_ARGS, inputs(4, "int")), "input_activations: num_bits is 4"),
        (compressed(INT4_ARGS, format="marlin-24"), "2:4 sparsity"),
        (compressed(FP8_DYNAMIC, sparsity_config={"format": "sparse-24-bitmask"}), "2:4 sparsity"),
        (compressed(INT8_ARGS, kv_cache_scheme={"num_bits": 8, "type": "int"}), "kv_cache_scheme is"),
        ({"quant_method": "modelopt"}, "quant_algo is missing"),
        ({"quantization": {"quant_algo": "W5A5"}}, "quant_algo is 'W5A5'; it should be one of fp8,"),
        ({"quantization": {"quant_algo": "NVFP4", "group_size": 32}}, "group_size is 32; it should be 16"),
        ({"quantization": {"quant_algo": "MIXED_PRECISION"}}, "quantized_layers is missing"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {Q: "FP8"}}, "q_proj is 'FP8'; it should be a mapping"),
        ({"quant_method": "quark"}, "global_quant_config is missing"),
        (
            AMD_MXFP4 | {"layer_quant_config": {"*k_proj": None}},
            r"layer_quant_config: \*k_proj is missing; it should be a mapping",
        ),
        (AUTO_ROUND | {"data_type": 4}, "data_type is 4; it should be a string"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp6"}}}, "dtype is 'fp6'"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "16 .* or 32"),
    ],
)
def test_a_malformed_config_names_the_field_and_what_it_may_be(config: Mapping[str, object], message: str) -> None:
    """Nobody has to guess which part of the file is meant."""
    with pytest.raises(ValueError, match=message):
        scheme_from_config(config, BF16)


def test_configs_in_the_model_facts_are_all_read() -> None:
    """Every quantisation config that the facts quote has a scheme that narrows the experts and leaves the head."""
    configs = [
        model["config"]["quantization_config"]
        for model in facts_in("models.yaml")["models"]
        if "quantization_config" in model["config"]
    ]

    assert len(configs) >= 5
    for config in configs:
        scheme = scheme_from_config(config, BF16)
        assert scheme.width(EXPERT, is_expert=True).bytes_each < 1.001
        assert (scheme.width(HEAD), scheme.width(ROUTER)) == (BF16, BF16)


def test_schemes_of_equal_configs_are_equal() -> None:
    """A scheme is a value."""
    assert scheme_from_config(NVIDIA_DEEPSEEK_V3, BF16) == scheme_from_config(dict(NVIDIA_DEEPSEEK_V3), BF16)
    assert hash(scheme_from_config(GPT_OSS, BF16)) == hash(scheme_from_config(GPT_OSS, BF16))
    assert WeightScheme(native=BF16) != scheme_from_config(GPT_OSS, BF16)
