"""What one request of a probe saw."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from proxy.probing.answer import Answer, AnswerReader, Measured, failed, share_failed
from proxy.probing.design import Experiment
from tests.proxy.probing.bursts import a_burst, an_answer


def an_event(text: str | None, **more: object) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": more.pop("finish_reason", None)}
    choices = [] if text is None else [choice]
    return b"data: " + json.dumps({"object": "text_completion", "choices": choices, **more}).encode() + b"\n\n"


def read(*pieces: tuple[float, bytes]) -> Answer:
    reader = AnswerReader(1.0)
    for at, piece in pieces:
        reader.feed(at, piece)
    return reader.finish(pieces[-1][0] if pieces else 1.0)


def test_tokens_have_the_instants_at_which_their_bytes_came() -> None:
    """TTFT is from sending to the first event with text, TPOT is over what usage counts."""
    usage = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}
    answer = read(
        (1.5, an_event("a")),
        (1.7, an_event("b")),
        (1.9, an_event("c", finish_reason="length") + an_event(None, usage=usage) + b"data: [DONE]\n\n"),
    )

    assert answer.error is None
    assert answer.ttft_seconds == pytest.approx(0.5)
    assert answer.whole_seconds == pytest.approx(0.9)
    assert answer.tpot_seconds == pytest.approx(0.2)
    assert answer.token_at == (1.5, 1.7, 1.9)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (40, 3, 32)


def test_a_request_that_waited_for_its_connection_is_timed_from_there() -> None:
    """The instant of sending may be told later than the reader was made."""
    reader = AnswerReader(1.0)
    reader.sent(1.25)
    reader.feed(1.5, an_event("a", finish_reason="length"))

    assert reader.finish(1.5).ttft_seconds == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([(1.5, an_event("a"))], "before the answer was complete"),
        ([(1.5, b'data: {"error": {"message": "no", "code": 500}}\n\n')], "with an error"),
        ([(1.5, b"data: [DONE]\n\n")], "had no token"),
        ([], "before the answer was complete"),
    ],
)
def test_a_broken_answer_counts_for_nothing(pieces: list[tuple[float, bytes]], why: str) -> None:
    """Cut, ended with an error, or empty: the reason is told."""
    answer = read(*pieces)

    assert answer.error is not None
    assert why in answer.error


def test_the_pace_together_is_that_while_all_decode() -> None:
    """What came before the last one's first token does not count, however slow it was."""
    slow_start = replace(
        an_answer(0.1, 0.01, 100, 103),
        token_at=(10.1, 10.4, 10.7, *(10.9 + 0.01 * place for place in range(100))),
        last_token_at=11.89,
    )
    late = an_answer(0.9, 0.01, 100, 100)

    assert a_burst(Experiment.CONCURRENCY, [slow_start, late], prompt=100, output=100).together_seconds == pytest.approx(0.01)


def test_requests_that_follow_each_other_are_not_together() -> None:
    """If the first one ends before the last one begins there is no pace of both."""
    first, second = an_answer(0.1, 0.01, 100, 50), an_answer(2.0, 0.01, 100, 50)

    assert a_burst(Experiment.CONCURRENCY, [first, second], prompt=100, output=50).together_seconds is None


def test_several_tokens_in_an_event_count_as_several() -> None:
    """With speculative decoding an event is worth more than one token."""
    answer = replace(an_answer(0.1, 0.02, 100, 50), completion_tokens=100)

    assert a_burst(Experiment.CONCURRENCY, [answer], prompt=100, output=100).together_seconds == pytest.approx(0.01)


def test_throughput_is_over_the_whole_burst() -> None:
    """From the first request to the last token, prefill included."""
    burst = a_burst(Experiment.CONCURRENCY, [an_answer(1.0, 0.01, 9, 101), an_answer(0.5, 0.01, 9, 101)], prompt=9, output=101)

    assert burst.tokens_per_second == pytest.approx(202 / 2.0)


def test_a_failed_request_spoils_what_is_said_of_all() -> None:
    """One that failed left the others more room: nothing is said of the batch, and it is counted."""
    burst = a_burst(
        Experiment.CONCURRENCY, [an_answer(0.1, 0.01, 9, 50), failed(10.0, 10.1, "status 503: full")], prompt=9, output=50
    )
    nothing: list[Measured] = []

    assert burst.together_seconds is None
    assert burst.errors == ["status 503: full"]
    assert share_failed([burst]) == pytest.approx(0.5)
    assert share_failed(nothing) == 0.0
