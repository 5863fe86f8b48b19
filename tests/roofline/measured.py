"""The published measurements, and the deployments that they are of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from roofline.bound import bound
from roofline.deployment import Deployment, Parallelism
from roofline.gpu_names import find_gpu
from roofline.kv_cache import kv_width
from roofline.models.config import shape_from_config
from roofline.models.known import find_shape
from roofline.precision import BF16
from roofline.quantization import WeightScheme, named_scheme
from roofline.work import Span, Work
from tests.facts import facts_in

FACTS = facts_in("measured.yaml")
POINTS: dict[str, dict[str, Any]] = {point["id"]: point for point in FACTS["points"]}
# PaLM 540B, from the dimensions that its paper states; its head is tied, and attention and feed-forward run side by side.
PALM_540B = {
    "model_type": "llama",
    "hidden_size": 18_432,
    "num_hidden_layers": 118,
    "num_attention_heads": 48,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 73_728,
    "vocab_size": 256_000,
    "tie_word_embeddings": True,
}
UNSOUND = {name for name, point in POINTS.items() if point["beats_bound"]}


@cache
def scheme(precision: str) -> WeightScheme:
    """Precisions as the measurements name them."""
    names = {
        "int8w_allhead8": "int8-weight-only-all",
        "int8 weights": "int8-weight-only-all",
        "mxfp4_experts": "mxfp4-experts",
        "nvfp4_experts_fp8_rest": "nvfp4-experts-fp8",
    }
    return named_scheme(names.get(precision, precision), BF16)


@dataclass(frozen=True)
class Setting:
    """What was measured on what."""

    deployment: Deployment
    point: dict[str, Any]

    @property
    def gpus(self) -> int:
        return int(self.point["n_gpus"])

    @property
    def batch(self) -> int:
        return int(self.point.get("effective_batch", self.point.get("batch", 1)))

    def span(self) -> Span:
        if self.point["metric"] == "ttft_ms":
            return Span(0, self.point["prompt_tokens"], count=self.batch)
        return Span(self.point["context_tokens"], 1, count=self.batch)

    def seconds(self, done: Work) -> float:
        return bound(done, self.deployment.gpu, self.gpus).seconds


def setting(name: str) -> Setting:
    point = POINTS[name]
    is_palm = point["model"].startswith("PaLM")
    shape = shape_from_config(PALM_540B, name="PaLM 540B") if is_palm else find_shape(point["model"])
    precision = point["precision"]
    is_wide = precision in {"bf16", "fp16", "int8w_allhead8", "int8 weights"}
    deployment = Deployment(
        shape,
        find_gpu(point["gpu"]),
        weights=scheme(precision),
        kv=kv_width("bf16" if is_wide else "fp8", shape),
        parallelism=Parallelism(tensor=point["n_gpus"]),
    )
    return Setting(deployment, point)


TIMED = [name for name, point in POINTS.items() if point["metric"] in ("tpot_ms", "ttft_ms")]


def vllm_points() -> list[str]:
    """Names of the sound ones of vLLM."""
    return [name for name in TIMED if "vllm" in name + POINTS[name].get("note", "") and name not in UNSOUND]
