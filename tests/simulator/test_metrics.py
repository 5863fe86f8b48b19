"""The metrics page, read by prometheus_client's parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulator.engine import Totals
from simulator.metrics import FINISHED_REASONS, Histogram, Latencies, Load, write_page

LOAD = Load(running=3, waiting=2, kv_usage_ratio=0.25, kv_blocks=1000)
TOTALS = Totals(prefix_queried_tokens=100, prefix_hit_tokens=40, prompt_tokens=90, generation_tokens=50)


def samples(model: str = "m", latencies: Latencies | None = None) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples of a page by name and labels, without the two labels that all of them have."""
    page = write_page(model=model, load=LOAD, totals=TOTALS, latencies=latencies or Latencies(), created=1.5)
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("engine") == "0"
            assert labels.pop("model_name") == model
            key = (sample.name, frozenset(labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm:num_requests_running", 3),
        ("vllm:num_requests_waiting", 2),
        ("vllm:kv_cache_usage_perc", 0.25),
        ("vllm:prefix_cache_queries_total", 100),
        ("vllm:prefix_cache_hits_total", 40),
        ("vllm:prompt_tokens_total", 90),
        ("vllm:generation_tokens_total", 50),
        ("vllm:num_preemptions_total", 0),
        ("vllm:generation_tokens_created", 1.5),
    ],
)
def test_the_engine_is_told_in_the_names_of_vllm(name, value):
    """Each figure of the engine is one sample."""
    assert samples()[name, frozenset()] == value


def test_every_reason_exists_from_the_start():
    """Finished requests are counted under all of vLLM's reasons, at 0 too."""
    latencies = Latencies()
    latencies.finished["length"] += 1
    found = samples(latencies=latencies)
    counts = {
        reason: found["vllm:request_success_total", frozenset({("finished_reason", reason)})] for reason in FINISHED_REASONS
    }

    assert counts == {"stop": 0, "length": 1, "abort": 0, "error": 0, "repetition": 0}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("time_to_first_token_seconds", "ttft_seconds"),
        ("inter_token_latency_seconds", "itl_seconds"),
        ("e2e_request_latency_seconds", "e2e_seconds"),
    ],
)
def test_histograms_are_cumulative(name, field):
    """Buckets count what is at or below their bound; count and sum agree with them."""
    latencies = Latencies()
    for value in (0.3, 0.31, 100_000.0):
        getattr(latencies, field).observe(value)
    found = samples(latencies=latencies)

    def bucket(bound: str) -> float:
        return found[f"vllm:{name}_bucket", frozenset({("le", bound)})]

    assert (bucket("10.0"), bucket("+Inf"), found[f"vllm:{name}_count", frozenset()]) == (2, 3, 3)
    assert found[f"vllm:{name}_sum", frozenset()] == pytest.approx(100_000.61)


def test_a_value_on_a_bound_is_below_it():
    """Bounds are inclusive."""
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)

    assert histogram.counts == [1, 0, 0]
    assert repr(histogram) == "<Histogram 1 observations, sum 1>"


def test_the_size_of_the_cache_can_be_read():
    """The capacity in tokens is block size times blocks, both labels of one sample."""
    labels = next(dict(labels) for name, labels in samples() if name == "vllm:cache_config_info")

    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "1000")


def test_model_names_are_escaped():
    """A model name of any characters is read back as it is."""
    assert samples('a"b\\c\nd')
