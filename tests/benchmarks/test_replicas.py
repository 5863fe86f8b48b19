"""The comparison of numbers of gateways says what docs/replicas.md says, on fewer requests and workers."""

from __future__ import annotations

import pytest

from benchmarks import replicas
from benchmarks.policies import hardware

PLACEMENT = hardware()
CASES = {(case.traffic, case.policy): case for case in replicas.CASES}


def figures(traffic: str, policy: str, count: int) -> replicas.Result:
    case = CASES[traffic, policy]
    return replicas.run(case, count, requests=1500, workers=20, seed=1, placement=PLACEMENT)


def test_turns_by_other_gateways_find_their_cache() -> None:
    """By affinity nearly all go to the worker of the turn before, by load alone nearly none; hits are as with one gateway."""
    one, many = (figures("chat", "prefix-affinity", count) for count in (1, 10))
    by_load = figures("chat", "least-load", 10)

    assert one.agreement_ratio is None
    assert many.agreement_ratio is not None
    assert many.agreement_ratio > 0.97
    assert many.hit_ratio > one.hit_ratio - 0.02
    assert by_load.agreement_ratio is not None
    assert by_load.agreement_ratio < 0.2


def test_the_bound_of_load_wears_off_with_the_number_of_gateways() -> None:
    """One gateway sends a prompt that everybody sends on to others, each of many sees too little of it for that."""
    one, many = (figures("hot prompt", "prefix-affinity", count) for count in (1, 10))

    assert one.home_ratio < 0.95
    assert many.home_ratio > one.home_ratio
    assert many.peak_p50 > one.peak_p50
    assert one.hot_ttft_p99 is not None


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each number of gateways in each case, all with the same columns."""
    assert replicas.main(["--requests", "60", "--workers", "4", "--replicas", "1", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * len(replicas.CASES)
    assert {line.count("|") for line in lines} == {len(replicas.HEADS) + 1}
