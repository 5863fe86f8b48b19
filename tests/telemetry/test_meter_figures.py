"""Figures of a stream as a whole: usage, gaps between tokens, and the worker's own times."""

from __future__ import annotations

import pytest

from telemetry.events import Usage, WorkerTimes
from tests.telemetry.streams import (
    DONE,
    ROLE,
    STOP,
    STREAMS,
    choices_of,
    each_second,
    event,
    measure,
    text,
    usage,
)

# Usage


@pytest.mark.parametrize(
    ("completion", "tpot"), [(5, 0.5), (2, 2.0), (1, None), (0, None), (None, None), (-1, None), ("5", None), (5.5, None)]
)
def test_tpot_needs_two_counted_tokens(completion, tpot):
    """(last - first) / (tokens - 1), with tokens from usage; unknown below two, or where usage is wrong or absent."""
    found = each_second(text(), text(), text(), usage(completion), DONE)

    assert found.tpot_seconds() == tpot
    assert found.faults == (completion in (-1, "5", 5.5))


@pytest.mark.parametrize("pieces", [[], [text()], [text(), text()], [usage(0)], [text(), text(), usage(2)]])
def test_few_tokens_in_one_read_give_no_odd_figures(pieces):
    """With no time between tokens figures are 0 or unknown, never NaN or infinite."""
    found = measure((1.0, b"".join(pieces)))

    assert found.tpot_seconds() in {None, 0.0}
    assert found.stall_ratio in {None, 1.0}
    assert found.gap_sum_seconds == 0.0


def test_the_last_usage_wins():
    """Continuous figures are followed, never added up nor lowered, and the final event overrides them."""

    def counted(tokens: int) -> bytes:
        return text(usage={"prompt_tokens": 3, "completion_tokens": tokens})

    pieces = [counted(1), counted(2), counted(0), counted(2), counted(5)]

    assert each_second(*pieces).usage == Usage(3, 5)
    assert each_second(*pieces, usage(6), DONE).usage == Usage(3, 6)


def test_usage_beside_several_choices_is_that_of_all():
    """An event with several choices counts the whole answer: nothing is added up, and the largest figure stays."""

    def both(tokens: int) -> bytes:
        choices = [{"index": index, "delta": {"content": "a"}} for index in (0, 1)]
        return usage(tokens, choices=choices)

    alone = event({"content": "a"}, index=1, usage={"prompt_tokens": 3, "completion_tokens": 1})
    found = each_second(alone, both(2), both(6), both(4), choices=2)

    assert found.usage == Usage(3, 6)


def test_usage_of_choices_is_summed_while_the_end_has_not_come():
    """Continuous figures are per choice; without the final event their sum is what is known."""
    pieces = [
        event({"content": "a"}, index=index, usage={"prompt_tokens": 3, "completion_tokens": tokens})
        for index, tokens in ((0, 1), (1, 1), (0, 2), (1, 4))
    ]
    found = each_second(*pieces, choices=2)

    assert found.usage is not None
    assert found.usage.completion_tokens == 6


@pytest.mark.parametrize("value", ['"s"', "[1]", "7", "true", '{"completion_tokens":"5"}', '{"completion_tokens":1e30}'])
def test_bad_usage_does_not_stop_the_stream(value):
    """It is counted and ignored: tokens before and behind it count."""
    bad = b'data: {"choices":[],"usage":' + value.encode() + b"}\n\n"

    found = each_second(text(), bad, text(), STOP, DONE)

    assert (found.faults, found.token_events, found.is_complete) == (1, 2, True)
    assert found.usage is None or found.usage.completion_tokens is None


# Gaps


def test_gaps_are_counted_in_their_buckets():
    """Each gap between token events lands in its bucket (bounds are inclusive); what is no token makes none."""
    found = measure(
        (0.0, ROLE), (1.0, text()), (1.015, b": ping\n\n"), (1.5, text()), (3.5, text()), (9.0, text()), (9.5, STOP)
    )

    assert found.gap_counts == [0, 0, 0, 0, 0, 0, 1, 0, 1, 1]
    assert found.gap_sum_seconds == 8.0
    assert not found.gaps_are_per_token


@pytest.mark.parametrize(("completion", "per_token"), [(4, True), (5, True), (6, False), (3, False), (None, False)])
def test_when_gaps_stand_for_single_tokens(completion, per_token):
    """As many tokens as events, or one more for the end of text: else a gap may stand for several tokens."""
    assert each_second(*[text()] * 4, STOP, usage(completion), DONE).gaps_are_per_token is per_token


@pytest.mark.parametrize(("final", "per_token"), [(4, True), (9, False)])
def test_usage_in_some_events_tells_nothing_of_the_others(final, per_token):
    """Where not each token event has its count, gaps are those of single tokens only if the total says so."""
    counted = text(usage={"prompt_tokens": 3, "completion_tokens": 1})

    assert each_second(counted, *[text()] * 3, STOP, usage(final), DONE).gaps_are_per_token is per_token
    assert each_second(*[text()] * 3, text(finish="stop", usage={"completion_tokens": final})).gaps_are_per_token is per_token


def test_several_tokens_in_one_event_share_their_gap():
    """With continuous usage a gap is divided by the tokens it brought, also those of an event without text."""

    def counted(tokens: int, content: str = "a") -> bytes:
        return text(content, usage={"prompt_tokens": 3, "completion_tokens": tokens})

    found = measure((0.0, counted(2)), (0.4, counted(6)), (0.5, counted(7)), (0.6, counted(8, "")), (0.7, counted(9)))

    assert found.gap_counts == [0, 0, 0, 0, 0, 3, 0, 0, 0, 0]
    assert found.gap_sum_seconds == pytest.approx(0.1 + 0.1 + 0.1)
    assert found.gaps_are_per_token
    assert found.token_events == 4


def test_steady_bursts_are_no_stall():
    """Four tokens every 50 ms is an even pace; a pause of a second among them is one."""

    def burst(number: int) -> bytes:
        return text(usage={"prompt_tokens": 3, "completion_tokens": 4 * number})

    steady = measure(*((0.05 * number, burst(number)) for number in range(1, 20)))
    stalled = measure(*((0.05 * number + (number > 9), burst(number)) for number in range(1, 20)))

    assert steady.stall_ratio == pytest.approx(1.0, abs=0.3)
    assert stalled.stall_ratio == pytest.approx(21, rel=0.3)


def test_a_gap_above_all_bounds():
    """The stall ratio is finite when the median lies in the last bucket, too."""
    found = measure((0.0, text()), (100.0, text()), (200.0, text()))

    assert found.gap_counts == [0] * 9 + [2]
    assert found.stall_ratio == pytest.approx(100 / 51)


# The worker's own clocks


@pytest.mark.parametrize(
    ("text_of", "times", "faults"),
    [
        ("null", None, 0),
        ("{}", WorkerTimes(), 0),
        ('{"time_to_first_token_ms":250,"queue_time_ms":0,"generation_time_ms":1500.5}', WorkerTimes(0.25, 0.0, 1.5005), 0),
        ('{"mean_itl_ms":20}', WorkerTimes(itl_seconds=0.02), 0),
        ('{"mean_itl_ms":null,"queue_time_ms":-1}', WorkerTimes(), 1),
        ('{"mean_itl_ms":"x","queue_time_ms":1e30}', WorkerTimes(), 2),
        ('{"mean_itl_ms":true}', WorkerTimes(), 1),
        ('{"mean_itl_ms":NaN}', WorkerTimes(), 1),
        ("7", None, 1),
        ("[]", None, 1),
    ],
)
def test_the_workers_times(text_of, times, faults):
    """They are read from the last event in seconds; absent and wrong figures are unknown, and nothing of ours changes."""
    plain = usage(5)
    with_times = plain[:-3] + b',"metrics":' + text_of.encode() + b"}\n\n"

    found, without = (each_second(text(), text(), STOP, last, DONE) for last in (with_times, plain))

    assert (found.times, found.faults) == (times, faults)
    assert (found.tpot_seconds(), found.first_token_at) == (without.tpot_seconds(), without.first_token_at)


@pytest.mark.parametrize(
    ("name", "has_times"),
    [
        ("chat_stream_include_usage", True),
        ("chat_stream_n2", False),
        ("chat_stream", False),
        ("load64_chat_stream_continuous", False),
    ],
)
def test_the_times_of_captured_streams(name, has_times):
    """One choice and asked usage give them, where the worker was told to measure."""
    assert (measure((1.0, STREAMS[name]), choices=choices_of(name)).times is not None) == has_times
