"""A bounded memory of samples, sorted by how much work they were, so that the many do not push out the telling few.

Samples whose expected time under the defaults is nearly the same, with the same side of the roofline above the other, share a
cell. Each cell keeps so many of its samples; age counts against them, and of those that come in quick succession only some are
kept, so that a busy cell looks back as far as the half-life asks and not just over the last few seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, floor, log, log2, sqrt

from roofline.calibration.loss_fit import Constants, OperatingPoint
from roofline.calibration.robust_location import KNOWN_SPREAD_WEIGHT, Location, location, quantile
from roofline.calibration.sample import Figure, Parts, Sample

CELLS_PER_FIGURE = 20
SAMPLES_PER_CELL = 128
# A prompt may be 100,000 times another one, a decode step hardly ten times: cells of an octave, and of a sixth.
_CELLS_PER_OCTAVE: Mapping[Figure, float] = {Figure.TTFT: 1.0, Figure.TPOT: 6.0}
_HALF_LIVES_KEPT = 2.0  # how far a busy cell looks back
_COLUMNS = 6  # when, log of measured over default, and the four parts
_LEAST_WEIGHT = 0.5  # a cell that remembers less than half a sample says nothing any more
_USUAL_SPREAD_RATIO = 0.2  # of measurements at one operating point, before it can be estimated
_LOCATION_LOSS = 1.1  # the trimmed centre scatters so much more than the mean of as many clean samples


class _Cell:
    """Samples of one operating point, one after another in a ring."""

    __slots__ = ("kept", "next", "rows", "touched")

    def __init__(self) -> None:
        self.rows = array("d")
        self.next = 0  # where the ring is overwritten, once it is full
        self.touched = 0  # number of the last sample that belonged here
        self.kept = 0  # number of the last one that was kept

    def __repr__(self) -> str:
        return f"<_Cell {len(self.rows) // _COLUMNS} samples, the last was number {self.touched}>"

    def put(self, number: int, log_ratio: float, parts: Parts) -> None:
        self.kept = number
        row = (number, log_ratio, parts.compute_seconds, parts.memory_seconds, parts.layer_steps, parts.exchange_seconds)
        if self.is_full:
            self.rows[self.next : self.next + _COLUMNS] = array("d", row)
            self.next = (self.next + _COLUMNS) % len(self.rows)
        else:
            self.rows.extend(row)

    @property
    def is_full(self) -> bool:
        return len(self.rows) == SAMPLES_PER_CELL * _COLUMNS


@dataclass(frozen=True, slots=True)
class PointSamples:
    """An operating point with its samples: the logarithm of measured over expected under the defaults, and their weights.

    ``centre`` and ``spread``: where the bulk of those logarithms lies, and its standard deviation.
    """

    point: OperatingPoint
    log_ratios: tuple[float, ...]
    weights: tuple[float, ...]
    centre: float
    spread: float


class SampleMemory:
    """At most ``CELLS_PER_FIGURE`` x ``SAMPLES_PER_CELL`` samples of each figure (48 bytes each: 250 kB in all at most).

    A sample counts for 1, and for half as much after ``half_life_samples`` more. Where a new operating point finds no room,
    the one that was not seen for longest is forgotten.
    """

    __slots__ = ("_cells", "_defaults", "_half_life_samples", "_least_gap_samples", "taken")

    def __init__(self, defaults: Constants, half_life_samples: float) -> None:
        self._defaults = defaults
        self._half_life_samples = half_life_samples
        self._least_gap_samples = _HALF_LIVES_KEPT * half_life_samples / SAMPLES_PER_CELL
        self._cells: dict[Figure, dict[int, _Cell]] = {figure: {} for figure in Figure}
        self.taken = 0  # samples, whether still remembered or not

    def __repr__(self) -> str:
        cells = {str(figure): len(found) for figure, found in self._cells.items()}
        return f"<SampleMemory {self.taken} samples taken, cells {cells}>"

    def take(self, sample: Sample) -> None:
        """Remember one sample."""
        figure, parts = sample.figure, sample.parts
        ideal = self._defaults.seconds(figure, parts)
        is_compute = self._defaults.compute_factor * parts.compute_seconds > self._defaults.memory_factor * parts.memory_seconds
        place = 2 * floor(log2(ideal) * _CELLS_PER_OCTAVE[figure]) + is_compute
        self.taken += 1
        cells = self._cells[figure]
        cell = cells.get(place)
        if cell is None:
            if len(cells) == CELLS_PER_FIGURE:
                del cells[min(cells, key=lambda key: cells[key].touched)]
            cell = cells[place] = _Cell()
        cell.touched = self.taken
        if self.taken - cell.kept >= self._least_gap_samples or not cell.is_full:
            cell.put(self.taken, log(sample.measured_seconds / ideal), parts)

    def points(self) -> list[PointSamples]:
        """The operating points of what is still remembered, each figure's by rising work."""
        return [found for figure in Figure for found in self._points(figure)]

    def _points(self, figure: Figure) -> Iterable[PointSamples]:
        fading = log(2.0) / self._half_life_samples
        gathered = []
        for place in sorted(self._cells[figure]):
            rows = self._cells[figure][place].rows
            weights = [exp((number - self.taken) * fading) for number in rows[::_COLUMNS]]
            if sum(weights) >= _LEAST_WEIGHT:
                gathered.append((rows, weights, location(rows[1::_COLUMNS], weights, _USUAL_SPREAD_RATIO)))
        spreads = sorted((found.spread, found.weight) for *_, found in gathered if found.weight >= KNOWN_SPREAD_WEIGHT)
        usual = quantile(spreads, 0.5) if spreads else _USUAL_SPREAD_RATIO
        for rows, weights, found in gathered:
            is_sure = found.weight >= KNOWN_SPREAD_WEIGHT
            yield self._point(figure, rows, weights, found if is_sure else location(rows[1::_COLUMNS], weights, usual))

    def _point(self, figure: Figure, rows: array[float], weights: list[float], found: Location) -> PointSamples:
        compute, memory, layers, exchange = (
            sum(value * weight for value, weight in zip(rows[column::_COLUMNS], weights, strict=True)) / found.weight
            for column in range(2, _COLUMNS)
        )
        parts = Parts(compute, memory, layers, exchange)
        point = OperatingPoint(
            figure,
            parts,
            self._defaults.seconds(figure, parts) * exp(found.centre),
            _LOCATION_LOSS * found.spread * sqrt(sum(weight * weight for weight in weights)) / found.weight,
            found.weight,
        )
        return PointSamples(point, tuple(rows[1::_COLUMNS]), tuple(weights), found.centre, found.spread)
