"""Published measurements: none beats the floor, the reference has their ratio, the expectation its stated error."""

from __future__ import annotations

from statistics import fmean

import pytest

from roofline.bound import bound
from roofline.expected import DEFAULT_LOSSES, expected
from roofline.work import Routing, Span, work
from tests.roofline.measured import FACTS, POINTS, TIMED, UNSOUND, Setting, setting, vllm_points

UTILISATION = "pope-palm540b-prefill-mfu76"  # a share of the peak, not a time
RATES = [name for name, point in POINTS.items() if point["metric"] == "output_tokens_per_s"]


def test_every_point_is_used() -> None:
    """No measurement is left out silently."""
    assert {*TIMED, *RATES, UTILISATION} == set(POINTS)
    assert len(UNSOUND) == 1


@pytest.mark.parametrize("name", [name for name in TIMED if name not in UNSOUND])
def test_no_sound_measurement_beats_the_floor(name: str) -> None:
    """The least that one sequence of it needs, with the fewest experts, is below what was measured."""
    at = setting(name)
    own = Span(at.span().past, at.span().new)

    assert at.point["measured"] / 1e3 > at.seconds(work(at.deployment, [own], Routing.FEWEST))


@pytest.mark.parametrize("name", TIMED)
def test_the_reference_has_the_published_ratio(name: str) -> None:
    """Measured over reference is what the source computed, within 2 %, unsound rows included."""
    at = setting(name)
    ratio = at.point["measured"] / 1e3 / at.seconds(work(at.deployment, [at.span()]))

    assert ratio == pytest.approx(at.point["ratio"], rel=0.02)


@pytest.mark.parametrize("name", RATES)
def test_no_throughput_is_above_compute(name: str) -> None:
    """Requests a second times the work of one stays below the peaks; the published ratio is reproduced within 2 %."""
    at = setting(name)
    prompt, output = at.point["prompt_tokens"], at.point["output_tokens"]
    prefill = work(at.deployment, [Span(0, prompt)])
    decode = work(at.deployment, [Span(prompt, output - 1, steps=output - 1, logits=output - 1)])
    seconds = sum(bound(done, at.deployment.gpu, at.gpus).compute_seconds for done in (prefill, decode))

    assert output / seconds > at.point["measured"]
    assert output / seconds / at.point["measured"] == pytest.approx(at.point["ratio"], rel=0.02)


def test_a_measured_utilisation_is_below_one() -> None:
    """The best published prefill reaches three quarters of the peak."""
    assert POINTS[UTILISATION]["measured"] < 1 < POINTS[UTILISATION]["ratio"]


def expected_tpot_seconds(at: Setting) -> float:
    """A decode step, and each token's share of the prefills that a closed loop puts between."""
    losses = DEFAULT_LOSSES["vllm"]
    step = expected(at.deployment, [at.span()], losses).seconds
    if "osl" not in at.point:
        return step
    prompt, output = (0.9 * at.point[key] for key in ("isl", "osl"))  # lengths are drawn from 0.8 to 1.0 of the nominal
    prefill = expected(at.deployment, [Span(0, round(prompt))], losses)
    return step + prefill.compute_or_memory_seconds * at.batch / output


def test_the_expectation_is_as_good_on_vllm_as_stated() -> None:
    """Mean absolute error over the published vLLM points is not above that of the fit, 15.7 %."""
    errors = {name: expected_tpot_seconds(at := setting(name)) / (at.point["measured"] / 1e3) - 1 for name in vllm_points()}

    assert len(errors) >= 10
    assert fmean(map(abs, errors.values())) <= FACTS["bulk_summary"]["affine_model"]["mape_pct"] / 100, errors
