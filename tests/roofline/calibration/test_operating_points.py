"""What the memory of samples keeps, forgets and says."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from roofline.calibration.loss_fit import Constants
from roofline.calibration.operating_points import CELLS_PER_FIGURE, SAMPLES_PER_CELL, SampleMemory
from roofline.calibration.sample import Figure, Parts, Sample
from roofline.expected import DEFAULT_LOSSES

DEFAULTS = Constants.of(DEFAULT_LOSSES["vllm"], is_parallel=False)


def a_sample(memory_seconds: float = 0.01, slowness: float = 1.0, figure: Figure = Figure.TPOT) -> Sample:
    parts = Parts(memory_seconds / 100, memory_seconds, 0.0)
    return Sample(figure, parts, slowness * DEFAULTS.seconds(figure, parts))


def memory_of(*samples: Sample, half_life_samples: float = 1e9) -> SampleMemory:
    memory = SampleMemory(DEFAULTS, half_life_samples)
    for sample in samples:
        memory.take(sample)
    return memory


def test_a_point_says_where_the_bulk_lies() -> None:
    """Twenty samples twice as slow as the defaults, five of them stuck: a measured time of twice the default's."""
    samples = [a_sample(slowness=2.0 * exp(0.01 * (at % 5 - 2))) for at in range(15)] + [a_sample(slowness=12.0)] * 5
    (found,) = memory_of(*samples).points()

    assert found.point.figure is Figure.TPOT
    assert found.point.parts.memory_seconds == pytest.approx(0.01)
    assert found.point.measured_seconds == pytest.approx(2.0 * DEFAULTS.seconds(Figure.TPOT, found.point.parts), rel=0.01)
    assert found.point.samples == pytest.approx(20.0)
    assert len(found.log_ratios) == len(found.weights) == 20


def test_more_samples_make_a_point_surer() -> None:
    """The standard error falls with the root of the number."""
    random = Random(3)
    samples = [a_sample(slowness=exp(random.gauss(0, 0.2))) for _ in range(SAMPLES_PER_CELL)]
    few, many = (memory_of(*samples[:count]).points()[0].point for count in (len(samples) // 4, len(samples)))

    assert few.standard_error_ratio == pytest.approx(2 * many.standard_error_ratio, rel=0.4)
    assert many.standard_error_ratio == pytest.approx(0.2 / SAMPLES_PER_CELL**0.5, rel=0.4)


def test_other_work_is_another_point() -> None:
    """Figures, sizes, and the two sides of the roofline are kept apart, even where the time is the same."""
    heavy = Parts(0.01 * DEFAULTS.memory_factor / DEFAULTS.compute_factor, 0.001, 0.0)
    samples = [a_sample(), a_sample(0.02), a_sample(figure=Figure.TTFT), Sample(Figure.TPOT, heavy, 0.1)]

    assert len(memory_of(*samples).points()) == 4


def test_old_samples_fade() -> None:
    """After one half-life a sample counts for half; a point that counts for less than half a sample is gone."""
    quiet, busy = a_sample(0.1), a_sample(0.01)

    half = memory_of(*[quiet] * 4, *[busy] * 100, half_life_samples=100)
    gone = memory_of(*[quiet] * 4, *[busy] * 350, half_life_samples=100)

    assert [found.point.samples for found in half.points()][1] == pytest.approx(2.0, rel=0.02)
    assert len(gone.points()) == 1


def test_a_busy_point_looks_back_over_two_half_lives() -> None:
    """Of 100,000 samples alike some are kept, and they reach back as far as the half-life asks for."""
    half_life = 10 * SAMPLES_PER_CELL
    (found,) = memory_of(*[a_sample()] * 100_000, half_life_samples=half_life).points()

    assert len(found.weights) == SAMPLES_PER_CELL
    assert min(found.weights) == pytest.approx(0.25, rel=0.05)
    assert max(found.weights) == pytest.approx(1.0, rel=0.05)


def test_the_point_that_was_not_seen_for_longest_makes_room() -> None:
    """One operating point more than there is room for: the oldest goes, even if it had many samples."""
    sizes = [2.0**at for at in range(CELLS_PER_FIGURE + 1)]
    memory = memory_of(*[a_sample(sizes[0])] * 50, *(a_sample(size) for size in sizes[1:]))

    kept = [found.point.parts.memory_seconds for found in memory.points()]

    assert kept == pytest.approx(sizes[1:])


def test_memory_is_bounded() -> None:
    """However many samples of however many kinds: no more cells and rows than stated, 48 bytes a row."""
    random = Random(5)
    memory = memory_of(
        *(a_sample(10 ** random.uniform(-4, 2), figure=random.choice(list(Figure))) for _ in range(30_000)),
        half_life_samples=2000,
    )
    cells = [cell for cells in memory._cells.values() for cell in cells.values()]

    assert len(cells) <= 2 * CELLS_PER_FIGURE
    assert max(len(cell.rows) for cell in cells) <= SAMPLES_PER_CELL * 6
    assert sum(len(cell.rows) * cell.rows.itemsize for cell in cells) <= 250_000
