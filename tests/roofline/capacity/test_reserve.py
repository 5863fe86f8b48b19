"""What an engine needs beside weights and cache."""

from __future__ import annotations

import pytest

from roofline.capacity.reserve import RULE_OF_THUMB_BYTES, EngineLimits, captured_graphs, engine_limits, reserve
from roofline.deployment import Deployment, Parallelism
from roofline.gpu_names import find_gpu
from roofline.shape import Experts
from tests.roofline.shapes import a_gpu, a_shape
from tests.roofline.workers import a_worker

GIB = float(1 << 30)
MIB = float(1 << 20)
SMALL = EngineLimits(batched_tokens=2048, sequences=256)
LARGE = EngineLimits(batched_tokens=8192, sequences=1024)


def test_parts_by_hand() -> None:
    """Layer, sampling, hidden vectors, graphs and runtime of the small shape, by the formulas told."""
    found = reserve(Deployment(a_shape(), a_gpu()), EngineLimits(batched_tokens=1_000, sequences=10))

    # The widest part is the feed-forward: 6,000 / 100 = 60 numbers a token beside two hidden vectors of 100.
    assert found.layer_bytes == 1_000 * (200 + 60) * 2
    assert found.sampling_bytes == 10 * 10 * (2 + 12)
    assert found.hidden_bytes == 1_000 * 100 * 2
    assert found.graphs == 5 + 4  # 1, 2, 4, 8, 16, and all but 16 once more for decoding alone
    assert found.graph_bytes == 2 * 9 * 0.25 * MIB
    assert found.runtime_bytes == 0.25 * GIB
    assert found.activation_bytes == found.layer_bytes
    assert found.total_bytes == found.layer_bytes + found.graph_bytes + found.runtime_bytes


def test_sampling_counts_where_it_is_the_peak() -> None:
    """Layers and sampling come one after the other, so the larger of them counts, with the hidden vectors held meanwhile."""
    found = reserve(a_worker("gpt-oss-20b", "h100-sxm"), LARGE)

    assert found.sampling_bytes > found.layer_bytes
    assert found.activation_bytes == found.sampling_bytes + found.hidden_bytes


def test_tensor_parallelism_splits_the_widest_part_only() -> None:
    """Hidden vectors and logits are whole on each GPU; results are exchanged through a buffer."""
    alone, split = (reserve(Deployment(a_shape(), a_gpu(), parallelism=Parallelism(tensor=tensor)), SMALL) for tensor in (1, 2))

    assert split.layer_bytes == 2048 * (200 + 60 / 2) * 2
    assert split.sampling_bytes == alone.sampling_bytes
    assert split.runtime_bytes == alone.runtime_bytes + 0.25 * GIB


def test_each_chosen_expert_gets_a_copy_of_the_token() -> None:
    """A mixture's widest part is its chosen experts: each holds a token's hidden vector or its own intermediate ones."""
    shape = a_shape(attention=0, ffn=0, experts=Experts(count=10, chosen=3), expert=10 * 9_000)
    found = reserve(Deployment(shape, a_gpu()), EngineLimits(batched_tokens=1, sequences=1))

    assert found.layer_bytes == (200 + 3 * 100) * 2  # 9,000 / 100 = 90 numbers are fewer than the hidden vector's 100


def test_eager_engines_capture_no_graphs() -> None:
    """--enforce-eager saves what graphs take."""
    found = reserve(Deployment(a_shape(), a_gpu()), SMALL, is_eager=True)

    assert (found.graphs, found.graph_bytes) == (0, 0.0)


@pytest.mark.parametrize(
    ("sequences", "batched", "graphs"),
    [
        (256, 2048, 51 + 35),  # as logged by vLLM 0.19 to 0.27: "PIECEWISE=51 (largest=512), FULL=35 (largest=256)"
        (1024, 8192, 51 + 51),
        (8, 2048, 5 + 4),
        (1, 2048, 2 + 1),
        (256, 16, 5 + 5),
    ],
)
def test_graphs_of_each_size(sequences: int, batched: int, graphs: int) -> None:
    """Sizes go up to twice the sequences, 512 and the batched tokens; decode-only graphs up to the sequences."""
    assert captured_graphs(EngineLimits(batched_tokens=batched, sequences=sequences)) == graphs


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ("h100-sxm", LARGE),
        ("h200-sxm", LARGE),
        ("a100-sxm4-80gb", SMALL),
        ("l40s", SMALL),
        ("rtx-4090", SMALL),
        ("b200-sxm", EngineLimits(batched_tokens=16384, sequences=1024)),
        ("gb10-dgx-spark", SMALL),
    ],
)
def test_defaults_depend_on_the_card(gpu: str, limits: EngineLimits) -> None:
    """vLLM computes more at once on larger cards; A100 and GB10 count as small."""
    assert engine_limits(find_gpu(gpu)) == limits


@pytest.mark.parametrize(("model", "tensor"), [("Llama-3.1-8B", 1), ("Llama-3.1-70B", 4), ("gpt-oss-120b", 1)])
def test_agrees_with_the_rule_of_thumb(model: str, tensor: int) -> None:
    """With the defaults of an H100 the estimate lies in the 2 to 6 GB that people reckon with."""
    found = reserve(a_worker(model, "h100-sxm", tensor=tensor), LARGE)

    assert RULE_OF_THUMB_BYTES[0] <= found.total_bytes <= RULE_OF_THUMB_BYTES[1]


def test_limits_below_one_are_refused() -> None:
    """An engine that computes nothing needs no estimate."""
    with pytest.raises(ValueError, match="at least one token of one sequence"):
        reserve(Deployment(a_shape(), a_gpu()), EngineLimits(batched_tokens=0, sequences=1))
