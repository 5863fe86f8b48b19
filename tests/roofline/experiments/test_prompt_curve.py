"""The curve of TTFT over prompt length."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest

from roofline.experiments.least_squares import Refused, Timed
from roofline.experiments.prompt_curve import PromptCurve, prompt_curve

LENGTHS = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192)


def times(base: float, linear: float, square: float, chunk: tuple[int, float] | None = None) -> list[Timed]:
    size, each = chunk or (1 << 30, 0.0)
    return [Timed(s, base + linear * s + square * s * s + each * (ceil(s / size) - 1)) for s in LENGTHS]


def test_the_three_terms_come_back() -> None:
    """What is paid once, by token and by token squared; attention crosses where the last two are even."""
    curve = prompt_curve(times(0.010, 30e-6, 0.6e-9))

    assert isinstance(curve, PromptCurve)
    assert curve.base_seconds.value == pytest.approx(0.010)
    assert curve.linear_seconds.value == pytest.approx(30e-6)
    assert curve.quadratic_seconds.value == pytest.approx(0.6e-9)
    assert curve.crossing_tokens == pytest.approx(50_000)
    assert curve.chunks is None
    assert curve.attention_ratio(8192) == pytest.approx(0.0403 / (0.010 + 0.2458 + 0.0403), rel=0.01)


def test_chunking_is_not_taken_for_attention() -> None:
    """A jump at every 2,048 tokens is found as such, and the square stays what it is."""
    curve = prompt_curve(times(0.010, 30e-6, 0.6e-9, (2048, 0.020)))

    assert isinstance(curve, PromptCurve)
    assert curve.chunks is not None
    assert curve.chunks.tokens == 2048
    assert curve.chunks.seconds.value == pytest.approx(0.020)
    assert curve.quadratic_seconds.value == pytest.approx(0.6e-9)
    assert curve.seconds(3000) == pytest.approx(0.010 + 30e-6 * 3000 + 0.6e-9 * 9e6 + 0.020)


def test_noise_makes_no_chunks() -> None:
    """Of a hundred noisy curves without chunks hardly one is said to have some."""
    random = Random(3)
    seen = 0
    for _ in range(100):
        noisy = [Timed(one.count, one.seconds * (1 + random.gauss(0, 0.02))) for one in times(0.010, 30e-6, 0.6e-9)]
        curve = prompt_curve(noisy)
        assert isinstance(curve, PromptCurve)
        seen += curve.chunks is not None

    assert seen <= 6


def test_without_a_square_nothing_crosses() -> None:
    """Where attention does not show there is no length at which it takes over."""
    curve = prompt_curve(times(0.010, 30e-6, 0.0))

    assert isinstance(curve, PromptCurve)
    assert curve.crossing_tokens is None


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (times(0.01, 3e-5, 0.0)[:3], "3 prompt lengths"),
        (times(0.01, 3e-5, 0.0)[-4:], "too narrow"),
        (times(0.01, 0.0, 0.0), "does not grow"),
        (times(0.5, -1e-5, 0.0), "does not grow"),
    ],
)
def test_what_is_no_curve_is_refused(measured: list[Timed], reason: str) -> None:
    """Too few lengths, too close together, or TTFT that has nothing to do with the prompt."""
    found = prompt_curve(measured)

    assert isinstance(found, Refused)
    assert reason in found.reason
