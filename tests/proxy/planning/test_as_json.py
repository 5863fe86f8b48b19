"""The JSON of a plan: every documented key, the same figures as the core, stable forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from roofline.capacity.memory import memory_budget
from roofline.capacity.remedies import RemedyCode
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES
from roofline.gpus import GPUS
from roofline.limits import Surroundings, decode_limit, prefill_limit
from roofline.models.known import find_model
from roofline.plan.warning import WarningCode
from tests.proxy.plan_runs import llama, run

PAGE = (Path(__file__).parents[3] / "docs/reference/plan-json.md").read_text()
OF_PREFILL = ("prefill", "prefill_cold")
STEADY = ("recommended", "saturation", "warm_saturation", "at_rate")


def keys_of(value: object, path: str = "") -> Iterator[str]:
    """All paths to what is neither an object nor a list of objects; also to objects that are null."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from keys_of(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for part in value:
            yield from keys_of(part, f"{path}[]")
    else:
        yield path


def all_keys() -> set[str]:
    """The keys of plans that between them have everything."""
    found: set[str] = set()
    for arguments in (("--rate", 2, "--cached-tokens", 1500), ("--concurrency", 200), ("--gpus", 2, "--weight-dtype", "fp8")):
        found |= set(keys_of(llama(*arguments, "--json").document))
    return found


def documented() -> set[str]:
    """The keys of the page, those said to be alike written out."""
    rows = set(re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE))
    rows |= {f"prefill_cold.{row.removeprefix('prefill.')}" for row in rows if row.startswith("prefill.")}
    steady = {row.removeprefix("capacity.recommended.") for row in rows if row.startswith("capacity.recommended.")}
    return rows | {f"capacity.{name}.{row}" for name in STEADY for row in steady}


def test_the_page_and_the_output_have_the_same_keys():
    """Every key that is printed is documented, and every documented key is printed."""
    printed = all_keys()
    # an object that may be null is a row of its own, and so is one whose parts are documented elsewhere
    containers = {key for key in documented() if any(other.startswith(f"{key}.") for other in printed)}

    nulls = {"prefill_cold", "remedies[].after", *(f"capacity.{name}" for name in STEADY)}
    assert printed - documented() - nulls == set()
    assert documented() - containers - printed == set()


def test_the_page_names_all_codes():
    """Codes of warnings and remedies on the page are those that there are, in their order."""
    listed = PAGE[PAGE.index("Codes of warnings") :]
    assert re.findall(r"`([a-z_]+)`", listed) == [code.value for code in WarningCode]
    row = next(line for line in PAGE.splitlines() if line.startswith("| `remedies[].code`"))
    assert re.findall(r"`([a-z_0-9]+)`", row) == ["as_it_is", *(code.value for code in RemedyCode)]


def test_the_figures_are_those_of_the_core():
    """The same question to the core's functions gives the same figures."""
    shown = llama("--concurrency", 16, "--cached-tokens", 500, "--json").document
    deployment = Deployment(find_model("llama-3.1-8b").shape, GPUS["h100-sxm"])
    losses = DEFAULT_LOSSES["vllm"]
    budget = memory_budget(deployment)
    prefill = prefill_limit(deployment, losses, prompt_tokens=2000, cached_tokens=500, around=Surroundings(chunk_tokens=8192))
    others = Surroundings(running=15, context_tokens=2250)
    decode = decode_limit(deployment, losses, context_tokens=2000, completion_tokens=500, around=others)

    assert shown["weights_bytes"] == deployment.weight_bytes
    assert shown["kv_bytes_per_token"] == 131_072
    assert (shown["kv_capacity_tokens"], shown["max_concurrency"]) == (budget.tokens(2500), budget.sequences(2500))
    assert shown["prefill"]["flop"] == prefill.flop
    assert shown["prefill"]["floor_seconds"] == prefill.floor_seconds
    assert shown["prefill"]["expected_seconds"] == prefill.expected_seconds
    assert shown["decode"]["floor_seconds"] == decode.floor_seconds
    assert shown["decode"]["reference_seconds"] == decode.reference_seconds
    assert shown["decode"]["expected_seconds"] == decode.expected_seconds
    assert shown["ridge_flop_per_byte"] == deployment.ridge_flop_per_byte


@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b-a3b-instruct"]
)
def test_floor_reference_expected(model):
    """For every kind of model the three stand in their order, for both phases, and loads do not beat the floor."""
    shown = run("--model", model, "--gpu", "b200-sxm", "--gpus", "auto", "--concurrency", 16, "--json").document

    for phase in ("prefill", "decode"):
        figures = [shown[phase][name] for name in ("floor_seconds", "reference_seconds", "expected_seconds")]
        assert figures == sorted(figures)
        assert figures[0] > 0
    assert shown["latency"]["ttft_seconds"] > shown["prefill"]["floor_seconds"]
    assert shown["latency"]["tpot_seconds"] > shown["decode"]["floor_seconds"]


def test_more_cached_tokens_never_cost_more():
    """`prefill` is what is left to compute, `prefill_cold` stays what it is."""
    shown = [llama("--cached-tokens", cached, "--json").document for cached in (0, 500, 1500, 2000)]

    for name in ("flop", "floor_seconds", "expected_seconds"):
        figures = [plan["prefill"][name] for plan in shown]
        assert sorted(figures, reverse=True) == figures
    assert shown[0]["prefill_cold"] is None
    assert all(plan["prefill_cold"] == shown[0]["prefill"] for plan in shown[1:])


def test_one_plan_is_an_object_and_several_are_a_list():
    """Programs find the keys at the top for one worker, and in `plans` for several."""
    one = llama("--json").document
    several = run("--model", "llama-3.1-8b", "--gpu", "h100-sxm,l40s", "--json").document

    assert one["schema"] == several["schema"] == 1
    assert set(several) == {"schema", "plans"}
    assert several["plans"][0] == one


def test_what_does_not_fit_is_told_as_numbers():
    """Without room there is no capacity, and the fewest GPUs that would do are told."""
    shown = run("--model", "llama-3.1-70b", "--gpu", "h100-sxm", "--json").document

    assert (shown["works"], shown["capacity"], shown["max_concurrency"], shown["kv_capacity_tokens"]) == (False, None, 0, 0)
    assert shown["memory"]["missing_bytes"] > 0
    assert shown["memory"]["gpus_that_fit"] == 2
    assert shown["latency"]["ttft_seconds"] is None
    assert shown["warnings"][0]["code"] == "does_not_fit"
