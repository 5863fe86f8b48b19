"""What made a request slow: each cause alone is named first and explains what it added; two at once are both named."""

from __future__ import annotations

import msgspec
import pytest

from telemetry.causes import CauseName, Usual, WorkerState
from telemetry.diagnosis import Diagnosis, Thresholds, diagnose
from telemetry.judgement import judge
from telemetry.labels import OF_GPUS, USUAL_DEVIATIONS
from telemetry.record import PrefillResult, RequestRecord
from tests.telemetry.judged import YARDSTICK, a_stream, later, tpot, ttft

CALM = WorkerState(waiting_requests=0.0, kv_usage_ratio=0.2)
USUAL = Usual(running=0.0, context_tokens=2000.0)


def diagnosed(record: RequestRecord, state: WorkerState = CALM) -> tuple[Diagnosis, ...]:
    found = diagnose(record, judge(record, YARDSTICK), YARDSTICK, USUAL, lambda: state)
    assert {(one.figure, cause.name) for one in found for cause in one.causes if cause.name not in OF_GPUS} <= USUAL_DEVIATIONS
    return found


def test_nothing_is_asked_about_the_worker_of_a_healthy_request():
    """What is known of it costs something to put together, and most requests are as they should be."""
    healthy = a_stream()
    assert diagnose(healthy, judge(healthy, YARDSTICK), YARDSTICK, USUAL, lambda: 1 / 0) == ()


def only(record: RequestRecord, state: WorkerState = CALM) -> Diagnosis:
    (found,) = diagnosed(record, state)
    return found


def test_a_healthy_request_has_no_diagnosis():
    """Nor one that is 1.9 times as slow as expected, nor a tiny one that is ten times as slow by a few milliseconds."""
    assert diagnosed(a_stream()) == ()
    assert diagnosed(later(a_stream(), 0.9 * ttft(2000))) == ()
    assert diagnosed(later(a_stream(10), 9 * ttft(10) if ttft(10) * 9 < 0.05 else 0.045)) == ()


@pytest.mark.parametrize(
    ("record", "state", "cause"),
    [
        (a_stream(ttft_seconds=ttft(2000) + 2.0, queue_seconds=2.0), CALM, CauseName.GATEWAY_QUEUE),
        (a_stream(ttft_seconds=ttft(2000) + 1.0, connect_seconds=1.0), CALM, CauseName.CONNECT),
        (a_stream(ttft_seconds=ttft(2000) + 0.5, overhead_seconds=0.5), CALM, CauseName.LOOP_LAG),
        (a_stream(ttft_seconds=ttft(2000) + 29.0, attempts=2, sent_seconds=29.0), CALM, CauseName.FAILED_ATTEMPTS),
        (later(a_stream(worker_queue_seconds=1.5), 1.5), CALM, CauseName.ENGINE_QUEUE),
        (later(a_stream(), 1.5), WorkerState(waiting_requests=7.0, kv_usage_ratio=0.5), CauseName.ENGINE_QUEUE),
        (later(a_stream(), 1.5), WorkerState(waiting_requests=7.0, kv_usage_ratio=0.99), CauseName.KV_PRESSURE),
        (later(a_stream(ahead_tokens=40_000), ttft(8000) * 5), CALM, CauseName.OTHERS_PREFILL),
        (later(a_stream(), 2 * ttft(2000)), WorkerState(own_ratio=3.0), CauseName.SLOWER_THAN_ITSELF),
        (later(a_stream(), 2 * ttft(2000)), WorkerState(peers_ratio=3.0), CauseName.SLOWER_THAN_PEERS),
        (later(a_stream(), 2 * ttft(2000)), WorkerState(own_ratio=3.0, peers_ratio=3.0), CauseName.SLOWER_THAN_ITSELF),
        (a_stream(8000, cached=0, expected_cached_tokens=7500), CALM, CauseName.MISSED_PREFIX),
        (later(a_stream(), 2.0), CALM, CauseName.UNEXPLAINED),
    ],
)
def test_one_cause_of_a_late_first_token(record, state, cause):
    """It is the first, and explains at least four fifths of what was too much."""
    found = only(record, state)

    assert found.figure == "ttft"
    assert found.causes[0].name == cause
    assert found.causes[0].seconds >= 0.8 * found.excess_seconds
    assert sum(one.seconds for one in found.causes) == pytest.approx(found.excess_seconds)


def test_failed_attempts_take_only_what_lies_before_the_last_one():
    """Neither what the gateway and a prefill stage took before it, nor what the worker that answered took."""
    lost = PrefillResult.LOST
    record = later(a_stream(attempts=2, queue_seconds=1.0, prefill_result=lost, prefill_leg_seconds=0.25), 2.0)
    found = only(msgspec.structs.replace(record, ttft_seconds=record.ttft_seconds + 5.0, sent_seconds=5.0))

    causes = {one.name: one.seconds for one in found.causes}
    assert causes[CauseName.FAILED_ATTEMPTS] == pytest.approx(3.75, abs=0.01)
    assert causes[CauseName.UNEXPLAINED] == pytest.approx(2.0, abs=0.01)
    assert (causes[CauseName.GATEWAY_QUEUE], causes[CauseName.PREFILL_STAGE]) == (1.0, 0.25)


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_stage_that_did_not_help_is_no_fault_of_the_worker(is_stream):
    """Its time was lost before the worker was asked, in a stream and in a plain answer."""
    leg = {"prefill_result": PrefillResult.TIMEOUT, "prefill_leg_seconds": 20.0}
    stream = a_stream(ttft_seconds=ttft(2000) + 20.0, **leg)
    whole = ttft(2000) + 100 * tpot(2000, 101) + 20.0001
    plain = a_stream(stream=False, ttft_seconds=None, upstream_ttft_seconds=None, tpot_seconds=None, e2e_seconds=whole, **leg)

    cause, *others = only(stream if is_stream else plain).causes
    assert cause.name == CauseName.PREFILL_STAGE
    assert sum(other.seconds for other in others) < 0.001
    assert cause.seconds == pytest.approx(20.0, abs=0.001)


def test_prompts_of_others_behind_a_stage_do_not_slow_tokens():
    """They were computed by others, too: what nothing explains is said to be unexplained."""
    slow = slow_tokens(tpot_seconds=tpot(2000, 101) + 5 * ttft(8000) / 100, arrived_tokens=40_000)
    behind = msgspec.structs.replace(slow, prefill_result=PrefillResult.COMPUTED, prefill_leg_seconds=0.2)

    assert [one.name for one in only(behind).causes] == [CauseName.UNEXPLAINED]


def test_a_plain_request_that_was_tried_before():
    """What lies before it was sent to the worker that answered is no fault of that one; what comes after it may be."""
    plain = a_stream(stream=False, ttft_seconds=None, upstream_ttft_seconds=None, tpot_seconds=None, client_wait_seconds=0.0)
    whole = ttft(2000) + 100 * tpot(2000, 101)
    late = {"e2e_seconds": 30.0 + whole, "attempts": 2, "queue_seconds": 4.0}

    in_vain = only(msgspec.structs.replace(plain, **late, sent_seconds=30.0))
    assert [one.name for one in in_vain.causes[:2]] == [CauseName.FAILED_ATTEMPTS, CauseName.GATEWAY_QUEUE]
    assert in_vain.causes[0].seconds == pytest.approx(26.0, abs=0.01)
    assert judge(msgspec.structs.replace(plain, **late, sent_seconds=30.0), YARDSTICK).e2e.attained_ratio > 0.99

    slow = only(msgspec.structs.replace(plain, **late, sent_seconds=9.0))
    causes = {one.name: one.seconds for one in slow.causes}
    assert causes[CauseName.FAILED_ATTEMPTS] == pytest.approx(5.0, abs=0.01)
    assert causes[CauseName.UNEXPLAINED] == pytest.approx(21.0, abs=0.01)


def test_one_attempt_is_no_failed_one():
    """What lies between is then unexplained."""
    found = only(a_stream(ttft_seconds=ttft(2000) + 29.0, attempts=1, sent_seconds=29.0))

    assert [one.name for one in found.causes] == [CauseName.UNEXPLAINED]


def slow_tokens(prompt: int = 2000, **other: object) -> RequestRecord:
    return msgspec.structs.replace(a_stream(prompt), **other)


@pytest.mark.parametrize(
    ("record", "state", "cause"),
    [
        (
            slow_tokens(
                tpot_seconds=tpot(2000, 101, 200, 6050), beside_decode_requests=200.0, beside_decode_prompt_tokens=6000.0
            ),
            CALM,
            CauseName.BATCH,
        ),
        (
            slow_tokens(tpot_seconds=tpot(2000, 101) + 5 * ttft(8000) / 100, arrived_tokens=40_000),
            CALM,
            CauseName.OTHERS_PREFILL,
        ),
        (slow_tokens(tpot_seconds=3 * tpot(2000, 101)), WorkerState(own_ratio=3.0), CauseName.SLOWER_THAN_ITSELF),
        (slow_tokens(tpot_seconds=3 * tpot(2000, 101)), WorkerState(peers_ratio=2.8), CauseName.SLOWER_THAN_PEERS),
        (
            slow_tokens(tpot_seconds=4 * tpot(2000, 101), stall_ratio=90.0),
            WorkerState(kv_usage_ratio=0.99, waiting_requests=0.0),
            CauseName.KV_PRESSURE,
        ),
    ],
)
def test_one_cause_of_slow_tokens(record, state, cause):
    """The same for what each further token took."""
    found = [one for one in diagnosed(record, state) if one.figure == "tpot"]

    assert len(found) == 1
    assert found[0].causes[0].name == cause
    assert found[0].causes[0].seconds >= 0.8 * found[0].excess_seconds


def test_a_low_clock_explains_what_is_computed():
    """A long prompt takes as much longer as the clock is lower; what the worker loses beyond that is its own."""
    slow = later(a_stream(8000), ttft(8000) * 2.0)
    half, full_load = WorkerState(own_ratio=3.0, clock_ratio=0.5), WorkerState(own_ratio=3.0, clock_ratio=0.75)
    hot = WorkerState(clock_ratio=0.75, clock_is_limited=True)

    shares = {cause.name: cause.seconds for cause in only(slow, half).causes}
    assert shares[CauseName.GPU_CLOCKS] == pytest.approx(ttft(8000))
    assert shares[CauseName.SLOWER_THAN_ITSELF] == pytest.approx(ttft(8000))
    assert [cause.name for cause in only(slow, full_load).causes] == [CauseName.SLOWER_THAN_ITSELF]
    assert CauseName.GPU_CLOCKS in {cause.name for cause in only(slow, hot).causes}


def test_a_low_clock_does_not_explain_what_waits_for_memory():
    """A prompt of a few tokens reads the weights, as each further token does."""
    short = later(a_stream(10, upstream_ttft_seconds=ttft(10)), 0.5)

    assert CauseName.GPU_CLOCKS not in {cause.name for cause in only(short, WorkerState(clock_ratio=0.5)).causes}


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (WorkerState(own_ratio=3.0, dram_active_ratio=0.8), CauseName.GPU_BANDWIDTH),
        (WorkerState(own_ratio=3.0, dram_active_ratio=0.8, clock_ratio=0.5, clock_is_limited=True), CauseName.GPU_BANDWIDTH),
        (WorkerState(own_ratio=3.0, dram_active_ratio=0.7), CauseName.SLOWER_THAN_ITSELF),
        (WorkerState(own_ratio=3.0, clock_ratio=0.3), CauseName.SLOWER_THAN_ITSELF),  # nobody says that it is held down
        (WorkerState(own_ratio=3.0, clock_ratio=0.3, clock_is_limited=True), CauseName.GPU_CLOCKS),
        (WorkerState(clock_ratio=0.3, clock_is_limited=True, dram_active_ratio=0.3), CauseName.GPU_CLOCKS),
        (
            WorkerState(own_ratio=3.0, clock_ratio=0.3, clock_is_limited=True, dram_active_ratio=0.7),
            CauseName.SLOWER_THAN_ITSELF,
        ),
    ],
)
def test_what_the_gpus_say_of_slow_tokens(state, cause):
    """Their memory is at its peak, or they are held down so far that they do not keep it busy; else they say nothing."""
    found = next(one for one in diagnosed(slow_tokens(tpot_seconds=3 * tpot(2000, 101)), state) if one.figure == "tpot")

    assert found.causes[0].name == cause
    assert found.causes[0].seconds >= 0.8 * found.excess_seconds


def test_a_long_context_explains_its_own_tokens():
    """Where others have 500 tokens, the cache of 128,000 is what a token waits for."""
    record = slow_tokens(128_000, tpot_seconds=tpot(128_000, 101, 16, 50), beside_decode_requests=16.0)
    usual, far_off = Usual(running=16.0, context_tokens=500.0), Thresholds(attained_ratio=0.8)

    found = diagnose(record, judge(record, YARDSTICK), YARDSTICK, usual, WorkerState, far_off)

    assert [(one.figure, one.causes[0].name) for one in found] == [("tpot", CauseName.CONTEXT)]
    assert found[0].causes[0].seconds == pytest.approx(found[0].excess_seconds)


def test_two_causes_are_both_named():
    """A queue in the gateway and prompts of others at the worker, each with its seconds."""
    record = later(a_stream(ahead_tokens=16_000), 2 * ttft(8000))
    assert record.ttft_seconds is not None
    record = msgspec.structs.replace(record, ttft_seconds=record.ttft_seconds + 1.0, queue_seconds=1.0)

    shares = {cause.name: cause.seconds for cause in only(record).causes}

    assert shares[CauseName.GATEWAY_QUEUE] == pytest.approx(1.0)
    assert shares[CauseName.OTHERS_PREFILL] == pytest.approx(2 * ttft(8000), rel=0.1)
    assert shares.get(CauseName.UNEXPLAINED, 0.0) < 0.1


def test_no_cause_explains_more_than_there_is():
    """A worker with a long queue of prompts and a bad record is not charged twice."""
    record = later(a_stream(ahead_tokens=10**6, worker_queue_seconds=50.0), 1.0)

    found = only(record, WorkerState(own_ratio=9.0, kv_usage_ratio=1.0, waiting_requests=9.0))

    assert sum(one.seconds for one in found.causes) == pytest.approx(found.excess_seconds)
    assert all(one.seconds > 0 for one in found.causes)


def test_a_beaten_floor_is_about_the_facts():
    """Faster than can be: by how much it is too fast, and no other cause."""
    found = only(a_stream(upstream_ttft_seconds=0.001, ttft_seconds=0.001))

    assert [one.name for one in found.causes] == [CauseName.FACTS]
    assert found.excess_seconds < 0


def test_a_pace_that_beats_its_floor_is_about_the_facts_too():
    """Several tokens a step, as with speculation, are no fault of anybody: half of what the bandwidth allows is a hint."""
    record = a_stream()
    held = judge(record, YARDSTICK).tpot
    assert held is not None
    found = only(msgspec.structs.replace(record, tpot_seconds=held.floor_seconds / 2))

    assert (found.figure, [one.name for one in found.causes]) == ("tpot", [CauseName.FACTS])
    assert found.excess_seconds < 0


def test_a_plain_request_has_one_diagnosis():
    """Its whole time is judged, and what was missed and what others took are in it."""
    alone = ttft(8000) + 100 * tpot(8000, 101)
    plain = a_stream(
        8000,
        stream=False,
        ttft_seconds=None,
        upstream_ttft_seconds=None,
        tpot_seconds=None,
        queue_seconds=2 * alone,
        e2e_seconds=3 * alone,
    )

    found = only(plain)

    assert found.figure == "e2e"
    assert found.causes[0].name == CauseName.GATEWAY_QUEUE
    assert found.causes[0].seconds == pytest.approx(2 * alone, rel=0.05)


def test_an_unknown_hit_hides_no_slow_worker():
    """Slower than a fully cold prompt is flagged though nobody said what was cached; slower than a warm one alone is not."""
    unknown = a_stream(8000, cached=None, upstream_ttft_seconds=ttft(8000), ttft_seconds=ttft(8000))
    assert diagnosed(unknown) == ()
    assert only(later(unknown, 2 * ttft(8000))).figure == "ttft"
