"""Warnings of a plan: each where it is due and not where it is not, and what binds first at the top."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.capacity.memory import MemorySettings
from roofline.capacity.targets import BATCH_JOB, CHAT, Targets
from roofline.expected import DEFAULT_LOSSES
from roofline.gpu import Certainty
from roofline.gpus import GPUS
from roofline.plan.plan import Plan, make_plan
from roofline.plan.warning import Severity, WarningCode
from roofline.plan.warnings import warnings_of
from roofline.precision import Precision
from tests.roofline.plans import a_deployment, a_plan_at, a_plan_that_does_not_fit, a_question, the_plan, without

STRICT = Targets(name="strict", source="a test", ttft_seconds=0.010, tpot_seconds=0.001)


def codes(plan: Plan) -> list[WarningCode]:
    return [told.code for told in warnings_of(plan)]


def a_plan(model: str = "llama-3.1-8b", gpu: object = "h100-sxm", **question: object) -> Plan:
    sharing = {name: question.pop(name) for name in ("tensor", "data", "weights") if name in question}
    return make_plan(a_deployment(model, gpu, **sharing), a_question(**question))  # type: ignore[arg-type]


DUE = {
    WarningCode.DOES_NOT_FIT: a_plan_that_does_not_fit,
    WarningCode.CONTEXT_TOO_LONG: lambda: a_plan(prompt=131_072),
    WarningCode.REQUEST_DOES_NOT_FIT: lambda: a_plan("llama-3.1-8b", "rtx-4090", prompt=100_000),
    WarningCode.NO_ROOM_FOR_CUDA_CONTEXT: lambda: a_plan(settings=MemorySettings(utilization_ratio=0.999)),
    WarningCode.KV_RESERVE: lambda: a_plan("llama-3.1-70b", tensor=2),
    WarningCode.CONCURRENCY_ABOVE_KV: lambda: a_plan_at(200),
    WarningCode.CONCURRENCY_ABOVE_SEQUENCES: lambda: a_plan(concurrency=60, settings=MemorySettings(max_sequences=50)),
    WarningCode.RATE_ABOVE_SATURATION: lambda: a_plan(rate=100.0),
    WarningCode.TTFT_MISSED: lambda: a_plan(targets=STRICT),
    WarningCode.TPOT_MISSED: lambda: a_plan_at(170),
    WarningCode.ABOVE_CEILING: lambda: a_plan_at(140),
    WarningCode.CHUNK_SIZE: lambda: a_plan("llama-3.1-8b", "l40s"),
    WarningCode.NO_HARDWARE_PATH: lambda: a_plan("llama-3.1-8b", "a100-sxm4-80gb", weights="fp8"),
    WarningCode.UNKNOWN_LINK: lambda: a_plan("llama-3.1-8b", "l40s", tensor=2),
    WarningCode.UNSURE_GPU: lambda: a_plan("llama-3.1-8b", without("h100-sxm", peaks_certainty=Certainty.MEDIUM)),
    WarningCode.UNFITTED_ENGINE: lambda: a_plan(losses=DEFAULT_LOSSES["sglang"]),
    WarningCode.ABOVE_RECOMMENDED: lambda: a_plan_at(125),
    WarningCode.BEYOND_KNEE: lambda: a_plan_at(60),
    WarningCode.FASTER_THAN_NEEDED: lambda: a_plan_at(8),
}


@pytest.mark.parametrize("code", WarningCode)
def test_each_warning_is_told_where_it_is_due(code):
    """Every code has a plan that it is told of, with a sentence."""
    told = {warning.code: warning for warning in warnings_of(DUE[code]())}

    assert code in told
    assert told[code].text


@pytest.mark.parametrize("code", WarningCode)
def test_none_is_told_without_need(code):
    """A small model on a large GPU with one request has nothing against it."""
    assert code not in codes(the_plan())


def test_what_binds_first_is_at_the_top():
    """Warnings come in the order of their codes, whatever finds them: memory, load, latency, settings, facts."""
    plan = a_plan(
        "llama-3.1-70b",
        without("l40s", peaks_certainty=Certainty.LOW, memory_bytes=96e9, driver_memory_bytes=96 * 10**9),
        tensor=2,
        concurrency=100,
        rate=50.0,
        targets=STRICT,
        losses=DEFAULT_LOSSES["sglang"],
    )

    order = list(WarningCode)
    found = codes(plan)
    assert found == sorted(found, key=order.index)
    assert found[:3] == [WarningCode.KV_RESERVE, WarningCode.CONCURRENCY_ABOVE_KV, WarningCode.RATE_ABOVE_SATURATION]
    assert {WarningCode.TTFT_MISSED, WarningCode.TPOT_MISSED, WarningCode.UNKNOWN_LINK, WarningCode.UNSURE_GPU} <= set(found)


def test_as_many_as_the_cache_holds_are_not_too_many():
    """The warning begins with one request more than fits."""
    most = the_plan().max_concurrency

    assert WarningCode.CONCURRENCY_ABOVE_KV not in codes(a_plan_at(most))
    assert WarningCode.CONCURRENCY_ABOVE_KV in codes(a_plan_at(most + 1))


def test_what_does_not_fit_needs_no_other_warning():
    """Where the model does not fit, nothing is said of cache, load or latency."""
    assert codes(a_plan_that_does_not_fit()) == [WarningCode.DOES_NOT_FIT]


def test_only_what_cannot_be_is_an_error():
    """Errors are exactly the warnings of plans that do not work."""
    for code, make in DUE.items():
        plan = make()
        errors = [told.code for told in warnings_of(plan) if told.severity is Severity.ERROR]
        assert bool(errors) is not plan.works, code


def test_what_does_not_fit_names_what_would():
    """The remedy says how many GPUs hold it; where no number does, it says so."""
    assert warnings_of(a_plan_that_does_not_fit())[0].remedy.startswith("2 GPUs would hold it (tensor parallel 2)")
    staged = warnings_of(a_plan("deepseek-v3", "l40s"))[0].remedy
    assert "8, " in staged
    assert "pipeline stages" in staged
    tiny = replace(GPUS["l4"], memory_bytes=2e9, driver_memory_bytes=2 * 10**9)
    assert "no number of l4" in warnings_of(a_plan("llama-3.1-70b", tiny))[0].remedy


def test_targets_missed_alone_ask_for_another_remedy():
    """A target that a lone request misses is not kept by fewer requests; one that load misses is."""
    alone = {told.code: told for told in warnings_of(a_plan(targets=STRICT, concurrency=4))}
    assert "even for a request alone" in alone[WarningCode.TPOT_MISSED].text
    assert "more GPUs" in alone[WarningCode.TPOT_MISSED].remedy
    loaded = {told.code: told for told in warnings_of(a_plan_at(170))}
    assert "requests at once are recommended" in loaded[WarningCode.TPOT_MISSED].remedy


def test_a_ttft_that_load_misses():
    """TTFT that is good alone and missed under load is kept by fewer requests."""
    tight = replace(CHAT, name="tight", ttft_seconds=0.080, ttft_good_seconds=None)
    told = {warning.code: warning for warning in warnings_of(a_plan(targets=tight, concurrency=60))}
    assert told[WarningCode.TTFT_MISSED].remedy == "fewer requests at once"


def test_what_is_told_already_is_not_told_again():
    """More than the cache holds, or a rate beyond saturation, is not also told as too little head-room."""
    assert WarningCode.ABOVE_CEILING not in codes(a_plan_at(200))
    assert WarningCode.ABOVE_CEILING not in codes(a_plan(rate=100.0))
    assert WarningCode.CONCURRENCY_ABOVE_SEQUENCES not in codes(a_plan_at(200))


def test_nothing_is_said_of_a_load_that_nobody_asked_for():
    """Without concurrency or rate, there is neither too little head-room nor too much."""
    asked = {WarningCode.FASTER_THAN_NEEDED, WarningCode.ABOVE_CEILING, WarningCode.BEYOND_KNEE}
    assert not asked & set(codes(a_plan(targets=BATCH_JOB)))


def test_a_small_step_is_told():
    """Steps of less than 512 tokens do not fill the matrix units, and the remedy is a number to set."""
    told = {warning.code: warning for warning in warnings_of(a_plan(settings=MemorySettings(max_batched_tokens=256)))}
    assert "256 tokens" in told[WarningCode.CHUNK_SIZE].text
    assert told[WarningCode.CHUNK_SIZE].remedy.startswith("--max-num-batched-tokens ")


def test_batch_jobs_feel_no_stall():
    """Where nobody reads along, a long step holds up nobody."""
    assert WarningCode.CHUNK_SIZE not in codes(a_plan("llama-3.1-8b", "l40s", targets=BATCH_JOB, concurrency=20))


def test_a_chunk_that_cannot_be_small_enough():
    """Where even the smallest chunk holds others up, the remedy says so."""
    told = {warning.code: warning for warning in warnings_of(a_plan("llama-3.1-70b", tensor=2))}
    assert "even that step is too long" in told[WarningCode.CHUNK_SIZE].remedy


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({"link_bytes_per_second": 0.0}, Severity.NOTE, "no link between GPUs"),
        ({"link_bytes_per_second": None}, Severity.NOTE, "no link whose speed is known"),
        ({"link_bytes_per_second": None, "pcie_bytes_per_second": None}, Severity.WARNING, "taken as nothing"),
    ],
)
def test_links_that_are_not_known(changes, severity, text):
    """PCIe in place of a link is a note; nothing at all is a warning, since times are too short then."""
    told = {warning.code: warning for warning in warnings_of(a_plan("llama-3.1-8b", without("h100-sxm", **changes), tensor=2))}
    assert told[WarningCode.UNKNOWN_LINK].severity is severity
    assert text in told[WarningCode.UNKNOWN_LINK].text


def test_both_kinds_of_doubtful_figures_are_told():
    """Peaks and bandwidth are judged each for itself."""
    gpu = without("h100-sxm", peaks_certainty=Certainty.LOW, bandwidth_certainty=Certainty.MEDIUM)
    texts = [told.text for told in warnings_of(a_plan("llama-3.1-8b", gpu)) if told.code is WarningCode.UNSURE_GPU]
    assert [text.split(":")[0] for text in texts] == ["peaks of h100-sxm", "bandwidth of h100-sxm"]


def test_a_format_without_hardware_is_told_with_its_stand_in():
    """fp8 weights on a GPU without fp8 are multiplied in bf16, and that is said."""
    assert Precision.FP8 not in GPUS["a100-sxm4-80gb"].dense_flop_per_second
    told = warnings_of(DUE[WarningCode.NO_HARDWARE_PATH]())
    assert any("no fp8 arithmetic" in warning.text and "bf16" in warning.text for warning in told)


def test_a_rate_beyond_a_cold_cache_is_told_as_such():
    """A rate that only a warm cache serves is beyond saturation: caches are cold after a restart."""
    told = {warning.code: warning for warning in warnings_of(a_plan(rate=7.5, cached=1900))}
    assert "while its prefix cache is cold" in told[WarningCode.RATE_ABOVE_SATURATION].text
