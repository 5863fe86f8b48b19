"""The sums of every request against the same work operator by operator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.bound import bound
from roofline.cost import cost, least_and_cost
from roofline.deployment import Deployment, Parallelism
from roofline.gpus import GPUS
from roofline.models.known import find_shape
from roofline.work import Routing, Span, work

MODELS = (
    *("llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "gpt-oss-120b", "gemma-3-27b-it", "deepseek-v3", "glm-5"),
    *("llama-4-scout-17b-16e", "qwen3-next-80b-a3b-instruct", "nvidia-nemotron-3-nano-30b-a3b-bf16"),
)
SHARINGS = (Parallelism(), Parallelism(tensor=8), Parallelism(tensor=2, data=4, expert=True), Parallelism(pipeline=2))
DEPLOYMENTS = [Deployment(find_shape(model), GPUS["h200-sxm"], parallelism=sharing) for model in MODELS for sharing in SHARINGS]


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Sequences that ran in the same steps: prefills in chunks and decodes."""
    steps = draw(st.integers(1, 5))
    prefills = st.builds(
        Span, st.integers(0, 100_000), st.integers(steps, 20_000), st.floats(0.5, 8), st.just(steps), st.integers(0, 1)
    )
    decodes = st.builds(Span, st.integers(1, 100_000), st.just(steps), st.floats(0.5, 300), st.just(steps), st.just(steps))
    return draw(st.lists(prefills | decodes, min_size=1, max_size=3))


@given(deployment=st.sampled_from(DEPLOYMENTS), together=spans(), routing=st.sampled_from(Routing))
def test_sums_are_those_of_the_operators(deployment: Deployment, together: list[Span], routing: Routing) -> None:
    """FLOP, bytes and both times agree whatever ran on whatever shape."""
    detailed, summed = work(deployment, together, routing), cost(deployment, together, routing)
    least = bound(detailed, deployment.gpu, deployment.parallelism.at_once)

    assert summed.flop == pytest.approx(detailed.flop)
    assert summed.bytes == pytest.approx(detailed.bytes)
    assert summed.rank_memory_seconds >= summed.memory_seconds
    if deployment.parallelism.data == 1:
        assert summed.compute_seconds == pytest.approx(least.compute_seconds)
        assert summed.memory_seconds == pytest.approx(least.memory_seconds)


@given(deployment=st.sampled_from(DEPLOYMENTS), together=spans())
def test_both_costs_in_one_pass_are_those_of_two(deployment: Deployment, together: list[Span]) -> None:
    """Of the first span with the fewest experts, and of all of them."""
    least, done = least_and_cost(deployment, together)

    assert least == pytest.approx(cost(deployment, together[:1], Routing.FEWEST), rel=1e-12)
    assert done == pytest.approx(cost(deployment, together), rel=1e-12)


def test_spans_of_different_steps_are_refused() -> None:
    """Work of sequences that did not run in the same steps can not be added up."""
    with pytest.raises(ValueError, match="spans of 1 and of 2 steps"):
        cost(DEPLOYMENTS[0], [Span(0, 4), Span(0, 4, steps=2)])


def test_utilisations_are_shares_of_the_peaks() -> None:
    """Taking twice the compute time is half of the FLOP peak; the bandwidth's share is its own."""
    done = cost(DEPLOYMENTS[0], [Span(0, 4_000)])
    measured_seconds = 2 * done.compute_seconds

    assert done.mfu_ratio(measured_seconds) == pytest.approx(0.5)
    assert done.mbu_ratio(measured_seconds) == pytest.approx(done.memory_seconds / measured_seconds)


@pytest.mark.parametrize(
    ("spans", "beside"),
    [
        ([Span(1_000, 1, 1.0)], []),
        ([Span(1_000, 1, 4.0)], []),
        ([Span(0, 500), Span(1_000, 1, 3.0)], []),
        ([Span(0, 500), Span(1_000, 1, 7.0)], [Span(1_000, 1, 1.0)]),
        ([Span(0, 500), Span(1_000, 1, 1.0), Span(2_000, 1, 6.0)], [Span(1_000, 1, 1 / 7), Span(2_000, 1, 6 / 7)]),
    ],
)
def test_a_rank_has_others_beside_a_request_once_every_rank_has_one(spans: list[Span], beside: list[Span]) -> None:
    """Four ranks of a dense model: the seconds are those of one GPU with what it has of the sequences."""
    ranks = Deployment(find_shape("llama-3.1-8b"), GPUS["h200-sxm"], parallelism=Parallelism(data=4))
    one = Deployment(find_shape("llama-3.1-8b"), GPUS["h200-sxm"])

    there, here = cost(ranks, spans), cost(one, [spans[0]._replace(count=1.0), *beside])

    assert (there.compute_seconds, there.memory_seconds) == pytest.approx((here.compute_seconds, here.memory_seconds))
    assert there.flop == pytest.approx(cost(one, spans).flop)
