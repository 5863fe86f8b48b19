"""Faults of workers, reloads and kills of the gateway's own processes under mixed traffic: the books agree afterwards."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.client import Verdict
from tests.soak.balance import FINISHED
from tests.soak.disturbing import Kind
from tests.soak.run import OTHER, run_soak


@pytest.mark.parametrize(("kills", "seconds"), [(True, 20.0), (False, 12.0)], ids=["with kills", "nothing killed"])
async def test_clients_counters_log_and_workers_agree_after_trouble(*, kills: bool, seconds: float) -> None:
    """Every answer is its own client's, nothing is left in flight, and where nothing was killed all totals are equal."""
    soaked = await run_soak(seconds=seconds, per_second=15.0, seed=7, kills=kills, lasts=(2.0, 3.0))

    assert soaked.failures == []
    assert sum(one.result.verdict is Verdict.SERVED for one in soaked.sent) > seconds * 7
    assert any(one.result.verdict is Verdict.LEFT for one in soaked.sent)
    assert any(one.is_limited for one in soaked.sent)
    assert any(one.kind is Kind.RELOAD for one in soaked.disturbances)
    assert Counter(one.kind for one in soaked.killed) == ({Kind.KILL_SERVING: 1, Kind.KILL_CONTROL: 1} if kills else {})
    if not kills:
        # whether a worker had finished the answer that its client left can be either
        assert {one.name for one in soaked.checks if one.may_differ_by} <= {f"{FINISHED}{worker}" for worker in OTHER}
