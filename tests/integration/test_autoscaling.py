"""What autoscaling asks, answered by Prometheus' own engine for two gateways before the same workers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.helm import render
from tests.deploy.test_chart import EXAMPLE, of_kind

SHORT = 'namespace="llm", model="llama-3.1-8b", pool="short"'
LONG = 'namespace="llm", model="llama-3.1-8b", pool="long"'

# Both gateways say the same of a worker, a little apart in time; what waits in each of them, and runs for it, is its own.
SERIES = {
    f'ridgeline_worker_running_requests{{{SHORT}, pod="a", worker="w1"}}': 10,
    f'ridgeline_worker_running_requests{{{SHORT}, pod="b", worker="w1"}}': 9,
    f'ridgeline_worker_running_requests{{{SHORT}, pod="a", worker="w2"}}': 5,
    f'ridgeline_worker_running_requests{{{SHORT}, pod="b", worker="w2"}}': 5,
    f'ridgeline_worker_waiting_requests{{{SHORT}, pod="a", worker="w1"}}': 2,
    f'ridgeline_worker_waiting_requests{{{SHORT}, pod="b", worker="w1"}}': 2,
    f'ridgeline_worker_waiting_requests{{{SHORT}, pod="a", worker="w2"}}': 0,
    f'ridgeline_worker_waiting_requests{{{SHORT}, pod="b", worker="w2"}}': 0,
    f'ridgeline_worker_kv_usage_ratio{{{SHORT}, pod="a", worker="w1"}}': 0.5,
    f'ridgeline_worker_kv_usage_ratio{{{SHORT}, pod="b", worker="w1"}}': 0.25,
    f'ridgeline_worker_kv_usage_ratio{{{SHORT}, pod="a", worker="w2"}}': 0.25,
    f'ridgeline_queued_requests{{{SHORT}, pod="a"}}': 3,
    f'ridgeline_queued_requests{{{SHORT}, pod="b"}}': 1,
    f'ridgeline_in_flight_requests{{{SHORT}, pod="a", worker="w1"}}': 4,
    f'ridgeline_in_flight_requests{{{LONG}, pod="a", worker="w3"}}': 2,
    f'ridgeline_in_flight_requests{{{SHORT}, pod="b", worker="w1"}}': 6,
    f'ridgeline_worker_running_requests{{{LONG}, pod="a", worker="w3"}}': 100,
    f'ridgeline_queued_requests{{{LONG}, pod="a"}}': 0,
}
REQUESTS = (10 + 2) + 5 + (3 + 1)
KV_USAGE = 0.5 + 0.25
IN_FLIGHT = 4 + 2 + 6


def of_keda() -> dict[str, str]:
    """The queries of the gateway and of the pool `short`, by the threshold that each is held against."""
    scaled = {each["metadata"]["name"]: each for each in of_kind(render.objects(EXAMPLE), "ScaledObject")}
    return {
        trigger["metadata"]["threshold"]: trigger["metadata"]["query"]
        for name in ("ridgeline", "ridgeline-short")
        for trigger in scaled[name]["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    }


def of_adapter(name: str, matchers: str, group: str) -> str:
    rules = yaml.safe_load((render.HELM / "prometheus-adapter-values.yaml").read_text())["rules"]
    (rule,) = [rule for rule in [*rules["custom"], *rules["external"]] if rule["name"]["as"] == name]
    series = rule["seriesQuery"].partition("{")[0]
    filled = {"<<.Series>>": series, "<<.LabelMatchers>>": matchers, "<<.GroupBy>>": group}
    query: str = rule["metricsQuery"]
    for placeholder, text in filled.items():
        query = query.replace(placeholder, text)
    return query


def test_autoscaling_counts_each_worker_once_and_each_gateway_for_itself(tmp_path: Path) -> None:
    """By KEDA and by prometheus-adapter; another pool does not count, and where nothing is known there is no answer."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")  # a failure under REQUIRE_REAL=1
    keda = of_keda()
    one = "{}"
    long_kv = of_adapter("ridgeline_pool_kv_usage", LONG, "namespace")
    expected = [
        (keda["500"], [{"labels": one, "value": IN_FLIGHT}]),
        (keda["48"], [{"labels": one, "value": REQUESTS}]),
        (keda["0.75"], [{"labels": one, "value": KV_USAGE}]),
        (of_adapter("ridgeline_pool_requests", SHORT, "namespace"), [{"labels": one, "value": REQUESTS}]),
        (of_adapter("ridgeline_pool_kv_usage", SHORT, "namespace"), [{"labels": one, "value": KV_USAGE}]),
        (
            of_adapter("ridgeline_in_flight_requests", 'namespace="llm"', "pod"),
            [{"labels": '{pod="a"}', "value": 4 + 2}, {"labels": '{pod="b"}', "value": 6}],
        ),
        (long_kv, []),
    ]
    test = {
        "rule_files": [],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": series, "values": f"{value}x4"} for series, value in SERIES.items()],
                "promql_expr_test": [
                    {"expr": query, "eval_time": "30s", "exp_samples": samples} for query, samples in expected
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))

    done = subprocess.run([found, "test", "rules", str(tmp_path / "test.yaml")], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
