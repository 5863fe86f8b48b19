"""A request beside its floor, reference and expected."""

from __future__ import annotations

import msgspec
import pytest

from telemetry.judgement import NOT_JUDGED, judge
from telemetry.record import Outcome, PrefillResult
from tests.telemetry.judged import YARDSTICK, a_stream, later, tpot, ttft


def test_a_stream_is_judged_by_ttft_and_tpot():
    """What took as long as expected has attained all of it, and lies above floor and reference."""
    judgement = judge(a_stream(), YARDSTICK)

    assert judgement.e2e is None
    for held in (judgement.ttft, judgement.tpot):
        assert held is not None
        assert held.attained_ratio == pytest.approx(1.0)
        assert held.floor_seconds <= held.reference_seconds <= held.expected_seconds
        assert held.floor_ratio > 1.0


def test_a_plain_request_is_judged_as_a_whole():
    """Queue, connecting and the gateway's own work are not the worker's time."""
    worker = ttft(2000) + 100 * tpot(2000, 101)
    plain = a_stream(
        stream=False,
        ttft_seconds=None,
        upstream_ttft_seconds=None,
        tpot_seconds=None,
        queue_seconds=3.0,
        connect_seconds=0.5,
        overhead_seconds=0.25,
        client_wait_seconds=0.25,
        e2e_seconds=worker + 4.0,
    )

    held = judge(plain, YARDSTICK).e2e
    assert held is not None
    assert held.measured_seconds == pytest.approx(worker)
    assert held.attained_ratio == pytest.approx(1.0)


def test_of_a_prompt_that_a_stage_computed_only_the_pace_is_judged():
    """Its GPUs and the way from them are not known: neither a first token nor a whole answer has a floor."""
    stream = a_stream(prefill_result=PrefillResult.COMPUTED, prefill_worker="s-0", prefill_leg_seconds=0.2)
    plain = msgspec.structs.replace(stream, stream=False, upstream_ttft_seconds=None, tpot_seconds=None, e2e_seconds=9.0)

    judgement = judge(stream, YARDSTICK)
    assert (judgement.ttft, judgement.e2e) == (None, None)
    assert judgement.tpot == judge(a_stream(), YARDSTICK).tpot
    assert judge(plain, YARDSTICK) == NOT_JUDGED


@pytest.mark.parametrize("result", [result for result in PrefillResult if result is not PrefillResult.COMPUTED])
def test_a_stage_that_did_not_help_is_not_the_workers_time(result):
    """The worker computed the prompt, and is held against that; the time at the stage came before."""
    plain = a_stream(stream=False, upstream_ttft_seconds=None, tpot_seconds=None, prefill_result=result)
    without = judge(msgspec.structs.replace(plain, e2e_seconds=3.0), YARDSTICK).e2e
    behind = judge(msgspec.structs.replace(plain, e2e_seconds=5.0, prefill_leg_seconds=2.0), YARDSTICK).e2e

    assert without is not None
    assert behind == without
    assert judge(a_stream(prefill_result=result, prefill_leg_seconds=2.0), YARDSTICK) == judge(a_stream(), YARDSTICK)


def test_cached_tokens_are_not_computed():
    """A prompt that was nearly all cached is held against its rest: a miss is no slow worker, nor a hit a fast one."""
    cold, warm = judge(a_stream(8000, cached=0), YARDSTICK).ttft, judge(a_stream(8000, cached=7900), YARDSTICK).ttft

    assert cold is not None
    assert warm is not None
    assert warm.expected_seconds < cold.expected_seconds / 5
    assert cold.attained_ratio == warm.attained_ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measured", "attained"),
    [
        (ttft(8000), 1.0),
        ((ttft(8000) + ttft(8000, 8000)) / 2, 1.0),  # anywhere between fully cold and fully warm
        (ttft(8000, 8000), 1.0),
        (4 * ttft(8000), 0.25),  # slower than fully cold
        (ttft(8000, 8000) / 1.25, 1.25),  # faster than fully warm
    ],
)
def test_an_unknown_hit_leaves_an_interval(measured, attained):
    """Not knowing the hit does not switch the judgement off: what lies outside all of it is seen."""
    held = judge(a_stream(8000, cached=None, upstream_ttft_seconds=measured), YARDSTICK).ttft

    assert held is not None
    assert held.is_interval
    assert held.attained_ratio == pytest.approx(attained)
    assert held.floor_seconds < ttft(8000, 8000)


def test_others_in_the_batch_are_expected_to_cost():
    """With 32 others in flight a token is expected to take longer, and the floor stays that of one alone."""
    alone = judge(a_stream(), YARDSTICK).tpot
    crowded = judge(a_stream(beside_decode_requests=32.0, beside_decode_prompt_tokens=4000.0), YARDSTICK).tpot

    assert alone is not None
    assert crowded is not None
    assert crowded.expected_seconds > 1.2 * alone.expected_seconds
    assert crowded.floor_seconds == alone.floor_seconds


def test_the_impossible_is_exposed_as_it_is():
    """A figure below its floor is not clipped: the facts are wrong."""
    held = judge(a_stream(upstream_ttft_seconds=0.001), YARDSTICK).ttft

    assert held is not None
    assert held.floor_ratio < 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": Outcome.CLIENT_GONE},
        {"is_batch": True},
        {"prompt_is_estimate": True},
        {"completion_is_estimate": True},
        {"prompt_tokens": None},
        {"completion_tokens": 0},
        {"cached_tokens": 2001},
        {"upstream_ttft_seconds": None, "tpot_seconds": None},
        {"stream": False, "e2e_seconds": None},
        {"stream": False, "e2e_seconds": 0.1, "queue_seconds": 0.2},
    ],
)
def test_what_cannot_be_judged_is_not(changes):
    """Answers that did not end well, batches, and counts that are guesses or absurd have no limits to be held against."""
    assert judge(msgspec.structs.replace(a_stream(), **changes), YARDSTICK) == NOT_JUDGED


def test_one_token_has_no_tpot():
    """And its TTFT is judged all the same."""
    judgement = judge(later(a_stream(completion=1 + 1, tpot_seconds=None), 0.0), YARDSTICK)

    assert judgement.tpot is None
    assert judgement.ttft is not None
