"""What ran beside a request, from two readings of its worker's ledger."""

from __future__ import annotations

from array import array

import pytest

from proxy.upstream.ledger import Ledger, Stay, beside
from proxy.upstream.load import Block
from telemetry.catalog import Scope
from telemetry.layout import BLOCK_CELLS, offset

IN_FLIGHT = offset("ridgeline_in_flight_requests")
PENDING = offset("ridgeline_ledger_pending_prompt_tokens")
PROMPTS = offset("ridgeline_ledger_prompt_tokens")


class _Worker:
    """One worker's block in the arrays of so many processes, and requests that come and go there."""

    def __init__(self, processes: int = 1) -> None:
        self.arrays = [memoryview(array("d", [0.0] * BLOCK_CELLS[Scope.WORKER])) for _ in range(processes)]
        self.block = Block(0, ("m", "p"), 0)
        self.ledgers = [Ledger(array_, tuple(other for other in self.arrays if other is not array_)) for array_ in self.arrays]

    def begin(self, prompt_tokens: int, now: float, process: int = 0) -> Stay:
        stay = self.ledgers[process].add(self.block, prompt_tokens, now)
        self.arrays[process][IN_FLIGHT] += 1
        return stay

    def end(self, stay: Stay, now: float, process: int = 0) -> None:
        self.ledgers[process].remove(stay, now)
        self.arrays[process][IN_FLIGHT] -= 1


def test_alone_nothing_ran_beside_it():
    """One request sees nobody, however long it is there."""
    worker = _Worker()
    stay = worker.begin(100, 10.0)
    worker.end(stay, 14.0)

    assert stay.ended is not None
    assert beside(stay.begun, stay.ended, 100) == pytest.approx((0.0, 0.0, 0.0))


@pytest.mark.parametrize("processes", [1, 2])
def test_means_are_exact_whatever_process_served_the_others(processes):
    """Two others, one for half the time and one for a quarter of it: 0.75 in the mean, their prompts weighed by their time."""
    worker = _Worker(processes)
    stay = worker.begin(100, 10.0)
    one = worker.begin(1000, 12.0, processes - 1)
    worker.ledgers[0].note_answer(stay, 12.0)
    two = worker.begin(4000, 13.0, processes - 1)
    worker.end(two, 14.0, processes - 1)
    worker.end(one, 14.0, processes - 1)
    worker.end(stay, 14.0)

    assert stay.answer_began is not None
    assert stay.ended is not None
    assert beside(stay.begun, stay.answer_began, 100) == pytest.approx((0.0, 0.0, 1000.0))
    assert beside(stay.answer_began, stay.ended, 100) == pytest.approx((1.5, 2000.0, 4000.0))
    whole = beside(stay.begun, stay.ended, 100)
    assert whole == pytest.approx((0.75, 2000.0, 5000.0))


def test_what_waits_ahead_is_what_has_no_answer_yet():
    """A prompt is ahead of those who come later until its own answer begins, or it leaves."""
    worker = _Worker()
    answered, leaves = worker.begin(300, 1.0), worker.begin(20, 1.5)
    assert leaves.begun[4] == 300

    worker.ledgers[0].note_answer(answered, 2.0)
    worker.ledgers[0].note_answer(answered, 2.5)  # told twice, counted once
    assert worker.begin(5, 3.0).begun[4] == 20
    worker.end(leaves, 4.0)
    worker.end(answered, 4.0)

    assert worker.arrays[0][PENDING] == 5
    assert worker.arrays[0][PROMPTS] == 5


def test_no_time_is_no_mean():
    """Two readings at one instant say nothing."""
    worker = _Worker()
    stay = worker.begin(1, 1.0)
    worker.end(stay, 1.0)

    assert stay.ended is not None
    assert beside(stay.begun, stay.ended, 1) is None


def test_a_removed_worker_has_no_ledger():
    """A reload that takes the worker away leaves the request without figures, and writes nothing where others are now."""
    worker = _Worker()
    stay = worker.begin(50, 1.0)
    worker.block.is_live = False
    worker.ledgers[0].note_answer(stay, 2.0)
    worker.end(stay, 3.0)

    assert stay.ended is stay.answer_began is None
    assert worker.arrays[0][PENDING] == 50


def test_a_prompt_that_another_worker_computes_holds_up_nobody():
    """It is in flight with its context, and no prompt that was sent here or waits ahead of anybody; nor does it see itself."""
    worker = _Worker()
    ledger = worker.ledgers[0]
    watcher = worker.begin(10, 10.0)
    away = worker.begin(5000, 11.0)
    ledger.compute_elsewhere(away)
    later = worker.begin(300, 12.0)
    assert later.begun[4] == 10
    ledger.note_answer(away, 13.0)
    for stay in (later, away, watcher):
        worker.end(stay, 14.0)

    assert watcher.ended is not None
    assert away.ended is not None
    assert beside(watcher.begun, watcher.ended, 10) == pytest.approx((1.25, (3 * 5000 + 2 * 300) / 4 / 1.25, 300.0))
    assert beside(away.begun, away.ended, 5000) == pytest.approx((5 / 3, (3 * 10 + 2 * 300) / 3 / (5 / 3), 300.0))
    assert worker.arrays[0][PENDING] == worker.arrays[0][PROMPTS] == 0


def test_a_prompt_that_comes_back_is_computed_here_from_then_on():
    """Once, however often it is said, and it is gone with the request; of a removed worker nothing is said any more."""
    worker = _Worker()
    ledger = worker.ledgers[0]
    watcher, away = worker.begin(10, 10.0), worker.begin(5000, 11.0)
    ledger.compute_elsewhere(away)
    ledger.compute_here(away)
    ledger.compute_here(away)
    assert worker.begin(1, 12.0).begun[4] == 5010
    worker.end(away, 14.0)
    worker.end(watcher, 14.0)

    assert watcher.ended is not None
    assert away.ended is not None
    assert (beside(watcher.begun, watcher.ended, 10) or (0, 0, 0))[2] == 5001
    assert (beside(away.begun, away.ended, 5000) or (0, 0, 0))[2] == 1
    assert worker.arrays[0][PENDING] == 1
    worker.block.is_live = False
    ledger.compute_elsewhere(watcher)
    assert worker.arrays[0][PENDING] == 1
