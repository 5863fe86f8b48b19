"""From what people write to a worker: formats, and how GPUs share the work."""

from __future__ import annotations

import pytest

from roofline.deployment import Parallelism
from roofline.gpus import GPUS
from roofline.models.known import find_model
from roofline.written import Written, deployment_of


def test_a_name_that_tells_its_format_is_taken_at_its_word() -> None:
    """A checkpoint called -FP8 stores fp8, unless another format is said."""
    model, gpu = find_model("Qwen/Qwen3-8B-FP8"), GPUS["h100-sxm"]

    assert deployment_of(model, gpu, Written()).weights.name.startswith("fp8")
    assert deployment_of(model, gpu, Written(weight_dtype="bf16")).weights.name == "bf16"


@pytest.mark.parametrize(
    ("written", "sharing"),
    [
        (Written(), Parallelism()),
        (Written(gpus=4), Parallelism(tensor=4)),
        (Written(gpus=8, pipeline=2), Parallelism(tensor=4, pipeline=2)),
        (Written(gpus=8, tensor=2, data=4, is_expert_parallel=True), Parallelism(tensor=2, data=4, expert=True)),
        (Written(tensor=2), Parallelism(tensor=2)),
    ],
)
def test_gpus_that_nothing_is_said_about_are_tensor_parallel(written: Written, sharing: Parallelism) -> None:
    """The counts multiply to the GPUs of a worker."""
    assert written.parallelism() == sharing


@pytest.mark.parametrize("written", [Written(gpus=4, tensor=3), Written(gpus=3, pipeline=2)])
def test_counts_that_contradict_each_other_are_refused(written: Written) -> None:
    """They would have to multiply to the GPUs of a worker."""
    with pytest.raises(ValueError, match=f"{written.gpus} GPUs a worker are not"):
        written.parallelism()


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (Written(weight_dtype="fp9"), "weight dtype 'fp9' is not known"),
        (Written(kv_dtype="fp9"), "KV cache dtype 'fp9' is not known"),
    ],
)
def test_formats_that_are_not_known_are_refused(written: Written, message: str) -> None:
    """The error lists those that are."""
    with pytest.raises(ValueError, match=message):
        deployment_of(find_model("qwen3-8b"), GPUS["h100-sxm"], written)
