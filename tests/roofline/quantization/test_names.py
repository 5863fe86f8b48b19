"""What a module is by its name."""

from __future__ import annotations

import time

import pytest

from roofline.precision import BF16, MXFP4, NVFP4
from roofline.quantization import named_scheme, scheme_from_config
from roofline.quantization.names import regular_expression
from tests.roofline.quantization_configs import EXPERT, GATE, NVIDIA_DEEPSEEK_V3, O_PROJ, ROUTER, SHARED, Q


@pytest.mark.parametrize(
    ("module", "is_native"),
    [
        ("transformer.output_layer", True),
        ("gpt_neox.embed_out", True),
        ("output", True),
        ("transformer.wte", True),
        ("transformer.embedding.word_embeddings", True),
        ("model.layers.3.mamba.conv1d", True),
        ("model.layers.3.mlp.shared_expert_gate", True),
        ("transformer.blocks.3.ffn.router.layer", True),
        ("model.layers.3.attention.output.dense", False),
        ("transformer.blocks.3.norm_attn_norm.attn.Wqkv", False),
        ("transformer.h.3.attn.c_attn", False),
    ],
)
def test_what_is_never_converted_by_its_name(module: str, is_native: bool) -> None:
    """Heads, embeddings, convolutions and routers stay native in every family; everything linear is converted."""
    assert is_native is (named_scheme("fp8", BF16).width(module) == BF16)


def test_an_expert_whose_name_does_not_say_so() -> None:
    """The caller's word makes it one."""
    scheme = named_scheme("mxfp4-experts", BF16)

    assert (scheme.width("model.layers.3.moe.w1", is_expert=True), scheme.width("model.layers.3.moe.w1")) == (MXFP4, BF16)


def test_long_lists_are_searched_quickly() -> None:
    """A scheme of some hundred names and patterns answers for all modules of a large model within half a second."""
    scheme = scheme_from_config(NVIDIA_DEEPSEEK_V3, BF16)
    parts = [Q, O_PROJ, GATE, EXPERT, SHARED, ROUTER] * 2

    begin = time.process_time()
    widths = [scheme.width(part.replace(".3.", f".{layer}.")) for layer in range(61) for part in parts]

    assert NVFP4 in widths
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize("text", ["(.*.*)*Z", "(a+)+b", "(x{1,9})*"])
def test_expressions_that_repeat_a_repetition_are_refused(text: str) -> None:
    """They can take for ever on a name that does not fit."""
    with pytest.raises(ValueError, match="repeats a repetition"):
        regular_expression(text)
