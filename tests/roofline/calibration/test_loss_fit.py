"""Constants from operating points without noise, and what is left to the defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.calibration.loss_fit import Basis, Constants, LossFit, OperatingPoint, fit_losses
from roofline.calibration.sample import Figure, Parts
from roofline.expected import DEFAULT_LOSSES, Losses

DEFAULTS = DEFAULT_LOSSES["vllm"]
CONSTANTS = tuple(name for name in Losses.__dataclass_fields__ if name.endswith(("efficiency_ratio", "overhead_seconds")))
PREFILLS = [Parts(16e-6 * tokens, 4.8e-3, 32.0) for tokens in (50, 200, 1000, 4000, 8000)]
DECODES = [Parts(16e-6 * batch, 4.8e-3 + 40e-6 * batch * 2, 32.0) for batch in (1, 4, 16, 64, 128, 400)]


def points_of(
    losses: Losses,
    prefills: list[Parts] = PREFILLS,
    decodes: list[Parts] = DECODES,
    *,
    is_parallel: bool = False,
    error: float = 0.005,
) -> list[OperatingPoint]:
    constants = Constants.of(losses, is_parallel=is_parallel)
    return [
        OperatingPoint(figure, parts, constants.seconds(figure, parts), error, 100.0)
        for figure, several in ((Figure.TTFT, prefills), (Figure.TPOT, decodes))
        for parts in several
    ]


def bases(fit: LossFit) -> dict[str, Basis]:
    return {name: estimate.basis for name, estimate in fit.estimates.items()}


@pytest.mark.parametrize("compute", [0.7, 1.3])
@pytest.mark.parametrize("memory", [0.7, 1.3])
@pytest.mark.parametrize("layer", [0.7, 1.3])
def test_constants_are_recovered_from_points_that_differ(compute: float, memory: float, layer: float) -> None:
    """30 % away from the defaults, in any combination: efficiencies within 1 %, the overhead of layers within 4 %.

    The pull towards the defaults is what remains of them.
    """
    truth = replace(
        DEFAULTS,
        compute_efficiency_ratio=DEFAULTS.compute_efficiency_ratio * compute,
        memory_efficiency_ratio=DEFAULTS.memory_efficiency_ratio * memory,
        layer_overhead_seconds=DEFAULTS.layer_overhead_seconds * layer,
        request_overhead_seconds=0.008,
    )
    fit = fit_losses(points_of(truth), DEFAULTS, is_parallel=False)

    assert fit.estimates["compute_efficiency_ratio"].value == pytest.approx(truth.compute_efficiency_ratio, rel=0.01)
    assert fit.estimates["memory_efficiency_ratio"].value == pytest.approx(truth.memory_efficiency_ratio, rel=0.01)
    assert fit.estimates["layer_overhead_seconds"].value == pytest.approx(truth.layer_overhead_seconds, rel=0.04)
    assert fit.estimates["request_overhead_seconds"].value == pytest.approx(0.008, rel=0.02)
    assert {bases(fit)[name] for name in CONSTANTS if "parallel" not in name} == {Basis.FITTED}


def test_one_operating_point_scales_the_defaults() -> None:
    """A worker 1.4 times slower at the only point there is: every constant 1.4 times worse, none of them called fitted."""
    twin = points_of(DEFAULTS, [], DECODES[:1])[0]
    fit = fit_losses([replace(twin, measured_seconds=twin.measured_seconds * 1.4)], DEFAULTS, is_parallel=False)

    assert fit.distinct_points == 1
    assert fit.estimates["compute_efficiency_ratio"].value == pytest.approx(DEFAULTS.compute_efficiency_ratio / 1.4)
    assert fit.estimates["memory_efficiency_ratio"].value == pytest.approx(DEFAULTS.memory_efficiency_ratio / 1.4)
    assert fit.estimates["layer_overhead_seconds"].value == pytest.approx(DEFAULTS.layer_overhead_seconds * 1.4)
    assert fit.estimates["request_overhead_seconds"].value == 0.0
    assert set(bases(fit).values()) == {Basis.SCALED}


def test_neighbours_are_one_operating_point() -> None:
    """Decodes with nearly the same work differ by noise only, which must not decide how memory and overhead share the time."""
    first, second = points_of(DEFAULTS, [], [Parts(16e-6, 4.8e-3, 32.0), Parts(16e-6, 6.0e-3, 32.0)])
    noisy = [first, replace(second, measured_seconds=1.05 * second.measured_seconds)]
    fit = fit_losses(noisy, DEFAULTS, is_parallel=False)

    assert fit.distinct_points == 1
    assert fit.estimates["layer_overhead_seconds"].value / DEFAULTS.layer_overhead_seconds == pytest.approx(
        DEFAULTS.memory_efficiency_ratio / fit.estimates["memory_efficiency_ratio"].value
    )


def test_one_operating_point_fits_nothing_even_where_one_part_is_all_of_it() -> None:
    """A single long prompt is all compute; still it is one number, and called a scale."""
    fit = fit_losses(points_of(DEFAULTS, [Parts(3.0, 0.05, 320.0)], []), DEFAULTS, is_parallel=False)

    assert set(bases(fit).values()) == {Basis.SCALED}


def test_what_no_point_shows_follows_the_scale() -> None:
    """Decodes bound by memory say nothing about compute: it is the default, scaled, and its error says that it is a guess."""
    truth = replace(DEFAULTS, memory_efficiency_ratio=0.5)
    fit = fit_losses(points_of(truth, [], DECODES[:4]), DEFAULTS, is_parallel=False)
    compute = fit.estimates["compute_efficiency_ratio"]

    assert compute.basis is Basis.SCALED
    assert 0.5 / 0.7 * 0.46 < compute.value < 0.46
    assert compute.standard_error > 0.4 * compute.value


def test_a_worker_that_beats_the_peak_stops_at_it() -> None:
    """Measurements below the ideal: efficiencies stay at 1, where the fit says that facts may be wrong."""
    fit = fit_losses(
        [replace(point, measured_seconds=0.2 * point.measured_seconds) for point in points_of(DEFAULTS)],
        DEFAULTS,
        is_parallel=False,
    )

    assert (fit.constants.compute_factor, fit.constants.memory_factor) == (1.0, 1.0)
    assert min(fit.constants.layer_seconds, fit.constants.request_seconds) >= 0.0
    assert bases(fit)["compute_efficiency_ratio"] is bases(fit)["memory_efficiency_ratio"] is Basis.AT_LIMIT


def test_several_gpus_share_out_the_overhead_like_the_defaults() -> None:
    """One deployment shows the sum of layer and parallel overhead only."""
    truth = replace(DEFAULTS, layer_overhead_seconds=60e-6, parallel_layer_overhead_seconds=60e-6)
    fit = fit_losses(points_of(truth, is_parallel=True), DEFAULTS, is_parallel=True)
    layer, parallel = (fit.estimates[f"{name}layer_overhead_seconds"].value for name in ("", "parallel_"))

    assert layer + parallel == pytest.approx(120e-6, rel=0.04)
    assert layer / parallel == pytest.approx(DEFAULTS.layer_overhead_seconds / DEFAULTS.parallel_layer_overhead_seconds)


def test_a_single_gpu_leaves_the_parallel_overhead_alone() -> None:
    """Nothing was seen of it."""
    parallel = fit_losses(points_of(DEFAULTS), DEFAULTS, is_parallel=False).estimates["parallel_layer_overhead_seconds"]

    assert (parallel.value, parallel.basis) == (DEFAULTS.parallel_layer_overhead_seconds, Basis.SCALED)


def test_defaults_without_overhead_can_grow_one() -> None:
    """A default of 0 is a starting point like any other."""
    bare = replace(DEFAULTS, layer_overhead_seconds=0.0, parallel_layer_overhead_seconds=0.0)
    fit = fit_losses(points_of(DEFAULTS), bare, is_parallel=False)

    assert fit.estimates["layer_overhead_seconds"].value == pytest.approx(DEFAULTS.layer_overhead_seconds, rel=0.15)


def test_one_point_far_off_moves_little() -> None:
    """A point of few samples, all of them stuck: expected times elsewhere move by less than 2 %."""
    points = points_of(DEFAULTS)
    stuck = replace(points[2], measured_seconds=6 * points[2].measured_seconds, samples=3.0, standard_error_ratio=0.1)
    fit = fit_losses([*points[:2], stuck, *points[3:]], DEFAULTS, is_parallel=False)

    for point in points:
        assert fit.constants.seconds(point.figure, point.parts) == pytest.approx(point.measured_seconds, rel=0.02)


def test_misfit_is_what_noise_does_not_explain() -> None:
    """Points up and down by 10 % with errors of 0.5 %: a misfit near 10 %, part of the error of predictions."""
    points = [
        replace(point, measured_seconds=point.measured_seconds * (1.1 if number % 2 else 0.9))
        for number, point in enumerate(points_of(DEFAULTS))
    ]
    rough, smooth = (fit_losses(some, DEFAULTS, is_parallel=False) for some in (points, points_of(DEFAULTS)))

    assert 0.06 < rough.misfit_ratio < 0.12
    assert rough.prediction_error_ratio > rough.misfit_ratio
    assert smooth.misfit_ratio == pytest.approx(0.0, abs=0.01)
    errors = [fit.estimates["memory_efficiency_ratio"].standard_error for fit in (rough, smooth)]
    assert errors[0] > 3 * errors[1]


def test_moving_results_between_gpus_is_never_scaled() -> None:
    """A link is not part of the losses: with half of the time spent on it, the other half doubles when the scale is 2."""
    parts = Parts(0.001, 0.010, 32.0, exchange_seconds=0.020)
    constants = Constants.of(DEFAULTS, is_parallel=True)
    own = constants.seconds(Figure.TPOT, parts) - 0.020
    point = OperatingPoint(Figure.TPOT, parts, 0.020 + 2.0 * own, 0.01, 100.0)

    fit = fit_losses([point], DEFAULTS, is_parallel=True)

    assert fit.constants.memory_factor == pytest.approx(2.0 * constants.memory_factor)
