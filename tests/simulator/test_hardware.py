"""A model on the GPUs of a simulated worker: what times it, what its cache holds, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roofline.capacity.memory import MemorySettings, memory_budget
from simulator.engine.roofline_timing import Scale
from simulator.hardware import Hardware, Placement, place

DEFAULT = Hardware()


def placed(model: str = "llama-3.1-8b", gpu: str = "h100-sxm", hardware: Hardware = DEFAULT, **more: int) -> Placement:
    return place(model, None, gpu, hardware, **more)


def test_a_known_name_and_a_gpu_say_everything():
    """Timer, cache, context and limits follow from the two: the figures of vLLM's defaults on 80 GB."""
    found = placed()
    budget = memory_budget(found.timer.deployment, MemorySettings())

    assert (found.timer.deployment.shape.name, found.timer.deployment.gpu.id) == ("meta-llama/Llama-3.1-8B", "h100-sxm")
    assert found.kv_tokens == budget.tokens()
    assert (found.max_model_len, found.max_num_seqs, found.step_tokens) == (131_072, 1024, 8192)


def test_the_served_name_may_be_any_with_a_shape():
    """The shape is looked up instead of the name; without one, the error says what to give."""
    assert place("mine", "qwen3-8b", "h100-sxm", DEFAULT).timer.deployment.shape.name == "Qwen/Qwen3-8B"
    with pytest.raises(ValueError, match=r"no model is known by the name 'mine'.*give --shape"):
        placed("mine")


def test_a_shape_may_be_a_file(tmp_path: Path):
    """A config.json that nobody has a name for."""
    fields = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **fields}))

    assert place("mine", str(path), "h100-sxm", DEFAULT).timer.deployment.shape.layers == 2


def test_figures_do_for_a_gpu():
    """Who has no GPU with a name gives peaks, bandwidth and memory."""
    deployment = placed(gpu="name=mine,bf16=5e14,bandwidth=2e12,memory=64e9").timer.deployment

    assert (deployment.gpu.id, deployment.gpu.memory_bytes) == ("mine", 64e9)


def test_gpus_formats_and_memory_are_as_told():
    """More GPUs, a narrower format and more of the memory each make the cache larger."""
    sizes = [
        placed(hardware=hardware).kv_tokens
        for hardware in (
            Hardware(memory_utilization_ratio=0.8),
            DEFAULT,
            Hardware(weight_dtype="fp8"),
            Hardware(weight_dtype="fp8", kv_cache_dtype="fp8"),
            Hardware(weight_dtype="fp8", kv_cache_dtype="fp8", gpus=2),
        )
    ]

    assert sizes == sorted(set(sizes))
    assert placed(hardware=Hardware(tensor_parallel_size=4)).timer.deployment.parallelism.tensor == 4


def test_data_parallel_ranks_are_timed_and_filled_one_by_one():
    """Each rank is timed as if it were alone and has about as large a cache; the worker's GPUs are those of all ranks."""
    ranks = placed(hardware=Hardware(gpus=4), ranks=2)

    assert (ranks.timer.deployment.parallelism.tensor, ranks.timer.deployment.parallelism.data) == (2, 1)
    assert ranks.kv_tokens == pytest.approx(placed(hardware=Hardware(gpus=2)).kv_tokens, rel=0.01)


def test_what_is_asked_for_outranks_the_defaults():
    """Sequences, tokens of a step and the size of the cache."""
    found = placed(max_num_seqs=7, step_tokens=512, kv_tokens=4096)

    assert (found.max_num_seqs, found.step_tokens, found.kv_tokens) == (7, 512, 4096)


def test_losses_and_factors_are_the_simulated_gpus_own():
    """Overheads of a request and of those beside it may be told, and are scaled as other overheads are."""
    hardware = Hardware(scale=Scale(overhead_factor=3.0), request_overhead_seconds=0.01, stream_overhead_seconds=0.002)

    assert placed().timer.request_overhead_seconds == 0
    assert placed(hardware=hardware).timer.request_overhead_seconds == pytest.approx(0.03)
    assert placed().timer.stream_overhead_seconds == 0
    assert placed(hardware=hardware).timer.stream_overhead_seconds == pytest.approx(0.006)


@pytest.mark.parametrize(
    ("hardware", "gpu", "why"),
    [
        (Hardware(engine="ollama"), "h100-sxm", "unknown engine 'ollama'; there are losses of vllm, "),
        (Hardware(weight_dtype="fp9"), "h100-sxm", "weight dtype 'fp9' is not known"),
        (Hardware(gpus=4, tensor_parallel_size=3), "h100-sxm", "4 GPUs a worker are not 3"),
        (Hardware(), "h1000", "as an option: --gpu bf16="),
    ],
)
def test_what_cannot_be_is_refused(hardware: Hardware, gpu: str, why: str):
    """The error says what is wrong and what would be right."""
    with pytest.raises(ValueError, match=why):
        placed(gpu=gpu, hardware=hardware)
