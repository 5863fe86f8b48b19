"""The metrics page, read by prometheus_client's parser and held against that of a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from simulator.dialect import DIALECTS, NEWEST, Dialect
from simulator.engine.timing import ConstantTimer
from simulator.engine.values import EngineSettings, Speculation, Totals
from simulator.exposition import EngineView, Snapshot, write_page
from simulator.metrics import FINISHED_REASONS, REJECTIONS, HttpStats, Lag, Ledger

CAPTURED = Path(__file__).parents[1] / "data" / "metrics" / "vllm-0.32.0.txt"
TOTALS = Totals(
    prefix_queried_tokens=100, prefix_hit_tokens=40, prompt_tokens=90, generation_tokens=50, preemptions=2, accepted_tokens=7
)
GPU: dict[str, Any] = {
    "timer": ConstantTimer(step_seconds=1, prefill_seconds_per_token=0, context_seconds_per_token=0),
    "kv_tokens": 420_000,
}

# Families of the captured page that a simulated worker lacks, and why.
LACKING = {
    "vllm:estimated_flops_per_gpu": "needs --enable-mfu-metrics, which the simulated worker does not have",
    "vllm:estimated_read_bytes_per_gpu": "needs --enable-mfu-metrics, too",
    "vllm:estimated_write_bytes_per_gpu": "needs --enable-mfu-metrics, too",
    "vllm:kv_block_lifetime_seconds": "needs --kv-cache-metrics, which the simulated worker does not have",
    "vllm:kv_block_idle_before_evict_seconds": "needs --kv-cache-metrics, too",
    "vllm:kv_block_reuse_gap_seconds": "needs --kv-cache-metrics, too",
}
OWN = "ridgeline_simulator_"


def a_view(**fields: Any) -> EngineView:
    given = {"running": 3, "waiting": 2, "kv_usage_ratio": 0.25, "totals": TOTALS, "ledger": Ledger(), **fields}
    return EngineView(**given)


def a_page(*views: EngineView, model: str = "tiny", dialect: Dialect = NEWEST, speculates: bool = False) -> str:
    http = HttpStats()
    for status in (200, 400):  # what the captured one had answered
        http.count("/v1/completions", "POST", status, 0.2, 30, 0)
    speculation = Speculation(drafts=2, acceptance_ratio=0.5) if speculates else None
    snapshot = Snapshot(
        model=model,
        created=1.5,
        settings=EngineSettings(**GPU, speculation=speculation),
        max_model_len=32768,
        engines=views or [a_view()],
        rejections=dict.fromkeys(REJECTIONS, 0),
        tool_calls={("streaming", "tool_call"): 4},
        lag=Lag(),
        http=http,
    )
    return write_page(snapshot, dialect)


def families(page: str) -> dict[str, Metric]:
    """Families by name; one that is there twice is an error."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(page):
        assert family.name not in found, family.name
        found[family.name] = family
    return found


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples by name and labels, without the labels that are the same for all of one engine's."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {name: text for name, text in sample.labels.items() if name not in ("engine", "model_name")}
            key = (sample.name, frozenset(labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def labels_of(family: Metric) -> Iterator[Any]:
    """How the samples of a family can be told apart: names of labels, and those texts that are no setting or path."""
    for sample in family.samples:
        closed = ("le", "reason", "source", "finished_reason", "sleep_state", "mode", "outcome", "request_type", "status")
        yield sample.name, sorted(sample.labels), [sample.labels.get(name) for name in closed]


def is_lacking(name: str) -> bool:
    return name.removesuffix("_created") in LACKING


CAPTURED_FAMILIES = families(CAPTURED.read_text())
OUR_FAMILIES = families(a_page())


@pytest.mark.parametrize("name", [name for name in CAPTURED_FAMILIES if not is_lacking(name)])
def test_families_are_those_of_a_real_worker(name):
    """Kind, help text, sample names, labels with their closed sets of values, and buckets are the captured ones."""
    ours, real = OUR_FAMILIES[name], CAPTURED_FAMILIES[name]

    assert (ours.type, ours.documentation) == (real.type, real.documentation)
    assert sorted(labels_of(ours)) == sorted(labels_of(real))


def test_there_is_nothing_that_a_real_worker_lacks():
    """Beyond the captured families there are only the simulator's own; what is lacking is no longer there."""
    more = {name for name in OUR_FAMILIES if name not in CAPTURED_FAMILIES}

    assert {name for name in more if not name.startswith(OWN)} == {"process_start_time_seconds"}  # left out of the capture
    assert {"ridgeline_simulator_lag_seconds", "ridgeline_simulator_lost_seconds"} <= more
    assert not any(is_lacking(name) for name in OUR_FAMILIES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm:num_requests_running", 3),
        ("vllm:num_requests_waiting", 2),
        ("vllm:kv_cache_usage_perc", 0.25),
        ("vllm:prefix_cache_queries_total", 100),
        ("vllm:prefix_cache_hits_total", 40),
        ("vllm:prompt_tokens_total", 90),
        ("vllm:prompt_tokens_cached_total", 40),
        ("vllm:generation_tokens_total", 50),
        ("vllm:num_preemptions_total", 2),
        ("vllm:generation_tokens_created", 1.5),
    ],
)
def test_the_engine_is_told_in_the_names_of_vllm(name, value):
    """Each figure of the engine is one sample."""
    assert samples(a_page())[name, frozenset()] == value


def test_every_reason_exists_from_the_start():
    """Finished requests are counted under all of vLLM's reasons, at 0 too."""
    ledger = Ledger()
    ledger.finished["length"] += 1
    found = samples(a_page(a_view(ledger=ledger)))
    counts = {
        reason: found["vllm:request_success_total", frozenset({("finished_reason", reason)})] for reason in FINISHED_REASONS
    }

    assert counts == {"stop": 0, "length": 1, "abort": 0, "error": 0, "repetition": 0}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("time_to_first_token_seconds", "ttft_seconds"),
        ("inter_token_latency_seconds", "itl_seconds"),
        ("request_time_per_output_token_seconds", "tpot_seconds"),
        ("e2e_request_latency_seconds", "e2e_seconds"),
        ("request_queue_time_seconds", "queue_seconds"),
        ("request_inference_time_seconds", "inference_seconds"),
        ("request_prefill_time_seconds", "prefill_seconds"),
        ("request_decode_time_seconds", "decode_seconds"),
        ("request_prompt_tokens", "prompt_tokens"),
        ("request_prefill_kv_computed_tokens", "computed_tokens"),
        ("request_generation_tokens", "generation_tokens"),
        ("request_max_num_generation_tokens", "most_generation_tokens"),
        ("request_params_max_tokens", "asked_tokens"),
        ("request_params_n", "asked_choices"),
        ("request_num_preemptions", "preemptions"),
        ("iteration_tokens_total", "step_tokens"),
    ],
)
def test_histograms_are_cumulative(name, field):
    """Buckets count what is at or below their bound; count and sum agree with them."""
    ledger = Ledger()
    for value in (0.3, 0.31, 100_000.0):
        getattr(ledger, field).observe(value)
    found = samples(a_page(a_view(ledger=ledger)))

    def bucket(bound: str) -> float:
        return found[f"vllm:{name}_bucket", frozenset({("le", bound)})]

    assert (bucket("10.0" if "seconds" in name else "1.0"), bucket("+Inf")) == (2, 3)
    assert found[f"vllm:{name}_count", frozenset()] == 3
    assert found[f"vllm:{name}_sum", frozenset()] == pytest.approx(100_000.61)


def test_tokens_are_told_by_where_they_came_from():
    """What was found here, what came from another worker, and what was computed add up to the prompt tokens."""
    ledger = Ledger()
    ledger.external_queried_tokens = 40
    totals = Totals(prefix_queried_tokens=100, prefix_hit_tokens=40, fetched_tokens=32, prompt_tokens=122)
    found = samples(a_page(a_view(ledger=ledger, totals=totals)))
    by_source = {
        source: found["vllm:prompt_tokens_by_source_total", frozenset({("source", source)})]
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }

    assert by_source == {"local_compute": 50, "local_cache_hit": 40, "external_kv_transfer": 32}
    assert found["vllm:prompt_tokens_total", frozenset()] == 122
    assert found["vllm:external_prefix_cache_hits_total", frozenset()] == 32


def test_engines_are_told_apart():
    """With two data-parallel engines there is a series for each."""
    page = families(a_page(a_view(running=1), a_view(running=5)))

    assert [(sample.labels["engine"], sample.value) for sample in page["vllm:num_requests_running"].samples] == [
        ("0", 1),
        ("1", 5),
    ]
    assert len(page["vllm:cache_config_info"].samples) == 2


def test_speculation_is_told_where_there_is_any():
    """Drafts and accepted tokens are families of workers that speculate."""
    totals = Totals(drafts=5, drafted_tokens=10, accepted_tokens=7, accepted_by_position=[4, 3])
    found = samples(a_page(a_view(totals=totals), speculates=True))

    assert found["vllm:spec_decode_num_draft_tokens_total", frozenset()] == 10
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", frozenset({("position", "1")})] == 3
    assert not any(name.startswith("vllm:spec_decode") for name in OUR_FAMILIES)


def test_the_size_of_the_cache_can_be_read():
    """The capacity in tokens is block size times blocks, both labels of one sample."""
    (sample,) = OUR_FAMILIES["vllm:cache_config_info"].samples

    assert int(sample.labels["block_size"]) * int(sample.labels["num_gpu_blocks"]) == GPU["kv_tokens"] // 16 * 16


def test_parsed_calls_are_told_by_mode_and_outcome():
    """Only chat completions are counted; the other kinds of request exist at 0."""
    found = samples(a_page())
    labels = {"mode": "streaming", "outcome": "tool_call"}

    def count(kind: str) -> float:
        return found["vllm:tool_call_parser_invocations_total", frozenset({**labels, "request_type": kind}.items())]

    assert (count("chat_completions"), count("responses")) == (4, 0)


@pytest.mark.parametrize(
    ("name", "there", "missing"),
    [
        (
            "0.9.2",
            {"gpu_cache_usage_perc", "kv_cache_usage_perc", "gpu_prefix_cache_hits", "time_per_output_token_seconds"},
            {"inter_token_latency_seconds", "external_prefix_cache_hits", "prompt_tokens_by_source"},
        ),
        (
            "0.11",
            {"time_per_output_token_seconds", "inter_token_latency_seconds", "external_prefix_cache_hits"},
            {"gpu_cache_usage_perc", "num_requests_waiting_by_reason", "prompt_tokens_cached"},
        ),
        (
            "0.22",
            {"num_requests_waiting_by_reason", "prompt_tokens_by_source", "inter_token_latency_seconds"},
            {"time_per_output_token_seconds", "prompt_tokens_cached_by_source", "admission_rejections"},
        ),
    ],
)
def test_older_versions_have_their_own_families(name, there, missing):
    """Names come and go with the version; an old name has the values of the new one."""
    ledger = Ledger()
    ledger.itl_seconds.observe(0.02)
    page = a_page(a_view(ledger=ledger), dialect=DIALECTS[name])
    found = {family.removeprefix("vllm:") for family in families(page)}

    assert there <= found
    assert not missing & found
    if "time_per_output_token_seconds" in there:
        assert samples(page)["vllm:time_per_output_token_seconds_count", frozenset()] == 1


def test_model_names_are_escaped():
    """A model name of any characters is read back as it is."""
    page = families(a_page(model='a"b\\c\nd'))

    assert page["vllm:num_requests_running"].samples[0].labels["model_name"] == 'a"b\\c\nd'
