"""The calibrated form: losses on top of the reference, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.bound import bound
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, Losses, exchange_seconds, expected
from roofline.shape import Attention, Experts, WeightKind
from roofline.work import Span, distinct_experts, work
from tests.roofline.shapes import a_gpu, a_shape

HALVES = Losses(
    compute_efficiency_ratio=0.5,
    memory_efficiency_ratio=0.25,
    layer_overhead_seconds=1e-3,
    parallel_layer_overhead_seconds=1e-2,
)
DECODE, PREFILL = [Span(7, 1)], [Span(0, 100_000)]


def test_memory_bound_steps_lose_bandwidth_and_overhead_per_layer() -> None:
    """A decode step takes its bytes at a quarter of the bandwidth, and a millisecond for each of two layers."""
    deployment = Deployment(a_shape(), a_gpu())
    least = bound(work(deployment, DECODE), deployment.gpu)
    calibrated = expected(deployment, DECODE, HALVES)

    assert least.binds == "memory"
    assert calibrated.compute_or_memory_seconds == pytest.approx(4 * least.seconds)
    assert calibrated.overhead_seconds == pytest.approx(2e-3)
    assert calibrated.seconds == pytest.approx(4 * least.seconds + 2e-3)


def test_compute_bound_steps_lose_compute() -> None:
    """A long prefill takes its FLOP at half the peak."""
    deployment = Deployment(a_shape(), a_gpu())
    least = bound(work(deployment, PREFILL), deployment.gpu)

    assert least.binds == "compute"
    assert expected(deployment, PREFILL, HALVES).compute_or_memory_seconds == pytest.approx(2 * least.seconds)


def test_overhead_counts_every_step() -> None:
    """Eight chunks start every layer eight times."""
    deployment = Deployment(a_shape(), a_gpu())

    assert expected(deployment, [Span(0, 80, steps=8)], HALVES).overhead_seconds == pytest.approx(8 * 2e-3)


def test_gpus_that_exchange_pay_for_starting_and_for_bytes() -> None:
    """Tensor parallelism: more overhead a layer, and two ring all-reduces of every token's activations."""
    deployment = Deployment(a_shape(), a_gpu(link_bytes_per_second=1e6), parallelism=Parallelism(tensor=4))
    calibrated = expected(deployment, [Span(7, 1, count=3)], HALVES)

    assert calibrated.overhead_seconds == pytest.approx(2 * 11e-3)
    # 2 layers x 2 all-reduces x 2 x 3/4 of 3 tokens x 100 numbers x 2 bytes
    assert calibrated.exchange_seconds == pytest.approx(2 * 2 * 2 * 0.75 * 3 * 100 * 2 / 1e6)


def test_spread_experts_exchange_tokens_with_those_who_hold_them() -> None:
    """Expert parallelism over data ranks sends each token of a rank to its experts and back."""
    shape = a_shape(experts=Experts(count=8, chosen=2), expert=8_000)
    deployment = Deployment(shape, a_gpu(link_bytes_per_second=1e6), parallelism=Parallelism(data=4, expert=True))

    assert exchange_seconds(deployment, 3) == pytest.approx(2 * 2 * 2 * 0.75 * 3 * 100 * 2 / 1e6)


@pytest.mark.parametrize(
    ("link", "pcie", "seconds"),
    [(None, None, 0.0), (0.0, 1e6, 2 * 2 * 2 * 0.5 * 100 * 2 / 1e6), (2e6, 1e6, 2 * 2 * 100 * 2 / 2e6)],
)
def test_without_a_link_of_their_own_gpus_use_pcie(link: float | None, pcie: float | None, seconds: float) -> None:
    """An unknown speed adds nothing; no link means PCIe."""
    gpu = replace(a_gpu(link_bytes_per_second=link), pcie_bytes_per_second=pcie)
    deployment = Deployment(a_shape(), gpu, parallelism=Parallelism(tensor=2))

    assert exchange_seconds(deployment, 1) == pytest.approx(seconds)


def test_a_cache_that_cannot_be_split_is_read_by_every_gpu() -> None:
    """Two KV heads on four GPUs: half of the reading is double, which the reference does not see."""
    attention = Attention(heads=4, kv_heads=2, qk_head_dim=10, v_head_dim=10)
    four = Deployment(a_shape(mixer=attention), a_gpu(), parallelism=Parallelism(tensor=4))
    span = [Span(10_000, 1)]
    cache = 10_001 * 2 * 2 * 40
    least = bound(work(four, span), four.gpu, 4)

    assert expected(four, span, HALVES).compute_or_memory_seconds == pytest.approx(4 * (least.seconds + cache / 4e12))


def test_data_parallel_ranks_each_read_their_weights() -> None:
    """Two ranks each read the weights and four of the eight caches; of the experts each holds half."""
    shape = a_shape(experts=Experts(count=8, chosen=2), expert=8_000)
    deployment = Deployment(shape, a_gpu(), parallelism=Parallelism(data=2, expert=True))
    span = [Span(7, 1, count=8)]
    own = sum(term.bytes for term in deployment.weight_terms if term.experts is None and term.kind is not WeightKind.EMBEDDING)
    experts = sum(term.bytes for term in deployment.weight_terms if term.experts is not None) * distinct_experts(8, 2, 8) / 8
    caches = 4 * 8 * 2 * 2 * 40

    calibrated = expected(deployment, span, HALVES)

    assert calibrated.compute_or_memory_seconds == pytest.approx(4 * ((own + caches) / 1e12 + experts / 2e12))


@pytest.mark.parametrize("running", [1, 4])
def test_data_parallel_ranks_make_no_request_faster(running: int) -> None:
    """A sequence has one rank; as long as each has one of its own, they take as long as one on one GPU."""
    one = Deployment(a_shape(), a_gpu())
    four = Deployment(a_shape(), a_gpu(), parallelism=Parallelism(data=4))

    for alone in ([Span(0, 1_000)], [Span(1_000, 1)]):
        together = [span._replace(count=float(running)) for span in alone]
        assert expected(four, together, HALVES) == pytest.approx(expected(one, alone, HALVES))


@pytest.mark.parametrize(
    "wrong",
    [
        {"compute_efficiency_ratio": 0.0},
        {"compute_efficiency_ratio": 1.2},
        {"memory_efficiency_ratio": float("nan")},
        {"layer_overhead_seconds": -1e-6},
        {"request_overhead_seconds": float("nan")},
    ],
)
def test_losses_never_make_a_step_faster_than_its_reference(wrong: dict[str, float]) -> None:
    """Efficiencies above 1 and negative overheads are refused, by name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(HALVES, **wrong)


def test_every_engine_starts_with_stated_constants_and_their_error() -> None:
    """Defaults say where they come from and how far off they were there."""
    assert set(DEFAULT_LOSSES) == {"vllm", "tensorrt-llm", "sglang"}
    assert all(losses.source and losses.error_ratio for losses in DEFAULT_LOSSES.values())
