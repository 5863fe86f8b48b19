"""The newest records, and how figures were spread lately."""

from __future__ import annotations

from statistics import quantiles
from time import process_time

import msgspec
import pytest

from dashboards.live.window import BOUNDS, HALF_SECONDS, KEPT_ODD, KEPT_RECORDS, Window
from telemetry.record import Cause, Outcome, RequestRecord
from tests.dashboards.live.requests_made import a_record


def a_window(*records: RequestRecord) -> Window:
    window = Window()
    window.turn(0.0)
    window.take(records)
    return window


def test_quantiles_are_near_the_truth() -> None:
    """Read off buckets, they are within a tenth of what the values themselves say."""
    values = [0.05 * 1.01**step for step in range(300)]

    figure = a_window(*(a_record(upstream_ttft_seconds=value) for value in values)).glimpse("w-0").ttft

    assert figure is not None
    assert figure.requests == 300
    exact = quantiles(values, n=100)
    assert (figure.p50_seconds, figure.p90_seconds, figure.p99_seconds) == pytest.approx(
        (exact[49], exact[89], exact[98]), rel=0.1
    )


def test_a_figure_stands_beside_its_limits() -> None:
    """Floor and expected are of the same requests; without limits they are unknown, and without requests all is."""
    judged = a_record(ttft_expected_seconds=0.1, ttft_floor_seconds=0.04)

    known, unknown = a_window(judged).glimpse("w-0").ttft, a_window(a_record()).glimpse("w-0").ttft

    assert known is not None
    assert unknown is not None
    assert known.floor_p50_seconds == pytest.approx(0.04, rel=0.25)
    assert known.expected_p50_seconds == pytest.approx(0.1, rel=0.25)
    assert (unknown.floor_p50_seconds, unknown.expected_p50_seconds, unknown.expected) == (None, None, None)
    assert a_window().glimpse("w-0").ttft is None


def test_what_was_attained_is_compared_request_by_request() -> None:
    """A long prompt that took what it should and a short one that took twice as long do not make up for each other."""
    fair = a_record(upstream_ttft_seconds=2.0, ttft_expected_seconds=2.0, ttft_floor_seconds=1.0)
    slow = a_record(upstream_ttft_seconds=0.2, ttft_expected_seconds=0.1, ttft_floor_seconds=0.05)
    unknown = a_record(upstream_ttft_seconds=9.0, ttft_expected_seconds=0.1, ttft_floor_seconds=0.05, cached_tokens=None)

    def attained(*records: RequestRecord) -> float | None:
        figure = a_window(*records).glimpse("w-0").ttft
        return None if figure is None else figure.attained_p50_ratio

    assert attained(fair, slow, slow) == pytest.approx(0.5, rel=0.08)
    assert attained(fair, fair, slow, unknown, unknown, unknown) == pytest.approx(1.0, rel=0.08)
    assert attained(unknown) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-9, BOUNDS[0], BOUNDS[-1], 5000.0])
def test_no_duration_is_too_short_or_too_long(seconds: float) -> None:
    """What lies outside the buckets counts in the outermost ones."""
    figure = a_window(a_record(upstream_ttft_seconds=seconds)).glimpse("w-0").ttft

    assert figure is not None
    assert sum(figure.measured.counts) == 1
    assert figure.p50_seconds <= BOUNDS[-1]


def test_sums_tell_unknown_from_nothing_cached() -> None:
    """The hit share is over requests that know it; failures and deviations are counted with what they were."""
    glimpse = a_window(
        a_record(prompt_tokens=1000, cached_tokens=0),
        a_record(prompt_tokens=3000, cached_tokens=2000),
        a_record(prompt_tokens=500, cached_tokens=None),
        a_record(outcome=Outcome.TRUNCATED, prompt_tokens=None, cached_tokens=None),
        a_record(outcome=Outcome.CLIENT_GONE, prompt_tokens=None, cached_tokens=None),
        a_record(deviations=("ttft",), causes=(Cause("engine_queue", 2.0), Cause("unexplained", 1.0)), prompt_tokens=None),
    ).glimpse("w-0")

    sums = glimpse.sums
    assert (sums.requests, sums.hit_known_tokens, sums.cached_tokens, sums.hit_unknown) == (6, 4000, 2000, 1)
    assert (sums.failed, glimpse.outcomes) == (1, {"truncated": 1})
    assert (sums.deviating, glimpse.causes) == (1, {"engine_queue": 1})


def test_what_is_long_ago_does_not_count() -> None:
    """A request is seen for one to two minutes, and not any more after an idle time either."""
    window = a_window(a_record())
    window.turn(HALF_SECONDS)
    assert window.glimpse("w-0").sums.requests == 1
    window.turn(2 * HALF_SECONDS)
    assert window.glimpse("w-0").sums.requests == 0

    window.take([a_record()])
    window.turn(5 * HALF_SECONDS)
    assert window.glimpse("w-0").sums.requests == 0


def test_only_the_newest_are_kept() -> None:
    """They come newest first, also those between two readings, and are found by their id as long as they are kept."""
    window = a_window(*(a_record(f"r-{number}") for number in range(KEPT_RECORDS + 10)))
    taken = KEPT_RECORDS + 10

    assert [record.request_id for record in window.newest(2)] == [f"r-{taken - 1}", f"r-{taken - 2}"]
    assert [record.request_id for record in window.newest(9, after=taken - 3, until=taken - 1)] == [
        f"r-{taken - 2}",
        f"r-{taken - 3}",
    ]
    assert len(list(window.newest(10_000))) == KEPT_RECORDS
    assert list(window.newest(9, after=taken)) == []
    assert window.find("r-9") is None
    assert window.find("r-10") is not None


def test_those_that_failed_or_deviated_are_kept_for_longer() -> None:
    """They are what is looked for some minutes later, when many others have come."""
    deviating, failed = a_record("far-off", deviations=("ttft",)), a_record("cut", outcome=Outcome.TRUNCATED)
    window = a_window(a_record("fine"), deviating, failed, *(a_record() for _ in range(KEPT_RECORDS)))

    assert (window.find("fine"), window.find("far-off"), window.find("cut")) == (None, deviating, failed)
    assert list(window.odd(until=window.taken - KEPT_RECORDS)) == [failed, deviating]
    assert list(window.odd(until=2)) == [deviating]

    window.take([a_record(deviations=("tpot",))] * KEPT_ODD)
    assert (window.find("cut"), len(list(window.odd(until=window.taken)))) == (None, KEPT_ODD)


def test_cold_and_warm_prompts_are_told_apart() -> None:
    """By half of the prompt; who does not say what was cached is neither, and what was attained is of cold ones alone."""
    limits = {"ttft_expected_seconds": 0.2, "ttft_floor_seconds": 0.1}
    cold = [a_record(upstream_ttft_seconds=0.4, prompt_tokens=1000, cached_tokens=cached, **limits) for cached in (0, 499)]
    warm = [a_record(upstream_ttft_seconds=0.02, prompt_tokens=1000, cached_tokens=cached, **limits) for cached in (500, 999)]
    unknown = a_record(upstream_ttft_seconds=9.0, cached_tokens=None, **limits)

    figure = a_window(*cold, *warm, unknown).glimpse("w-0").ttft
    without = a_window(*warm, unknown).glimpse("w-0").ttft

    assert figure is not None
    assert without is not None
    assert figure.requests == 5
    assert (figure.cold_p50_seconds, figure.warm_p50_seconds) == pytest.approx((0.4, 0.02), rel=0.13)
    assert figure.attained_p50_ratio == pytest.approx(0.5, rel=0.05)
    assert (without.cold_p50_seconds, without.attained_p50_ratio) == (None, None)


def test_a_cause_that_is_known_better_takes_the_place_of_what_was_said() -> None:
    """In the newest records, in those kept longer, and in the count of causes; others with the same id stay."""
    riddle = a_record("r-1", ended_unix_seconds=5.0, deviations=("ttft",), causes=(Cause("unexplained", 2.0),))
    solved = msgspec.structs.replace(riddle, causes=(Cause("slower_than_peers", 2.0),))
    again = msgspec.structs.replace(riddle, ended_unix_seconds=6.0)
    window = a_window(riddle, again)
    window.turn(HALF_SECONDS)

    window.revise([solved, msgspec.structs.replace(solved, request_id="gone")])

    assert list(window.newest(9)) == [again, solved]
    assert list(window.odd(9)) == [again, solved]
    assert window.glimpse("w-0").causes == {"unexplained": 1, "slower_than_peers": 1}


def test_workers_that_are_gone_are_forgotten() -> None:
    """Names that come and go do not pile up."""
    window = a_window(a_record(worker="w-0"), a_record(worker="w-1"))

    window.keep_only(["w-1"])

    assert window.glimpse("w-0").sums.requests == 0
    assert window.glimpse("w-1").sums.requests == 1


def test_a_record_costs_next_to_nothing() -> None:
    """Three microseconds of the control process at the most, of the forty that a record may cost in all."""
    record = a_record(
        ttft_expected_seconds=0.1,
        ttft_floor_seconds=0.05,
        tpot_expected_seconds=0.02,
        tpot_floor_seconds=0.01,
        deviations=("ttft",),
        causes=(Cause("batch", 1.0),),
    )
    window, records = a_window(), [record] * 5000

    def seconds() -> float:
        began_at = process_time()
        window.take(records)
        return process_time() - began_at

    assert min(seconds() for _ in range(5)) / len(records) < 3e-6
