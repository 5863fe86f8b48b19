"""A calibration for the gateway from what a probe measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.control.calibrating import Calibrations, key_of
from proxy.probing.answer import Measured
from proxy.probing.calibration import CalibrationError, reference_of, samples_of, write_reference
from proxy.probing.design import Experiment
from proxy.probing.expectations import Expectation, expectation_of
from roofline.calibration.sample import Figure
from tests.proxy.probing.bursts import a_burst, an_answer

HELD = expectation_of("h100-sxm", "llama-3.1-8b")


def as_fast_as(factor: float, held: Expectation = HELD, repeats: int = 6) -> list[Measured]:
    """A worker that takes so many times as long as expected, and says what it had cached."""
    measured = []
    for _ in range(repeats):
        for prompt in (256, 1024, 4096, 8192):
            for cached in (0, prompt - 16):
                ttft = factor * held.ttft(prompt, cached).expected_seconds
                tpot = factor * held.tpot(prompt, 64).expected_seconds
                answer = an_answer(ttft, tpot, prompt, 64, cached=cached)
                measured.append(a_burst(Experiment.PROMPT, [answer], prompt=prompt, output=64, is_warm=cached > 0))
        for requests in (4, 16, 32):
            tpot = factor * held.tpot(2048, 64, requests).expected_seconds
            answers = [an_answer(0.1, tpot, 2048, 64) for _ in range(requests)]
            measured.append(a_burst(Experiment.CONCURRENCY, answers, prompt=2048, output=64, is_warm=True))
    return measured


def test_losses_of_the_worker_come_back() -> None:
    """One that is 20 % slower than expected in everything has shares that are a sixth smaller."""
    reference = reference_of(as_fast_as(1.2), HELD, now_unix_seconds=1.0)

    assert reference.losses.compute_efficiency_ratio == pytest.approx(HELD.losses.compute_efficiency_ratio / 1.2, rel=0.03)
    assert reference.losses.memory_efficiency_ratio == pytest.approx(HELD.losses.memory_efficiency_ratio / 1.2, rel=0.05)


def test_the_gateway_reads_what_is_written(tmp_path: Path) -> None:
    """Under the key that it has for such workers; another worker's reference in the file stays."""
    path = tmp_path / "calibrations.json"
    other = expectation_of("h200-sxm", "llama-3.1-8b")

    assert write_reference(path, reference_of(as_fast_as(1.1, other), other, now_unix_seconds=1.0)) == 0
    assert write_reference(path, reference_of(as_fast_as(1.2), HELD, now_unix_seconds=2.0)) == 1
    assert write_reference(path, reference_of(as_fast_as(1.3), HELD, now_unix_seconds=3.0)) == 1  # replaced, not added
    known = Calibrations(path)

    assert known.has_reference(key_of(HELD.deployment))
    assert known.has_reference(key_of(other.deployment))
    losses = known.losses_of(key_of(HELD.deployment))
    assert losses.compute_efficiency_ratio == pytest.approx(HELD.losses.compute_efficiency_ratio / 1.3, rel=0.03)


@pytest.mark.parametrize(
    ("measured", "why"),
    [(as_fast_as(1.0)[:3], "too few"), (as_fast_as(1.0, repeats=1), "are needed"), (as_fast_as(3.0), "slower")],
)
def test_what_leaves_doubts_is_not_written(measured: list[Measured], why: str) -> None:
    """Too little, or a worker that is far too slow: its fault would become the measure."""
    with pytest.raises(CalibrationError, match=why):
        reference_of(measured, HELD, now_unix_seconds=1.0)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """Somebody meant another one."""
    path = tmp_path / "notes.json"
    path.write_text('{"a": 1}')

    with pytest.raises(CalibrationError, match=r"notes\.json is there and no file of calibrations"):
        write_reference(path, reference_of(as_fast_as(1.2), HELD, now_unix_seconds=1.0))
    assert path.read_text() == '{"a": 1}'


def test_a_first_token_among_others_is_no_sample() -> None:
    """It waited for others' prompts. A warm one whose hit is not told is none either."""
    crowd = a_burst(Experiment.CONCURRENCY, [an_answer(0.1, 0.01, 512, 64)] * 4, prompt=512, output=64)
    untold = a_burst(Experiment.PROMPT, [an_answer(0.1, 0.01, 512, 64, cached=None)], prompt=512, output=64, is_warm=True)

    assert {sample.figure for sample in samples_of([crowd, untold], HELD)} == {Figure.TPOT}
