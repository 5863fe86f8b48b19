"""Groups, targets, ignore lists and arguments of compressed-tensors."""

from __future__ import annotations

import pytest

from roofline.precision import BF16, FP8_BLOCK128, MXFP4, MXFP8, Precision, Width
from roofline.quantization import scheme_from_config
from tests.roofline.quantization_configs import (
    EMBEDDING,
    EXPERT,
    FP8_WEIGHT_ONLY,
    HEAD,
    INT4_ARGS,
    INT4_G128,
    INT4_G128_FP8,
    INT4_G128_ZP,
    INT8_ARGS,
    INT8_G128,
    INT8_WEIGHT_ONLY,
    MXFP4_W4A4,
    NVFP4_WEIGHT_ONLY,
    O_PROJ,
    ROUTER,
    Config,
    Q,
    compressed,
    groups,
    inputs,
    weights,
)


@pytest.mark.parametrize(
    ("weight", "activations", "width"),
    [
        (weights(8, "float", "channel"), None, FP8_WEIGHT_ONLY),
        (weights(8, "float", "block", block_structure=[128, 128]), inputs(8, "float", "group", group_size=128), FP8_BLOCK128),
        (weights(8, "float", "block", block_structure="128x128"), inputs(8, "float"), FP8_BLOCK128),
        (
            weights(8, "float", "block", block_structure=[1, 128]),
            inputs(8, "float"),
            Width(name="fp8-block1x128", bytes_each=1 + 4 / 128, math=Precision.FP8),
        ),
        (
            weights(8, "float", "group", group_size=64),
            inputs(8, "float"),
            Width(name="fp8-g64", bytes_each=1 + 2 / 64, math=Precision.FP8),
        ),
        (weights(8, "float", "group", group_size=32, scale_dtype="torch.uint8"), inputs(8, "float"), MXFP8),
        ({"num_bits": 4, "group_size": 64}, None, Width(name="int4-g64", bytes_each=0.5 + 2 / 64, math=Precision.BF16)),
        (weights(4, "int", "group", group_size=128) | {"symmetric": False}, None, INT4_G128_ZP),
        (weights(4, "int", "channel"), None, Width(name="int4-channel", bytes_each=0.5, math=Precision.BF16)),
        (
            weights(3, "int", "group", group_size=64),
            None,
            Width(name="int3-g64", bytes_each=3 / 8 + 2 / 64, math=Precision.BF16),
        ),
        (weights(8, "int", "channel"), None, INT8_WEIGHT_ONLY),
        (weights(8, "int", "group", group_size=128), None, INT8_G128),
        (weights(4, "int", "group", group_size=128), inputs(8, "float"), INT4_G128_FP8),
        (
            weights(4, "int", "channel"),
            inputs(8, "int"),
            Width(name="int4-channel-int8-math", bytes_each=0.5, math=Precision.INT8),
        ),
        (weights(4, "float", "tensor_group", group_size=16), None, NVFP4_WEIGHT_ONLY),
        (weights(4, "float", "group", group_size=32), None, MXFP4_W4A4),
        (weights(4, "float", "group", group_size=32), inputs(8, "float"), MXFP4),
    ],
)
def test_compressed_tensors_reads_the_arguments_not_the_format(
    weight: Config, activations: Config | None, width: Width
) -> None:
    """Bits, type, strategy and group give the bytes; activations give the format of the multiplication."""
    assert width == scheme_from_config(compressed(weight, activations), BF16).width(Q)


def test_rounding_on_the_way_in_and_out_multiplies_wide() -> None:
    """Static int8 inputs and outputs around a weight-only product leave it in the model's format, as in vLLM."""
    config = compressed(weights(8, "int", "channel"), inputs(8, "int", "tensor") | {"dynamic": False})
    config["config_groups"]["group_0"]["output_activations"] = inputs(8, "int", "tensor")

    assert scheme_from_config(config, BF16).width(Q) == INT8_WEIGHT_ONLY


@pytest.mark.parametrize(
    ("config", "module", "width"),
    [
        pytest.param(groups((["Linear"], INT8_ARGS), ([Q], INT4_ARGS)), Q, INT4_G128, id="a name before a class"),
        pytest.param(groups((["Linear"], INT8_ARGS), ([Q], INT4_ARGS)), O_PROJ, INT8_WEIGHT_ONLY, id="else the class"),
        pytest.param(groups(([r"re:.*q_proj$"], INT4_ARGS), ([Q], INT8_ARGS)), Q, INT4_G128, id="the first that names it"),
        pytest.param(groups((["Linear"], INT4_ARGS), (["re:.*lm_head"], INT8_ARGS)), HEAD, INT8_WEIGHT_ONLY, id="head by name"),
        pytest.param(groups((["Linear", "lm_head"], INT4_ARGS)), HEAD, INT4_G128, id="head beside the class"),
        pytest.param(groups((["Linear"], INT4_ARGS)), HEAD, BF16, id="the class is not the head"),
        pytest.param(groups((["Linear", "lm_head"], INT4_ARGS), ignore=("lm_head",)), HEAD, BF16, id="ignored wins"),
        pytest.param(groups((["Linear"], INT4_ARGS), ignore=("q_proj",)), Q, INT4_G128, id="ignored names are whole"),
        pytest.param(groups((["Linear"], INT4_ARGS), ignore=("re:q_proj",)), Q, INT4_G128, id="expressions from the start"),
        pytest.param(groups((["Linear"], INT4_ARGS), ignore=(r"re:.*qkv_proj",)), Q, BF16, id="fused name"),
        pytest.param(groups((["re:model.layers.*"], INT4_ARGS)), ROUTER, BF16, id="never a router"),
        pytest.param(groups((["Linear"], INT4_ARGS), (["Embedding"], INT8_ARGS)), EMBEDDING, INT8_WEIGHT_ONLY, id="embedding"),
        pytest.param(groups((["Linear"], INT4_ARGS)), EMBEDDING, BF16, id="else the embedding is native"),
        pytest.param(
            groups((["Linear"], INT4_ARGS), (["LlamaAttention"], INT8_ARGS)), Q, INT4_G128, id="attention is its cache"
        ),
        pytest.param(groups((["Linear"], INT4_ARGS), (["Conv2d"], INT8_ARGS)), Q, INT4_G128, id="convolutions"),
        pytest.param(
            groups((["Linear"], INT4_ARGS), (["RoutedExperts"], INT8_ARGS)), Q, INT4_G128, id="experts by class: others"
        ),
        pytest.param(groups((["FusedMoE"], INT8_ARGS), ([Q], INT4_ARGS)), EXPERT, INT8_WEIGHT_ONLY, id="experts by class"),
        pytest.param(groups((["Linear"], None), ([Q], INT4_ARGS)), O_PROJ, BF16, id="a group without weights"),
        pytest.param(
            groups((["Linear"], INT4_ARGS), ignore=("model.language_model.layers.3.self_attn.q_proj",)),
            Q,
            BF16,
            id="multimodal",
        ),
        pytest.param(
            groups((["Linear"], INT4_ARGS), ignore=(r"re:model\.language_model\..*o_proj",)),
            O_PROJ,
            BF16,
            id="multimodal regex",
        ),
    ],
)
def test_groups_and_ignore_lists_of_compressed_tensors(config: Config, module: str, width: Width) -> None:
    """Ignored first, then groups that name the module, then groups that name its class; whole names or "re:" from the start."""
    assert width == scheme_from_config(config, BF16).width(module)
