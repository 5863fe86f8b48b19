"""The part of control that judges: what it adds to records, what it counts, and what it learns of workers."""

from __future__ import annotations

from array import array
from math import isnan
from pathlib import Path

import msgspec
import pytest

from proxy.config.deployments import deployments_of
from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from proxy.control.judging import Judge
from telemetry.dcgm import Gpus
from telemetry.gpus_lately import GpusLately
from telemetry.layout import Layout, slot
from tests.proxy.control.clocks import Clock
from tests.telemetry.judged import a_stream, later, tpot, ttft

CONFIG = """
models:
  - name: llama-3.1-8b
    pools:
      - {name: short, gpu: h100-sxm, max_total_tokens: 100000, workers: [{name: w-0, url: "http://a:1"}, {name: w-1, url: "http://a:2"}]}
      - {name: bare, workers: [{name: w-2, url: "http://a:3"}]}
  - {name: nobody-knows-it, workers: [{name: w-3, url: "http://a:4"}]}
"""


class Court:
    """A judge with cells of its own, for two workers of one pool and some others."""

    def __init__(self, text: str = CONFIG) -> None:
        config = parse_config(text, {}, "test")
        self.topology = build_topology(config)
        self.layout = Layout.of(self.topology)
        self.cells = memoryview(array("d", [0.0] * self.layout.size))
        self.clock = Clock()
        self.judge = Judge(clock=self.clock.steady)
        self.judge.know(deployments_of(config, Path()))
        self.judge.adopt(self.topology, self.cells)

    def set_worker(self, index: int, cell: int, value: float) -> None:
        """As a probe would."""
        self.cells[self.layout.worker_base(index) + cell] = value

    def pool(self, name: str, /, **labels: str) -> float:
        return self.cells[self.layout.pool_base(0) + slot(name, **labels)]

    def worker(self, index: int, name: str, /, **labels: str) -> float:
        return self.cells[self.layout.worker_base(index) + slot(name, **labels)]


@pytest.fixture
def court() -> Court:
    return Court()


def test_a_record_gets_its_limits(court):
    """Floor, reference and expected of the figures that a stream is judged by, and nothing said against it."""
    (found,) = court.judge.take([a_stream()])

    assert found.ttft_floor_seconds <= found.ttft_reference_seconds < found.ttft_expected_seconds
    assert found.tpot_floor_seconds <= found.tpot_reference_seconds < found.tpot_expected_seconds
    assert found.e2e_expected_seconds is None
    assert (found.deviations, found.causes) == ((), ())


def test_a_deviation_is_counted_by_its_first_cause(court):
    """The record says which figure and why; the counter has the cause that explains most."""
    (found,) = court.judge.take([later(a_stream(worker_queue_seconds=2.0), 2.0)])

    assert found.deviations == ("ttft",)
    assert found.causes[0].name == "engine_queue"
    assert found.causes[0].seconds == pytest.approx(2.0)
    assert court.pool("ridgeline_deviations_total", figure="ttft", cause="engine_queue") == 1
    seconds = {cause.name: cause.seconds for cause in found.causes}
    assert seconds["engine_queue"] > 0
    for name, value in seconds.items():
        assert court.pool("ridgeline_deviation_seconds_total", cause=name) == pytest.approx(value)
    assert court.pool("ridgeline_ttft_attained_ratio", length="upto_4k") == 1  # the bucket up to 0.1


@pytest.mark.parametrize(("pool", "model"), [("bare", "llama-3.1-8b"), ("default", "nobody-knows-it"), ("none", "unknown")])
def test_where_nothing_is_known_nothing_is_invented(court, pool, model):
    """A pool without a GPU, a model without a shape, a request without a pool: the record stays as it was."""
    record = a_stream(pool=pool, model=model)

    assert court.judge.take([record]) == [record]


def test_lengths_are_told_apart(court):
    """What is attained is counted by prompt length, each bound inclusive."""
    court.judge.take([a_stream(4096), a_stream(4097), a_stream(32_769)])

    for length in ("upto_4k", "upto_32k", "over_32k"):
        first = court.layout.pool_base(0) + slot("ridgeline_tpot_attained_ratio", length=length)
        assert sum(court.cells[first : first + 9]) == 1


def test_an_unknown_hit_is_in_no_histogram_of_ttft(court):
    """An interval is no ratio; the TPOT of the same request is one."""
    court.judge.take([a_stream(cached=None)])

    first = court.layout.pool_base(0) + slot("ridgeline_ttft_attained_ratio", length="upto_4k")
    assert sum(court.cells[first : first + 9]) == 0
    first = court.layout.pool_base(0) + slot("ridgeline_tpot_attained_ratio", length="upto_4k")
    assert sum(court.cells[first : first + 9]) == 1


def test_a_beaten_floor_is_counted_at_its_worker(court):
    """By figure, and not clipped in the record."""
    (found,) = court.judge.take([a_stream(tpot_seconds=0.0001, worker="w-1")])

    assert court.worker(1, "ridgeline_floor_beaten_total", figure="tpot") == 1
    assert court.worker(0, "ridgeline_floor_beaten_total", figure="tpot") == 0
    assert found.causes[0].name == "facts"


def test_a_worker_is_compared_with_its_peers(court):
    """Three times as slow as the other one, at whatever the other one does, is what its own requests are told."""
    slow = a_stream(tpot_seconds=3 * tpot(2000, 101), upstream_ttft_seconds=3 * ttft(2000), ttft_seconds=3 * ttft(2000))
    for _ in range(40):
        court.judge.take([a_stream(worker="w-1"), msgspec.structs.replace(slow, worker="w-0")])
    (found,) = court.judge.take([msgspec.structs.replace(slow, worker="w-0")])

    assert found.deviations == ("ttft", "tpot")
    assert found.causes[0].name == "slower_than_peers"
    assert court.worker(0, "ridgeline_worker_attained_ratio", figure="tpot") == pytest.approx(1 / 3, rel=0.01)
    assert court.worker(1, "ridgeline_worker_attained_ratio", figure="tpot") == pytest.approx(1.0, rel=0.01)


def test_what_was_unexplained_is_explained_once_its_worker_is_known_to_be_slow(court):
    """Each request once, with the causes that it would have had; those of other workers stay as they are."""
    slow = later(a_stream(worker="w-0", tpot_seconds=4 * tpot(2000, 101)), 3 * ttft(2000))
    first, other = (
        msgspec.structs.replace(slow, request_id=name, worker=worker) for name, worker in (("a", "w-0"), ("b", "w-1"))
    )
    told = court.judge.take([first, other])
    for _ in range(24):
        court.judge.take([a_stream(worker="w-1"), slow])

    revised = court.judge.revised()
    assert [one.causes[0].name for one in told] == ["unexplained"] * 2
    assert {one.request_id: one.causes[0].name for one in revised} == {"a": "slower_than_peers", "r": "slower_than_peers"}
    assert [one.deviations for one in revised if one.request_id == "a"] == [("ttft", "tpot")]
    assert court.judge.revised() == []


def test_what_gpus_did_meanwhile_is_a_cause(court):
    """A clock that fell when the request had begun, held against what is usual for its worker and its peers."""
    lately = {name: GpusLately() for name in ("w-0", "w-1")}
    court.judge.gpus = lately
    for at in range(0, 1000, 10):
        for name, clock in (("w-0", 1.98e9 if at < 900 else 0.66e9), ("w-1", 1.98e9)):
            lately[name].look(float(at), Gpus(gpus=1, sm_clock_hertz=clock, utilisation_ratio=1.0))
    court.clock.now = 1000.0
    slow = later(a_stream(8000, worker="w-0", ended_unix_seconds=1000.0, e2e_seconds=5.0), 2.0 * ttft(8000))

    (found,) = court.judge.take([slow])
    (before,) = court.judge.take([msgspec.structs.replace(slow, e2e_seconds=50.0, worker="w-1")])

    assert found.causes[0].name == "gpu_clocks"
    assert found.causes[0].seconds == pytest.approx(2.0 * ttft(8000), rel=0.01)
    assert before.causes[0].name == "unexplained"


@pytest.mark.parametrize(("cached", "is_known"), [(0, True), (999, True), (1000, False), (1900, False)])
def test_what_a_worker_attains_of_ttft_is_of_prompts_that_it_computed(court, cached, is_known):
    """Less than half of them cached; a warm one tells how little there was to compute. TPOT does not depend on it."""
    court.judge.take([a_stream(2000, cached=cached, worker="w-0")] * 40)

    assert isnan(court.worker(0, "ridgeline_worker_attained_ratio", figure="ttft")) is not is_known
    assert court.worker(0, "ridgeline_worker_attained_ratio", figure="tpot") == pytest.approx(1.0)


def test_few_requests_have_no_median(court):
    """Before sixteen nothing is said about a worker."""
    court.judge.take([a_stream()] * 8)

    assert isnan(court.worker(0, "ridgeline_worker_attained_ratio", figure="tpot"))


def test_a_fault_of_ours_leaves_the_record(court, monkeypatch, caplog):
    """The request is logged as it was, and the next one is judged."""
    record = a_stream()
    monkeypatch.setattr("proxy.control.judging.diagnose", lambda *_: 1 / 0)
    assert court.judge.take([record]) == [record]
    assert "could not be judged" in caplog.text

    monkeypatch.undo()
    (found,) = court.judge.take([record])
    assert found.ttft_floor_seconds is not None


def test_another_topology_is_counted_in_its_own_cells(court):
    """After a reload the same worker may stand elsewhere; one that is gone is judged and counted nowhere."""
    other = Court(CONFIG.replace('{name: w-0, url: "http://a:1"}, ', ""))
    court.judge.adopt(other.topology, other.cells)

    first, second = court.judge.take([a_stream(worker="w-0", tpot_seconds=1e-4), a_stream(worker="w-1", tpot_seconds=1e-4)])

    assert first.ttft_floor_seconds == second.ttft_floor_seconds is not None
    assert other.worker(0, "ridgeline_floor_beaten_total", figure="tpot") == 1
    assert court.worker(0, "ridgeline_floor_beaten_total", figure="tpot") == 0


def test_workers_of_another_version_are_no_peers(court):
    """An engine that was upgraded has a pace of its own: neither is slow beside the other, whichever is slower."""
    slow = later(a_stream(tpot_seconds=4 * tpot(2000, 101)), 3 * ttft(2000))
    court.judge.standards.know_versions({"w-0": "0.12.0", "w-1": "0.11.0"})
    for _ in range(40):
        court.judge.take([a_stream(worker="w-1"), msgspec.structs.replace(slow, worker="w-0")])
    (apart,) = court.judge.take([msgspec.structs.replace(slow, worker="w-0")])

    court.judge.standards.know_versions({"w-1": "0.12.0"})
    for _ in range(40):
        court.judge.take([a_stream(worker="w-1"), msgspec.structs.replace(slow, worker="w-0")])
    (together,) = court.judge.take([msgspec.structs.replace(slow, worker="w-0")])

    assert "slower_than_peers" not in {cause.name for cause in apart.causes}
    assert together.causes[0].name == "slower_than_peers"


def test_what_a_worker_attained_as_another_version_is_forgotten(court):
    """Its last medians say nothing about what it is now."""
    slow = later(a_stream(worker="w-0", tpot_seconds=4 * tpot(2000, 101)), 3 * ttft(2000))
    court.judge.take([slow, a_stream(worker="w-1")] * 40)
    court.judge.standards.know_versions({"w-0": "0.12.0", "w-1": "0.12.0"})
    court.judge.take([a_stream(worker="w-0")])

    assert isnan(court.worker(0, "ridgeline_worker_attained_ratio", figure="tpot"))


def test_a_standard_stays_while_nothing_about_it_changes(court):
    """Reading the same configuration again forgets nothing of what workers attained."""
    before = court.judge.standards.of("llama-3.1-8b", "short", "w-0")
    court.judge.know(deployments_of(parse_config(CONFIG, {}, "test"), Path()))
    court.judge.standards.know_versions({})

    assert court.judge.standards.of("llama-3.1-8b", "short", "w-0") is before
    assert court.judge.standards.of_pool("llama-3.1-8b", "short") is before
    assert court.judge.standards.of_pool("llama-3.1-8b", "bare") is None


def test_a_pool_is_what_most_of_its_workers_are(court):
    """While some are upgraded and others are not yet."""
    court.judge.standards.know_versions({"w-0": "0.12.0", "w-1": "0.12.0"})

    standard = court.judge.standards.of_pool("llama-3.1-8b", "short")
    assert standard is not None
    assert standard.key.engine_version == "0.12.0"
