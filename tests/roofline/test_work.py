"""FLOP and bytes of steps, by hand on small shapes and against published counts on real ones."""

from __future__ import annotations

import pytest

from roofline.deployment import Deployment, Parallelism
from roofline.precision import FP8, Precision
from roofline.quantization import WeightScheme
from roofline.shape import Attention, Experts, LatentAttention, LayerGroup, Matrix, Recurrence, WeightKind
from roofline.work import Routing, Span, Work, distinct_experts, work
from tests.roofline.shapes import a_gpu, a_shape

# Two layers of 10,000 multiplied weights each and a head of 1,000, all in 2 bytes; per layer and token 40 cached numbers;
# per layer and pair 2 x 4 heads x 20 = 160 FLOP.
LINEAR_FLOP = 2 * 2 * 10_000
HEAD_FLOP = 2 * 1_000
WEIGHT_BYTES = 2 * (2 * 10_000 + 1_000)
PAIR_FLOP = 2 * 160
KV_BYTES = 2 * 2 * 40

NARROW = WeightScheme(native=FP8)


def flop(done: Work, name: str) -> float:
    return sum(operator.flop for operator in done.operators if operator.name == name)


def moved(done: Work, name: str) -> float:
    return sum(operator.bytes for operator in done.operators if operator.name == name)


def test_a_decode_step_reads_weights_and_cache_once_and_multiplies_each_weight_once() -> None:
    """One token on 7 past ones: 8 pairs, 7 cached tokens read and one written."""
    done = work(Deployment(a_shape(), a_gpu()), [Span(7, 1)])

    assert done.flop == LINEAR_FLOP + HEAD_FLOP + 8 * PAIR_FLOP
    assert done.bytes == WEIGHT_BYTES + 8 * KV_BYTES
    assert done.intensity_flop_per_byte == pytest.approx(done.flop / done.bytes)


def test_a_prefill_runs_the_head_once_and_attends_causally() -> None:
    """Ten prompt tokens: ten times the linear work, one head, 55 pairs, ten cache entries written, weights read once."""
    done = work(Deployment(a_shape(), a_gpu()), [Span(0, 10)])

    assert done.flop == 10 * LINEAR_FLOP + HEAD_FLOP + 55 * PAIR_FLOP
    assert done.bytes == WEIGHT_BYTES + 10 * KV_BYTES


def test_a_prefix_hit_leaves_the_cached_tokens_out_but_for_reading_their_cache() -> None:
    """Four new tokens on six cached ones cost four tokens' linear work, and meet all ten."""
    done = work(Deployment(a_shape(), a_gpu()), [Span(6, 4)])

    assert done.flop == 4 * LINEAR_FLOP + HEAD_FLOP + (7 + 8 + 9 + 10) * PAIR_FLOP
    assert done.bytes == WEIGHT_BYTES + 10 * KV_BYTES


def test_a_batch_shares_the_weights_and_not_the_cache() -> None:
    """Five sequences: five times the FLOP and the cache, one time the weights."""
    deployment = Deployment(a_shape(), a_gpu())
    one, five = work(deployment, [Span(7, 1)]), work(deployment, [Span(7, 1, count=5)])

    assert five.flop == 5 * one.flop
    assert five.bytes == WEIGHT_BYTES + 5 * 8 * KV_BYTES


def test_chunks_read_the_weights_again_and_the_head_once() -> None:
    """Ten tokens in five steps: the same FLOP, five times the layers' weights, and what earlier chunks have cached."""
    deployment = Deployment(a_shape(), a_gpu())
    done = work(deployment, [Span(0, 10, steps=5)])

    assert done.flop == work(deployment, [Span(0, 10)]).flop
    assert done.bytes == 5 * 2 * 20_000 + 2 * 1_000 + (0 + 2 + 4 + 6 + 8 + 10) * KV_BYTES


def test_prefill_and_decode_in_one_step_read_the_weights_once() -> None:
    """A mixed step is cheaper than its parts by exactly one reading of the weights."""
    deployment = Deployment(a_shape(), a_gpu())
    mixed = work(deployment, [Span(0, 10), Span(7, 1, count=3)])
    apart = [work(deployment, [Span(0, 10)]), work(deployment, [Span(7, 1, count=3)])]

    assert mixed.flop == sum(done.flop for done in apart)
    assert mixed.bytes == sum(done.bytes for done in apart) - WEIGHT_BYTES


def test_a_chunk_that_wants_no_token_leaves_the_head_out() -> None:
    """All chunks of a prompt but the last give no logits."""
    deployment = Deployment(a_shape(), a_gpu())
    done = work(deployment, [Span(0, 10, logits=0)])

    assert flop(done, "head") == moved(done, "head") == 0


def test_a_verifying_step_wants_a_token_at_every_draft() -> None:
    """Three drafts and one token of its own: four tokens' linear work and four heads, weights once."""
    done = work(Deployment(a_shape(), a_gpu()), [Span(7, 4, logits=4)])

    assert done.flop == 4 * (LINEAR_FLOP + HEAD_FLOP) + (8 + 9 + 10 + 11) * PAIR_FLOP
    assert moved(done, "head") == 2_000


def test_a_decode_run_is_the_sum_of_its_steps() -> None:
    """Decoding three tokens at once in the sum equals three steps one after another."""
    deployment = Deployment(a_shape(), a_gpu())
    run = work(deployment, [Span(7, 3, steps=3, logits=3)])
    steps = [work(deployment, [Span(past, 1)]) for past in (7, 8, 9)]

    assert run.flop == sum(step.flop for step in steps)
    assert run.bytes == sum(step.bytes for step in steps)


def test_a_window_stops_work_and_reading_at_its_size() -> None:
    """With a window of 4 a token far on meets 4 tokens, itself included, and reads 3."""
    shape = a_shape(mixer=Attention(heads=4, kv_heads=2, qk_head_dim=10, v_head_dim=10, window_tokens=4))
    done = work(Deployment(shape, a_gpu()), [Span(100, 1)])

    assert flop(done, "attention scores, windowed") == 4 * PAIR_FLOP
    assert moved(done, "attention scores, windowed") == 4 * KV_BYTES


@pytest.mark.parametrize(("tokens", "distinct"), [(1, 2), (2, 3.5), (10_000, 8)])
def test_a_step_reads_the_experts_that_its_tokens_choose(tokens: int, distinct: float) -> None:
    """Uniform choice of 2 of 8: one token reads 2, two read 3.5 in the mean, many read all; at the very least it is 2."""
    deployment = Deployment(a_shape(experts=Experts(count=8, chosen=2), expert=8_000), a_gpu())
    uniform = work(deployment, [Span(0, tokens)])
    fewest = work(deployment, [Span(0, tokens)], Routing.FEWEST)

    assert distinct_experts(8, 2, tokens) == pytest.approx(distinct)
    assert moved(uniform, "expert") == pytest.approx(2 * 2 * 1_000 * distinct)
    assert moved(fewest, "expert") == 2 * 2 * 1_000 * 2
    assert flop(uniform, "expert") == flop(fewest, "expert") == tokens * 2 * 2 * 2_000


MLA = LatentAttention(heads=4, latent_dim=32, rope_head_dim=8, nope_head_dim=16, v_head_dim=16)


def test_mla_decodes_on_the_compressed_cache() -> None:
    """A decode step works on latents: more FLOP a pair, 40 cached numbers a token whatever the heads."""
    done = work(Deployment(a_shape(mixer=MLA), a_gpu()), [Span(1_000, 1)])

    assert flop(done, "attention scores") == 2 * 1_001 * 2 * 4 * (2 * 32 + 8)
    assert moved(done, "attention scores") == 2 * 1_001 * 2 * 40


def test_mla_prefills_on_expanded_keys_and_values() -> None:
    """A fresh prompt has nothing to expand but itself, which its projections do; pairs then cost less."""
    done = work(Deployment(a_shape(mixer=MLA), a_gpu()), [Span(0, 100)])

    assert flop(done, "attention scores") == 2 * (100 * 101 / 2) * 2 * 4 * (16 + 8 + 16)


def test_mla_expands_the_past_when_enough_tokens_share_it() -> None:
    """On a cached past the cheaper of the two ways counts: pairs on latents, or expanding the past first."""
    deployment = Deployment(a_shape(mixer=MLA), a_gpu())
    pairs = 300 * 1_000 + 300 * 301 / 2
    absorbed = 2 * pairs * 2 * 4 * (2 * 32 + 8)
    expanded = 2 * (pairs * 2 * 4 * (16 + 8 + 16) + 1_000 * 2 * 32 * 4 * (16 + 16))

    assert expanded < absorbed
    assert flop(work(deployment, [Span(1_000, 300)]), "attention scores") == expanded


def test_sparse_attention_scores_everything_and_attends_to_the_chosen() -> None:
    """Every past token is scored by its index key; of them at most the top ones are read and attended to."""
    sparse = LatentAttention(
        heads=4,
        latent_dim=32,
        rope_head_dim=8,
        nope_head_dim=16,
        v_head_dim=16,
        index_heads=2,
        index_head_dim=8,
        index_top_tokens=50,
    )
    deployment = Deployment(a_shape(mixer=sparse), a_gpu())
    done = work(deployment, [Span(1_000, 1)])
    index_bytes = deployment.kv.index_bytes_per_token(sparse)

    assert flop(done, "attention scores") == 2 * (50 * 2 * 4 * 72)
    assert moved(done, "attention scores") == 2 * (50 * 2 * 40)
    assert flop(done, "index scores") == 2 * (1_001 * 2 * 2 * 8)
    assert moved(done, "index scores") == 2 * 1_001 * index_bytes
    assert {operator.flop_per_second for operator in done.operators if operator.name == "index scores"} == {200e12}  # fp8


def test_a_recurrent_state_is_read_and_written_every_step() -> None:
    """Its size does not depend on the context; engines may keep it in the model's own format."""
    recurrence = Recurrence(state_elements=1_000, convolution_elements=100, flop_per_token=6_000)
    deployment = Deployment(a_shape(mixer=recurrence), a_gpu())

    assert deployment.state_bytes == 2 * 2 * (1_000 + 100)
    for past in (1, 10_000):
        done = work(deployment, [Span(past, 1, count=3)])
        assert moved(done, "recurrent state") == 3 * 2 * deployment.state_bytes
        assert flop(done, "recurrent state") == 3 * 2 * 6_000


def test_each_kind_of_weight_runs_at_its_own_peak() -> None:
    """Narrow weights are multiplied at the narrow peak, where the GPU has one; norms and the embedding are not multiplied."""
    extra = LayerGroup(
        layers=(2,), mixer=None, experts=None, matrices=(Matrix(module="norm", kind=WeightKind.VECTOR, parameters=500),)
    )
    deployment = Deployment(a_shape(more=(extra,)), a_gpu(), weights=NARROW)
    done = work(deployment, [Span(7, 1)])
    peaks = {operator.name: operator.flop_per_second for operator in done.operators}

    assert peaks["ffn"] == 200e12
    assert flop(done, "vector") == flop(done, "embedding") == moved(done, "embedding") == 0
    assert moved(done, "vector") == 1_000


def test_spans_of_different_steps_are_refused() -> None:
    """Work of sequences that did not run in the same steps can not be added up."""
    with pytest.raises(ValueError, match="spans of 1 and of 2 steps"):
        work(Deployment(a_shape(), a_gpu()), [Span(0, 4), Span(0, 4, steps=2)])


@pytest.mark.parametrize("field", ["tensor", "pipeline", "data"])
def test_parallelism_is_a_positive_count(field: str) -> None:
    """Nothing runs on no GPU."""
    with pytest.raises(ValueError, match=f"{field} parallelism is a count of at least 1"):
        Parallelism(**{field: 0})


def test_the_gpu_decides_what_a_narrow_format_is_multiplied_in() -> None:
    """Without an fp8 path fp8 weights are multiplied in bf16, and stay one byte in memory."""
    gpu = a_gpu(peaks={Precision.BF16: 100e12})
    term = Deployment(a_shape(), gpu, weights=NARROW).weight_terms[0]

    assert (term.flop_per_second, term.bytes) == (100e12, 8_000)
