"""What is plotted of a plan."""

from __future__ import annotations

from roofline.plan.curves import batch_curves, prompt_curve
from roofline.plan.plan import make_plan
from tests.roofline.plans import a_deployment, a_plan_at, a_plan_that_does_not_fit, a_question, the_plan


def test_ttft_rises_with_the_prompt_and_stays_above_its_floor():
    """Longer prompts never come sooner, and nothing beats the floor."""
    points = prompt_curve(the_plan())

    assert points[0].prompt_tokens == 128
    assert points[-1].prompt_tokens == 32_768
    assert [point.expected_seconds for point in points] == sorted(point.expected_seconds for point in points)
    assert all(point.floor_seconds <= point.expected_seconds for point in points)


def test_prompts_of_the_plan_are_on_the_curve_and_within_the_model():
    """The curve goes to twice the plan's own prompt, and no further than the model does."""
    assert prompt_curve(make_plan(a_deployment(), a_question(prompt=50_000)))[-1].prompt_tokens == 100_000
    assert prompt_curve(make_plan(a_deployment(), a_question(prompt=100_000)))[-1].prompt_tokens == 131_072
    assert prompt_curve(make_plan(a_deployment(), a_question(prompt=60)))[0].prompt_tokens == 60


def test_batches_go_to_what_the_cache_holds():
    """Each context has its own end, TPOT and throughput rise on the way, and longer contexts are slower."""
    curves = batch_curves(a_plan_at(32))

    assert [curve.context_tokens for curve in curves] == [2250, 9000, 36_000]
    for curve in curves:
        assert curve.points[0].batch == 1.0
        assert curve.points[-1].batch == curve.most_sequences
        for figures in ([p.tpot_seconds for p in curve.points], [p.tokens_per_second for p in curve.points]):
            assert figures == sorted(figures)
    firsts = [curve.points[0].tpot_seconds for curve in curves]
    assert firsts == sorted(firsts)


def test_contexts_beyond_the_model_are_left_out():
    """A context longer than the model allows is cut to it; what falls together is shown once."""
    curves = batch_curves(make_plan(a_deployment(), a_question(prompt=130_000)))

    assert [curve.context_tokens for curve in curves] == [130_250, 131_072]


def test_what_does_not_fit_is_a_what_if():
    """Without a cache there is no end to go to; a few batches are shown as if it fitted."""
    curve = batch_curves(a_plan_that_does_not_fit())[0]

    assert curve.most_sequences is None
    assert curve.points[-1].batch == 2.0


def test_a_single_request_is_a_single_point():
    """Where the cache holds one request only, the curve is one point."""
    plan = make_plan(a_deployment("llama-3.1-8b", "rtx-4090"), a_question(prompt=30_000))

    assert len(batch_curves(plan)[-1].points) == 1
