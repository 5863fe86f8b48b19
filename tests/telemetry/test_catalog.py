"""The catalogue: names, labels and buckets that rules and dashboards rely on."""

from __future__ import annotations

import re
from itertools import pairwise
from math import isnan

import pytest

from telemetry.catalog import CATALOG, EXPOSED, SCOPE_LABELS, Family, Kind, Writer
from telemetry.labels import LABELS
from telemetry.record import NoToken, Outcome, Phase, Rejection
from telemetry.reference import PAGE, page

BY_NAME = {family.name: family for family in CATALOG}
EVERY_FAMILY = pytest.mark.parametrize("family", EXPOSED, ids=lambda family: family.name)
HISTOGRAMS = pytest.mark.parametrize(
    "family", [family for family in CATALOG if family.kind is Kind.HISTOGRAM], ids=lambda family: family.name
)


def test_names_are_unique():
    """No name stands for two families, and none is that of another's series."""
    series = [
        family.name + suffix
        for family in CATALOG
        for suffix in (("", "_bucket", "_sum", "_count") if family.kind is Kind.HISTOGRAM else ("",))
    ]

    assert len(set(series)) == len(series)


@EVERY_FAMILY
def test_name_follows_the_rules(family: Family):
    """Prefix, no colon, unit last, and `_total` on counters only."""
    assert re.fullmatch(r"ridgeline_[a-z][a-z0-9_]*", family.name)
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
    if family.kind is Kind.HISTOGRAM:
        assert family.name.endswith(("_seconds", "_ratio", "_tokens"))


@EVERY_FAMILY
def test_help_needs_no_escaping(family: Family):
    """Help texts are one line of plain words, ending as sentences do."""
    assert re.fullmatch(r"[^\"\\\n|]+\.", family.help)


@EVERY_FAMILY
def test_labels_are_closed(family: Family):
    """Each label beyond those of the scope has a fixed set of different values, and none repeats a label of the scope."""
    assert not set(family.labels) & set(SCOPE_LABELS[family.scope])
    if family.writer is not Writer.EXPOSITION:
        for label in family.labels:
            values = family.label_values(label)
            assert values
            assert len(set(values)) == len(values)
            assert all(re.fullmatch(r"[a-z0-9_-]+", value) for value in values)


def test_an_open_label_has_no_values():
    """Asking for the values of the version is a mistake, not an empty set."""
    with pytest.raises(KeyError, match="version"):
        BY_NAME["ridgeline_build_info"].label_values("version")


def test_every_set_of_label_values_is_used():
    """A set that no family refers to is a leftover."""
    used = {key for family in CATALOG for label in family.labels for key in (f"{family.name}.{label}", label)}

    assert set(LABELS) <= used


@pytest.mark.parametrize(
    ("name", "label", "members"),
    [
        ("ridgeline_requests_total", "outcome", Outcome),
        ("ridgeline_rejections_total", "reason", Rejection),
        ("ridgeline_client_gone_total", "phase", Phase),
        ("ridgeline_no_token_total", "reason", NoToken),
    ],
)
def test_label_values_are_those_of_the_record(name, label, members):
    """What a record can say can be counted, in the same order."""
    assert tuple(members) == BY_NAME[name].label_values(label)


@HISTOGRAMS
def test_bounds_rise(family: Family):
    """Bounds are positive, finite and rising; only histograms have them."""
    assert family.bounds[0] > 0
    assert all(low < high < float("inf") for low, high in pairwise(family.bounds))


def test_only_histograms_have_bounds():
    """A counter or gauge has no buckets."""
    assert [family.name for family in CATALOG if family.bounds and family.kind is not Kind.HISTOGRAM] == []


@pytest.mark.parametrize("name", ["ridgeline_tpot_seconds", "ridgeline_itl_seconds", "ridgeline_chunk_gap_seconds"])
def test_token_gap_buckets_show_a_heavy_tail(name):
    """Between 4 and 200 ms neighbouring bounds are at most a factor of 1.25 apart, and 0.5 ms to 15 minutes are covered."""
    bounds = BY_NAME[name].bounds

    usual = [bound for bound in bounds if 0.004 <= bound <= 0.2]
    assert (usual[0], usual[-1]) == (0.004, 0.2)
    assert max(high / low for low, high in pairwise(usual)) <= 1.25 + 1e-9
    assert (bounds[0], bounds[-1]) == (0.0005, 900.0)


@pytest.mark.parametrize(
    "name", ["ridgeline_ttft_seconds", "ridgeline_ttft_visible_seconds", "ridgeline_upstream_ttft_seconds"]
)
def test_first_token_buckets_hold_the_objectives(name):
    """Round objectives are bounds, and neighbouring ones from 20 ms to 30 s are at most a factor of 1.5 apart."""
    bounds = BY_NAME[name].bounds

    assert {0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0} <= set(bounds)
    usual = [bound for bound in bounds if 0.02 <= bound <= 30]
    assert (usual[0], usual[-1]) == (0.02, 30.0)
    assert max(high / low for low, high in pairwise(usual)) <= 1.5 + 1e-9
    assert (bounds[0], bounds[-1]) == (0.0005, 900.0)


def test_unknown_is_not_zero():
    """A gauge about something outside the process that sets it starts as unknown; counters always start at 0."""
    unknown = {family.name for family in CATALOG if isnan(family.start)}

    assert unknown == {
        "ridgeline_discovered_workers",
        "ridgeline_worker_up",
        "ridgeline_worker_running_requests",
        "ridgeline_worker_waiting_requests",
        "ridgeline_worker_kv_usage_ratio",
        "ridgeline_worker_attained_ratio",
        "ridgeline_worker_left_out",
        "ridgeline_worker_crowding_tokens",
        "ridgeline_crowding_at_seconds",
        "ridgeline_loop_lag_seconds",
        "ridgeline_control_lag_seconds",
        "ridgeline_process_resident_bytes",
        "ridgeline_process_open_descriptors",
        "ridgeline_process_most_descriptors",
        "ridgeline_exported_series",
        "ridgeline_configuration_refused",
        "ridgeline_quota_limit",
        "ridgeline_quota_remaining",
        "ridgeline_quota_store_up",
    }
    assert all(family.start == 0 for family in CATALOG if family.kind is not Kind.GAUGE)


def test_reference_page_is_the_generated_one():
    """The page in the repository is what `python -m telemetry.reference` writes."""
    assert page() == PAGE.read_text(encoding="utf-8")


def test_reference_page_has_every_name():
    """No family that is exported is left out of the page, and none is there twice."""
    rows = re.findall(r"^\| `(ridgeline_\w+)` \| (?:counter|gauge|histogram) ", page(), re.MULTILINE)

    assert sorted(rows) == sorted(family.name for family in EXPOSED)
