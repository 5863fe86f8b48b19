"""Overrides, lists and flags of AWQ, GPTQ, AutoRound and bitsandbytes."""

from __future__ import annotations

import pytest

from roofline.precision import BF16, FP8_BLOCK128, INT8, MXFP4, MXFP8, Precision, Width
from roofline.quantization import scheme_from_config
from tests.roofline.quantization_configs import (
    AUTO_ROUND,
    DENSE,
    EXPERT,
    GATE,
    HEAD,
    INT4_G32,
    INT4_G128,
    INT4_G128_ZP,
    INT8_G128,
    NF4,
    O_PROJ,
    QWEN_AWQ,
    QWEN_GPTQ,
    UNSLOTH_4BIT,
    Config,
    Q,
)

DYNAMIC = {
    r"-:.*\.layers\.3\.self_attn\.q_proj": {},
    r"+:.*\.layers\.3\..*": {"bits": 8},
    r".*\.layers\.0\..*": {"group_size": 32},
    r".*\.layers\.0\.mlp.*": {"bits": 2},
}


@pytest.mark.parametrize(
    ("config", "module", "width"),
    [
        pytest.param(QWEN_GPTQ | {"dynamic": DYNAMIC}, Q, BF16, id="dynamic: not converted"),
        pytest.param(QWEN_GPTQ | {"dynamic": DYNAMIC}, O_PROJ, INT8_G128, id="dynamic: other bits"),
        pytest.param(QWEN_GPTQ | {"dynamic": DYNAMIC}, DENSE, INT4_G32, id="dynamic: the first that matches"),
        pytest.param(QWEN_GPTQ | {"dynamic": DYNAMIC}, "model.layers.7.mlp.up_proj", INT4_G128, id="dynamic: else the base"),
        pytest.param(QWEN_GPTQ | {"lm_head": True}, HEAD, INT4_G128, id="head"),
        pytest.param(QWEN_GPTQ | {"sym": False}, Q, INT4_G128_ZP, id="zero points"),
        pytest.param(
            QWEN_GPTQ | {"group_size": -1}, Q, Width(name="int4-channel", bytes_each=0.5, math=Precision.BF16), id="whole rows"
        ),
        pytest.param(QWEN_GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.gate_proj"]]}, GATE, INT4_G128),
        pytest.param(QWEN_GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.gate_proj"]]}, DENSE, BF16),
        pytest.param(QWEN_AWQ | {"lm_head": True}, HEAD, INT4_G128_ZP, id="awq: head"),
        pytest.param(QWEN_AWQ | {"zero_point": False}, Q, INT4_G128, id="awq: symmetric"),
        pytest.param(QWEN_AWQ | {"modules_to_not_convert": ["self_attn"]}, Q, BF16, id="awq: part of a name"),
        pytest.param(QWEN_AWQ | {"modules_to_not_convert": ["mlp.experts"]}, EXPERT, BF16, id="awq: experts"),
        pytest.param({"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}, Q, INT4_G128_ZP, id="old awq"),
        pytest.param({"bits": 4, "group_size": 128, "desc_act": True, "sym": True}, Q, INT4_G128, id="quantize_config.json"),
        pytest.param(UNSLOTH_4BIT | {"bnb_4bit_use_double_quant": False}, GATE, NF4, id="single"),
        pytest.param({"quant_method": "bitsandbytes", "load_in_8bit": True}, GATE, INT8, id="load_in_8bit"),
        pytest.param(AUTO_ROUND | {"extra_config": None, "data_type": "mx_fp4", "group_size": 32}, Q, MXFP4, id="mxfp4"),
        pytest.param(AUTO_ROUND | {"data_type": "mx_fp", "bits": 8, "group_size": 32}, Q, MXFP8, id="auto-round mxfp8"),
        pytest.param(
            AUTO_ROUND | {"extra_config": None, "data_type": "fp", "bits": 8, "group_size": [128, 128]},
            Q,
            FP8_BLOCK128,
            id="auto-round fp8",
        ),
        pytest.param(AUTO_ROUND | {"extra_config": None}, HEAD, BF16, id="auto-round: head only if named"),
        pytest.param(AUTO_ROUND | {"block_name_to_quantize": ["model.layers.4."]}, Q, BF16, id="auto-round: blocks"),
    ],
)
def test_parameters_and_lists_of_each_method(config: Config, module: str, width: Width) -> None:
    """Overrides, skipped names and flags count the way the method that wrote the checkpoint means them."""
    assert width == scheme_from_config(config, BF16).width(module)
