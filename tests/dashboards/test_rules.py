"""The rules: what is in the repository, what they may use, and how they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dashboards.grafana.links import kebab, runbook_url
from dashboards.rules.__main__ import FOLDER, files, main
from dashboards.rules.groups import alert_groups, alert_names, recording_groups
from dashboards.rules.rule import Alert, Clock, Recording
from tests.dashboards.promql import faults

CLOCK = Clock()
RECORDINGS = [rule for group in recording_groups(CLOCK) for rule in group.rules if isinstance(rule, Recording)]
ALERTS = [rule for group in alert_groups(CLOCK) for rule in group.rules if isinstance(rule, Alert)]
RULES = [*RECORDINGS, *ALERTS]
RECORDED = {rule.record: frozenset(rule.record.partition(":")[0].split("_")) for rule in RECORDINGS}


def name_of(rule: Recording | Alert) -> str:
    return rule.record if isinstance(rule, Recording) else f"{rule.name}-{rule.severity}-{'-'.join(rule.labels.values())}"


EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=name_of)
EVERY_ALERT = pytest.mark.parametrize("alert", ALERTS, ids=name_of)


def test_the_files_are_the_generated_ones() -> None:
    """What is in the repository is what `python -m dashboards.rules` writes."""
    for name, text in files(CLOCK).items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text


@EVERY_RULE
def test_a_rule_asks_for_what_there_is(rule: Recording | Alert) -> None:
    """Metrics, labels, values and bounds are those of the catalogue; counters are rated, quantiles are of summed buckets."""
    assert faults(rule.expr, RECORDED) == []


@EVERY_ALERT
def test_every_alert_says_what_to_do(alert: Alert) -> None:
    """A name of ours, texts that are whole, and where to read on."""
    assert re.fullmatch(r"Ridgeline([A-Z][a-z]+)+", alert.name)
    assert alert.description.endswith(".")
    assert not alert.summary.endswith(".")
    assert len(alert.summary) < 100
    assert runbook_url(alert.name).endswith(f"/docs/runbooks/{kebab(alert.name)}.md")


@EVERY_ALERT
def test_texts_use_labels_that_the_alert_has(alert: Alert) -> None:
    """A label that is not there would be an empty place in the message."""
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", alert.expr) for label in labels.split(",")}
    carried = {"model", "pool"} if "model_pool" in alert.expr else set()
    carried |= {"instance"} if "ridgeline_control_lag_seconds" in alert.expr else set()

    assert used <= grouped | carried


def test_names_are_pages() -> None:
    """Each alert has one page of its own."""
    assert kebab("RidgelineTtftBudgetBurn") == "ridgeline-ttft-budget-burn"
    assert len({kebab(name) for name in alert_names()}) == len(alert_names())


@pytest.mark.parametrize(
    ("text", "factor", "written"),
    [("5m", 1, "5m"), ("5m", 60, "5s"), ("90m", 60, "90s"), ("1d", 1, "1d"), ("3d", 60, "72m"), ("30s", 60, "500ms")],
)
def test_a_faster_clock_shortens_every_time(text: str, factor: float, written: str) -> None:
    """Times are exact to the millisecond and written in the largest unit that holds them."""
    assert Clock(factor)(text) == written


def test_a_faster_clock_changes_nothing_but_times() -> None:
    """The rules that tests run are the product's own."""
    time = re.compile(r"(?<=\[)\w+(?=\])|(?<=offset )\w+|(?<=for: )\w+$", re.MULTILINE)
    for name, text in files(CLOCK).items():
        assert time.sub("T", files(Clock(60))[name]) == time.sub("T", text)
        assert files(Clock(60))[name] != text


def test_rules_that_are_made_faster_do_not_replace_the_product_s(tmp_path: Path) -> None:
    """They need a folder of their own; what is written there can be compared again."""
    with pytest.raises(SystemExit):
        main(["--faster", "60"])
    with pytest.raises(SystemExit):
        main(["--faster", "0.5", "--into", str(tmp_path)])

    assert main(["--faster", "60", "--into", str(tmp_path)]) == 0
    assert main(["--faster", "60", "--into", str(tmp_path), "--check"]) == 0
    assert main(["--into", str(tmp_path), "--check"]) == 1
    assert yaml.safe_load((tmp_path / "alerts.yaml").read_text())["groups"]
