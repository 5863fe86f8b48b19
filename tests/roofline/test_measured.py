"""Published measurements: none beats the floor, the reference has their ratio, the expectation its stated error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from roofline.bound import bound
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, expected
from roofline.gpu_names import find_gpu
from roofline.kv_cache import kv_width
from roofline.models.config import shape_from_config
from roofline.models.known import find_shape
from roofline.precision import BF16
from roofline.quantization import WeightScheme, named_scheme
from roofline.work import Routing, Span, Work, work

FACTS = yaml.safe_load((Path(__file__).parents[1] / "data/facts/measured.yaml").read_text())
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
UTILISATION = "pope-palm540b-prefill-mfu76"  # a share of the peak, not a time
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
RATES = [name for name, point in POINTS.items() if point["metric"] == "output_tokens_per_s"]


def test_every_point_is_used() -> None:
    """No measurement is left out silently."""
    assert {*TIMED, *RATES, UTILISATION} == set(POINTS)
    assert len(UNSOUND) == 1


@pytest.mark.parametrize("name", [name for name in TIMED if name not in UNSOUND])
def test_no_sound_measurement_beats_the_floor(name: str) -> None:
    """The least that one sequence of it needs, with the fewest experts, is below what was measured."""
    at = setting(name)
    own = Span(at.span().past, at.span().new)

    assert at.point["measured"] / 1e3 > at.seconds(work(at.deployment, [own], Routing.FEWEST))


@pytest.mark.parametrize("name", TIMED)
def test_the_reference_has_the_published_ratio(name: str) -> None:
    """Measured over reference is what the source computed, within 2 %, unsound rows included."""
    at = setting(name)
    ratio = at.point["measured"] / 1e3 / at.seconds(work(at.deployment, [at.span()]))

    assert ratio == pytest.approx(at.point["ratio"], rel=0.02)


@pytest.mark.parametrize("name", RATES)
def test_no_throughput_is_above_compute(name: str) -> None:
    """Requests a second times the work of one stays below the peaks; the published ratio is reproduced within 2 %."""
    at = setting(name)
    prompt, output = at.point["prompt_tokens"], at.point["output_tokens"]
    prefill = work(at.deployment, [Span(0, prompt)])
    decode = work(at.deployment, [Span(prompt, output - 1, steps=output - 1, logits=output - 1)])
    seconds = sum(bound(done, at.deployment.gpu, at.gpus).compute_seconds for done in (prefill, decode))

    assert output / seconds > at.point["measured"]
    assert output / seconds / at.point["measured"] == pytest.approx(at.point["ratio"], rel=0.02)


def test_a_measured_utilisation_is_below_one() -> None:
    """The best published prefill reaches three quarters of the peak."""
    assert POINTS[UTILISATION]["measured"] < 1 < POINTS[UTILISATION]["ratio"]


def vllm_points() -> list[str]:
    return [name for name in TIMED if "vllm" in name + POINTS[name].get("note", "") and name not in UNSOUND]


def expected_tpot_seconds(at: Setting) -> float:
    """A decode step, and each token's share of the prefills that a closed loop puts between."""
    losses = DEFAULT_LOSSES["vllm"]
    step = expected(at.deployment, [at.span()], losses).seconds
    if "osl" not in at.point:
        return step
    prompt, output = (0.9 * at.point[key] for key in ("isl", "osl"))  # lengths are drawn from 0.8 to 1.0 of the nominal
    prefill = expected(at.deployment, [Span(0, round(prompt))], losses)
    return step + prefill.compute_or_memory_seconds * at.batch / output


def test_the_expectation_is_as_good_on_vllm_as_stated() -> None:
    """Mean absolute error over the published vLLM points is not above that of the fit, 15.7 %."""
    errors = {name: expected_tpot_seconds(at := setting(name)) / (at.point["measured"] / 1e3) - 1 for name in vllm_points()}

    assert len(errors) >= 10
    assert fmean(map(abs, errors.values())) <= FACTS["bulk_summary"]["affine_model"]["mape_pct"] / 100, errors
