"""The alert rules as Prometheus' own tools judge them: that they are valid, when they fire, and when they do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dashboards.rules.__main__ import FOLDER, main
from dashboards.rules.groups import alert_names
from routing.topology import Key, Model, Pool, Topology, Worker
from telemetry.exposition import Writer
from telemetry.layout import Layout
from tests.integration.prometheus_tools import ROOT, places, run, tool

pytestmark = pytest.mark.integration

CASES = sorted((FOLDER / "tests").glob("*.yaml"))
EVERY_PLACE = pytest.mark.parametrize("place", places())


@EVERY_PLACE
def test_the_rules_are_valid(place: str) -> None:
    """They parse, templates included, and the newer tool's linter finds nothing."""
    lint = ["--lint=all", "--lint-fatal"] if place == "newer" else []

    said = run(tool("promtool", place), "check", "rules", *lint, FOLDER / "recording.yaml", FOLDER / "alerts.yaml")

    assert said.count("SUCCESS") == 2


@EVERY_PLACE
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_are_to_and_only_then(place: str, case: Path) -> None:
    """Each file has faults with the alerts they raise, all of them and no other, and what is like a fault and is none."""
    run(tool("promtool", place), "test", "rules", case)


def test_every_alert_is_seen_firing() -> None:
    """No alert is without a case in which it fires."""
    firing = {
        name
        for case in CASES
        for test in yaml.safe_load(case.read_text())["tests"]
        for query in test["promql_expr_test"]
        for sample in query["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }

    assert firing == set(alert_names())


def a_topology() -> Topology:
    workers = [
        Worker(index=at, name=f"w-{at}", url=f"http://w-{at}:80", host=f"w-{at}", port=80, base_path="", authority=f"w-{at}:80")
        for at in range(3)
    ]
    pools = (
        Pool(index=0, model="m", name="short", workers=tuple(workers[:2])),
        Pool(index=1, model="m", name="long", workers=(workers[2],)),
    )
    return Topology(
        models=(Model(index=0, name="m", aliases=(), pools=pools),),
        pools=pools,
        workers=tuple(workers),
        keys=(Key(index=0, name="app", sha256=bytes(32)),),
    )


def page(count: float) -> dict[str, float]:
    """Every series of a gateway where all is well, with this value in each counter and bucket, and 0 in gauges."""
    layout = Layout.of(a_topology())
    text = Writer(a_topology(), layout, version="1").write_all([[count] * layout.size], [count] * layout.size).decode()
    gauges = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" gauge")}
    samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {
        name: 0.0 if name.partition("{")[0] in gauges - {"ridgeline_build_info"} else float(value)
        for name, _, value in samples
        if "ridgeline_worker_left_out" not in name
    }


@pytest.mark.parametrize(
    "phases",
    [[(0.0, 75)], [(50.0, 75)], [(50.0, 25), (0.0, 50)]],
    ids=["no traffic ever", "no traffic any more", "started anew"],
)
def test_without_traffic_nothing_fires(phases: list[tuple[float, int]], tmp_path: Path) -> None:
    """All series of a gateway are there and no counter rises: no share is taken of nothing, and no drop is a rise."""
    known = [(page(count), minutes) for count, minutes in phases]
    series = [
        {
            "series": name.replace("{", '{instance="g",') if "{" in name else f'{name}{{instance="g"}}',
            "values": " ".join(f"{one[name]:g}x{minutes}" if name in one else f"_x{minutes}" for one, minutes in known),
        }
        for name in known[0][0]
    ]
    asked = [
        {"eval_time": f"{minutes}m", "expr": 'ALERTS{alertstate="firing"}', "exp_samples": []} for minutes in range(5, 75, 5)
    ]
    test = {
        "rule_files": [str(FOLDER / "recording.yaml"), str(FOLDER / "alerts.yaml")],
        "evaluation_interval": "150s",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(test))

    assert len(series) > 500
    run(tool("promtool"), "test", "rules", path)


@EVERY_PLACE
def test_the_examples_are_valid(place: str) -> None:
    """The configurations that the repository brings for Prometheus and Alertmanager."""
    assert "2 rule files" in run(tool("promtool", place), "check", "config", ROOT / "deploy/prometheus/prometheus.yml")
    assert "inhibit rules" in run(tool("amtool", place), "check-config", ROOT / "deploy/alertmanager/alertmanager.yml")


def test_faster_rules_are_valid(tmp_path: Path) -> None:
    """So are those with shortened times, down to milliseconds."""
    main(["--faster", "120", "--into", str(tmp_path)])

    run(tool("promtool"), "check", "rules", tmp_path / "alerts.yaml", tmp_path / "recording.yaml")


def test_inhibitions_name_alerts_that_exist() -> None:
    """A rule about an alert that nobody raises would hide nothing, or stay hidden itself."""
    config = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())
    patterns = [
        matcher
        for rule in config["inhibit_rules"]
        for matcher in (*rule["source_matchers"], *rule["target_matchers"])
        if matcher.startswith("alertname")
    ]
    names = [name for pattern in patterns for name in re.findall(r"(Ridgeline\w+|Ridgeline\([^)]*\)\w+)", pattern)]

    assert len(names) > 15
    for name in names:
        assert any(re.fullmatch(name, alert) for alert in alert_names()), name
