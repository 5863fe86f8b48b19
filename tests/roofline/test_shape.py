"""Values of a shape: what a pair, a token and a model count for."""

from __future__ import annotations

import pytest

from roofline.precision import BF16
from roofline.quantization import WeightScheme
from roofline.shape import Attention, Experts, LatentAttention, LayerGroup, Matrix, ModelShape, WeightKind


def a_model(*, is_tied: bool) -> ModelShape:
    """Three layers of 100 + 800 (8 experts, 2 chosen) + 8 parameters, one of 100; 50 outside and twice."""
    attention = Matrix(module="a", kind=WeightKind.ATTENTION, parameters=100)
    mixture = (
        attention,
        Matrix(module="e", kind=WeightKind.EXPERT, parameters=800),
        Matrix(module="r", kind=WeightKind.ROUTER, parameters=8),
    )
    return ModelShape(
        name="by hand",
        hidden_size=1,
        vocabulary_size=50,
        max_context_tokens=None,
        is_tied=is_tied,
        native=BF16,
        scheme=WeightScheme(native=BF16),
        groups=(
            LayerGroup(layers=(0,), mixer=None, experts=None, matrices=(attention,)),
            LayerGroup(layers=(1, 2, 3), mixer=None, experts=Experts(count=8, chosen=2), matrices=mixture),
        ),
        outside=(
            Matrix(module="embedding", kind=WeightKind.EMBEDDING, parameters=50),
            Matrix(module="head", kind=WeightKind.HEAD, parameters=50),
        ),
    )


@pytest.mark.parametrize(("is_tied", "head"), [(False, 50), (True, 0)])
def test_parameters_by_kind(is_tied: bool, head: int) -> None:
    """Kinds add up over the layers; a tied head has none of its own."""
    model = a_model(is_tied=is_tied)

    assert model.layers == 4
    assert model.parameters(WeightKind.ATTENTION) == 400
    assert model.parameters(WeightKind.EXPERT, WeightKind.ROUTER) == 2424
    assert model.parameters(WeightKind.HEAD) == head
    assert model.parameters() == sum(model.parameters(kind) for kind in WeightKind) == 400 + 2424 + 50 + head


def test_a_token_passes_only_the_chosen_experts() -> None:
    """Of 800 expert parameters a token passes 200; everything else in full."""
    assert a_model(is_tied=False).active_parameters == 400 + 3 * (200 + 8) + 100


def test_work_of_a_pair() -> None:
    """Scores and weighted sum: two multiply-adds for every dimension of every query head."""
    attention = Attention(heads=32, kv_heads=8, qk_head_dim=128, v_head_dim=64)

    assert attention.flop_per_pair == 2 * 32 * (128 + 64)
    assert attention.cached_elements_per_token == 8 * (128 + 64)


def test_two_ways_to_work_with_a_latent() -> None:
    """Absorbed: every head scores the whole latent; expanded: keys and values are made first. DeepSeek-V3 by hand."""
    latent = LatentAttention(
        heads=128,
        latent_dim=512,
        rope_head_dim=64,
        nope_head_dim=128,
        v_head_dim=128,
        index_heads=64,
        index_head_dim=128,
    )

    assert latent.absorbed_flop_per_pair == 2 * 128 * (512 + 64 + 512)
    assert latent.expanded_flop_per_pair == 2 * 128 * (128 + 64 + 128)
    assert latent.expansion_flop_per_token == 2 * 512 * 128 * (128 + 128)
    assert latent.cached_elements_per_token == 576
    assert latent.index_flop_per_pair == 2 * 64 * 128
