"""Plans for the tests: Llama-3.1-8B on an H100 unless told otherwise, whose figures can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from roofline.capacity.memory import DEFAULT_SETTINGS, MemorySettings
from roofline.capacity.targets import CHAT, Targets
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, Losses
from roofline.gpu import Gpu
from roofline.gpus import GPUS
from roofline.models.known import find_model
from roofline.plan.plan import Plan, make_plan
from roofline.plan.question import Question
from roofline.quantization import named_scheme

VLLM = DEFAULT_LOSSES["vllm"]


def a_deployment(
    model: str = "llama-3.1-8b", gpu: str | Gpu = "h100-sxm", *, tensor: int = 1, data: int = 1, weights: str | None = None
) -> Deployment:
    shape = find_model(model).shape
    return Deployment(
        shape,
        GPUS[gpu] if isinstance(gpu, str) else gpu,
        weights=None if weights is None else named_scheme(weights, shape.native),
        parallelism=Parallelism(tensor=tensor, data=data),
    )


def a_question(
    *,
    prompt: int = 2000,
    output: int = 500,
    cached: int = 0,
    most: int | None = None,
    concurrency: float | None = None,
    rate: float | None = None,
    workers: int = 1,
    targets: Targets = CHAT,
    settings: MemorySettings = DEFAULT_SETTINGS,
    losses: Losses = VLLM,
) -> Question:
    return Question(
        workload=Workload(prompt_tokens=prompt, completion_tokens=output, cached_tokens=cached, max_completion_tokens=most),
        losses=losses,
        settings=settings,
        targets=targets,
        concurrency=concurrency,
        rate_per_second=rate,
        workers=workers,
    )


@cache
def the_plan() -> Plan:
    """2000 + 500 tokens, one request alone."""
    return make_plan(a_deployment(), a_question())


@cache
def a_plan_at(concurrency: float) -> Plan:
    return make_plan(a_deployment(), a_question(concurrency=concurrency))


@cache
def a_plan_that_does_not_fit() -> Plan:
    return make_plan(a_deployment("llama-3.1-70b"), a_question())


def without(gpu: str, **changes: object) -> Gpu:
    """A known GPU with some facts changed."""
    return replace(GPUS[gpu], **changes)  # type: ignore[arg-type]  # names and types are the tests' own affair
