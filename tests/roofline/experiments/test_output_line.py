"""The line of total time over output length."""

from __future__ import annotations

import pytest

from roofline.experiments.least_squares import Refused, Timed
from roofline.experiments.output_line import OutputLine, output_line


def times(outputs: tuple[int, ...], first: float, each: float) -> list[Timed]:
    return [Timed(tokens, first + each * (tokens - 1)) for tokens in outputs]


def test_intercept_is_the_first_token_and_slope_each_further_one() -> None:
    """The line is over output - 1, so the intercept is TTFT itself."""
    line = output_line(times((16, 64, 256, 512), 0.080, 0.010))

    assert isinstance(line, OutputLine)
    assert line.ttft_seconds.value == pytest.approx(0.080)
    assert line.tpot_seconds.value == pytest.approx(0.010)
    assert line.even_tokens == pytest.approx(9.0)
    assert line.prefill_ratio(9) == pytest.approx(0.5)
    assert line.prefill_ratio(1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (times((16, 64), 0.1, 0.01), "2 output lengths"),
        (times((16, 17, 18), 0.1, 0.01), "too narrow"),
        (times((16, 64, 256), 0.1, 0.0), "does not grow"),
        ([Timed(16, 0.1), Timed(64, 0.9), Timed(256, 0.2)], "does not grow"),
        ([], "0 output lengths"),
    ],
)
def test_what_is_no_line_is_refused(measured: list[Timed], reason: str) -> None:
    """Too few lengths, too close together, or times that do not depend on them."""
    found = output_line(measured)

    assert isinstance(found, Refused)
    assert reason in found.reason
