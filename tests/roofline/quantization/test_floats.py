"""Blocks and skipped modules of the fp8 and MXFP8 methods."""

from __future__ import annotations

import pytest

from roofline.precision import BF16, FP8, FP8_BLOCK128, MXFP8, Width
from roofline.quantization import scheme_from_config
from tests.roofline.quantization_configs import DEEPSEEK_V3, DENSE, EXPERT, Config, Q


@pytest.mark.parametrize(
    ("config", "module", "width"),
    [
        pytest.param(DEEPSEEK_V3 | {"weight_block_size": None}, Q, FP8, id="fp8 per matrix"),
        pytest.param(DEEPSEEK_V3 | {"ignored_layers": ["model.layers.3.self_attn.q_proj"]}, Q, BF16, id="fp8: whole name"),
        pytest.param(DEEPSEEK_V3 | {"ignored_layers": ["model.layers.3.self_attn"]}, Q, BF16, id="fp8: what is below a name"),
        pytest.param(DEEPSEEK_V3 | {"ignored_layers": ["layers.30", "self_att"]}, Q, FP8_BLOCK128, id="fp8: whole components"),
        pytest.param(
            DEEPSEEK_V3 | {"ignored_layers": [f"model.layers.3.mlp.experts.{n}.gate_proj" for n in range(256)]},
            EXPERT,
            BF16,
            id="fp8: experts one by one",
        ),
        pytest.param({"quant_method": "mxfp8", "modules_to_not_convert": ["self_attn"]}, DENSE, MXFP8, id="mxfp8"),
    ],
)
def test_what_is_narrow_and_what_is_skipped(config: Config, module: str, width: Width) -> None:
    """A name skips the module and whatever is below it, by whole components."""
    assert width == scheme_from_config(config, BF16).width(module)
