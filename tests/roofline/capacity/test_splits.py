"""Over how many GPUs a model can be split."""

from __future__ import annotations

import pytest

from roofline.capacity.splits import splits_evenly, stage_layers, tensor_sizes
from roofline.models.known import find_shape
from roofline.shape import Attention, LatentAttention
from tests.roofline.shapes import a_shape


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "fits"),
    [
        (8, 2, 4, True),  # two GPUs hold each key-value head
        (8, 8, 4, True),
        (8, 2, 3, False),
        (12, 4, 6, False),  # heads divide, but 4 key-value heads on 6 GPUs do not
        (12, 1, 6, True),
        (8, 2, 16, False),
    ],
)
def test_heads_decide_over_how_many_gpus(heads: int, kv_heads: int, tensor: int, fits: bool) -> None:
    """Heads must divide, and key-value heads must divide or be held by equally many GPUs each."""
    shape = a_shape(ffn=96_000, mixer=Attention(heads=heads, kv_heads=kv_heads, qk_head_dim=10, v_head_dim=10))

    assert splits_evenly(shape, tensor) is fits


def test_feed_forward_sizes_must_divide_too() -> None:
    """A feed-forward part whose size does not divide cannot be split, whatever the heads."""
    shape = a_shape(hidden=100, ffn=600, mixer=Attention(heads=4, kv_heads=4, qk_head_dim=10, v_head_dim=10))

    assert tensor_sizes(shape) == (1, 2)  # 600 / 100 = 6 rows: not by 4


def test_a_latent_is_no_obstacle() -> None:
    """MLA splits by its query heads alone, since every GPU holds the latent."""
    mixer = LatentAttention(heads=16, latent_dim=8, rope_head_dim=4, nope_head_dim=8, v_head_dim=8)

    assert tensor_sizes(a_shape(ffn=160_000, mixer=mixer)) == (1, 2, 4, 8, 16)


def test_known_sizes_of_real_models() -> None:
    """Llama 3.1 8B with 32 heads and 8 key-value heads runs on up to 32 GPUs, in powers of two."""
    assert tensor_sizes(find_shape("Llama-3.1-8B")) == (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(32, 1, [32]), (32, 4, [8, 8, 8, 8]), (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]), (5, 2, [3, 2])],
)
def test_left_over_layers_go_before_the_last_stage(layers: int, stages: int, counts: list[int]) -> None:
    """Stages hold equally many layers, with what is left over before the last one; none is lost or held twice."""
    held = stage_layers(layers, stages)

    assert [len(stage) for stage in held] == counts
    assert [layer for stage in held for layer in stage] == list(range(layers))


def test_more_stages_than_layers_are_refused() -> None:
    """A stage without a layer is no stage."""
    with pytest.raises(ValueError, match="3 pipeline stages need at least as many layers, and there are 2"):
        stage_layers(2, 3)
