"""The benchmark of the limits runs; its figures are no matter of tests but for being of the right size."""

from __future__ import annotations

from benchmarks.limits import MODELS, measure
from roofline.models.known import find_shape


def test_a_record_costs_microseconds() -> None:
    """Slow by a factor of ten is a mistake, whatever the machine does beside it."""
    costs = measure("gpt-oss-120b", repeats=20)

    assert 0 < costs.closed_decode_us < costs.record_us < 200
    assert costs.closed_prefill_us < 10


def test_the_models_it_measures_are_known() -> None:
    """Dense, experts, windows, latents and recurrent layers."""
    assert all(find_shape(model) for model in MODELS)
