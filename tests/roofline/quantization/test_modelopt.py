"""Algorithms of Model Optimizer and what they cover."""

from __future__ import annotations

import pytest

from roofline.precision import BF16, FP8, FP8_BLOCK128, INT8, MXFP4, MXFP8, NVFP4, Width
from roofline.quantization import scheme_from_config
from tests.roofline.quantization_configs import EMBEDDING, HEAD, INT4_G128, INT4_G128_FP8, NVFP4_WEIGHT_ONLY, O_PROJ, Config, Q


@pytest.mark.parametrize(
    ("algorithm", "more", "width"),
    [
        ("fp8_per_channel_per_token", {}, FP8),
        ("FP8_PB_WO", {}, FP8_BLOCK128),
        ("FP8_BLOCK_SCALES", {"group_size": 128}, FP8_BLOCK128),
        ("W4A8_AWQ", {"group_size": 128, "has_zero_point": False, "pre_quant_scale": True}, INT4_G128_FP8),
        ("W4A16_AWQ", {"group_size": 128, "has_zero_point": False}, INT4_G128),
        ("W8A8_SQ_PER_CHANNEL", {}, INT8),
        ("MXFP8", {}, MXFP8),
        ("NVFP4_AWQ", {"group_size": 16}, NVFP4),
        ("W4A16_NVFP4", {"group_size": 16}, NVFP4_WEIGHT_ONLY),
        ("NVFP4", {"config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None}}}, NVFP4_WEIGHT_ONLY),
        ("W4A8_MXFP4_FP8", {}, MXFP4),
    ],
)
def test_algorithms_of_modelopt(algorithm: str, more: Config, width: Width) -> None:
    """Each algorithm that Model Optimizer exports has its width, and covers the head unless that is excluded."""
    scheme = scheme_from_config({"quant_method": "modelopt", "quant_algo": algorithm} | more, BF16)

    assert (width, width, BF16) == (scheme.width(Q), scheme.width(HEAD), scheme.width(EMBEDDING))


def test_mixed_precision_by_groups() -> None:
    """Exports that list their layers only in groups are read by these."""
    fp8 = {"targets": [Q], "weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8, "type": "float"}}
    scheme = scheme_from_config({"quant_algo": "MIXED_PRECISION", "config_groups": {"group_0": fp8}}, BF16)

    assert (scheme.width(Q), scheme.width(O_PROJ)) == (FP8, BF16)
