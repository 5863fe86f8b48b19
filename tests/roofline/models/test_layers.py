"""Which layer is what: each family's way of saying so, one letter a layer in the tables."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.models.families import DEFAULT, FAMILIES
from roofline.models.fields import ConfigFields
from roofline.models.layers import FfnKind, LayerKind, MixerKind, layer_kinds, window_tokens

MIXERS = {
    "F": MixerKind.FULL,
    "S": MixerKind.SLIDING,
    "C": MixerKind.CHUNKED,
    "L": MixerKind.LINEAR,
    "M": MixerKind.MAMBA,
    "-": MixerKind.NONE,
}
FFNS = {"d": FfnKind.DENSE, "e": FfnKind.MOE, "-": FfnKind.NONE}


def kinds(model_type: str | None = None, **values: Any) -> tuple[LayerKind, ...]:
    fields = ConfigFields(values={"model_type": model_type, **values}, name="the model")
    return layer_kinds(fields, FAMILIES.get(model_type or "", DEFAULT))


def mixers(found: tuple[LayerKind, ...]) -> str:
    letters = {kind: letter for letter, kind in MIXERS.items()}
    return "".join(letters[kind.mixer] for kind in found)


def ffns(found: tuple[LayerKind, ...]) -> str:
    letters = {kind: letter for letter, kind in FFNS.items()}
    return "".join(letters[kind.ffn] for kind in found)


@pytest.mark.parametrize(
    ("model_type", "values", "expected"),
    [
        (None, {}, "FFFFFFFF"),
        ("mistral", {"sliding_window": 4096}, "SSSSSSSS"),
        ("mistral", {"sliding_window": None}, "FFFFFFFF"),
        ("qwen2", {"sliding_window": 4096, "max_window_layers": 0}, "FFFFFFFF"),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, "FFFFFFFF"),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 6}, "FFFFFFSS"),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True}, "FFFFFFFF"),  # from layer 28 on
        ("gemma2", {"sliding_window": 4096}, "SFSFSFSF"),
        ("gpt_oss", {"sliding_window": 128}, "SFSFSFSF"),
        ("gemma3_text", {"sliding_window": 1024}, "SSSSSFSS"),
        ("gemma3_text", {"sliding_window": 1024, "sliding_window_pattern": 4}, "SSSFSSSF"),
        ("cohere2", {"sliding_window": 4096}, "SSSFSSSF"),
        ("exaone4", {"sliding_window": 4096, "sliding_window_pattern": "LLG"}, "SSFSSFSS"),
        ("exaone4", {"sliding_window": None}, "FFFFFFFF"),
        ("llama4_text", {"attention_chunk_size": 8192}, "CCCFCCCF"),
        ("llama4_text", {"attention_chunk_size": 8192, "no_rope_layers": []}, "CCCFCCCF"),
        ("llama4_text", {"attention_chunk_size": 8192, "no_rope_layer_interval": 2}, "CFCFCFCF"),
        ("llama4_text", {"attention_chunk_size": 8192, "no_rope_layers": [1, 0] * 4}, "CFCFCFCF"),
        ("qwen3_next", {}, "LLLFLLLF"),
        ("qwen3_5_text", {"full_attention_interval": 2}, "LFLFLFLF"),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 1}, "MFMMMFMM"),
        ("bamba", {"attn_layer_indices": [2, 5]}, "MMFMMFMM"),
        ("mamba2", {}, "MMMMMMMM"),
        ("minimax_m2", {"attn_type_list": [1] * 8}, "FFFFFFFF"),
        (None, {"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window": 8}, "SFSFSFSF"),
        (None, {"layer_types": ["chunked_attention", "full_attention"] * 4, "attention_chunk_size": 8}, "CFCFCFCF"),
        (None, {"layer_types": ["linear_attention", "full_attention"] * 4, "linear_num_value_heads": 2}, "LFLFLFLF"),
        (None, {"layer_types": ["linear_attention", "full_attention"] * 4, "mamba_n_heads": 2}, "MFMFMFMF"),
        (None, {"layers_block_type": ["mamba", "attention"] * 4}, "MFMFMFMF"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 8, "sliding_window": 8, "use_sliding_window": False}, "FFFFFFFF"),
        (None, {"layer_types": ["full_attention"] * 10}, "FFFFFFFF"),  # the last two predict further tokens
    ],
)
def test_mixers(model_type: str | None, values: dict[str, Any], expected: str) -> None:
    """Lists of layer types count first; else the pattern of the family, if its window is in force at all."""
    assert mixers(kinds(model_type, num_hidden_layers=8, **values)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "dddddddd"),
        ({"num_local_experts": 0}, "dddddddd"),
        ({"num_local_experts": 8}, "eeeeeeee"),
        ({"num_experts": 8, "enable_moe_block": False}, "dddddddd"),
        ({"n_routed_experts": 8, "first_k_dense_replace": 3}, "dddeeeee"),
        ({"n_routed_experts": 8, "first_k_dense_replace": 3, "moe_layer_freq": 2}, "ddddeded"),
        ({"n_routed_experts": 8, "moe_layer_freq": [0, 1, 1, 0, 1, 1, 1, 1]}, "deedeeee"),
        ({"num_experts": 8, "decoder_sparse_step": 2}, "dededede"),
        ({"num_experts": 8, "decoder_sparse_step": 1, "mlp_only_layers": [0, 7]}, "deeeeeed"),
        ({"num_local_experts": 8, "interleave_moe_layer_step": 2}, "dededede"),
        ({"num_local_experts": 8, "interleave_moe_layer_step": 1}, "eeeeeeee"),
        ({"num_local_experts": 8, "moe_layers": [1, 2]}, "deeddddd"),
        ({"n_routed_experts": 8, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6}, "ddeeeeee"),
        ({"num_experts": 8, "expert_layer_period": 2, "expert_layer_offset": 1}, "dededede"),
        ({"moe_num_experts": 8, "moe_layer_start_index": 2, "moe_layer_end_index": 5}, "ddeeeedd"),
        ({"moe_num_experts": 8, "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 2}, "dededede"),
    ],
)
def test_feed_forward_parts(values: dict[str, Any], expected: str) -> None:
    """Each family's way of saying which layers have experts is understood."""
    assert ffns(kinds(num_hidden_layers=8, **values)) == expected


@pytest.mark.parametrize(
    "blocks",
    [
        {"hybrid_override_pattern": "ME*-"},
        {"layers_block_type": ["mamba", "moe", "attention", "mlp"]},
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": 4},
    ],
)
def test_blocks_that_are_half_a_layer(blocks: dict[str, Any]) -> None:
    """Nemotron-H: every block is a mixer or a feed-forward part, as letters or in words."""
    found = kinds("nemotron_h", **blocks)

    assert (mixers(found), ffns(found)) == ("M-F-", "-e-d")


def test_layers_of_sparse_attention_that_share_an_indexer() -> None:
    """By a list, by letters or by a frequency."""
    listed = kinds(num_hidden_layers=4, indexer_types=["full", "shared", "shared", "full"])
    spelt = kinds(num_hidden_layers=4, index_topk_pattern="FSSF")
    counted = kinds(num_hidden_layers=6, index_topk_freq=3, index_skip_topk_offset=2)

    assert [kind.shares_index for kind in listed] == [kind.shares_index for kind in spelt] == [False, True, True, False]
    assert [kind.shares_index for kind in counted] == [False, False, True, True, False, True]


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        (
            None,
            {"layer_types": ["full_attention", "retention"] * 4},
            "'retention' are not known here; known are full_attention",
        ),
        (None, {"layer_types": ["full_attention"] * 7}, "7 entries for 8 layers"),
        (None, {"layer_types": ["sliding_attention"] * 8}, "lacks sliding_window"),
        (None, {"layer_types": ["chunked_attention"] * 8}, "lacks attention_chunk_size"),
        (None, {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1]}, "attn_type_list"),
        (None, {"index_topk_pattern": "FS"}, "2 letters for 8 layers"),
        ("nemotron_h", {}, "hybrid_override_pattern or layers_block_type"),
        ("nemotron_h", {"hybrid_override_pattern": "ME*"}, "3 blocks and says that it has 8"),
        ("nemotron_h", {"hybrid_override_pattern": "ME*?ME*?"}, r"'\?'"),
    ],
)
def test_layers_that_are_not_understood_are_refused(model_type: str | None, values: dict[str, Any], message: str) -> None:
    """An unknown kind of layer, or a list that does not fit, is named; nothing is assumed in its place."""
    with pytest.raises(ValueError, match=message):
        kinds(model_type, num_hidden_layers=8, **values)


def test_a_window_counts_the_token_itself() -> None:
    """The window of the config is how many tokens a query attends to; 0 and switched off mean none."""
    for values, expected in (
        ({"sliding_window": 128}, 128),
        ({"sliding_window": 0}, None),
        ({"sliding_window": 128, "use_sliding_window": False}, None),
    ):
        assert window_tokens(ConfigFields(values=values, name="x"), DEFAULT) == expected
