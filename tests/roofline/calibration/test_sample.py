"""What is fitted is what is predicted."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.calibration.loss_fit import Constants
from roofline.calibration.sample import Figure, Parts, Sample, decode_sample, prefill_sample
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES
from roofline.limits import Surroundings, decode_limit, prefill_limit
from roofline.shape import Experts
from tests.roofline.shapes import a_gpu, a_shape

LOSSES = DEFAULT_LOSSES["vllm"]
DEPLOYMENTS = {
    "one GPU": Deployment(a_shape(), a_gpu()),
    "experts": Deployment(a_shape(experts=Experts(count=8, chosen=2), expert=80_000), a_gpu()),
    "tensor 4": Deployment(a_shape(), a_gpu(), parallelism=Parallelism(tensor=4)),
    "data 2, experts": Deployment(
        a_shape(experts=Experts(count=8, chosen=2), expert=80_000), a_gpu(), parallelism=Parallelism(data=2, expert=True)
    ),
    "pipeline 2": Deployment(a_shape(layers=4), a_gpu(), parallelism=Parallelism(pipeline=2)),
}
SURROUNDINGS = st.builds(
    Surroundings,
    running=st.floats(0, 64),
    context_tokens=st.integers(0, 10_000),
    chunk_tokens=st.none() | st.integers(100, 8192),
)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
@given(prompt=st.integers(1, 100_000), cached=st.floats(0, 1), around=SURROUNDINGS)
def test_a_ttft_is_made_of_what_its_limit_is_made_of(
    deployment: Deployment, prompt: int, cached: float, around: Surroundings
) -> None:
    """The parts of a sample, put together with some losses, are the expected time that the limits give."""
    limit = prefill_limit(deployment, LOSSES, prompt_tokens=prompt, cached_tokens=int(cached * prompt), around=around)
    sample = prefill_sample(
        deployment, prompt_tokens=prompt, cached_tokens=int(cached * prompt), around=around, measured_seconds=1.0
    )

    constants = Constants.of(LOSSES, is_parallel=deployment.parallelism.at_once > 1)
    assert sample.figure is Figure.TTFT
    assert constants.seconds(sample.figure, sample.parts) == pytest.approx(limit.expected_seconds)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
@given(context=st.integers(1, 100_000), completion=st.integers(2, 3000), around=SURROUNDINGS)
def test_a_tpot_is_made_of_what_its_limit_is_made_of(
    deployment: Deployment, context: int, completion: int, around: Surroundings
) -> None:
    """The same for decoding, alone or in a batch, with the mean over a growing context."""
    limit = decode_limit(deployment, LOSSES, context_tokens=context, completion_tokens=completion, around=around)
    sample = decode_sample(
        deployment, context_tokens=context, completion_tokens=completion, around=around, measured_seconds=1.0
    )

    constants = Constants.of(LOSSES, is_parallel=deployment.parallelism.at_once > 1)
    assert sample.figure is Figure.TPOT
    assert constants.seconds(sample.figure, sample.parts) == pytest.approx(limit.expected_seconds)


def test_the_request_overhead_belongs_to_the_first_token_only() -> None:
    """Tokenising and scheduling are paid once a request, not once a token."""
    parts = Parts(1.0, 2.0, 0.0)
    constants = Constants(1.0, 1.0, 0.0, 0.5)

    assert constants.seconds(Figure.TTFT, parts) == 2.5
    assert constants.seconds(Figure.TPOT, parts) == 2.0


@pytest.mark.parametrize("measured", [0.0, -1.0, nan, inf])
def test_a_measurement_is_a_time(measured: float) -> None:
    """What cannot be the duration of anything is refused, with its figure."""
    with pytest.raises(ValueError, match="a measured tpot is a finite number of seconds above 0"):
        decode_sample(DEPLOYMENTS["one GPU"], context_tokens=10, measured_seconds=measured)


@pytest.mark.parametrize(
    "parts",
    [(-1.0, 1.0, 1.0, 0.0), (1.0, nan, 1.0, 0.0), (1.0, 1.0, inf, 0.0), (1.0, 1.0, 1.0, -1e-9), (0.0, 0.0, 1.0, 1.0)],
)
def test_parts_are_ideal_times(parts: tuple[float, float, float, float]) -> None:
    """Negative, unknown and endless parts are refused, and work that takes neither compute nor memory."""
    with pytest.raises(ValueError, match=r"work takes|at least 0"):
        Parts(*parts)


@pytest.mark.parametrize(("prompt", "cached"), [(0, 0), (10, 11), (10, -1)])
def test_prompts_are_refused_as_by_the_limits(prompt: int, cached: int) -> None:
    """No tokens, or more cached ones than there are."""
    with pytest.raises(ValueError, match=r"a prompt has at least one token|cached tokens are part of the prompt"):
        prefill_sample(DEPLOYMENTS["one GPU"], prompt_tokens=prompt, cached_tokens=cached, measured_seconds=1.0)


@pytest.mark.parametrize(("context", "completion"), [(0, 2), (10, 1)])
def test_answers_are_refused_as_by_the_limits(context: int, completion: int) -> None:
    """There is no time per output token without a prompt or with a single token."""
    with pytest.raises(ValueError, match="TPOT needs a prompt and 2 completion tokens"):
        decode_sample(DEPLOYMENTS["one GPU"], context_tokens=context, completion_tokens=completion, measured_seconds=1.0)


def test_ideal_seconds_are_the_slower_part() -> None:
    """Compute and memory overlap perfectly."""
    assert Sample(Figure.TPOT, Parts(1.0, 3.0, 5.0), 4.0).parts.ideal_seconds == 3.0
