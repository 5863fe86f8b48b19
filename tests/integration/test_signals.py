"""Signals and configurations at random moments: every gateway ends as it should and leaves nothing behind."""

from __future__ import annotations

from tests.soak.signals import run_rounds


async def test_a_gateway_ends_well_whatever_is_done_to_it_and_when() -> None:
    """Its code is right, no process, directory or address is left, and what came in time is served and logged."""
    rounds = await run_rounds(seconds=60.0, seed=11, most=4)

    assert [fault for each in rounds for fault in each.faults] == []
    assert any(each.up_at is not None for each in rounds)
    assert any(one.is_whole for each in rounds for one in each.asked)
