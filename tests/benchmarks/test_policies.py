"""The comparison of policies says what docs/routing.md says, on fewer requests."""

from __future__ import annotations

import pytest

from benchmarks import policies, pools
from simulator import traces
from simulator.arrivals import Poisson

PLACEMENT = policies.hardware()
GUIDANCE = policies.guidance_for(PLACEMENT)


@pytest.mark.parametrize("workload", [one for one in policies.WORKLOADS if one.name in ("chat", "agents")])
def test_conversations_find_their_cache_again(workload):
    """By affinity far more of the prompts is cached than by load, and first tokens come sooner; load stays bounded."""
    arrivals = workload.arrivals(600, 3)
    by_load = policies.run("least-load", arrivals, PLACEMENT, 8, GUIDANCE)
    for policy in ("prefix-affinity", "session"):
        found = policies.run(policy, arrivals, PLACEMENT, 8, GUIDANCE)
        assert found.hit_ratio > by_load.hit_ratio + 0.15
        assert found.ttft_p50 < 0.75 * by_load.ttft_p50
        assert found.ttft_p99 < by_load.ttft_p99
        assert found.imbalance_ratio < 2.0


def test_nothing_in_common_costs_little():
    """Where no prompt resembles another, affinity is about as fast as least load."""
    arrivals = policies.WORKLOADS[-1].arrivals(1500, 3)
    by_load, found = (policies.run(policy, arrivals, PLACEMENT, 8, GUIDANCE) for policy in ("least-load", "prefix-affinity"))

    assert found.hit_ratio == by_load.hit_ratio == 0.0
    assert found.ttft_p50 < 1.15 * by_load.ttft_p50
    assert found.tpot_p99 < 1.15 * by_load.tpot_p99


def test_a_pool_of_their_own_keeps_short_requests_smooth():
    """Beside long prompts their TPOT P99 is over three times the median; apart from them at most one and a half times."""
    arrivals = traces.mixed(800, Poisson(per_second=4.0), seed=3)
    together, apart = (pools.run(pools.layout(8, short), arrivals, PLACEMENT) for short in (None, 2))

    assert together.kinds["short"].stall_ratio > 3.0
    assert apart.kinds["short"].stall_ratio <= 1.5
    assert apart.tokens_per_second > 0.95 * together.tokens_per_second


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]):
    """A line for each policy on each workload, and one for each layout at each rate."""
    assert policies.main(["--requests", "30", "--workers", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 4 * 6
    assert pools.main(["--requests", "30", "--workers", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 * 4
