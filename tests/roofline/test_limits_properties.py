"""What must hold of the limits for any request on any model and GPU."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import isclose

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roofline.bound import bound, operator_seconds
from roofline.closed_form import closed_form
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, Losses
from roofline.gpus import GPUS
from roofline.kv_cache import KvWidth
from roofline.limits import ALONE, Limit, Surroundings, decode_limit, prefill_limit
from roofline.models.known import find_shape
from roofline.precision import BF16, Width
from roofline.quantization import WeightScheme
from roofline.shape import Attention, LatentAttention
from roofline.work import Routing, Span, work

LOSSES = DEFAULT_LOSSES["vllm"]
DENSE = ("meta-llama/Llama-3.1-8B",)
EXPERTS = ("Qwen/Qwen3-30B-A3B",)
RECURRENT = ("Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/Nemotron-H-56B-Base-8K")
LATENT = ("deepseek-ai/DeepSeek-V3",)
SPARSE = ("zai-org/GLM-5",)
SLIDING = ("openai/gpt-oss-120b", "google/gemma-3-27b-it")
CHUNKED = ("meta-llama/Llama-4-Scout-17B-16E",)  # forgets everything at each multiple of 8192 tokens, so longer may be cheaper
REMEMBERING = (*DENSE, *EXPERTS, *RECURRENT, *LATENT, *SPARSE, *SLIDING)
ALL = (*REMEMBERING, *CHUNKED)
CARDS = ("rtx-4090", "a100-sxm4-80gb", "h100-sxm", "b200-sxm")
ONE, SPLIT, RANKS, STAGES = (
    Parallelism(),
    Parallelism(tensor=8),
    Parallelism(tensor=2, data=4, expert=True),
    Parallelism(tensor=2, pipeline=2),
)
FEW = settings(max_examples=30)
FLOAT = 1e-9  # what sums of floats in another order may differ by


@cache
def deployment(model: str, card: str, sharing: Parallelism) -> Deployment:
    return Deployment(find_shape(model), GPUS[card], parallelism=sharing)


def deployments(
    models: tuple[str, ...] = ALL, sharings: tuple[Parallelism, ...] = (ONE, SPLIT, RANKS, STAGES)
) -> st.SearchStrategy[Deployment]:
    return st.builds(deployment, st.sampled_from(models), st.sampled_from(CARDS), st.sampled_from(sharings))


def lengths(most: int = 200_000) -> st.SearchStrategy[int]:
    """From one token on, every order of magnitude alike."""
    return st.one_of(*(st.integers(1, most // scale) for scale in (1, 10, 100, 1000, 10_000) if most // scale))


def batches() -> st.SearchStrategy[float]:
    """Others that run meanwhile: a mean, and so not always whole."""
    return st.one_of(st.just(0.0), st.floats(0.01, 4.0), st.integers(1, 512).map(float))


def surroundings(chunks: st.SearchStrategy[int | None] | None = None) -> st.SearchStrategy[Surroundings]:
    if chunks is None:
        chunks = st.one_of(st.none(), lengths(16_384))
    return st.builds(Surroundings, running=batches(), context_tokens=lengths(), chunk_tokens=chunks)


WHOLE = surroundings(st.none())


def seconds(limit: Limit) -> tuple[float, float, float]:
    return limit.floor_seconds, limit.reference_seconds, limit.expected_seconds


def is_rising(lower: float, upper: float, slack_ratio: float = FLOAT) -> bool:
    return lower <= upper * (1.0 + slack_ratio)


def none_falls(before: tuple[float, ...], after: tuple[float, ...]) -> bool:
    return all(is_rising(first, second) for first, second in zip(before, after, strict=True))


@given(deployments(), lengths(), st.floats(0, 1), surroundings())
@FEW
def test_prefill_floor_reference_and_expected_are_in_order(
    worker: Deployment, prompt: int, share: float, around: Surroundings
) -> None:
    """Whatever is cached, however it is cut and whoever runs beside it."""
    limit = prefill_limit(worker, LOSSES, prompt_tokens=prompt, cached_tokens=int(prompt * share), around=around)

    assert limit.floor_seconds > 0.0
    assert all(is_rising(*pair) for pair in pairwise(seconds(limit)))


@given(deployments(), lengths(), st.integers(2, 5_000), surroundings())
@FEW
def test_decode_floor_reference_and_expected_are_in_order(
    worker: Deployment, context: int, completion: int, around: Surroundings
) -> None:
    """Whatever the context, the completion and the batch."""
    limit = decode_limit(worker, LOSSES, context_tokens=context, completion_tokens=completion, around=around)

    assert limit.floor_seconds > 0.0
    assert all(is_rising(*pair) for pair in pairwise(seconds(limit)))


@given(deployments(REMEMBERING), lengths(), lengths(10_000), st.floats(0, 1), WHOLE)
@example(deployment(*DENSE, "h100-sxm", STAGES), 1, 1, 0.0, ALONE)
@FEW
def test_longer_prompts_take_no_less(worker: Deployment, prompt: int, more: int, share: float, around: Surroundings) -> None:
    """With the same tokens cached, no figure of a prefill falls as its prompt grows."""
    cached = int((prompt - 1) * share)
    short = prefill_limit(worker, LOSSES, prompt_tokens=prompt, cached_tokens=cached, around=around)
    long = prefill_limit(worker, LOSSES, prompt_tokens=prompt + more, cached_tokens=cached, around=around)

    assert none_falls(seconds(short), seconds(long))


@given(deployments(REMEMBERING), lengths(), lengths(10_000), st.integers(2, 2_000), st.integers(0, 2_000), WHOLE)
@FEW
def test_longer_contexts_take_no_less(
    worker: Deployment, context: int, more: int, completion: int, further: int, around: Surroundings
) -> None:
    """No figure of decoding falls as prompt or completion grow."""
    short = decode_limit(worker, LOSSES, context_tokens=context, completion_tokens=completion, around=around)
    long = decode_limit(worker, LOSSES, context_tokens=context + more, completion_tokens=completion + further, around=around)

    assert none_falls(seconds(short), seconds(long))


@given(deployments(), lengths(), st.integers(2, 500), batches(), st.floats(0.5, 100), lengths())
@FEW
def test_larger_batches_take_no_less(
    worker: Deployment, length: int, completion: int, running: float, more: float, context: int
) -> None:
    """No figure of a prefill or of decoding falls as more others run; the floors do not know them."""
    fewer = Surroundings(running=running, context_tokens=context)
    larger = Surroundings(running=running + more, context_tokens=context)

    def decoded(around: Surroundings) -> Limit:
        return decode_limit(worker, LOSSES, context_tokens=length, completion_tokens=completion, around=around)

    def prefilled(around: Surroundings) -> Limit:
        return prefill_limit(worker, LOSSES, prompt_tokens=length, around=around)

    for limit in (decoded, prefilled):
        assert none_falls(seconds(limit(fewer)), seconds(limit(larger)))
        assert limit(fewer).floor_seconds == limit(larger).floor_seconds


def stored_at(weight_bytes_each: float, cached_bytes_each: float, model: str, card: str) -> Deployment:
    """The model with all weights and the whole cache in numbers of so many bytes, multiplied alike."""
    width = Width(name="any", bytes_each=weight_bytes_each, math=BF16.math)
    kv = KvWidth(name="any", bytes_each=cached_bytes_each)
    return Deployment(find_shape(model), GPUS[card], weights=WeightScheme(native=width), kv=kv)


@given(
    st.sampled_from((*DENSE, *EXPERTS, *SLIDING, *RECURRENT[:1])),  # deep ones take long to add up anew each time
    st.sampled_from(CARDS),
    st.tuples(st.floats(0.25, 4), st.floats(0.25, 4)),
    st.tuples(st.floats(1, 3), st.floats(1, 3)),
    lengths(),
    WHOLE,
)
@FEW
def test_more_bytes_take_no_less(
    model: str, card: str, narrow: tuple[float, float], times: tuple[float, float], length: int, around: Surroundings
) -> None:
    """Wider weights or a wider cache make no figure fall, and decoding of one sequence grows with its bytes alone."""
    small = stored_at(*narrow, model, card)
    large = stored_at(narrow[0] * times[0], narrow[1] * times[1], model, card)

    for limit in (decode_limit, prefill_limit):
        lengthy = {"context_tokens" if limit is decode_limit else "prompt_tokens": length}
        least = limit(small, LOSSES, around=around, **lengthy)
        most = limit(large, LOSSES, around=around, **lengthy)
        assert none_falls(seconds(least), seconds(most))
        assert is_rising(least.bytes, most.bytes)
        assert least.flop == most.flop


@given(deployments(), lengths(), st.floats(0, 1), st.floats(0, 1), surroundings())
@example(deployment(*DENSE, "h100-sxm", STAGES), 2, 0.0, 1.0, ALONE)
@FEW
def test_more_cached_tokens_never_cost_more(
    worker: Deployment, prompt: int, one: float, other: float, around: Surroundings
) -> None:
    """Exactly so for the floor and for prompts in one step.

    In chunks the other figures may rise by a little: as many chunks, of which each begins later, read more of the cache.
    """
    fewer, more = sorted((int(one * prompt), int(other * prompt)))
    cold = prefill_limit(worker, LOSSES, prompt_tokens=prompt, cached_tokens=fewer, around=around)
    warm = prefill_limit(worker, LOSSES, prompt_tokens=prompt, cached_tokens=more, around=around)

    assert is_rising(warm.floor_seconds, cold.floor_seconds)
    slack = FLOAT if around.chunk_tokens is None else 0.01
    assert is_rising(warm.reference_seconds, cold.reference_seconds, slack)
    assert is_rising(warm.expected_seconds, cold.expected_seconds, slack)


@given(deployments(sharings=(ONE,)), lengths(), lengths(), st.lists(st.floats(0, 1), max_size=4))
@FEW
def test_splitting_a_prefill_never_lowers_its_flop(worker: Deployment, past: int, new: int, cuts: list[float]) -> None:
    """Cut anywhere, the parts compute as much as the whole; more only where each expands the latents of what came before."""
    ends = sorted({new, *(int(cut * new) for cut in cuts)} - {0})
    parts = [Span(past + start, end - start) for start, end in pairwise([0, *ends])]
    whole = work(worker, [Span(past, new)])
    cut = [work(worker, [part]) for part in parts]
    heads = (len(parts) - 1) * work(worker, [Span(0, 0, logits=1)]).flop  # each part ends with a position of its own

    flop = sum(part.flop for part in cut) - heads
    assert is_rising(whole.flop, flop)
    if not any(isinstance(group.mixer, LatentAttention) for group in worker.shape.groups):
        assert isclose(whole.flop, flop, rel_tol=FLOAT)
    assert is_rising(whole.bytes, sum(part.bytes for part in cut))


@given(deployments(sharings=(ONE,)), lengths(), lengths(), st.integers(2, 64))
@FEW
def test_equal_chunks_never_lower_flop_or_bytes(worker: Deployment, past: int, new: int, steps: int) -> None:
    """A prompt in several equal steps computes at least as much and moves more than in one."""
    whole = work(worker, [Span(past, new)])
    cut = work(worker, [Span(past, new, steps=min(steps, new))])

    assert is_rising(whole.flop, cut.flop)
    assert is_rising(whole.bytes, cut.bytes)


spans = st.builds(Span, lengths(), st.integers(1, 4_096), st.floats(1, 64), st.just(1), st.just(1))


@given(deployments(sharings=(ONE,)), st.lists(spans, min_size=1, max_size=4), st.sampled_from(Routing))
@FEW
def test_work_of_spans_adds_up(worker: Deployment, together: list[Span], routing: Routing) -> None:
    """FLOP of a step are those of its sequences; its bytes lie between the largest and the sum, since weights are shared."""
    alone = [work(worker, [span], routing) for span in together]
    step = work(worker, together, routing)

    assert isclose(step.flop, sum(part.flop for part in alone), rel_tol=FLOAT)
    assert is_rising(max(part.bytes for part in alone), step.bytes)
    assert is_rising(step.bytes, sum(part.bytes for part in alone))


@given(deployments(sharings=(ONE,)), lengths(), st.lists(st.integers(1, 2_048), min_size=2, max_size=5, unique=True))
@FEW
def test_intensity_rises_with_the_batch_up_to_that_of_the_cache(worker: Deployment, context: int, counts: list[int]) -> None:
    """A larger batch shares weights, so it does more FLOP per byte; never more than a sequence does per byte of its cache."""
    steps = [work(worker, [Span(context, 1, count)]) for count in sorted(counts)]
    own = [operator for operator in steps[0].operators if operator.name.startswith(("attention scores", "recurrent"))]
    most = steps[0].flop / sum(operator.bytes for operator in own)

    rates = [step.intensity_flop_per_byte for step in steps]
    assert all(is_rising(*pair) for pair in pairwise([*rates, most]))


@given(deployments(), lengths(), st.integers(1, 4_096), st.integers(1, 64))
@FEW
def test_operators_one_by_one_take_no_less_than_overlapped(worker: Deployment, past: int, new: int, count: int) -> None:
    """The roofline of each operator by itself, added up, is no lower bound but lies above the one of the whole."""
    step = work(worker, [Span(past, new, count)])
    gpus = worker.parallelism.at_once

    assert is_rising(bound(step, worker.gpu, gpus).seconds, sum(operator_seconds(step, worker.gpu, gpus).values()))


@given(deployments(), lengths(), surroundings(), st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0, 1e-3))
@FEW
def test_larger_losses_take_no_less(
    worker: Deployment, length: int, around: Surroundings, compute: float, memory: float, overhead: float
) -> None:
    """An engine further below the peaks is expected to be slower, never faster, than one that reaches them."""
    engine = Losses(
        compute_efficiency_ratio=compute,
        memory_efficiency_ratio=memory,
        layer_overhead_seconds=overhead,
        parallel_layer_overhead_seconds=overhead,
    )
    perfect = Losses(
        compute_efficiency_ratio=1.0,
        memory_efficiency_ratio=1.0,
        layer_overhead_seconds=0.0,
        parallel_layer_overhead_seconds=0.0,
    )

    for losses in (engine, LOSSES):
        best = prefill_limit(worker, perfect, prompt_tokens=length, around=around)
        usual = prefill_limit(worker, losses, prompt_tokens=length, around=around)
        assert seconds(best)[:2] == seconds(usual)[:2]
        assert is_rising(best.expected_seconds, usual.expected_seconds)


@given(deployments((*DENSE, *EXPERTS, *RECURRENT, *LATENT), (ONE, SPLIT)), lengths(), st.integers(1, 512))
@FEW
def test_the_closed_form_of_decoding_agrees(worker: Deployment, context: int, batch: int) -> None:
    """Without windows it is the expectation of the whole model to a few in ten thousand: the new tokens' own entries."""
    around = Surroundings(running=batch - 1, context_tokens=context)
    exact = decode_limit(worker, LOSSES, context_tokens=context, around=around).expected_seconds

    assert closed_form(worker, LOSSES).decode_seconds(batch, batch * context) == pytest.approx(exact, rel=2e-3)


@given(deployments(SLIDING, (ONE, SPLIT)), st.integers(1_024, 200_000), st.integers(1, 512))
@FEW
def test_the_closed_form_takes_windows_as_full(worker: Deployment, context: int, batch: int) -> None:
    """It agrees as well once contexts are longer than the windows (128 tokens in gpt-oss, 1024 in Gemma)."""
    windows = [group.mixer.window_tokens or 0 for group in worker.shape.groups if isinstance(group.mixer, Attention)]
    around = Surroundings(running=batch - 1, context_tokens=context)
    exact = decode_limit(worker, LOSSES, context_tokens=context, around=around).expected_seconds

    assert max(windows) <= 1_024
    assert closed_form(worker, LOSSES).decode_seconds(batch, batch * context) == pytest.approx(exact, rel=2e-3)


@given(
    deployments((*DENSE, *EXPERTS, *RECURRENT, *SLIDING), (ONE, SPLIT)),
    st.integers(512, 100_000),
    lengths(),
    st.integers(0, 256),
)
@FEW
def test_the_closed_form_of_prefill_agrees(worker: Deployment, uncached: int, cached: int, running: int) -> None:
    """Within 2.5 % for prompts of 512 tokens or more, whatever is cached: windows are left out of the arithmetic."""
    around = Surroundings(running=running, context_tokens=4_000, chunk_tokens=8_192 + running)
    exact = prefill_limit(worker, LOSSES, prompt_tokens=uncached + cached, cached_tokens=cached, around=around)

    quick = closed_form(worker, LOSSES).prefill_seconds(uncached, cached, running, running * 4_000)

    assert quick == pytest.approx(exact.expected_seconds, rel=0.025)
