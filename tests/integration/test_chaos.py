"""Everything goes wrong, one after another, under mixed load: nothing that could have been served is lost."""

from __future__ import annotations

import pytest

from tests.chaos.client import Verdict
from tests.chaos.run import run_chaos

pytestmark = pytest.mark.asyncio(loop_scope="function")


async def test_nothing_is_lost_or_wrong_while_workers_fail_one_after_another():
    """Workers are killed, hung, slowed, drained, removed: every answer is right as far as it goes, and only those are cut that
    had begun at a worker that died or hung."""
    report = await run_chaos(seconds=45.0, per_second=12.0, seed=3, lasts=(2.5, 4.0))

    assert [one for one in report.results if one.verdict in (Verdict.WRONG, Verdict.REFUSED)] == []
    assert report.unexplained() == []
    assert report.count(Verdict.SERVED) > 300
    assert report.in_flight == report.in_flight_tokens == 0
    assert report.records.total() == len(report.results)
