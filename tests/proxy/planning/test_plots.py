"""Plots of a plan: files of the kind that their ending says, with every worker and context in them."""

from __future__ import annotations

import sys

import pytest

from tests.proxy.plan_runs import llama, run


@pytest.mark.parametrize(("ending", "magic"), [(".SVG", b"<?xml"), (".png", b"\x89PNG")])
def test_plots_are_written(tmp_path, ending, magic):
    """A file of that kind is there and not empty, and standard error says where."""
    path = tmp_path / f"plan{ending}"
    result = llama("--plot", path)

    assert result.status == 0
    assert path.read_bytes().startswith(magic)
    assert path.stat().st_size > 10_000
    assert f"plots: {path}" in result.err.replace("\n", "")


def test_plots_of_several_workers(tmp_path, monkeypatch):
    """Each worker has its colour and its name, each context its dashes; one that does not fit is marked as such."""
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: (drawn.append(figure), save(figure, path)))
    assert run("--model", "llama-3.1-70b", "--gpu", "h100-sxm,mi300x", "--plot", tmp_path / "p.svg").status == 0

    prompts, tpot, throughput = drawn[0].axes
    assert [text.get_text() for text in prompts.get_legend().get_texts()] == ["1 x h100-sxm (does not fit)", "1 x mi300x"]
    assert [text.get_text() for text in tpot.get_legend().get_texts()] == ["2,250 tokens", "9,000 tokens", "36,000 tokens"]
    assert len([line for line in throughput.get_lines() if len(line.get_xdata()) > 1]) == 6
    assert [text.get_text() for text in prompts.texts] == ["target 1 s"]


def test_targets_that_are_not_asked_for_are_not_drawn(tmp_path):
    """Batch jobs have no latency to keep, so there is no line to stay below; the notice of the plot is no part of the JSON."""
    path = tmp_path / "plan.svg"
    assert llama("--target", "batch", "--json", "--plot", path).document["targets"]["tpot_seconds"] is None
    assert "target" not in path.read_text()


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    """Who has not installed it learns what to install, and nothing is printed half."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = llama("--plot", tmp_path / "plan.svg")

    assert result.status == 2
    assert result.out == ""
    assert "pip install 'matplotlib>=3.9'" in result.err
