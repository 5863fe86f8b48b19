"""The books of a soak: what does not agree is found, and what a kill took is excused to the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.client import Result, Verdict
from tests.integration.gateway import Metrics
from tests.soak.balance import Books, balance
from tests.soak.disturbing import Killed, Kind
from tests.soak.leaving import Leaving
from tests.soak.traffic import Sent, strays
from tests.soak.watching import Sample, trends

TOKENS = 10


def sent(
    number: int,
    verdict: Verdict = Verdict.SERVED,
    status: int = 200,
    ended_at: float | None = None,
    left: Leaving | None = None,
    **fields: Any,
) -> Sent:
    result = Result(
        verdict=verdict,
        started_at=10.0 * number,
        ended_at=10.0 * number + 5 if ended_at is None else ended_at,
        worker="one",
        request_id=f"soak-{number}",
        status=status,
        **fields,
    )
    identity = f"soak-{number}"
    return Sent(request_id=identity, key="free", endpoint="chat", completion_tokens=TOKENS, result=result, left=left)


def line(number: int, outcome: str = "ok", tokens: int | None = TOKENS, phase: str | None = None) -> dict[str, Any]:
    counts = {"outcome": outcome, "completion_tokens": tokens, "phase": phase}
    return {"request_id": f"soak-{number}", "key": "free", "worker": "one", **counts}


def page(requests: int = 3, tokens: int = 3 * TOKENS, in_flight: int = 0, serving: int = 0, control: int = 0) -> Metrics:
    figures = {
        'ridgeline_requests_total{endpoint="chat"}': requests,
        'ridgeline_key_requests_total{key="free"}': requests,
        "ridgeline_completion_tokens_total": tokens,
        'ridgeline_key_tokens_total{key="free",kind="completion"}': tokens,
        "ridgeline_records_dropped_total": 0,
        'ridgeline_attempts_total{worker="one",result="answered"}': requests,
        'ridgeline_attempts_total{worker="one",result="connect_failed"}': 7,
        "ridgeline_in_flight_requests": in_flight,
        'ridgeline_reloads_total{result="failed"}': 0,
        'ridgeline_process_restarts_total{role="serving"}': serving,
        'ridgeline_process_restarts_total{role="control"}': control,
    }
    return Metrics("".join(f"{name} {value}\n" for name, value in figures.items()))


GOOD = Books(
    sent=[sent(0), sent(1), sent(2)],
    killed=[],
    metrics=page(),
    lines=[line(0), line(1), line(2)],
    worker_requests={"one": 3},
    worker_tokens={"one": 3 * TOKENS},
)


def failing(books: Books) -> list[str]:
    return [one.name for one in balance(books) if not one.holds]


def test_books_that_agree_hold_and_nothing_is_excused() -> None:
    """All differences that are allowed are 0 while nothing is killed."""
    assert failing(GOOD) == []
    assert {one.may_differ_by for one in balance(GOOD)} == {0}


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda books: replace(books, sent=books.sent[:2]), "lines of requests that nobody made"),
        (lambda books: replace(books, lines=books.lines[:2]), "requests: /metrics, log"),
        (lambda books: replace(books, lines=books.lines[:2]), "requests without a line, none of them under way at a kill"),
        (lambda books: replace(books, lines=[*books.lines, line(2)]), "requests with two lines in the log"),
        (
            lambda books: replace(books, lines=[line(0, "client_gone"), line(1), line(2)]),
            "outcomes: lines that say another than the client saw",
        ),
        (
            lambda books: replace(books, lines=[line(0, tokens=9), line(1), line(2)]),
            "completion tokens of answers: clients, log",
        ),
        (lambda books: replace(books, lines=[line(0, tokens=None), line(1), line(2)]), "completion tokens: log, /metrics"),
        (lambda books: replace(books, metrics=page(requests=4)), "requests of chat: clients, /metrics"),
        (lambda books: replace(books, metrics=page(requests=4)), "requests of key free: clients, /metrics"),
        (lambda books: replace(books, metrics=page(in_flight=1)), "ridgeline_in_flight_requests at rest"),
        (lambda books: replace(books, metrics=page(serving=1)), "restarts of serving: killed, /metrics"),
        (lambda books: replace(books, metrics=page(tokens=29)), "completion tokens of key free: log, /metrics"),
        (lambda books: replace(books, worker_requests={"one": 4}), "attempts at one: /metrics, worker"),
        (
            lambda books: replace(books, worker_tokens={"one": 3 * TOKENS - 1}),
            "completion tokens of finished answers: clients, one",
        ),
        (
            lambda books: replace(books, sent=[sent(0, Verdict.REFUSED, 429), *books.sent[1:]]),
            "requests of key free refused by quota: clients, /metrics",
        ),
    ],
)
def test_what_does_not_agree_is_found(spoil: Callable[[Books], Books], found: str) -> None:
    """One more or less anywhere is enough."""
    assert found in failing(spoil(GOOD))


def test_a_killed_serving_process_excuses_what_it_had_and_no_more() -> None:
    """The request that was under way may be in no book; the one that had ended long before may not."""
    killed = [Killed(kind=Kind.KILL_SERVING, pid=1, killed_at=23.0, back_at=24.0)]
    cut = [sent(0), sent(1), sent(2, Verdict.CUT)]
    books = replace(GOOD, sent=cut, killed=killed, lines=[line(0), line(1)], metrics=page(2, 2 * TOKENS, serving=1))
    assert failing(books) == []

    lost = failing(replace(books, lines=[line(0)]))

    assert "requests without a line, none of them under way at a kill" in lost
    assert "requests: /metrics, log" in lost


def test_a_killed_control_process_excuses_records_on_their_way_and_no_counter() -> None:
    """A request that ended just before it may have no line, but the counters have it."""
    killed = [Killed(kind=Kind.KILL_CONTROL, pid=1, killed_at=25.5, back_at=26.0)]
    books = replace(GOOD, killed=killed, lines=[line(0), line(1)], metrics=page(control=1))
    assert failing(books) == []

    assert "requests of chat: clients, /metrics" in failing(replace(books, metrics=page(requests=2, control=1)))


def test_an_answer_that_went_astray_is_found() -> None:
    """By the id in its head, or by a mark in an error."""
    good = sent(0)
    other_id = replace(good, result=replace(good.result, request_id="soak-7"))
    marked = sent(1, Verdict.REFUSED, 400, detail="no q0123456789abcdef0123 here")

    assert strays([good, other_id, marked]) == [other_id, marked]


@pytest.mark.parametrize(("detail", "holds"), [("cut", False), ("an error", True)])
def test_a_client_that_leaves_may_have_been_told_of_an_error_before(detail: str, *, holds: bool) -> None:
    """Then its line tells the error; otherwise that it left."""
    books = replace(
        GOOD, sent=[sent(0, Verdict.LEFT, detail=detail), *GOOD.sent[1:]], lines=[line(0, "truncated"), *GOOD.lines[1:]]
    )

    assert ("outcomes: lines that say another than the client saw" not in failing(books)) is holds


def test_a_client_that_left_in_its_upload_has_a_line_that_says_so() -> None:
    """A request that a worker was asked about although its body never came whole would say something else."""
    uploading = sent(2, Verdict.LEFT, left=Leaving.UPLOAD, detail="unread")
    name = "phases: lines of clients that left in their upload and say otherwise"
    books = replace(GOOD, sent=[*GOOD.sent[:2], uploading])

    assert name not in failing(replace(books, lines=[*GOOD.lines[:2], line(2, "client_gone", phase="upload")]))
    assert name in failing(replace(books, lines=[*GOOD.lines[:2], line(2, "client_gone", phase="wait")]))


def test_an_attempt_whose_client_left_before_there_was_a_connection_is_not_the_workers() -> None:
    """The worker has read one request less than were tried."""
    books = replace(GOOD, lines=[*GOOD.lines[:2], line(2, "client_gone", phase="connect")])

    assert "attempts at one: /metrics, worker" not in failing(replace(books, worker_requests={"one": 2}))
    assert "attempts at one: /metrics, worker" in failing(books)


def samples(figures: Sequence[int]) -> list[Sample]:
    return [
        Sample(at_seconds=float(at), role="control", rss_bytes=value * 2**20, pss_bytes=value * 2**20, descriptors=value)
        for at, value in enumerate(figures)
    ]


@pytest.mark.parametrize(
    ("figures", "is_flat"),
    [([10, 10, 50, 50, 50, 50, 50, 50, 50], True), ([50] * 6 + [60] * 3, False), ([50] * 6 + [52, 80, 52], True)],
)
def test_memory_is_flat_when_the_last_third_is_as_the_middle_one(figures: list[int], *, is_flat: bool) -> None:
    """The first third, in which caches fill and processes are killed, does not count, nor does a single sample."""
    (pss,) = [one for one in trends(samples(figures), len(figures)) if one.figure == "pss_bytes"]

    assert pss.is_flat is is_flat
