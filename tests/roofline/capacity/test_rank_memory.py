"""What one GPU holds, by hand on small shapes and against published parameter counts on real ones."""

from __future__ import annotations

import pytest

from roofline.capacity.rank_memory import CacheShare, mtp_bytes, ranks
from roofline.deployment import Deployment, Parallelism
from roofline.shape import Attention, Experts, LatentAttention, LayerGroup, Matrix, ModelShape, Recurrence, WeightKind
from tests.roofline.shapes import a_gpu, a_shape
from tests.roofline.workers import a_worker

# The small shape in two bytes: two layers of attention 8,000 B and feed-forward 12,000 B, embedding and head 2,000 B each.
# Key and value projections: 100 x 40 cached numbers x 2 B = 8,000 B would be all of the attention; see the test.


def a_deployment(shape: ModelShape | None = None, **parallelism: int | bool) -> Deployment:
    return Deployment(shape or a_shape(), a_gpu(), parallelism=Parallelism(**parallelism))  # type: ignore[arg-type]


def weights(deployment: Deployment) -> list[float]:
    return [rank.weight_bytes for rank in ranks(deployment)]


def test_one_gpu_holds_everything() -> None:
    """Without parallelism the GPU holds what the deployment stores."""
    deployment = a_deployment()

    assert weights(deployment) == [deployment.weight_bytes] == [44_000.0]
    assert ranks(deployment)[0].kv_bytes_per_token == deployment.kv_bytes_per_token == 160.0


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-20b", "gemma-3-27b-it"])
def test_real_models_are_held_whole(model: str) -> None:
    """On one GPU the weights are those of the deployment, and cache per token is too, whatever the architecture."""
    deployment = a_worker(model, "h200-sxm")
    (rank,) = ranks(deployment)

    assert rank.weight_bytes == pytest.approx(deployment.weight_bytes, rel=1e-12)
    assert rank.kv_bytes_per_token == pytest.approx(deployment.kv_bytes_per_token, rel=1e-12)
    assert rank.state_bytes == pytest.approx(deployment.state_bytes, rel=1e-12)


def test_tensor_parallelism_splits_matrices_and_cache() -> None:
    """Two GPUs hold half of everything that is split."""
    assert weights(a_deployment(tensor=2)) == [22_000.0]
    assert ranks(a_deployment(tensor=2))[0].kv_bytes_per_token == 80.0


def test_key_value_heads_are_held_by_several_gpus() -> None:
    """With more GPUs than key-value heads, keys, values and their projections are held several times."""
    # Projections of keys and values: 100 hidden x 40 numbers x 2 B = 8,000 B a layer, of 16,000 B of attention. A quarter of
    # everything is (2 x 28,000 + 4,000) / 4 = 15,000 B; each GPU also holds half a key-value pair instead of a quarter.
    deployment = a_deployment(a_shape(attention=8_000), tensor=4)

    assert weights(deployment) == [15_000.0 + 2 * 8_000 * (1 / 2 - 1 / 4)]
    assert ranks(deployment)[0].kv_bytes_per_token == 80.0


def test_every_gpu_holds_the_latent_and_what_leads_to_it() -> None:
    """MLA's cache and down projections are not split; up projections are."""
    mixer = LatentAttention(heads=4, latent_dim=30, rope_head_dim=10, nope_head_dim=10, v_head_dim=10)
    group = LayerGroup(
        layers=(0,),
        mixer=mixer,
        experts=None,
        matrices=(
            Matrix(module="layers.{layer}.self_attn.kv_a_proj_with_mqa", kind=WeightKind.ATTENTION, parameters=4_000),
            Matrix(module="layers.{layer}.self_attn.kv_b_proj", kind=WeightKind.ATTENTION, parameters=2_400),
            Matrix(module="layers.{layer}.indexer.wk", kind=WeightKind.INDEXER, parameters=700),
        ),
    )
    deployment = a_deployment(a_shape(layers=0, more=(group,)), tensor=2)

    assert weights(deployment) == [2.0 * (4_000 + 2_400 / 2 + 700 + 2_000 / 2)]
    assert ranks(deployment)[0].kv_bytes_per_token == 2.0 * 40


@pytest.mark.parametrize(
    ("parallelism", "share"),
    [
        ({"tensor": 2}, 1 / 2),
        ({"tensor": 2, "data": 2}, 1 / 4),  # experts are split over all ranks, even without expert parallelism
        ({"tensor": 2, "data": 2, "expert": True}, 3 / 10),  # whole experts: 10 on 4 GPUs, the fullest holds 3
    ],
)
def test_experts_are_spread_over_all_ranks(parallelism: dict[str, int], share: float) -> None:
    """Routed experts are split or dealt out over tensor x data GPUs; with whole ones the fullest GPU counts."""
    shape = a_shape(experts=Experts(count=10, chosen=2), expert=50_000)
    (rank,) = ranks(a_deployment(shape, **parallelism))

    assert rank.weight_bytes == pytest.approx(44_000 / 2 + 2 * 100_000 * share)


def test_data_parallel_ranks_hold_dense_weights_again() -> None:
    """Data parallelism saves no memory for anything but experts."""
    assert weights(a_deployment(data=4)) == [44_000.0]


def test_pipeline_stages_hold_layers_and_their_end_of_the_model() -> None:
    """The first stage holds the embedding, the last the head, each its layers' cache."""
    first, second = ranks(a_deployment(pipeline=2))

    assert (first.weight_bytes, second.weight_bytes) == (22_000.0, 22_000.0)
    assert (first.kv_bytes_per_token, second.kv_bytes_per_token) == (80.0, 80.0)


def test_a_tied_head_is_held_twice_by_stages_apart() -> None:
    """One GPU holds a tied matrix once; the first and last of several stages hold a copy each."""
    shape = a_shape(is_tied=True)

    assert weights(a_deployment(shape)) == [42_000.0]
    assert weights(a_deployment(shape, pipeline=2)) == [22_000.0, 22_000.0]


def test_norms_and_routers_are_on_every_gpu() -> None:
    """What is too small to split is held by all, norms in the model's own format."""
    group = LayerGroup(
        layers=(0,),
        mixer=None,
        experts=None,
        matrices=(
            Matrix(module="layers.{layer}.norm", kind=WeightKind.VECTOR, parameters=100),
            Matrix(module="layers.{layer}.mlp.gate", kind=WeightKind.ROUTER, parameters=300),
        ),
    )

    assert weights(a_deployment(a_shape(layers=0, more=(group,)), tensor=4)) == [800.0 + 4_000 / 4]


def test_recurrent_states_are_split_and_do_not_grow() -> None:
    """A state takes the same for a short and a long sequence, half of it on each of two GPUs."""
    shape = a_shape(mixer=Recurrence(state_elements=1_000, convolution_elements=50, flop_per_token=1.0))
    (rank,) = ranks(a_deployment(shape, tensor=2))

    assert rank.state_bytes == 2 * (1_000 * 4 + 50 * 2) / 2
    assert rank.sequence_bytes(1) == rank.sequence_bytes(100_000) == rank.state_bytes
    assert not rank.grows_evenly


@pytest.mark.parametrize(
    ("window", "total", "kept"),
    [
        (None, 1, 16),
        (None, 16, 16),
        (None, 17, 32),
        (32, 17, 32),  # shorter than the window
        (32, 48, 48),  # a window of two blocks may touch three
        (32, 10_000, 48),
        (33, 10_000, 64),
    ],
)
def test_cache_is_kept_in_blocks_up_to_the_window(window: int | None, total: int, kept: int) -> None:
    """Sequences take whole blocks, and layers with a window stop growing once they cover it."""
    assert CacheShare(bytes_per_token=1.0, window_tokens=window).kept_tokens(total) == kept


def test_layers_with_windows_stop_growing() -> None:
    """Of two layers, one with a window of 64 tokens: a long sequence takes all of the one and five blocks of the other."""
    windowed = LayerGroup(
        layers=(2, 3),
        mixer=Attention(heads=4, kv_heads=2, qk_head_dim=10, v_head_dim=10, window_tokens=64),
        experts=None,
        matrices=(),
    )
    (rank,) = ranks(a_deployment(a_shape(more=(windowed,))))

    assert rank.sequence_bytes(1_600) == 160.0 * 1_600 + 160.0 * 80
    assert rank.shared_bytes(100) == 160.0 * 96  # windows leave the prefix behind
    assert not rank.grows_evenly


def test_mtp_layers_are_stored_like_the_rest() -> None:
    """Multi-token-prediction layers take their parameters at the mean width, split as other weights; none without any."""
    deployment = a_worker("DeepSeek-V3", "h200-sxm", weights="fp8-block", tensor=8)
    shape = deployment.shape

    assert mtp_bytes(deployment) == pytest.approx(
        shape.mtp_parameters * deployment.weight_bytes / shape.parameters() / 8, rel=1e-12
    )
    assert mtp_bytes(a_deployment()) == 0.0
