"""What a simulated worker counts."""

from __future__ import annotations

from simulator.metrics import HandlerStats, Histogram, HttpStats, Lag, Ledger


def test_a_value_on_a_bound_is_below_it():
    """Bounds are inclusive."""
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)

    assert histogram.counts == [1, 0, 0]
    assert repr(histogram) == "<Histogram 1 observations, sum 1>"


def test_requests_are_counted_by_path_method_and_kind_of_status():
    """Each path and method has counts of its own; all durations are in one histogram besides."""
    stats = HttpStats()
    stats.count("/a", "GET", 200, 0.2, 0, 10)
    stats.count("/a", "GET", 204, 0.2, 0, 10)
    stats.count("/a", "POST", 404, 0.2, 5, 10)

    assert stats.handlers["/a", "GET"].by_status == {"2xx": 2}
    assert stats.handlers["/a", "POST"].by_status == {"4xx": 1}
    assert (stats.handlers["/a", "GET"].response_bytes, stats.handlers["/a", "POST"].request_bytes) == (20, 5)
    assert sum(stats.durations.counts) == 3


def test_conditions_are_told_in_a_line():
    """What is counted says where it stands."""
    assert repr(Ledger()) == "<Ledger {'stop': 0, 'length': 0, 'abort': 0, 'error': 0, 'repetition': 0}>"
    assert repr(Lag()) == "<Lag <Histogram 0 observations, sum 0>, 0.000 s lost>"
    assert repr(HandlerStats()) == "<HandlerStats {}>"
    assert repr(HttpStats()) == "<HttpStats {}>"
