"""Load and latency of a plan."""

from __future__ import annotations

from math import ceil

import pytest

from roofline.capacity.ceilings import CapacityLimit
from roofline.capacity.memory import MemorySettings
from roofline.capacity.targets import BATCH_JOB, Targets
from roofline.plan.load import Latency, most_at_once
from roofline.plan.plan import make_plan
from tests.roofline.plans import a_deployment, a_plan_at, a_question, the_plan


def test_latency_under_load_is_the_sum_of_its_parts():
    """TTFT is own prefill and wait, TPOT is step and interference, and a user sees 1 / TPOT."""
    latency = a_plan_at(32).latency

    assert latency is not None
    assert latency.wait_seconds is not None
    assert latency.ttft_seconds == latency.prefill_seconds + latency.wait_seconds
    assert latency.step_seconds is not None
    assert latency.interference_seconds is not None
    tpot = latency.step_seconds + latency.interference_seconds
    assert latency.tpot_seconds == tpot
    assert latency.user_tokens_per_second == 1 / tpot
    assert latency.e2e_seconds == pytest.approx(latency.ttft_seconds + 499 * tpot)


def test_more_load_is_slower_and_brings_more():
    """From 8 to 64 at once TTFT and TPOT rise, and so does throughput."""
    few, many = a_plan_at(8).latency, a_plan_at(64).latency

    assert few is not None
    assert many is not None
    assert (few.ttft_seconds or 0) < (many.ttft_seconds or 0)
    assert (few.tpot_seconds or 0) < (many.tpot_seconds or 0)
    assert few.tokens_per_second < many.tokens_per_second


def test_an_endless_queue_has_no_ttft():
    """Where prefills take all the time there is no TTFT, and where there is one token there is no TPOT."""
    latency = Latency(
        running=9.0,
        prefill_seconds=1.0,
        wait_seconds=None,
        step_seconds=None,
        interference_seconds=None,
        e2e_seconds=None,
        requests_per_second=1.0,
        tokens_per_second=1.0,
    )

    assert (latency.ttft_seconds, latency.tpot_seconds, latency.user_tokens_per_second) == (None, None, None)


def test_recommended_load_is_70_percent_of_the_lowest_ceiling():
    """The TPOT target binds before the cache here; 70 % of it are recommended, and they keep the target."""
    load = the_plan().load

    assert load is not None
    assert load.capacity.binds is CapacityLimit.TPOT_TARGET
    assert load.planned is not None
    assert load.planned.concurrency == int(0.7 * load.capacity.theoretical_sequences)
    assert (load.planned.tpot_seconds or 1) < 0.050
    assert load.planned.rate_per_second < load.saturation.rate_per_second


def test_without_a_target_the_cache_binds():
    """Batch jobs have no latency to keep: the knee is told and limits nothing."""
    load = make_plan(a_deployment(), a_question(targets=BATCH_JOB)).load

    assert load is not None
    assert load.capacity.binds is CapacityLimit.KV_CACHE
    assert load.capacity.ceiling(CapacityLimit.KNEE) is None


def test_workers_are_counted_at_the_recommended_load():
    """As many workers as the rate takes at the recommended concurrency each, rounded up."""
    load = make_plan(a_deployment(), a_question(rate=20.0)).load

    assert load is not None
    assert load.planned is not None
    assert load.workers_needed == ceil(20.0 / load.planned.rate_per_second)


def test_no_number_of_workers_keeps_a_target_that_one_request_misses():
    """If a lone request is too slow, nothing is recommended and no number of workers is told."""
    strict = Targets(name="strict", source="a test", tpot_seconds=0.001)
    load = make_plan(a_deployment(), a_question(rate=1.0, targets=strict)).load

    assert load is not None
    assert load.capacity.recommended_concurrency == 0
    assert (load.planned, load.workers_needed) == (None, None)


def test_capacity_is_planned_cold():
    """Cached tokens raise what a warm worker serves; saturation and workers needed are those of a cold one."""
    cold = make_plan(a_deployment(), a_question(rate=5.0)).load
    warm = make_plan(a_deployment(), a_question(rate=5.0, cached=1800)).load

    assert cold is not None
    assert warm is not None
    assert cold.warm_saturation is None
    assert warm.warm_saturation is not None
    assert warm.warm_saturation.rate_per_second > warm.saturation.rate_per_second == cold.saturation.rate_per_second
    assert warm.workers_needed == cold.workers_needed
    assert cold.at_rate is not None
    assert warm.at_rate is not None
    assert cold.at_rate.steady is not None
    assert warm.at_rate.steady is not None
    assert warm.at_rate.steady.concurrency < cold.at_rate.steady.concurrency


def test_data_parallel_ranks_run_their_own_requests():
    """Each rank of a data-parallel worker lets its own --max-num-seqs run."""
    load = make_plan(a_deployment(data=2), a_question(settings=MemorySettings(max_sequences=10))).load

    assert load is not None
    assert most_at_once(load.capacity) == 20
