"""Workers that slow down are found out, and healthy ones left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import log
from random import Random

import pytest

from roofline.calibration.calibration import Calibration, Fit
from roofline.calibration.drift import Drift, Shift, drift
from roofline.calibration.reference import Reference, accept, reference_in_force
from roofline.calibration.sample import Figure
from tests.roofline.synthetic_workers import (
    DEFAULTS,
    KEY,
    Request,
    SyntheticWorker,
    calibrated,
    losses_off_by,
    mixed_request,
    same_request,
)


def fit_of(calibration: Calibration) -> Fit:
    fit = calibration.fit()
    assert fit is not None
    return fit


@cache
def healthy_reference() -> Reference:
    return accept(fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(1)), 1000)), accepted_unix_seconds=0.0)


def drift_of(worker: SyntheticWorker, requests: int = 1000) -> Drift:
    return drift(healthy_reference(), fit_of(calibrated(worker, requests)))


def width(shift: Shift | None) -> float:
    assert shift is not None
    return log(shift.high_ratio / shift.low_ratio)


def course(
    worker: SyntheticWorker,
    requests: int,
    slowness: Callable[[int], float] = lambda _: 1.0,
    request: Callable[[Random], Request] = mixed_request,
    reference: Reference | None = None,
) -> Iterator[tuple[int, Reference, Drift]]:
    """What is seen every 100 requests by someone who keeps the reference in force."""
    calibration = Calibration(KEY, DEFAULTS)
    pool = [request(worker.random) for _ in range(500)]
    for number in range(1, requests + 1):
        worker.slowness = slowness(number)
        for sample in worker.samples(worker.random.choice(pool)):
            calibration.add(sample)
        if number % 100 == 0:
            fit = fit_of(calibration)
            reference = reference_in_force(reference, KEY, fit, now_unix_seconds=float(number))
            if reference is not None:
                yield number, reference, drift(reference, fit)


@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_a_healthy_worker_never_drifts(spread: float) -> None:
    """10,000 samples with noise and a quarter of them stuck: no drift at any time, in neither direction."""
    worker = SyntheticWorker(losses_off_by(0.8, 1.2, 1.1, 0.01), Random(3), spread=spread)
    seen = list(course(worker, 5000))

    assert len(seen) > 40
    assert not any(found.is_drifting for _, _, found in seen)


def test_a_worker_that_slows_down_over_hours_is_reported() -> None:
    """From 1 to 2 times as slow over 12,000 samples: found before 1.7, the end seen as above 1.7, the reference unmoved."""
    worker = SyntheticWorker(DEFAULTS, Random(4))
    seen = list(course(worker, 6000, lambda number: 1.0 + max(0, number - 1000) / 5000))
    first_found = next(number for number, _, found in seen if found.is_drifting)
    _, last_reference, last = seen[-1]

    assert 1000 < first_found < 4500
    assert {id(reference) for _, reference, _ in seen} == {id(last_reference)}
    assert last.is_slower
    assert last.ttft is not None
    assert last.tpot is not None
    assert 1.7 < last.ttft.ratio < 2.0
    assert 1.7 < last.tpot.ratio < 2.0


def test_a_worker_at_a_single_operating_point_is_watched_too() -> None:
    """Its reference had to be accepted by hand; from then on it is compared like any other."""
    worker = SyntheticWorker(DEFAULTS, Random(5))
    by_hand = accept(fit_of(calibrated(worker, 1000, same_request)), accepted_unix_seconds=0.0)

    *_, (_, _, healthy) = course(worker, 1000, request=same_request, reference=by_hand)
    *_, (_, _, slow) = course(worker, 1000, lambda _: 1.5, same_request, by_hand)

    assert not healthy.is_drifting
    assert slow.is_slower


@pytest.mark.parametrize(("slowness", "direction"), [(1.5, "slower"), (1.0, None), (0.6, "faster")])
def test_both_directions_are_told(slowness: float, direction: str | None) -> None:
    """A worker that became faster has changed as well (a new driver, another model behind the same name)."""
    found = drift_of(SyntheticWorker(DEFAULTS, Random(6), slowness=slowness))

    assert (found.ttft_direction, found.tpot_direction) == (direction, direction)
    assert found.is_drifting == (direction is not None)
    assert found.is_slower == (direction == "slower")
    assert found.tpot is not None
    assert found.tpot.low_ratio < slowness < found.tpot.high_ratio


def test_the_figures_drift_apart() -> None:
    """Memory half as fast: TPOT tells, TTFT, mostly bound by compute, less so."""
    found = drift_of(SyntheticWorker(losses_off_by(memory=0.5), Random(7)))

    assert found.tpot is not None
    assert found.ttft is not None
    assert found.tpot_direction == "slower"
    assert found.tpot.ratio > 1.2 * found.ttft.ratio


def test_only_the_work_of_late_is_compared() -> None:
    """Short prompts after long ones: what was calibrated on long ones holds, with a wider interval where nothing was seen."""
    random = Random(8)

    def long_prompt(_: Random) -> Request:
        request = mixed_request(random)
        return replace(request, prompt_tokens=request.prompt_tokens + 5000, cached_tokens=0)

    def short_prompt(_: Random) -> Request:
        request = mixed_request(random)
        return replace(request, prompt_tokens=50 + request.prompt_tokens % 100, cached_tokens=0)

    worker = SyntheticWorker(losses_off_by(0.8, 1.2), random)
    reference = accept(fit_of(calibrated(worker, 1000, long_prompt)), accepted_unix_seconds=0.0)
    familiar = drift(reference, fit_of(calibrated(worker, 1000, long_prompt))).ttft
    strange = drift(reference, fit_of(calibrated(worker, 1000, short_prompt)))

    assert width(strange.ttft) > 1.3 * width(familiar)
    assert not strange.is_drifting


def test_an_unsure_reference_makes_an_unsure_drift() -> None:
    """What the reference may be off by itself is part of every interval."""
    fit = fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(12)), 500))
    rough = drift(replace(healthy_reference(), prediction_error_ratio=0.2), fit)

    assert width(rough.tpot) > 2 * width(drift(healthy_reference(), fit).tpot)


def test_points_that_disagree_make_an_unsure_drift() -> None:
    """Half of the operating points slower and half faster is no certainty about the mean."""
    fit = fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(13)), 500))
    torn = tuple(
        replace(point, measured_seconds=point.measured_seconds * (1.5 if number % 2 else 0.7))
        for number, point in enumerate(fit.points)
    )

    found = drift(healthy_reference(), replace(fit, points=torn))

    assert width(found.tpot) > 1.5 * width(drift(healthy_reference(), fit).tpot)


def test_more_stuck_requests_are_shown_beside() -> None:
    """The bulk is as fast as ever, but 30 % instead of 5 % get stuck: no drift, and both shares are there to compare."""
    before = fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(9), outliers=0.05), 1000))
    after = fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(9), outliers=0.3), 1000))
    found = drift(accept(before, accepted_unix_seconds=0.0), after)

    assert not found.is_drifting
    assert found.reference_outlier_ratio < 0.1
    assert 0.25 < found.outlier_ratio < 0.35


def test_figures_that_one_side_lacks_are_not_compared() -> None:
    """A reference of TPOT alone says nothing about TTFT, and neither do recent samples without it."""
    fit = fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(10)), 500))
    lone = replace(healthy_reference(), coverage={Figure.TPOT: healthy_reference().coverage[Figure.TPOT]})
    silent = replace(fit, points=tuple(point for point in fit.points if point.figure is Figure.TTFT))

    assert drift(lone, fit).ttft is None
    assert drift(lone, fit).tpot is not None
    assert drift(healthy_reference(), silent).tpot is None
    assert not drift(lone, silent).is_drifting


SLOW = Shift(ratio=1.4, low_ratio=1.2, high_ratio=1.6, samples=50.0)


@pytest.mark.parametrize(
    ("shift", "direction"),
    [
        (SLOW, "slower"),
        (replace(SLOW, low_ratio=1.14), None),
        (replace(SLOW, samples=49.0), None),
        (Shift(ratio=0.7, low_ratio=0.6, high_ratio=0.85, samples=50.0), "faster"),
        (Shift(ratio=0.8, low_ratio=0.6, high_ratio=0.88, samples=50.0), None),
        (None, None),
    ],
)
def test_a_drift_is_sure_or_none(shift: Shift | None, direction: str | None) -> None:
    """The whole interval lies beyond the threshold, and there are enough samples."""
    found = Drift(
        ttft=None, tpot=shift, outlier_ratio=0.0, reference_outlier_ratio=0.0, threshold_ratio=1.15, least_samples=50.0
    )

    assert found.tpot_direction == direction
    assert found.ttft_direction is None


def test_a_reference_of_something_else_is_refused() -> None:
    """Two engine versions are two workers."""
    fit = fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(11)), 100, key=replace(KEY, engine_version="0.12.0")))

    with pytest.raises(ValueError, match="says nothing about"):
        drift(healthy_reference(), fit)


@pytest.mark.parametrize("threshold", [1.0, 0.5, float("nan")])
def test_the_threshold_is_above_one(threshold: float) -> None:
    """Below, everything would drift."""
    fit = fit_of(calibrated(SyntheticWorker(DEFAULTS, Random(1)), 100))

    with pytest.raises(ValueError, match="a ratio above 1"):
        drift(healthy_reference(), fit, threshold_ratio=threshold)
