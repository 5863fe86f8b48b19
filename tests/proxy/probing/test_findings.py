"""Series and fits from measured bursts."""

from __future__ import annotations

import pytest

from proxy.probing.answer import failed
from proxy.probing.design import Experiment
from proxy.probing.findings import find
from roofline.experiments.concurrency_knee import Knee
from roofline.experiments.least_squares import Refused
from roofline.experiments.output_line import OutputLine
from roofline.experiments.prompt_curve import PromptCurve
from tests.proxy.probing.bursts import a_burst, an_answer, loads, outputs, prompts


def test_cold_and_warm_are_fitted_apart() -> None:
    """The warm line has the same slope and a smaller intercept."""
    found = find([*outputs(0.080, 0.010), *outputs(0.020, 0.010, is_warm=True)])

    cold, warm = found.outputs
    assert not cold.is_warm
    assert isinstance(cold.line, OutputLine)
    assert isinstance(warm.line, OutputLine)
    assert cold.line.ttft_seconds.value == pytest.approx(0.080)
    assert warm.line.ttft_seconds.value == pytest.approx(0.020)
    assert found.prompts == ()
    assert found.loads == ()


def test_a_prompt_curve_is_fitted_to_cold_prompts_only() -> None:
    """Of warm ones only the last block is computed: no curve, but the share that was cached."""
    found = find([*prompts(0.01, 3e-5, 6e-10), *prompts(0.012, 0, 0, is_warm=True, cached=0.99)])

    cold, warm = found.prompts
    assert isinstance(cold.curve, PromptCurve)
    assert cold.curve.quadratic_seconds.value == pytest.approx(6e-10)
    assert isinstance(warm.curve, Refused)
    assert warm.cached_ratio == pytest.approx(0.99, abs=0.01)


def test_a_knee_for_each_context() -> None:
    """And the best throughput that was seen."""
    found = find([*loads(2048, 0.008, 0.0001), *loads(8192, 0.008, 0.0004)], kv_tokens=1000.0)

    short, long = found.loads
    assert isinstance(short.knee, Knee)
    assert isinstance(long.knee, Knee)
    assert short.knee.requests.value == pytest.approx(80)
    assert long.knee.requests.value == pytest.approx(20)
    assert found.peak_kv_tokens == pytest.approx(100)
    assert short.best_tokens_per_second is not None
    assert short.waiting_from is None


def test_a_stall_is_outvoted_and_odd_counts_stand_for_themselves() -> None:
    """Of three repeats the middle counts; where answers end where they like, every one is a point."""
    stalled = a_burst(Experiment.OUTPUT, [an_answer(5.0, 0.01, 512, 64)], prompt=512, output=64)
    three = [*outputs(0.08, 0.01), *outputs(0.08, 0.01), stalled]
    odd = [a_burst(Experiment.OUTPUT, [an_answer(0.08, 0.01, 512, n)], prompt=512, output=64) for n in (20, 40, 60)]

    assert len(find(three).outputs[0].points) == 3
    line = find(three).outputs[0].line
    assert isinstance(line, OutputLine)
    assert line.ttft_seconds.value == pytest.approx(0.08)
    assert [point.count for point in find(odd).outputs[0].points] == [20, 40, 60]


def test_failed_requests_are_counted_and_not_fitted() -> None:
    """Nothing measured is no error either."""
    broken = a_burst(Experiment.OUTPUT, [failed(1.0, 2.0, "status 500: no")], prompt=512, output=64)
    found = find([broken])

    assert (found.requests, found.failed, found.first_error) == (1, 1, "status 500: no")
    assert isinstance(found.outputs[0].line, Refused)
    assert find([]).requests == 0
