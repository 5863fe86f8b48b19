"""Where the time of a request went."""

from __future__ import annotations

from typing import Any

import pytest

from dashboards.live.phases import Step, phases, row_of
from telemetry.record import Outcome, PrefillResult
from tests.dashboards.live.requests_made import a_record


def parts(**fields: Any) -> dict[str, float]:
    return {part.step.value: part.seconds for part in phases(a_record(**fields))[0]}


def test_a_stream_is_cut_into_its_phases() -> None:
    """What the worker said of its prefill tells waiting from computing; the rest after the first token is decoding."""
    found = parts(
        upload_seconds=0.1,
        overhead_seconds=0.01,
        queue_seconds=0.2,
        connect_seconds=0.03,
        ttft_seconds=0.74,
        upstream_ttft_seconds=0.5,
        worker_ttft_seconds=0.3,
        client_wait_seconds=0.4,
        e2e_seconds=2.0,
    )

    assert found == pytest.approx(
        {
            "upload": 0.1,
            "gateway": 0.01,
            "queue": 0.2,
            "connect": 0.03,
            "wait": 0.2,
            "prefill": 0.3,
            "decode": 0.86,
            "client_wait": 0.4,
        }
    )
    assert list(found) == [step.value for step in Step if step.value in found]


@pytest.mark.parametrize(
    ("fields", "prefill", "told_by"),
    [
        ({"worker_ttft_seconds": 0.1, "ttft_expected_seconds": 0.15}, 0.1, "worker"),
        ({"ttft_expected_seconds": 0.15}, 0.15, "expected"),
        ({"ttft_expected_seconds": 3.0}, 0.19, "expected"),
        ({}, 0.19, None),
    ],
)
def test_what_prefill_is_known_from(fields: dict[str, float], prefill: float, told_by: str | None) -> None:
    """From the worker before what was expected, never more than there was, and all of it where nothing is known."""
    found, prefill_from = phases(a_record(**fields))

    assert {part.step: part.seconds for part in found}[Step.PREFILL] == pytest.approx(prefill)
    assert prefill_from == told_by


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": False, "ttft_seconds": None, "upstream_ttft_seconds": None, "tpot_seconds": None},
        {"attempts": 3, "ttft_seconds": 0.9, "sent_seconds": 0.71},
        {"attempts": 3, "ttft_seconds": 0.9, "sent_seconds": 9.0},
        {"overhead_seconds": 9.0},
        {"client_wait_seconds": 9.0},
        {"upstream_ttft_seconds": 9.0},
        {"prefill_result": PrefillResult.COMPUTED, "prefill_leg_seconds": 0.1},
        {"prefill_result": PrefillResult.COMPUTED, "prefill_leg_seconds": 9.0},
        {"prefill_result": PrefillResult.TIMEOUT, "prefill_leg_seconds": 0.1, "attempts": 2, "sent_seconds": 0.8},
        {"outcome": Outcome.WORKER_ERROR, "ttft_seconds": None, "upstream_ttft_seconds": None, "token_events": 0},
        {"worker": None, "status": 503, "ttft_seconds": None, "upstream_ttft_seconds": None, "overhead_seconds": None},
    ],
)
def test_phases_add_up(fields: dict[str, Any]) -> None:
    """Whatever a record says, its phases are as long as the request was, and none is below nothing."""
    found = parts(**fields)

    assert sum(found.values()) == pytest.approx(1.2 + 0.001)
    assert min(found.values()) > 0.0


def test_failed_attempts_have_their_own_phase() -> None:
    """A first token that came late because another worker had failed is not the answering worker's wait."""
    found = parts(attempts=2, ttft_seconds=0.9, upstream_ttft_seconds=0.19, sent_seconds=0.71, e2e_seconds=2.0)

    assert found["earlier"] == pytest.approx(0.9 - 0.19 - 0.01)
    assert found["prefill"] == pytest.approx(0.19)


def test_so_have_those_of_a_plain_request() -> None:
    """Only the rest is the answer of the worker that gave one."""
    plain = {"stream": False, "ttft_seconds": None, "upstream_ttft_seconds": None, "tpot_seconds": None}
    found = parts(attempts=2, sent_seconds=1.5, e2e_seconds=2.0, **plain)

    assert found["earlier"] == pytest.approx(1.5 - 0.01)
    assert found["answer"] == pytest.approx(0.5)


def test_a_prompt_from_a_stage_has_no_prefill_at_its_worker() -> None:
    """The leg there comes first, then what the blocks took up to the first token, whatever the worker's clock calls that."""
    fields = {"prefill_leg_seconds": 0.3, "ttft_seconds": 0.5, "worker_ttft_seconds": 0.1, "client_wait_seconds": 0.2}
    found = parts(prefill_result=PrefillResult.COMPUTED, **fields)

    assert found == pytest.approx(
        {"upload": 0.001, "gateway": 0.01, "stage": 0.3, "fetch": 0.19, "decode": 0.5, "client_wait": 0.2}
    )
    assert list(found) == [step.value for step in Step if step.value in found]


def test_a_leg_in_vain_is_neither_a_failed_attempt_nor_prefill() -> None:
    """The stage was slow, and a worker failed then: the worker that answered computed the prompt."""
    found = parts(
        prefill_result=PrefillResult.LOST,
        prefill_leg_seconds=0.3,
        attempts=2,
        ttft_seconds=0.9,
        upstream_ttft_seconds=0.19,
        sent_seconds=0.71,
    )

    assert found["stage"] == pytest.approx(0.3)
    assert found["earlier"] == pytest.approx(0.9 - 0.19 - 0.3 - 0.01)
    assert found["prefill"] == pytest.approx(0.19)


def test_a_request_that_was_never_whole_has_only_its_upload() -> None:
    """Without an end there is nothing else to show, and nothing is invented."""
    assert parts(e2e_seconds=None, upload_seconds=0.3) == {"upload": 0.3}
    assert parts(e2e_seconds=None, upload_seconds=None) == {}


def test_a_row_says_how_a_request_ended() -> None:
    """The phase in which a client left stands where a reason would."""
    row = row_of(a_record(outcome=Outcome.CLIENT_GONE, reason=None, phase="wait", status=None))

    assert (row.outcome, row.reason, row.status) == ("client_gone", "wait", None)
