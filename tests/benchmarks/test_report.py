"""Medians and ratios of rounds, and the tables made of them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from benchmarks.cost import Memory
from benchmarks.machine import Machine
from benchmarks.measure import Idle, ProxyRound, Round, Sample
from benchmarks.report import (
    Run,
    cost_of_role,
    costs,
    other_conditions,
    ratios,
    read_json,
    spread,
    write_json,
    write_report,
)
from benchmarks.tool import WORKLOADS, Quantiles, ToolResult

PACED = WORKLOADS[0].name
MEMORY = Memory(rss_bytes=30 << 20, pss_bytes=None)


def a_sample(cpu_us: float, errors: int = 0) -> Sample:
    delay = Quantiles(p50=10.0, p99=20.0)
    result = ToolResult(requests=400, tokens=51_200, errors=errors, wall_s=1.0, first_us=delay, token_us=delay, total_us=delay)
    return Sample(cpu_us=cpu_us, cpu_us_by_role={"serving": cpu_us * 0.75, "control": cpu_us * 0.25}, result=result)


def a_proxy(cpu_us: float, errors: int = 0) -> ProxyRound:
    idle = Idle(cpu_ms_per_second=1.5, cpu_ms_per_second_by_role={"serving": 0.5, "control": 1.0}, memory=MEMORY)
    return ProxyRound(idle=idle, loaded=MEMORY, samples={PACED: a_sample(cpu_us, errors)})


ROUNDS: list[Round] = [
    {"nginx": a_proxy(20.0), "ridgeline": a_proxy(30.0)},
    {"nginx": a_proxy(10.0), "ridgeline": a_proxy(40.0, errors=3)},
    {"nginx": ProxyRound(errors={"start": "ended with code 1"}), "ridgeline": a_proxy(50.0)},
    {"nginx": a_proxy(20.0), "ridgeline": a_proxy(20.0)},
]


def a_run(rounds: list[Round]) -> Run:
    machine = Machine(
        processor="one", cores=2, memory_bytes=1 << 30, kernel="6", system="linux", python="3", libraries={}, compiler="cc"
    )
    return Run(
        command="python -m benchmarks",
        started="2026-01-01 00:00",
        machine=machine,
        versions={"nginx": "1", "ridgeline": "2"},
        cores={"proxies": 0, "load": 1},
        scale=1.0,
        idle_seconds=10.0,
        workloads=WORKLOADS,
        rounds=rounds,
    )


def test_ratios_are_taken_within_a_round() -> None:
    """A ratio compares two figures of one round, and a round that lacks either has none."""
    assert ratios(ROUNDS, "ridgeline", "nginx", PACED) == [1.5, 4.0, 1.0]
    assert ratios(ROUNDS, "ridgeline", "haproxy", PACED) == []


def test_costs_are_those_that_were_measured() -> None:
    """A round in which a proxy did not start adds nothing to its figures."""
    assert costs(ROUNDS, "nginx", PACED) == [20.0, 10.0, 20.0]
    assert costs(ROUNDS, "nginx", "another") == []


def test_the_split_is_by_role() -> None:
    """What the processes of one role cost is the median over the rounds, and a role that is not there costs nothing."""
    assert cost_of_role(ROUNDS, "ridgeline", PACED, "serving") == "26.2"
    assert cost_of_role(ROUNDS, "ridgeline", PACED, "supervisor") == "0.00"


def test_a_run_that_was_written_can_be_gone_on_with() -> None:
    """What is read is what was written; rounds under other conditions are told."""
    run = a_run(ROUNDS)

    earlier = read_json(write_json(run))

    assert earlier == run
    assert other_conditions(run, earlier) == []
    assert other_conditions(run, replace(earlier, scale=0.5, versions={"nginx": "2"})) == ["versions", "scale"]


@pytest.mark.parametrize(
    ("figures", "text"),
    [([], "-"), ([12.34], "12.3"), ([3.0, 1.0, 2.0], "2.00 (1.00 to 3.00)"), ([1500.0, 99.96], "800 (100.0 to 1,500)")],
)
def test_spread(figures: list[float], text: str) -> None:
    """Several figures show their median, least and most; one shows itself, and none a dash."""
    assert spread(figures) == text


def test_the_report_names_what_went_wrong() -> None:
    """A proxy that did not start and answers that were not whole are listed with their round; the rest is still reported."""
    report = write_report(a_run(ROUNDS), "ridgeline")

    assert "- round 3, nginx, start: ended with code 1" in report
    assert f"- round 2, ridgeline, {PACED}: 3 of 400 answers were not whole" in report
    assert "20.0 (10.0 to 20.0)" in report
    assert "1.50 (1.00 to 4.00)" in report


def test_a_report_of_failures_alone() -> None:
    """When nothing could be measured there is still a report."""
    broken = ProxyRound(errors={"start": "no answer"})

    assert "no answer" in write_report(a_run([{"nginx": broken, "ridgeline": broken}]), "ridgeline")


def test_json_holds_the_raw_figures() -> None:
    """The figures of each round, the machine and the command come back from the JSON as they were."""
    run = a_run(ROUNDS)

    assert msgspec.json.decode(write_json(run), type=Run) == run
