"""Random draws that stay the same for a seed, whatever the Python version: all are made of ``Random.random`` alone."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import cos, exp, log, pi, sin, sqrt
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Lognormal lengths in tokens, cut off at both ends."""

    median: float
    sigma: float  # standard deviation of the logarithm; 0: always the median
    least: int = 1
    most: int = 1_000_000

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.median <= 0 or self.sigma < 0:
            raise ValueError(f"lengths want 1 <= least <= most, a median above 0 and sigma at least 0, got {self}")


class Draws:
    """Draws from distributions. ``name`` keeps streams of one seed apart."""

    def __init__(self, seed: int, name: str = "") -> None:
        self._random = Random(f"{seed}:{name}").random  # noqa: S311 -- made-up traffic, not secrets
        self._spare: float | None = None  # normal draws come in pairs

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """From ``low`` to ``high``, which is not reached."""
        return low + (high - low) * self._random()

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count`` - 1."""
        return int(self._random() * count)

    def happens(self, ratio: float) -> bool:
        """True so often, 0-1."""
        return self._random() < ratio

    def streak(self, ratio: float, most: int) -> int:
        """How often in a row it happens, 0 to ``most``; nothing is drawn after that."""
        random, times = self._random, 0
        while times < most and random() < ratio:
            times += 1
        return times

    def exponential(self, mean: float) -> float:
        """Time to the next of events that come at random."""
        return -mean * log(1.0 - self._random())

    def normal(self) -> float:
        """Standard normal, by Box and Muller."""
        spare = self._spare
        if spare is not None:
            self._spare = None
            return spare
        radius, angle = sqrt(-2.0 * log(1.0 - self._random())), 2.0 * pi * self._random()
        self._spare = radius * sin(angle)
        return radius * cos(angle)

    def lognormal(self, median: float, sigma: float) -> float:
        """``sigma``: standard deviation of the logarithm."""
        return median * exp(sigma * self.normal())

    def gamma(self, shape: float, mean: float) -> float:
        """By Marsaglia and Tsang; below a shape of 1 by way of shape + 1."""
        if shape < 1.0:
            return self.gamma(shape + 1.0, mean * (shape + 1.0) / shape) * exp(log(1.0 - self._random()) / shape)
        third = shape - 1.0 / 3.0
        while True:
            draw = self.normal()
            cube = (1.0 + draw / sqrt(9.0 * third)) ** 3
            if cube > 0.0 and log(1.0 - self._random()) < 0.5 * draw * draw + third * (1.0 - cube + log(cube)):
                return third * cube * mean / shape

    def tokens(self, length: Length) -> int:
        """A length."""
        return min(length.most, max(length.least, round(self.lognormal(length.median, length.sigma))))


class Zipf:
    """Ranks from 0 to ``count`` - 1, where rank r comes as often as 1 / (r + 1) ** ``exponent``."""

    def __init__(self, count: int, exponent: float) -> None:
        self._steps = list(accumulate(1.0 / (rank + 1) ** exponent for rank in range(count)))

    def draw(self, draws: Draws) -> int:
        """One rank."""
        return bisect_right(self._steps, draws.uniform(0.0, self._steps[-1]))
