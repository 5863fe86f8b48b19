"""When a fit becomes the measure, and that nothing else does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf, nan
from random import Random

import pytest

from roofline.calibration.calibration import Fit
from roofline.calibration.loss_fit import Basis
from roofline.calibration.reference import AcceptanceRule, accept, doubts, reference_in_force
from tests.roofline.synthetic_workers import DEFAULTS, KEY, SyntheticWorker, calibrated, losses_off_by, same_request

NOW = 1_700_000_000.0


@cache
def good_fit(slowness: float = 1.0) -> Fit:
    fit = calibrated(SyntheticWorker(losses_off_by(0.9, 1.1), Random(1), slowness=slowness), 500).fit()
    assert fit is not None
    return fit


def test_an_accepted_fit_keeps_what_it_was() -> None:
    """Losses, error and coverage are those of the fit; when it was accepted is said by whoever accepts."""
    fit = good_fit()
    reference = accept(fit, accepted_unix_seconds=NOW)

    assert (reference.key, reference.losses, reference.samples) == (fit.key, fit.losses, fit.samples)
    assert (reference.coverage, reference.estimates) == (fit.coverage, fit.estimates)
    assert (reference.outlier_ratio, reference.misfit_ratio) == (fit.outlier_ratio, fit.misfit_ratio)
    assert reference.prediction_error_ratio == fit.prediction_error_ratio
    assert reference.accepted_unix_seconds == NOW


@pytest.mark.parametrize("instant", [-1.0, nan, inf])
def test_acceptance_has_an_instant(instant: float) -> None:
    """Seconds since 1970, nothing else."""
    with pytest.raises(ValueError, match="accepted_unix_seconds"):
        accept(good_fit(), accepted_unix_seconds=instant)


def test_a_good_fit_leaves_no_doubts() -> None:
    """A healthy worker with mixed traffic needs nobody to look at it."""
    assert doubts(good_fit()) == ()


DOUBTFUL = {
    "few samples": (replace(good_fit(), samples=149.0), "149 samples are remembered, 150 are needed"),
    "one operating point": (replace(good_fit(), distinct_points=2), "requests lie at 2 operating points, 3 are needed"),
    "noise": (
        replace(good_fit(), losses=replace(DEFAULTS, error_ratio=0.4)),
        "ordinary requests are off by 40% on average, 30% is allowed",
    ),
    "unsure": (replace(good_fit(), prediction_error_ratio=0.1), "expected times are known to 10%, 8% is allowed"),
    "outliers": (
        replace(good_fit(), outlier_ratio=0.5),
        "50% of the requests are far slower than their kind, 35% is allowed",
    ),
    "slow from the start": (
        replace(good_fit(), default_ratio=2.5),
        "it is 2.5 times slower than published figures suggest, 2.0 is allowed",
    ),
    "beyond the peak": (
        replace(
            good_fit(),
            estimates={
                **good_fit().estimates,
                "memory_efficiency_ratio": replace(good_fit().estimates["memory_efficiency_ratio"], basis=Basis.AT_LIMIT),
            },
        ),
        "memory_efficiency_ratio would have to be above 1: what is known of the worker may be wrong",
    ),
}


@pytest.mark.parametrize(("fit", "sentence"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_each_doubt_is_a_sentence(fit: Fit, sentence: str) -> None:
    """One thing wrong, one sentence with both numbers; and the fit does not become a reference by itself."""
    assert doubts(fit) == (sentence,)
    assert reference_in_force(None, KEY, fit, now_unix_seconds=NOW) is None


def test_limits_of_doubt_can_be_set() -> None:
    """A stricter rule doubts what the usual one takes."""
    assert len(doubts(good_fit(), AcceptanceRule(least_samples=1e6, most_error_ratio=0.01))) == 2


def test_the_first_good_fit_is_accepted() -> None:
    """From no reference to one, without being asked."""
    reference = reference_in_force(None, KEY, good_fit(), now_unix_seconds=NOW)

    assert reference == accept(good_fit(), accepted_unix_seconds=NOW)


def test_without_a_fit_the_defaults_stay() -> None:
    """Nothing measured, nothing to judge by but published figures."""
    assert reference_in_force(None, KEY, None, now_unix_seconds=NOW) is None


def test_a_reference_stands_still() -> None:
    """However slow and however sure later fits are, the first one stays until somebody accepts another."""
    first = accept(good_fit(), accepted_unix_seconds=NOW)

    assert reference_in_force(first, KEY, good_fit(1.8), now_unix_seconds=NOW + 3600) is first
    assert reference_in_force(first, KEY, None, now_unix_seconds=NOW + 3600) is first


def test_another_engine_version_begins_anew() -> None:
    """The old reference ends; fits of the old version do not count for the new one, the first good one of its own does."""
    newer = replace(KEY, engine_version="0.12.0")
    old = accept(good_fit(), accepted_unix_seconds=NOW)
    own = replace(good_fit(), key=newer)

    assert reference_in_force(old, newer, None, now_unix_seconds=NOW + 1) is None
    assert reference_in_force(old, newer, good_fit(), now_unix_seconds=NOW + 1) is None
    assert reference_in_force(old, newer, own, now_unix_seconds=NOW + 1) == accept(own, accepted_unix_seconds=NOW + 1)


def test_a_worker_that_only_sees_one_request_is_not_accepted_by_itself() -> None:
    """Thousands of the same request leave the defaults in force, and say what is missing."""
    fit = calibrated(SyntheticWorker(DEFAULTS, Random(2)), 500, same_request).fit()

    assert fit is not None
    assert any("operating points" in sentence for sentence in doubts(fit))
