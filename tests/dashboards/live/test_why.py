"""Why one request was slow: three numbers that can be checked by hand, the gap, and its causes in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dashboards.live.why import Why, why
from telemetry.record import Cause, Outcome, PrefillResult, RequestRecord
from tests.telemetry.judged import YARDSTICK, a_stream


def explained(record: RequestRecord) -> Why:
    return why(record, YARDSTICK, "h100-sxm")


def with_fields(record: RequestRecord, **fields: Any) -> RequestRecord:
    return msgspec.structs.replace(record, **fields)


def test_the_three_numbers() -> None:
    """Llama 3.1 8B on an H100: 2 FLOP a weight and token at 989 TFLOP/s, 15 GB a step at 3.35 TB/s, 128 KiB a token."""
    told = explained(a_stream(prompt=2000, completion=101, cached=500)).numbers

    assert told.prefill_flop is not None
    assert told.decode_bytes is not None
    assert told.kv_bytes is not None
    assert told.prefill_flop.amount == pytest.approx(1500 * 2 * 7e9, rel=0.05)
    assert told.prefill_flop.of == pytest.approx(989e12, rel=0.01)
    assert told.prefill_flop.least_seconds == pytest.approx(told.prefill_flop.amount / told.prefill_flop.of)
    assert told.decode_bytes.amount == pytest.approx(15.0e9 + 2050 * 131072, rel=0.01)
    assert told.decode_bytes.of == pytest.approx(3.35e12)
    assert told.kv_bytes.amount == pytest.approx(2101 * 131072, rel=0.01)
    assert told.kv_bytes.of == pytest.approx(80e9 * 0.92 - 16e9, rel=0.1)


def test_shares_are_of_what_was_measured() -> None:
    """A token that took twice as long used half as much of the bandwidth."""
    usual = a_stream()
    slow = with_fields(usual, tpot_seconds=2 * (usual.tpot_seconds or 0.0))

    one, other = explained(usual).numbers.decode_bytes, explained(slow).numbers.decode_bytes

    assert one is not None
    assert other is not None
    assert one.share_ratio == pytest.approx(2 * other.share_ratio)


def test_an_answer_of_one_token_has_no_pace() -> None:
    """Its one token is the prefill's."""
    numbers = explained(with_fields(a_stream(), completion_tokens=1, tpot_seconds=None)).numbers

    assert numbers.decode_bytes is None
    assert numbers.prefill_flop is not None


@pytest.mark.parametrize("fields", [{"prompt_tokens": None}, {"prompt_is_estimate": True}, {"is_batch": True}])
def test_nothing_is_computed_from_guesses(fields: dict[str, Any]) -> None:
    """Without counted tokens of one sequence there are no numbers."""
    numbers = explained(with_fields(a_stream(), **fields)).numbers

    assert (numbers.prefill_flop, numbers.decode_bytes, numbers.kv_bytes) == (None, None, None)


def test_the_gap_and_its_causes_add_up() -> None:
    """Each cause with its seconds, share, words and advice; what is unexplained is told apart."""
    slow = with_fields(
        a_stream(),
        ttft_seconds=3.0,
        upstream_ttft_seconds=3.0,
        deviations=("ttft",),
        causes=(Cause("engine_queue", 2.0), Cause("unexplained", 0.5), Cause("batch", 0.1)),
    )

    told = explained(slow)

    assert told.excess_seconds == pytest.approx(2.6)
    assert told.unexplained_seconds == 0.5
    assert sum(cause.share_ratio for cause in told.causes) == pytest.approx(1.0)
    assert told.summary == (
        "The first token took 3 s, 2.6 s too long. 2 s: waiting in the worker's own queue; "
        "500 ms: nothing that is known explains it."
    )
    assert told.advice.startswith("The worker has more than it can run")
    assert [figure.deviates for figure in told.figures] == [True, False]


def test_no_prefill_is_held_against_who_did_not_compute_it() -> None:
    """A prompt from a prefill stage: its FLOP are not the worker's, its tokens' bytes are; and a plain request says why not."""
    stream = with_fields(a_stream(), prefill_result=PrefillResult.COMPUTED, prefill_leg_seconds=0.2)
    told = explained(stream)

    assert [figure.figure for figure in told.figures] == ["tpot"]
    assert told.numbers.prefill_flop is None
    assert told.numbers.decode_bytes is not None
    plain = explained(with_fields(stream, stream=False, upstream_ttft_seconds=None, tpot_seconds=None, e2e_seconds=3.0))
    assert "computed by the prefill stage" in plain.summary


@pytest.mark.parametrize("result", PrefillResult)
def test_what_became_of_the_leg_at_a_stage_is_told(result: PrefillResult) -> None:
    """Which worker, how long, and who computed the prompt then."""
    told = explained(with_fields(a_stream(), prefill_result=result, prefill_worker="s-0", prefill_leg_seconds=0.25)).stage

    assert told is not None
    assert told.endswith("itself.") is (result not in ("computed", "abandoned"))
    assert "(s-0), in 250 ms" in told


def test_without_a_stage_nothing_is_told_of_one() -> None:
    """Nor is a time told that was not measured."""
    assert explained(a_stream()).stage is None
    nobody = explained(with_fields(a_stream(), prefill_result=PrefillResult.NO_WORKER)).stage
    assert nobody == "None of its workers takes requests now; the worker computed the prompt itself."


def test_a_healthy_request_is_said_to_be_so() -> None:
    """With what was attained, and no advice."""
    told = explained(a_stream())

    assert told.summary == "It was as fast as can be expected: 100 % of the expected TTFT was attained."
    assert (told.excess_seconds, told.causes, told.advice) == (None, (), "")


def test_a_failure_says_how_it_ended() -> None:
    """In words, with the reason and what was wrong with the worker's answer."""
    failed = with_fields(a_stream(), outcome=Outcome.TRUNCATED, fault="ended without a finish reason")

    told = explained(failed)

    assert told.summary == (
        "It did not end well: the worker's answer stopped before it was complete: ended without a finish reason."
    )
    assert told.figures == ()


def test_without_limits_only_what_was_measured_is_told() -> None:
    """A pool whose GPU is not configured has no numbers, and that is said."""
    told = why(a_stream(e2e_seconds=1.0), None, None)

    assert told.summary.startswith("It ended well. How fast it could have been is not known")
    assert (told.hardware, told.figures, told.numbers.prefill_flop) == (None, (), None)
    assert told.parts


def test_a_beaten_floor_accuses_the_configuration() -> None:
    """It is not said to be too fast, nor the worker to be good."""
    quick = with_fields(a_stream(), tpot_seconds=0.001, deviations=("tpot",), causes=(Cause("facts", 0.003),))

    assert "less than the 4.5" in explained(quick).summary
    assert "if it is not alone in that, the configured hardware is wrong" in explained(quick).summary
