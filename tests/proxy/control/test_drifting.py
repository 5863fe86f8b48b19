"""The part of control that watches how prompts begin: what it adds to records, counts and tells."""

from __future__ import annotations

import logging

import msgspec
import pytest

from proxy.control.drifting import DriftWatch
from routing.sketch import Beginning, family_of, sketch_of
from telemetry.layout import slot
from telemetry.record import PrefillResult, RequestRecord
from tests.proxy.control.clocks import Clock
from tests.proxy.control.test_judging import Court
from tests.telemetry.judged import a_stream, ttft
from tests.telemetry.test_prefix_drift import SYSTEM

HIT = 1400


def begins(text: bytes = SYSTEM, at: float = 0.0, cached: int | None = HIT, **other: object) -> RequestRecord:
    beginning = Beginning(family_of(text), len(text), sketch_of(text), other.pop("is_salted", False))
    return a_stream(1650, cached=cached, ended_unix_seconds=at, key="app-a", beginning=beginning, **other)


class _Watched:
    def __init__(self) -> None:
        self.court = Court()
        self.clock = Clock()
        self.watch = DriftWatch(self.court.judge.prefill_of, self.clock.steady)
        self.watch.adopt(self.court.topology, self.court.cells)
        for number in range(40):
            self.take(begins(at=float(number)))

    def take(self, record: RequestRecord) -> RequestRecord:
        """One that has just ended."""
        self.clock.now = record.ended_unix_seconds - self.clock.set_by_seconds
        (found,) = self.watch.take([record])
        return found

    def look(self, now: float) -> None:
        self.clock.now = now
        self.watch.look()


@pytest.fixture
def watched() -> _Watched:
    return _Watched()


def test_a_record_says_what_it_could_expect(watched):
    """At a worker that has seen the text of late; a request without a system prompt expects nothing."""
    assert watched.take(begins(at=50.0)).expected_cached_tokens == HIT
    plain = a_stream()
    assert watched.take(plain) is plain


def test_a_hit_of_two_legs_is_expected_where_the_prompt_is_computed(watched):
    """At the worker of the stage: whether the one that generates has seen the text, or was restarted, does not matter."""
    at_stage = {"prefill_result": PrefillResult.COMPUTED, "prefill_worker": "w-1"}

    first = watched.take(begins(at=50.0, cached=0, **at_stage))
    assert (first.worker, first.expected_cached_tokens, first.cache_lost) == ("w-0", 0, "elsewhere")
    watched.court.set_worker(0, slot("ridgeline_worker_restarts_total"), 1.0)
    watched.look(51.0)
    assert watched.take(begins(at=52.0, **at_stage)).expected_cached_tokens == HIT


def test_a_drift_at_a_stage_has_tokens_and_no_seconds(watched):
    """How long its GPUs take for them is not known."""
    for number in range(20):
        changed = begins(b"It is Monday. " + SYSTEM, at=100.0 + number, cached=0)
        watched.take(msgspec.structs.replace(changed, prefill_result=PrefillResult.COMPUTED, prefill_worker="w-1"))

    (drift,) = watched.watch.view()
    assert (drift.missed_tokens, drift.missed_seconds) == (20 * HIT, 0.0)


def test_a_restart_is_what_lost_the_hit(watched):
    """Seen by the worker's count of restarts; the next hit is expected again once it has been there."""
    court = watched.court
    court.set_worker(0, slot("ridgeline_worker_restarts_total"), 1.0)
    watched.look(45.0)

    lost = watched.take(begins(at=50.0, cached=0))

    assert (lost.expected_cached_tokens, lost.cache_lost) == (0, "restarted")
    assert court.pool("ridgeline_cache_lost_total", reason="restarted") == 1
    assert watched.take(begins(at=51.0)).expected_cached_tokens == HIT


@pytest.mark.parametrize("set_by", [3600.0, -3600.0])
def test_a_wall_clock_that_is_set_makes_nothing_cold_and_hides_no_restart(watched, set_by):
    """Ten seconds later by any honest clock the text is still there; a restart after that has lost it."""
    watched.clock.set_by_seconds = set_by
    assert watched.take(begins(at=49.0 + set_by)).expected_cached_tokens == HIT

    watched.court.set_worker(0, slot("ridgeline_worker_restarts_total"), 1.0)
    watched.look(50.0)

    assert watched.take(begins(at=51.0 + set_by, cached=0)).cache_lost == "restarted"


def test_a_drift_is_shown_by_the_wall_clock_as_it_goes_now(watched):
    """And kept by one that nobody sets."""
    for number in range(20):
        watched.take(begins(b"It is Monday. " + SYSTEM, at=100.0 + number, cached=0))
    watched.clock.set_by_seconds = 3600.0

    (shown,), (kept,) = watched.watch.view(), watched.watch.drifts()
    assert (shown.since, shown.until) == (3700.0, 3719.0)
    assert (kept.since, kept.until) == (100.0, 119.0)


def test_a_miss_explains_a_late_first_token(watched):
    """The same text, forgotten by the worker: the judge names the hit that was not delivered, with its seconds."""
    forgotten = watched.take(begins(at=50.0, cached=0, upstream_ttft_seconds=0.5 + ttft(1650), ttft_seconds=0.5 + ttft(1650)))
    (judged,) = watched.court.judge.take([forgotten])

    assert forgotten.cache_lost == "evicted"
    assert judged.deviations == ("ttft",)
    missed = {cause.name: cause.seconds for cause in judged.causes}["missed_prefix"]
    assert missed == pytest.approx(ttft(1650) - ttft(1650, HIT))


def test_a_drift_is_told_once(watched, caplog):
    """In the notices, the metric, and the view, with what it costs in seconds of prefill."""
    caplog.set_level(logging.WARNING)
    changed = b"It is Monday. " + SYSTEM
    for number in range(20):
        watched.take(begins(changed, at=100.0 + number, cached=0))

    (drift,) = watched.watch.view()
    assert (drift.kind, drift.position_bytes, drift.change_bytes, drift.keys) == ("inserted", 0, 14, {"app-a": 20})
    assert drift.missed_seconds == pytest.approx(20 * (ttft(1650) - ttft(1650, HIT)))
    assert watched.court.pool("ridgeline_prefix_drift_missed_seconds_total") == pytest.approx(drift.missed_seconds)
    assert watched.court.pool("ridgeline_prefix_drift_total", kind="inserted") == 1
    assert caplog.text.count("has changed: inserted near byte 0, +14 bytes; keys: app-a") == 1


def test_without_a_gpu_a_drift_has_no_seconds():
    """It is found all the same."""
    watch = DriftWatch()
    for number in range(40):
        watch.take([begins(at=float(number), pool="bare")])
    for number in range(10):
        watch.take([begins(SYSTEM + b" ", at=100.0 + number, cached=0, pool="bare")])

    (drift,) = watch.view()
    assert drift.missed_tokens == 10 * HIT
    assert drift.missed_seconds == 0.0


@pytest.mark.parametrize(
    "changes", [{"prompt_is_estimate": True}, {"is_batch": True}, {"worker": None}, {"prompt_tokens": None}]
)
def test_what_tells_nothing_is_left_alone(watched, changes):
    """Guesses, batches, and requests that reached no worker."""
    record = msgspec.structs.replace(begins(at=50.0), **changes)
    assert watched.take(record) is record


def test_a_fault_of_ours_leaves_the_record(watched, monkeypatch, caplog):
    """It goes on to the log as it was."""
    monkeypatch.setattr("proxy.control.drifting.Observation", None)
    record = begins(at=50.0)
    assert watched.take(record) is record
    assert "could not be looked at" in caplog.text


def test_another_topology_has_other_cells(watched):
    """Restarts are counted on from what was seen, wherever the worker stands now."""
    watched.court.set_worker(1, slot("ridgeline_worker_restarts_total"), 3.0)
    watched.look(45.0)
    other = Court()
    other.set_worker(1, slot("ridgeline_worker_restarts_total"), 3.0)
    watched.watch.adopt(other.topology, other.cells)
    watched.look(46.0)

    assert watched.take(begins(at=50.0, worker="w-0")).expected_cached_tokens == HIT
