"""Rooflines of a whole and of its operators."""

from __future__ import annotations

import pytest

from roofline.bound import bound, operator_seconds
from roofline.work import Operator, Work
from tests.roofline.shapes import a_gpu

GPU = a_gpu(flop_per_second=100.0, bytes_per_second=10.0)


@pytest.mark.parametrize(
    ("flop", "moved", "seconds", "binds"), [(1_000, 50, 10.0, "compute"), (100, 500, 50.0, "memory"), (500, 50, 5.0, "memory")]
)
def test_the_slower_of_compute_and_memory_binds(flop: float, moved: float, seconds: float, binds: str) -> None:
    """At the ridge point both take the same time; above it compute binds, below it memory."""
    least = bound(Work((Operator("all", flop, moved, 100.0),), 1), GPU)

    assert (least.seconds, least.binds) == (seconds, binds)


def test_operators_run_at_their_own_peaks_one_after_another() -> None:
    """Work at a higher peak takes less of the same units."""
    least = bound(Work((Operator("a", 100, 0, 100.0), Operator("b", 100, 0, 200.0)), 1), GPU)

    assert least.compute_seconds == 1.5


def test_gpus_share_compute_and_bandwidth() -> None:
    """Pooled GPUs divide both times."""
    done = Work((Operator("all", 1_000, 500, 100.0),), 1)

    assert bound(done, GPU, 4).compute_seconds == bound(done, GPU).compute_seconds / 4
    assert bound(done, GPU, 4).memory_seconds == bound(done, GPU).memory_seconds / 4


def test_operator_by_operator_is_never_below_the_whole() -> None:
    """What one operator waits for memory another could have computed: the sum of single rooflines is no floor."""
    done = Work((Operator("a", 1_000, 0, 100.0), Operator("b", 0, 100, 100.0), Operator("a", 0, 5, 100.0)), 1)

    assert operator_seconds(done, GPU) == {"a": 10.5, "b": 10.0}
    assert bound(done, GPU).seconds == 10.5
