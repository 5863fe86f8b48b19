"""A plan: the figures of a sheet, checked by hand and against each other."""

from __future__ import annotations

import pytest

from roofline.capacity.memory import MemorySettings
from roofline.capacity.remedies import RemedyCode
from roofline.capacity.targets import BATCH_JOB
from roofline.plan.plan import KNEE_CONTEXTS, make_plan, remedies_of
from roofline.plan.question import Origin
from tests.roofline.plans import a_deployment, a_plan_at, a_plan_that_does_not_fit, a_question, the_plan

LAYER_PARAMETERS = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # Llama-3.1-8B: q, o; k, v; three of the feed-forward
PEAK, BANDWIDTH = 989.4e12, 3.35e12  # H100


def test_weights_and_cache_by_hand():
    """Parameters x 2 bytes, and 2 x layers x KV heads x head size x 2 bytes a token."""
    plan = the_plan()
    parameters = 32 * (LAYER_PARAMETERS + 2 * 4096) + 2 * 128256 * 4096 + 4096

    assert plan.deployment.weight_bytes == 2 * parameters == 16_060_522_496
    assert plan.kv.full_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert plan.kv.sequence_bytes(2500) == 2500 * 131_072


def test_capacity_by_hand():
    """What is left of the memory, in blocks of 16 tokens, and in sequences of prompt + output rounded up to blocks."""
    plan = the_plan()
    left = plan.budget.usable_bytes - 16_060_522_496 - plan.budget.reserve.total_bytes

    assert plan.kv_capacity_tokens == left // (16 * 131_072) * 16
    assert plan.max_concurrency == left // (2512 * 131_072)


def test_a_request_alone_is_assumed():
    """With neither concurrency nor rate, times are those of one request, and it sees nothing of others."""
    plan = the_plan()

    assert (plan.concurrency, plan.origin, plan.running) == (1.0, Origin.ASSUMED, 1.0)
    assert plan.decode.batch == plan.decode.alone
    assert plan.latency is not None
    assert plan.latency.e2e_seconds == plan.alone_e2e_seconds
    assert plan.alone_e2e_seconds == plan.prefill.limit.expected_seconds + 499 * plan.decode.alone.expected_seconds


def test_a_concurrency_is_planned_for():
    """With a concurrency the step is that of the batch, while the floor stays that of the request."""
    plan = a_plan_at(32)

    assert (plan.concurrency, plan.origin, plan.running) == (32, Origin.GIVEN, 32)
    assert plan.decode.batch.floor_seconds == plan.decode.alone.floor_seconds
    assert plan.decode.batch.expected_seconds > plan.decode.alone.expected_seconds


def test_no_more_run_than_there_is_room_for():
    """More requests than the cache holds, or than the engine lets run, wait; times are those of the ones that run."""
    assert a_plan_at(1000).running == a_plan_at(1000).max_concurrency
    few = make_plan(a_deployment(), a_question(concurrency=100, settings=MemorySettings(max_sequences=50)))
    assert few.running == 50


def test_a_rate_leads_to_a_concurrency():
    """The concurrency of a rate is the fixed point of Little's law, shared by the workers."""
    plan = make_plan(a_deployment(), a_question(rate=8.0, workers=2))

    assert plan.origin is Origin.RATE
    assert plan.load is not None
    assert plan.load.at_rate is not None
    steady = plan.load.at_rate.steady
    assert steady is not None
    assert plan.concurrency == steady.concurrency == pytest.approx(4.0 * steady.e2e_seconds, rel=1e-6)
    assert plan.latency is not None
    assert plan.latency.requests_per_second == pytest.approx(4.0)


def test_a_rate_beyond_all_measure_fills_the_worker():
    """Where more come than can be served, as many run as may."""
    plan = make_plan(a_deployment(), a_question(rate=1000.0))

    assert plan.concurrency == plan.running == plan.max_concurrency


def test_a_low_rate_is_what_it_is():
    """Less than one request at once on average is told as such, while a step has one at least."""
    plan = make_plan(a_deployment(), a_question(rate=0.05))

    assert plan.concurrency < 1.0 == plan.running
    assert plan.latency is not None
    assert plan.latency.requests_per_second == pytest.approx(0.05)


def test_what_does_not_fit_is_planned_as_far_as_it_goes():
    """Times are told as if it fitted; there is no load, and the smallest number of GPUs that would hold it is named."""
    plan = a_plan_that_does_not_fit()

    assert not plan.works
    assert (plan.load, plan.latency, plan.kv_capacity_tokens, plan.max_concurrency) == (None, None, 0, 0)
    assert plan.smallest is not None
    assert plan.smallest.deployment.parallelism.gpus == 2
    assert plan.decode.alone.floor_seconds > 0


def test_a_request_longer_than_the_model_allows_does_not_work():
    """A plan works only if the model's context holds prompt and longest output."""
    assert make_plan(a_deployment(), a_question(prompt=130_572)).works
    plan = make_plan(a_deployment(), a_question(prompt=130_573))
    assert plan.exceeds_context
    assert not plan.works


def test_cached_tokens_make_a_second_prefill():
    """With cached tokens there is a cold prefill beside the warm one, and capacity does not rely on the cache."""
    cold, warm = the_plan(), make_plan(a_deployment(), a_question(cached=1500))

    assert cold.prefill_cold is None
    assert warm.prefill_cold == cold.prefill
    assert warm.prefill.limit.expected_seconds < cold.prefill.limit.expected_seconds
    assert warm.load is not None
    assert cold.load is not None
    assert warm.load.saturation == cold.load.saturation
    assert warm.load.capacity.ceilings == cold.load.capacity.ceilings


def test_knees_move_with_the_context():
    """The longer the context, the earlier throughput bends."""
    found = the_plan().knees

    assert [knee.context_tokens for knee in found] == list(KNEE_CONTEXTS)
    assert sorted((knee.batch for knee in found), reverse=True) == [knee.batch for knee in found]


def test_remedies_start_from_where_the_plan_stands():
    """Changes are held against the concurrency asked for, or against the most that may be."""
    assert remedies_of(a_plan_at(32)).before.batch == 32
    table = remedies_of(the_plan())
    load = the_plan().load
    assert load is not None
    assert table.before.batch == load.capacity.max_concurrency
    narrower = table.row(RemedyCode.WEIGHTS_FP8).after
    assert narrower is not None
    assert narrower.max_concurrency > table.before.max_concurrency


def test_answers_of_one_token_have_no_tpot():
    """A completion of one token is all prefill: no TPOT, and nothing of it takes time."""
    plan = make_plan(a_deployment(), a_question(output=1, concurrency=4, targets=BATCH_JOB))

    assert plan.latency is not None
    assert plan.latency.tpot_seconds is None
    assert plan.alone_e2e_seconds == plan.prefill.limit.expected_seconds
