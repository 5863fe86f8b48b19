"""The few multiplications that choose a worker, against the whole model."""

from __future__ import annotations

import pytest

from roofline.closed_form import closed_form
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES
from roofline.gpus import GPUS
from roofline.limits import Surroundings, decode_limit, prefill_limit
from roofline.models.known import find_shape

LOSSES = DEFAULT_LOSSES["vllm"]
DEPLOYMENTS = {
    "dense": ("llama-3.1-8b", Parallelism()),
    "split": ("llama-3.1-70b", Parallelism(tensor=4)),
    "experts": ("qwen3-30b-a3b", Parallelism()),
    "latents": ("deepseek-v3", Parallelism(tensor=8)),
    "recurrent": ("qwen3-next-80b-a3b-instruct", Parallelism(tensor=4)),
    "windows": ("gpt-oss-120b", Parallelism(tensor=2)),
}


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("running", [0, 7, 63])
@pytest.mark.parametrize(("uncached", "cached"), [(200, 0), (4_000, 0), (30_000, 0), (500, 16_000)])
def test_prefill_agrees_with_the_whole_model(name: str, running: int, uncached: int, cached: int) -> None:
    """Within a tenth over the lengths and batches that are met."""
    model, sharing = DEPLOYMENTS[name]
    deployment = Deployment(find_shape(model), GPUS["h200-sxm"], parallelism=sharing)
    around = Surroundings(running=running, context_tokens=4_000, chunk_tokens=8_192 + running)
    exact = prefill_limit(deployment, LOSSES, prompt_tokens=uncached + cached, cached_tokens=cached, around=around)

    quick = closed_form(deployment, LOSSES).prefill_seconds(uncached, cached, running, running * 4_000)

    assert quick == pytest.approx(exact.expected_seconds, rel=0.1)


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize(("running", "context"), [(1, 2_000), (8, 2_000), (64, 2_000), (64, 30_000), (256, 1_000)])
def test_decode_agrees_with_the_whole_model(name: str, running: int, context: int) -> None:
    """Within a hundredth, from one sequence to a full batch."""
    model, sharing = DEPLOYMENTS[name]
    deployment = Deployment(find_shape(model), GPUS["h200-sxm"], parallelism=sharing)
    around = Surroundings(running=running - 1, context_tokens=context)
    exact = decode_limit(deployment, LOSSES, context_tokens=context, around=around)

    quick = closed_form(deployment, LOSSES).decode_seconds(running, running * context)

    assert quick == pytest.approx(exact.expected_seconds, rel=0.01)
