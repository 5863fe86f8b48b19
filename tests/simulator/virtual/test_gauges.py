"""What a gateway learns of the others' work from the gauges of a simulated fleet."""

from __future__ import annotations

from routing.topology import Model, Pool
from simulator.draws import Draws
from simulator.virtual.gauges import PERIOD_SECONDS, Gauges
from simulator.virtual.routing import workers_named

NAMED = workers_named(["w-0", "w-1", "w-2", "w-3"])
MODEL = Model(index=0, name="m", aliases=(), pools=(Pool(index=0, model="m", name="default", workers=NAMED),))


def test_a_worker_is_known_once_it_was_asked_and_as_it_was_then() -> None:
    """Each is asked once a period, at a time of its own; it is looked once a second who is above its share."""
    gauges = Gauges(MODEL, [0, 0, 0, 5], [0, 0, 0, 500], Draws(1))
    gauges.note(100.0)

    gauges.read([9, 9, 9, 9], 0.0)
    assert gauges.crowded(1.0) == {}  # nobody has been asked
    gauges.read([0, 40, 0, 5], PERIOD_SECONDS)

    crowded = {1: 4000.0 - 1.25 * 4500.0 / 4 - 200.0}
    assert PERIOD_SECONDS < gauges.next_at < 1.2 * PERIOD_SECONDS
    assert gauges.crowded(1.9) == {}
    assert gauges.crowded(PERIOD_SECONDS) == crowded
    gauges.read([0, 0, 0, 5], gauges.next_at - 0.001)
    assert gauges.crowded(PERIOD_SECONDS + 1.0) == crowded  # as it was then
    gauges.read([0, 0, 0, 5], 2.2 * PERIOD_SECONDS)
    assert gauges.crowded(2.2 * PERIOD_SECONDS) == {}
