"""Formats of Quark."""

from __future__ import annotations

import pytest

from roofline.precision import BF16, FP8_BLOCK128, INT8, MXFP8, NVFP4, Precision, Width
from roofline.quantization import scheme_from_config
from tests.roofline.quantization_configs import INT4_G128, QUARK_SPEC, Q


@pytest.mark.parametrize(
    ("weight", "activations", "width"),
    [
        ([QUARK_SPEC | {"group_size": 16}, {"dtype": "fp8_e4m3"}], [QUARK_SPEC, {"dtype": "fp8_e4m3"}], NVFP4),
        ([{"dtype": "fp8_e4m3"}, {"dtype": "int4"}], {"dtype": "fp8_e4m3"}, None),
        ({"dtype": "int4", "qscheme": "per_group", "group_size": 128, "symmetric": True}, None, INT4_G128),
        ({"dtype": "int8", "qscheme": "per_channel", "symmetric": True}, {"dtype": "int8"}, INT8),
        ({"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]}, {"dtype": "fp8_e4m3"}, FP8_BLOCK128),
        ({"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 32}, {"dtype": "fp8_e4m3"}, MXFP8),
    ],
)
def test_formats_of_quark(weight: object, activations: object, width: Width | None) -> None:
    """One stage or two: what is stored is the narrowest of them."""
    spec = {"weight": weight, "input_tensors": activations}
    expected = width or Width(name="int4-channel-fp8-math", bytes_each=0.5, math=Precision.FP8)

    assert expected == scheme_from_config({"quant_method": "quark", "global_quant_config": spec}, BF16).width(Q)
