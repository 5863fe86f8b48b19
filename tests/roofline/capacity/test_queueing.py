"""Concurrency, rate and latency of a worker in steady state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.capacity.queueing import Service
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES
from roofline.gpus import GPUS
from roofline.limits import Surroundings, decode_limit, prefill_limit
from roofline.models.known import find_shape
from tests.roofline.shapes import a_gpu, a_shape
from tests.roofline.workers import NO_LOSSES, a_worker, eta

VLLM = DEFAULT_LOSSES["vllm"]
CHAT = Workload(prompt_tokens=2_000, completion_tokens=300)
SERVICE = Service(deployment=a_worker("Llama-3.1-8B", "h100-sxm"), losses=VLLM, workload=CHAT, chunk_tokens=8_192)
MIXTURE = Service(deployment=a_worker("Qwen3-30B-A3B", "h100-sxm"), losses=VLLM, workload=CHAT)


def test_little_with_service_times_that_depend_on_concurrency() -> None:
    """An 8B model at 70 percent of 165 TFLOP/s and 1,008 GB/s, 2 requests a second of 500 tokens on 3,846: about 73 at once.

    Decoding alone, as on a worker whose prefills are done elsewhere, and without overheads; a fixed 20 ms a token says 20.
    """
    lone = Service(
        deployment=a_worker("Llama-3.1-8B", "rtx-4090"),
        losses=eta(0.7),
        workload=Workload(prompt_tokens=3_596, completion_tokens=500),
        prefills_elsewhere=True,
    )
    found = lone.at_rate(2.0).steady

    assert lone.workload.mean_context_tokens == 3_846
    assert found is not None
    assert found.concurrency == pytest.approx(73, rel=0.02)
    # In closed form: S / (1 - A) with S = 2 x 499 steps of weights, A = 2 x 499 reads of one sequence's cache.
    weights = 2 * 499 * 15_009_841_152 / (0.7 * 1_008e9)
    cache = 2 * 499 * 3_846 * 131_072 / (0.7 * 1_008e9)
    assert found.concurrency == pytest.approx(weights / (1 - cache), rel=1e-3)
    assert (found.ttft_seconds, found.interference_seconds, found.prefill_busy_ratio) == (0.0, 0.0, 0.0)


def test_the_same_worker_cannot_do_the_prefills_too() -> None:
    """With 3,596-token prompts to compute besides, 2 requests a second find no steady state: about 1.2 is the most."""
    found = Service(
        deployment=a_worker("Llama-3.1-8B", "rtx-4090"),
        losses=eta(0.7),
        workload=Workload(prompt_tokens=3_596, completion_tokens=500),
    ).at_rate(2.0)

    assert found.steady is None
    assert found.saturation.rate_per_second == pytest.approx(1.2, rel=0.03)
    assert found.load_ratio == pytest.approx(2.0 / found.saturation.rate_per_second)


def test_parts_of_a_steady_state() -> None:
    """TTFT, TPOT and E2E are those of the limits with the others around, and each other's prefills in between."""
    found = SERVICE.at_concurrency(10.0)
    around = Surroundings(running=9.0, context_tokens=2_150, chunk_tokens=8_192)
    deployment = SERVICE.deployment
    prefill = prefill_limit(deployment, VLLM, prompt_tokens=2_000, around=around).expected_seconds
    step = decode_limit(deployment, VLLM, context_tokens=2_000, completion_tokens=300, around=around).expected_seconds
    alone = prefill_limit(deployment, VLLM, prompt_tokens=2_000).expected_seconds

    assert found.ttft_seconds == prefill
    assert found.prefill_seconds == alone
    assert found.step_seconds == step
    assert found.interference_seconds == pytest.approx(9 / 299 * alone)
    assert found.tpot_seconds == pytest.approx(step + 9 / 299 * alone)
    assert found.e2e_seconds == pytest.approx(prefill + 299 * (step + 9 / 299 * alone))
    assert found.rate_per_second == pytest.approx(10 / found.e2e_seconds)
    assert found.tokens_per_second == pytest.approx(300 * found.rate_per_second)
    assert found.prefill_busy_ratio == pytest.approx(found.rate_per_second * alone)


def test_waiting_for_other_prefills() -> None:
    """At half of the time busy a prefill waits half of its length on average (M/D/1); at all of it, without end."""
    found = SERVICE.at_concurrency(4.0)
    half = replace(found, rate_per_second=0.5 / found.prefill_seconds)
    full = replace(found, rate_per_second=1.0 / found.prefill_seconds)

    assert half.prefill_wait_seconds == pytest.approx(0.5 * found.prefill_seconds)
    assert full.prefill_wait_seconds is None


def test_overheads_of_a_request_hold_nobody_up() -> None:
    """What a request costs before it reaches the GPU is part of its own TTFT only."""
    slow = replace(SERVICE, losses=replace(VLLM, request_overhead_seconds=0.2))

    assert slow.prefill_seconds == pytest.approx(SERVICE.prefill_seconds)
    assert slow.at_concurrency(3.0).ttft_seconds == pytest.approx(SERVICE.at_concurrency(3.0).ttft_seconds + 0.2)


def test_single_tokens_are_prefills_one_after_the_other() -> None:
    """Completions of one token have no TPOT, and L at once wait for L prefills."""
    service = replace(SERVICE, workload=Workload(prompt_tokens=2_000, completion_tokens=1))
    found = service.at_concurrency(5.0)

    assert (found.tpot_seconds, found.step_seconds, found.interference_seconds) == (None, None, None)
    assert found.e2e_seconds == pytest.approx(5 * service.prefill_seconds)
    assert found.rate_per_second == pytest.approx(1 / service.prefill_seconds)
    assert service.at_rate(2.0 / service.prefill_seconds).steady is None
    assert service.largest_concurrency(0.001, most_concurrency=17) == 17


def test_rare_requests_are_alone() -> None:
    """One request in a thousand seconds has the worker to itself."""
    found = SERVICE.at_rate(0.001).steady

    assert found is not None
    assert found.concurrency == pytest.approx(0.001 * found.e2e_seconds, rel=1e-6)
    assert found.e2e_seconds == pytest.approx(SERVICE.at_concurrency(1.0).e2e_seconds, rel=0.001)


def test_most_concurrency_caps_the_rate() -> None:
    """With room for 4 at once, no more is served than 4 at once serve."""
    found = SERVICE.at_rate(100.0, most_concurrency=4)

    assert found.steady is None
    assert found.saturation.concurrency == 4
    assert found.saturation.rate_per_second == pytest.approx(SERVICE.at_concurrency(4).rate_per_second)


def test_a_step_has_no_room_for_more_sequences_than_tokens() -> None:
    """Concurrency stays below what a step may compute, so that a prefill still gets a token."""
    service = replace(SERVICE, chunk_tokens=32)

    assert service.at_rate(1e9).saturation.concurrency <= 31
    assert service.largest_concurrency(1e9) == 31


@pytest.mark.parametrize("tpot", [0.010, 0.030, 0.100])
def test_largest_concurrency_keeps_the_target(tpot: float) -> None:
    """TPOT is within the target just below the answer and beyond it just above."""
    most = SERVICE.largest_concurrency(tpot)

    assert (SERVICE.at_concurrency(most * 0.999).tpot_seconds or 1.0) <= tpot
    assert (SERVICE.at_concurrency(most * 1.001).tpot_seconds or 0.0) > tpot


def test_a_target_that_cannot_be_met() -> None:
    """If even a lone request misses it, no concurrency keeps it."""
    assert SERVICE.largest_concurrency(1e-6) == 0.0


@pytest.mark.parametrize("number", [0.0, -1.0])
def test_nothing_comes_from_nothing(number: float) -> None:
    """A rate or a concurrency of nothing is refused."""
    with pytest.raises(ValueError, match="above 0"):
        SERVICE.at_concurrency(number)
    with pytest.raises(ValueError, match="above 0"):
        SERVICE.at_rate(number)


@given(rate=st.floats(0.01, 8.0))
def test_what_comes_leaves(rate: float) -> None:
    """A fixed point is one: concurrency = rate x E2E at that concurrency."""
    for service in (SERVICE, MIXTURE):
        found = service.at_rate(rate).steady
        if found is not None:
            assert found.concurrency == pytest.approx(rate * service.at_concurrency(found.concurrency).e2e_seconds, rel=1e-6)


@given(concurrency=st.floats(0.1, 2_000.0), more=st.floats(0.0, 2_000.0))
def test_more_at_once_is_never_faster_for_each(concurrency: float, more: float) -> None:
    """More concurrency never lowers TPOT, nor E2E."""
    for service in (SERVICE, MIXTURE):
        few, many = service.at_concurrency(concurrency), service.at_concurrency(concurrency + more)
        assert (many.tpot_seconds or 0.0) >= (few.tpot_seconds or 0.0) * (1 - 1e-12)
        assert many.e2e_seconds >= few.e2e_seconds * (1 - 1e-12)


@given(concurrency=st.floats(1.0, 1_000.0), more=st.floats(0.0, 1_000.0))
def test_more_at_once_serve_no_fewer(concurrency: float, more: float) -> None:
    """Throughput of the small shape never falls with concurrency."""
    service = Service(deployment=Deployment(a_shape(), a_gpu()), losses=NO_LOSSES, workload=CHAT)

    few, many = service.at_concurrency(concurrency), service.at_concurrency(concurrency + more)
    assert many.rate_per_second >= few.rate_per_second * (1 - 1e-12)


def test_ranks_serve_as_much_as_workers_of_one_rank_each() -> None:
    """Data-parallel ranks of a dense model share nothing: four saturate at four times the rate, with the same TPOT."""
    workload = Workload(prompt_tokens=2_000, completion_tokens=500)

    def service(ranks: int) -> Service:
        deployment = Deployment(find_shape("llama-3.1-8b"), GPUS["h100-sxm"], parallelism=Parallelism(data=ranks))
        return Service(deployment=deployment, losses=DEFAULT_LOSSES["vllm"], workload=workload)

    one, four = service(1).at_concurrency(32), service(4).at_concurrency(128)

    assert four.rate_per_second == pytest.approx(4 * one.rate_per_second)
    assert (four.tpot_seconds, four.prefill_busy_ratio) == pytest.approx((one.tpot_seconds, one.prefill_busy_ratio))
