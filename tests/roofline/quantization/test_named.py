"""Weight schemes by name."""

from __future__ import annotations

import pytest

from roofline.precision import BF16, FP8, FP8_BLOCK128, FP16, FP32, INT8, MXFP4, MXFP8, NVFP4, Precision, Width
from roofline.quantization import named_scheme
from tests.facts import facts_in
from tests.roofline.quantization_configs import (
    EMBEDDING,
    EXPERT,
    FP8_WEIGHT_ONLY,
    HEAD,
    INT4_G128,
    INT4_G128_FP8,
    INT4_G128_ZP,
    INT8_G128,
    INT8_WEIGHT_ONLY,
    NF4,
    NF4_DOUBLE,
    NVFP4_WEIGHT_ONLY,
    ROUTER,
    Q,
)

DENSE_PRECISIONS = {"fp8": "fp8", "int8w_allhead8": "int8-weight-only-all", "nvfp4": "nvfp4", "bf16": "bf16", "fp16": "fp16"}


@pytest.mark.parametrize(
    ("name", "linear", "expert", "head"),
    [
        ("auto", BF16, BF16, BF16),
        ("fp16", FP16, FP16, FP16),
        ("bfloat16", BF16, BF16, BF16),
        ("float32", FP32, FP32, FP32),
        ("FP8", FP8, FP8, BF16),
        ("fp8_block", FP8_BLOCK128, FP8_BLOCK128, BF16),
        ("fp8-weight-only", FP8_WEIGHT_ONLY, FP8_WEIGHT_ONLY, BF16),
        ("mxfp8", MXFP8, MXFP8, BF16),
        ("int8", INT8, INT8, BF16),
        ("w8a8", INT8, INT8, BF16),
        ("int8-weight-only", INT8_WEIGHT_ONLY, INT8_WEIGHT_ONLY, BF16),
        ("int8-weight-only-all", INT8_WEIGHT_ONLY, INT8_WEIGHT_ONLY, INT8_WEIGHT_ONLY),
        ("int4", INT4_G128, INT4_G128, BF16),
        ("int4-g128", INT4_G128, INT4_G128, BF16),
        ("int8-g128", INT8_G128, INT8_G128, BF16),
        ("gptq", INT4_G128, INT4_G128, BF16),
        ("awq", INT4_G128_ZP, INT4_G128_ZP, BF16),
        ("w4a8", INT4_G128_FP8, INT4_G128_FP8, BF16),
        ("nf4", NF4, NF4, BF16),
        ("nf4-double", NF4_DOUBLE, NF4_DOUBLE, BF16),
        ("mxfp4", MXFP4, MXFP4, BF16),
        ("mxfp4-experts", BF16, MXFP4, BF16),
        ("nvfp4", NVFP4, NVFP4, BF16),
        ("nvfp4-weight-only", NVFP4_WEIGHT_ONLY, NVFP4_WEIGHT_ONLY, BF16),
        ("nvfp4-experts", BF16, NVFP4, BF16),
        ("nvfp4_experts_fp8", FP8, NVFP4, BF16),
    ],
)
def test_named_schemes(name: str, linear: Width, expert: Width, head: Width) -> None:
    """A name gives linear layers, experts and head their widths; routers are as wide as the head's surroundings."""
    scheme = named_scheme(name, BF16)

    assert (linear, expert, head) == (scheme.width(Q), scheme.width(EXPERT), scheme.width(HEAD))
    assert scheme.width(ROUTER) == scheme.width(EMBEDDING) == scheme.native


@pytest.mark.parametrize(
    ("name", "meant"), [("fp9", "fp8"), ("nvpf4", "nvfp4"), ("int4-g0", "int4"), ("mxfp4-expert", "mxfp4-experts")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, meant: str) -> None:
    """A slip of the keyboard is told what was meant, and all names there are."""
    with pytest.raises(ValueError, match=rf"'{name}' is not known; did you mean '{meant}.*Known: auto, bf16"):
        named_scheme(name, BF16)


@pytest.mark.parametrize("name", ["awq", "nf4", "int8-weight-only", "nvfp4-weight-only"])
def test_what_is_only_stored_narrow_is_multiplied_in_the_models_format(name: str) -> None:
    """An fp16 model multiplies its widened weights in fp16."""
    assert Precision.FP16 is named_scheme(name, FP16).width(Q).math


def test_weight_bytes_of_measured_dense_models() -> None:
    """Bytes read per step by name of the precision are those that the published measurements are held against."""
    models = {model["id"]: model for model in facts_in("models.yaml")["models"]}
    seen = set()
    for point in facts_in("measured.yaml")["points"]:
        model, theory = models.get(point["model"]), point.get("theory", {})
        if model is None or model.get("moe") or "weight_bytes" not in theory or point["precision"] not in DENSE_PRECISIONS:
            continue
        scheme = named_scheme(DENSE_PRECISIONS[point["precision"]], BF16)
        params = model["params"]
        head = params["lm_head_separate"] or params["embedding"]
        linear = params["matmul_params_per_token_incl_lm_head"] - head
        read = linear * scheme.width(Q).bytes_each + head * scheme.width(HEAD).bytes_each
        assert read == pytest.approx(theory["weight_bytes"], rel=2e-3), point["id"]
        seen.add(point["precision"])
    assert {"fp8", "int8w_allhead8", "nvfp4", "bf16"} <= seen
