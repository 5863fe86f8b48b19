"""Floor, reference and expected of a request."""

from __future__ import annotations

import pytest

from roofline.bound import bound
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, expected
from roofline.limits import Surroundings, decode_limit, e2e_seconds, prefill_limit, prefill_spans
from roofline.shape import Experts
from roofline.work import Routing, Span, work
from tests.roofline.shapes import a_gpu, a_shape

LOSSES = DEFAULT_LOSSES["vllm"]
DEPLOYMENT = Deployment(a_shape(), a_gpu())
MOE = Deployment(a_shape(experts=Experts(count=8, chosen=2), expert=8_000), a_gpu())


def test_a_prompt_alone_has_floor_and_reference_alike() -> None:
    """Nobody else in the step, one step, no experts: nothing tells them apart; the expectation is above."""
    limit = prefill_limit(DEPLOYMENT, LOSSES, prompt_tokens=500)
    done = work(DEPLOYMENT, [Span(0, 500)])

    assert limit.floor_seconds == limit.reference_seconds == bound(done, DEPLOYMENT.gpu).seconds
    assert limit.expected_seconds == expected(DEPLOYMENT, [Span(0, 500)], LOSSES).seconds > limit.floor_seconds
    assert (limit.flop, limit.bytes) == (done.flop, done.bytes)


def test_cached_tokens_count_as_past() -> None:
    """Only what is not cached is computed, on top of what is."""
    limit = prefill_limit(DEPLOYMENT, LOSSES, prompt_tokens=500, cached_tokens=480)

    assert limit.flop == work(DEPLOYMENT, [Span(480, 20)]).flop


def test_at_least_one_token_of_a_prompt_is_computed() -> None:
    """A prompt that is wholly cached still needs its last token's logits."""
    whole = prefill_limit(DEPLOYMENT, LOSSES, prompt_tokens=500, cached_tokens=500)

    assert whole == prefill_limit(DEPLOYMENT, LOSSES, prompt_tokens=500, cached_tokens=499)


def test_the_floor_of_experts_is_the_chosen_ones() -> None:
    """However many tokens, they might all have chosen the same; the reference expects them to differ."""
    limit = decode_limit(MOE, LOSSES, context_tokens=8, around=Surroundings(running=7, context_tokens=8))

    fewest = bound(work(MOE, [Span(8, 1)], Routing.FEWEST), MOE.gpu).seconds
    assert limit.floor_seconds == pytest.approx(fewest)
    assert limit.reference_seconds == pytest.approx(bound(work(MOE, [Span(8, 1), Span(8, 1, count=7)]), MOE.gpu).seconds)


def test_tpot_is_the_mean_over_a_growing_context() -> None:
    """Ten tokens after a prompt of 100: nine steps, on 100 to 108 past tokens."""
    limit = decode_limit(DEPLOYMENT, LOSSES, context_tokens=100, completion_tokens=10)
    steps = [bound(work(DEPLOYMENT, [Span(past, 1)]), DEPLOYMENT.gpu).seconds for past in range(100, 109)]

    assert limit.floor_seconds == pytest.approx(sum(steps) / 9)


def test_chunks_make_room_for_those_who_decode() -> None:
    """With 100 tokens a step of which 20 decode, 400 prompt tokens take five steps, and the 20 get five tokens each."""
    own, others = prefill_spans(400, 0, Surroundings(running=20, context_tokens=50, chunk_tokens=100))

    assert own == Span(0, 400, steps=5)
    assert others == Span(50, 5, count=20, steps=5, logits=5)


def test_more_chunks_never_lower_the_reference_and_leave_the_floor() -> None:
    """The floor does not know how the engine cuts a prompt."""
    whole = prefill_limit(DEPLOYMENT, LOSSES, prompt_tokens=512)
    cut = prefill_limit(DEPLOYMENT, LOSSES, prompt_tokens=512, around=Surroundings(chunk_tokens=64))

    assert cut.floor_seconds == whole.floor_seconds
    assert cut.reference_seconds >= whole.reference_seconds
    assert cut.expected_seconds > whole.expected_seconds


def test_stages_of_a_pipeline_take_turns_on_one_token() -> None:
    """Two stages do not halve a decode step: a token passes one after the other."""
    staged = Deployment(a_shape(), a_gpu(), parallelism=Parallelism(pipeline=2))
    shared = Deployment(a_shape(), a_gpu(), parallelism=Parallelism(tensor=2))
    one = decode_limit(DEPLOYMENT, LOSSES, context_tokens=100)

    assert decode_limit(staged, LOSSES, context_tokens=100).floor_seconds == one.floor_seconds
    assert decode_limit(shared, LOSSES, context_tokens=100).floor_seconds == one.floor_seconds / 2


@pytest.mark.parametrize(
    ("ttft", "tpot", "tokens", "seconds"), [(0.5, 0.02, 500, 0.5 + 499 * 0.02), (0.5, None, 1, 0.5), (0.5, 0.02, 1, 0.5)]
)
def test_the_first_token_is_not_counted_twice(ttft: float, tpot: float | None, tokens: int, seconds: float) -> None:
    """n tokens have n - 1 gaps."""
    assert e2e_seconds(ttft, tpot, tokens) == pytest.approx(seconds)


@pytest.mark.parametrize(("prompt", "cached"), [(0, 0), (10, 11), (10, -1)])
def test_impossible_prompts_are_refused(prompt: int, cached: int) -> None:
    """No prompt is empty, and the cached part lies within it."""
    with pytest.raises(ValueError, match="prompt"):
        prefill_limit(DEPLOYMENT, LOSSES, prompt_tokens=prompt, cached_tokens=cached)


def test_tpot_needs_two_tokens() -> None:
    """One token has no gap."""
    with pytest.raises(ValueError, match="2 completion tokens"):
        decode_limit(DEPLOYMENT, LOSSES, context_tokens=10, completion_tokens=1)
