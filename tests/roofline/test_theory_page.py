"""The theory page: its examples run, its figures are those of the measurements, and what refers to it finds it."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

from tests.facts import facts_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/theory.md"
TEXT = PAGE.read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
NAMED = re.compile(r'docs/theory\.md,?\s+"([^"]+)"')  # as docstrings refer to a section
LINK = re.compile(r"\]\(([^)]+)\)")
SUMMARY: dict[str, Any] = facts_in("measured.yaml")["bulk_summary"]
FITTED: dict[str, Any] = SUMMARY["affine_model"]


def section(heading: str) -> str:
    """The text under a heading, up to the next of the same level."""
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def anchor(heading: str) -> str:
    """What a link to a heading is called."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_example_gives_what_the_page_shows() -> None:
    """All blocks run in order with names of their own, and each line prints what stands below it."""
    names: dict[str, Any] = {}
    told: list[str] = []
    runner = doctest.DocTestRunner()
    for block in BLOCK.finditer(TEXT):
        line = TEXT[: block.start(1)].count("\n")
        example = doctest.DocTestParser().get_doctest(block[1], names, f"line {line + 1}", str(PAGE), line)
        assert example.examples, f"a block without examples at line {line + 1}"
        runner.run(example, out=told.append, clear_globs=False)
        names |= example.globs

    assert "".join(told) == ""
    assert runner.tries > 50


@pytest.mark.parametrize("heading", [*re.findall(r"^## (.+)$", TEXT, re.MULTILINE)])
def test_every_part_of_the_arithmetic_has_an_example(heading: str) -> None:
    """Sections are explained by numbers that run; those that hold no arithmetic are named here."""
    without = {"Units", "Terms", "Calibration", "What is left out"}

    assert bool(BLOCK.search(section(heading))) is (heading not in without)


def test_sections_that_docstrings_name_exist() -> None:
    """A docstring that refers to a section of the page names one that it has."""
    named = {name for path in (ROOT / "roofline").glob("*.py") for name in NAMED.findall(path.read_text())}

    assert {"One step", "Expected"} <= named
    assert named - set(HEADING.findall(TEXT)) == set()


def test_links_lead_somewhere() -> None:
    """Links within the page hit a heading, those to files a file."""
    anchors = {anchor(heading) for heading in HEADING.findall(TEXT)}
    lost = [
        link
        for link in LINK.findall(TEXT)
        if not (link[1:] in anchors if link.startswith("#") else (PAGE.parent / link).is_file())
    ]

    assert lost == []


@pytest.mark.parametrize(
    "figure",
    [
        f"{FITTED['rows']:,}",
        f"{FITTED['eta']:.2f}",
        f"{FITTED['mfu']:.2f}",
        f"{FITTED['a_us']} µs",
        f"{FITTED['b_us']} µs",
        f"{FITTED['mape_pct']} %",
        f"{FITTED['median_abs_error_pct']} %",
        f"{FITTED['p90_abs_error_pct']:.1f} %",
        f"{FITTED['bound_only_mape_pct']} %",
        f"{FITTED['bound_times_median_mape_pct']} %",
        f"{FITTED['train_hopper_test_blackwell_mape_pct']} %",
        f"{FITTED['without_refit_trtllm_mape_pct']} %",
        f"{FITTED['without_refit_sglang_mape_pct']} %",
        *(f"{figures['median']:.2f}" for figures in SUMMARY["tpot_ratio_vllm_by_tp"].values()),
        "{:.0f} to {:.0f} %".format(*(f(FITTED["leave_one_family_out_mape_pct"].values()) for f in (min, max))),
    ],
)
def test_figures_of_the_expectation_are_those_measured(figure: str) -> None:
    """What the page says of fit and error is what the statistics of the measurements say."""
    assert figure in section("Expected")


@pytest.mark.parametrize(
    ("heading", "figure"),
    [
        ("Bound", f"{SUMMARY['rows']:,} published"),
        ("Bound", f"{SUMMARY['uncongested_rows']:,} rows"),
        ("Bound", f"{SUMMARY['uncongested_min_ratio']} times"),
        ("One step", f"{SUMMARY['moe_expert_reads']['rows']} measurements"),
        ("One step", f"{SUMMARY['moe_expert_reads']['uniform_expected_distinct_mape_pct']} %"),
        ("One step", f"{SUMMARY['moe_expert_reads']['k_only_mape_pct']} %"),
        ("One step", f"{SUMMARY['moe_expert_reads']['all_E_mape_pct']} %"),
    ],
)
def test_figures_of_the_bound_are_those_measured(heading: str, figure: str) -> None:
    """The same of what the bound was held against."""
    assert figure in re.sub(r"\s+", " ", section(heading))


def test_the_bound_was_never_beaten_where_the_page_says_so() -> None:
    """No row without congestion is below the bound, and none below the reads that uniform routing expects."""
    assert SUMMARY["rows_below_bound_uncongested"] == 0
    assert SUMMARY["moe_expert_reads"]["uniform_rows_beating_bound"] == 0
