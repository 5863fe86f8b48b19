"""Step times by the roofline: equal to its expected times, cheap, and changed by the constants of the simulated GPU alone."""

from __future__ import annotations

from random import Random

import pytest

from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, Losses, expected
from roofline.gpu_names import find_gpu
from roofline.models.known import find_shape
from roofline.work import Span
from simulator.engine.roofline_timing import RooflineTimer, Scale, kv_cache_tokens
from simulator.engine.timing import Part, StepWork, work_of

MODELS = (
    "llama-3.1-8b",  # grouped queries
    "gpt-oss-20b",  # sliding windows, experts
    "llama-4-scout-17b-16e",  # chunked windows
    "deepseek-v3",  # latent attention, experts
    "deepseek-v3.2",  # sparse attention
    "qwen3-next-80b-a3b",  # linear attention
)
LOSSES = DEFAULT_LOSSES["vllm"]


def a_deployment(model: str = "llama-3.1-8b", **parallelism: int | bool) -> Deployment:
    return Deployment(find_shape(model), find_gpu("h100-sxm"), parallelism=Parallelism(**parallelism))


def some_parts(seed: int) -> list[Part]:
    random = Random(seed)
    decoding = [Part(random.randrange(1, 30_000), 1, 1) for _ in range(random.randrange(60))]
    verifying = [Part(random.randrange(1, 9_000), 4, 4) for _ in range(random.randrange(3))]
    chunks = [
        Part(random.randrange(40_000), random.randrange(2, 2_000), random.randrange(2)) for _ in range(random.randrange(3))
    ]
    return [*decoding, *verifying, *chunks] or [Part(5, 1, 1)]


def by_roofline(deployment: Deployment, parts: list[Part], losses: Losses = LOSSES) -> float:
    return expected(deployment, [Span(past, new, logits=logits) for past, new, logits in parts], losses).seconds


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("parallelism", [{}, {"tensor": 4}, {"tensor": 2, "pipeline": 2}])
def test_steps_take_what_the_roofline_expects(model, parallelism):
    """Any mix of decoding, verifying and prefilling sequences takes the expected time of the same spans."""
    deployment = a_deployment(model, **parallelism)
    timer = RooflineTimer(deployment)

    for parts in ([Part(4000, 1000, 0)], *map(some_parts, range(40))):
        assert timer.seconds(work_of(parts, timer)) == pytest.approx(by_roofline(deployment, parts), rel=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("parallelism", [{}, {"tensor": 2, "pipeline": 2}])
def test_decode_steps_take_the_same_by_the_shorter_way(model, parallelism):
    """What the timer says of decode steps alone is what it says of the whole work, to the last bit."""
    timer = RooflineTimer(a_deployment(model, **parallelism))
    random = Random(1)
    for count in (1, 2, 63, 256):
        seconds = timer.decoding(count)
        for _ in range(50):
            context = random.randrange(count, 40_000 * count)
            windowed = tuple(random.randrange(context) for _ in timer.windows)
            contexts = range(context, context + 5 * count, count)
            assert seconds(contexts, [windowed] * 5) == [timer.seconds(StepWork(count, at, windowed, ())) for at in contexts]


def test_a_decode_step_is_bound_by_memory_and_a_prefill_by_compute():
    """Slower memory lengthens a decode step and not a prefill; slower compute does the opposite."""
    plain, memory, compute = (
        RooflineTimer(a_deployment(), scale=scale) for scale in (Scale(), Scale(memory_factor=2.0), Scale(compute_factor=2.0))
    )
    decode, prefill = work_of([Part(1000, 1, 1)], plain), work_of([Part(0, 8000, 1)], plain)

    assert memory.seconds(decode) > 1.5 * plain.seconds(decode) == 1.5 * compute.seconds(decode)
    assert compute.seconds(prefill) > 1.5 * plain.seconds(prefill) == 1.5 * memory.seconds(prefill)


def test_overheads_and_exchange_have_factors_of_their_own():
    """What a factor adds is exactly the part of the expected time that it stands for."""
    deployment = a_deployment(tensor=4)
    parts = [Part(1000, 1, 1)] * 8
    terms = expected(deployment, [Span(1000, 1, count=8)], LOSSES)
    plain = RooflineTimer(deployment)
    work = work_of(parts, plain)

    slow_host = RooflineTimer(deployment, scale=Scale(overhead_factor=3.0))
    slow_link = RooflineTimer(deployment, scale=Scale(exchange_factor=3.0))
    assert slow_host.seconds(work) - plain.seconds(work) == pytest.approx(2 * terms.overhead_seconds)
    assert slow_link.seconds(work) - plain.seconds(work) == pytest.approx(2 * terms.exchange_seconds)


def test_the_simulated_losses_are_its_own():
    """A timer made with other losses follows those, and tells what a request costs outside of steps."""
    losses = Losses(
        compute_efficiency_ratio=0.3,
        memory_efficiency_ratio=0.4,
        layer_overhead_seconds=1e-5,
        parallel_layer_overhead_seconds=0.0,
        request_overhead_seconds=0.004,
    )
    deployment = a_deployment()
    timer = RooflineTimer(deployment, losses, Scale(overhead_factor=2.0))
    parts = [Part(500, 1, 1), Part(0, 700, 0)]

    overhead = deployment.shape.layers * losses.layer_overhead_seconds
    assert timer.seconds(work_of(parts, timer)) == pytest.approx(by_roofline(deployment, parts, losses) + overhead)
    assert timer.request_overhead_seconds == 0.008


def test_the_cache_holds_what_memory_leaves():
    """An 8B model in 16 bits leaves an 80 GB GPU room for some 400,000 tokens; each data-parallel rank has its own."""
    alone = kv_cache_tokens(a_deployment())

    assert 380_000 < alone < 480_000
    assert kv_cache_tokens(a_deployment(data=4)) == pytest.approx(alone, rel=0.02)
    with pytest.raises(ValueError, match="leaves no room for a KV cache"):
        kv_cache_tokens(a_deployment("deepseek-v3"))


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_factors_that_cannot_be_are_refused(factor):
    """A factor that is not above 0 is an error."""
    with pytest.raises(ValueError, match="above 0"):
        Scale(memory_factor=factor)


def test_repr_tells_the_condition():
    """The repr shows the deployment and the factors."""
    assert "llama" in repr(RooflineTimer(a_deployment())).lower()


def test_ranks_have_engines_of_their_own():
    """A deployment of several data-parallel ranks is no engine's: the error says what to give."""
    with pytest.raises(ValueError, match="give a deployment of one rank"):
        RooflineTimer(a_deployment(data=4))
