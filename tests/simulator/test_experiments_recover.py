"""The load experiments on a simulated engine, whose parameters are known: what was put in comes back."""

from __future__ import annotations

import pytest

from roofline.experiments.concurrency_knee import Knee, Load, concurrency_knee
from roofline.experiments.least_squares import Timed
from roofline.experiments.output_line import OutputLine, output_line
from roofline.experiments.prompt_curve import PromptCurve, prompt_curve
from simulator.arrivals import Arrival
from simulator.engine.engine import Engine, EngineSettings
from simulator.engine.prefix import Prompt
from simulator.engine.timing import ConstantTimer, Noise, Part, StepWork
from simulator.virtual.fleet import simulate
from simulator.virtual.served import Served

SHARED, EACH, CONTEXT, PREFILL = 0.008, 50e-6, 0.1e-6, 30e-6
TIMER = ConstantTimer(
    step_seconds=SHARED,
    prefill_seconds_per_token=PREFILL,
    context_seconds_per_token=CONTEXT,
    sequence_seconds=EACH,
    request_overhead_seconds=0.004,
)
NOISE = Noise(sigma=0.02)


class QuadraticTimer(ConstantTimer):
    """Attention: each computed token looks at all before it."""

    def seconds(self, work: StepWork) -> float:
        return super().seconds(work) + sum(self._attention(part) for part in work.parts)

    @staticmethod
    def _attention(part: Part) -> float:
        return 0.6e-9 * ((part.past + part.new) ** 2 - part.past**2)


def served(timer: ConstantTimer, requests: int, prompt: int, output: int, step_tokens: int = 65_536) -> list[Served]:
    settings = EngineSettings(timer=timer, kv_tokens=10_000_000, max_num_seqs=256, step_tokens=step_tokens, noise=NOISE, seed=1)
    asked = [
        Arrival(at_seconds=0.0, prompt=Prompt(tokens=prompt, blocks=(), digest=b""), output_tokens=output)
        for _ in range(requests)
    ]
    return simulate([Engine(settings)], asked, lambda arrival, fleet: 0)


def known(seconds: float | None) -> float:
    assert seconds is not None
    return seconds


def test_slope_and_intercept_come_back() -> None:
    """A request's fixed cost and the time of each token, from whole times only, to within 5 %."""
    outputs = (16, 64, 128, 256, 512)
    line = output_line([Timed(n, known(served(TIMER, 1, 512, n)[0].e2e_seconds)) for n in outputs])

    assert isinstance(line, OutputLine)
    assert line.ttft_seconds.value == pytest.approx(0.004 + SHARED + 512 * PREFILL, rel=0.05)
    assert line.tpot_seconds.value == pytest.approx(SHARED + EACH + CONTEXT * 600, rel=0.05)


@pytest.mark.parametrize("step_tokens", [65_536, 2048])
def test_the_terms_of_a_prefill_come_back(step_tokens: int) -> None:
    """Line and square to within 5 %, whether prompts are cut into steps or not; then the chunk is found too."""
    timer = QuadraticTimer(
        step_seconds=SHARED, prefill_seconds_per_token=PREFILL, context_seconds_per_token=0.0, request_overhead_seconds=0.004
    )
    lengths = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384)
    measured = [
        Timed(n, known(one.ttft_seconds)) for n in lengths for one in served(timer, 1, n, 2, step_tokens) for _ in range(3)
    ]
    curve = prompt_curve(measured)

    assert isinstance(curve, PromptCurve)
    assert curve.linear_seconds.value == pytest.approx(PREFILL, rel=0.05)
    assert curve.quadratic_seconds.value == pytest.approx(0.6e-9, rel=0.05)
    if step_tokens == 2048:
        assert curve.chunks is not None
        assert curve.chunks.tokens == 2048
        assert curve.chunks.seconds.value == pytest.approx(SHARED, rel=0.05)
    else:
        assert curve.chunks is None


def knee_at(context: int) -> Knee:
    loads = []
    for n in (1, 2, 4, 8, 16, 32):
        found = served(TIMER, n, context, 128, step_tokens=1_000_000)
        tpot = sum(known(one.tpot_seconds) for one in found) / n
        loads.append(Load(requests=n, tpot_seconds=tpot, tokens_per_second=n / tpot))
    knee = concurrency_knee(loads)
    assert isinstance(knee, Knee)
    return knee


def test_the_knee_comes_back_and_comes_earlier_with_longer_contexts() -> None:
    """S / A to within 5 %, at 2,000 tokens and at 8,000, where the cache weighs four times as much."""
    short, long = knee_at(2000), knee_at(8000)

    assert short.requests.value == pytest.approx(SHARED / (EACH + CONTEXT * 2064), rel=0.05)
    assert long.requests.value == pytest.approx(SHARED / (EACH + CONTEXT * 8064), rel=0.05)
    assert long.requests.value < short.requests.value / 3
