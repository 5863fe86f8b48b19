"""The sheet: every number with its calculation, in the order of the checklist, readable on any terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from proxy.planning.asked import Asked
from proxy.planning.plan import show
from tests.proxy.plan_runs import llama, run

ROOT = Path(__file__).parents[3]
MODELS = [
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt-oss-120b",
    "qwen3-next-80b-a3b-instruct",
    "nemotron-3-nano-30b-a3b",
]


def lines_of(text: str, label: str) -> list[str]:
    """The line of a figure and what its calculation goes on to, with single blanks."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if re.match(rf" +{re.escape(label)}(  |$)", line))
    end = next((p for p in range(start + 1, len(lines)) if not lines[p].startswith(" " * 6)), len(lines))
    return [" ".join(line.split()) for line in lines[start:end]]


def line_of(text: str, label: str) -> str:
    return " ".join(lines_of(text, label))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("parameters", "8.03e9 all of them"),
        ("feed-forward", "11.27 GB 5.64e9 x 2 bytes (bf16)"),
        ("all weights", "16.06 GB (14.96 GiB)"),
        ("one token", "131,072 bytes (128.0 KiB) 2 x 32 layers x 8 KV heads x 128 x 2 bytes"),
        ("one request", "327.7 MB (312.5 MiB) 2,500 tokens: 2,000 prompt + 500 output at most"),
        ("device", "less 0.45 GiB that CUDA does not; sold as 80 GB"),
        ("requests at once need", "32 x 329.3 MB"),
        ("read for one request", "15.30 GB 15.01 GB weights + 294.9 MB cache at 2,250 tokens"),
        ("TPOT floor", "4.57 ms 15.30 GB / 3.35 TB/s"),
        ("TPOT expected, alone", "8.07 ms 15.30 GB / (0.7 x 3.35 TB/s) + 32 layers x 48.2 us"),
        ("ridge point", "295 FLOP/byte 989 TFLOP/s / 3.35 TB/s"),
        ("linear FLOP", "2.79e13 FLOP 2 x 6.98e9 x 2,000 tokens"),
        ("attention FLOP", "1.05e12 FLOP 2.00e6 causal pairs x 524,288"),
        ("TTFT floor", "29.3 ms 2.90e13 FLOP / 989 TFLOP/s; reading takes 4.56 ms: compute binds"),
        ("TTFT expected", "65.2 ms 29.3 ms / 0.46 + 32 layers x 48.2 us"),
        ("whole answer, alone", "4.09 s 65.2 ms + 499 x 8.07 ms"),
    ],
)
def test_figures_with_their_calculation(label, expected):
    """Llama-3.1-8B on an H100, checked by hand: value, and the numbers that it is made of."""
    assert expected in line_of(llama("--concurrency", 32).out, label)


def test_sections_are_in_the_order_of_the_checklist():
    """Assumptions, weights, cache of a request, times concurrency, TPOT, TTFT, total, capacity, changes, warnings."""
    titles = re.findall(r"^(\d) ", llama().out, flags=re.MULTILINE)
    assert titles == list("0123456789")


def test_what_was_not_said_is_marked():
    """Defaults for lengths, concurrency and targets are told as assumed, and no longer once they are given."""
    bare = llama().out
    assert "(prompt and output assumed)" in line_of(bare, "request")
    assert "assumed" in line_of(bare, "at once")
    assert "assumed" in line_of(bare, "targets")
    full = llama("--prompt-tokens", 2000, "--output-tokens", 500, "--concurrency", 1, "--target", "chat").out
    assert "assumed" not in full.split("0 What was assumed")[1]


def test_warnings_are_at_the_top_and_explained_at_the_end():
    """Each warning is told before all figures, and again at the end with what would be right."""
    text = run("--model", "llama-3.1-70b", "--gpu", "h100-sxm").out
    top, end = text.split("In short")[0], text.split("9 Warnings")[1]
    assert "error: does not fit" in top
    assert "2 GPUs would hold it" not in top
    assert "2 GPUs would hold it" in " ".join(end.split())
    assert "none" in llama("--concurrency", 32, "--target", "batch").out.split("9 Warnings")[1]


def test_what_does_not_fit_is_exposed_as_far_as_it_goes():
    """Times are marked as what-if, and there is no capacity."""
    text = run("--model", "llama-3.1-70b", "--gpu", "h100-sxm").out
    assert "4 Decode: a token after the first (if it fitted)" in text
    assert line_of(text, "requests at once, at most").endswith("0 not one fits")
    assert "missing" in text


def test_cold_and_warm_stand_beside_each_other():
    """With cached tokens both prefills are shown, and the capacity is said to be cold."""
    text = llama("--cached-tokens", 1500).out
    assert "65.2 ms" in line_of(text, "TTFT expected, cold")
    assert "500 tokens on 1,500 cached ones" in line_of(text, "linear FLOP, warm")
    assert "7 Capacity of one worker, prefix cache cold" in text
    assert "caches are cold after a restart" in line_of(text, "with a warm cache")


def test_a_rate_is_solved_and_workers_are_counted():
    """The fixed point of Little's law, and workers and GPUs for the rate."""
    text = llama("--rate", 4).out
    assert "4 requests/s x" in line_of(text, "at the rate given")
    assert "1 worker" in line_of(text, "needed for the rate")
    too_many = llama("--rate", 60).out
    assert "no end" in line_of(too_many, "at the rate given")
    assert "the queue grows" in line_of(too_many, "at the rate given")
    strict = llama("--rate", 1, "--tpot-target", "1ms").out
    assert "no number of workers keeps the targets" in line_of(strict, "needed for the rate")


def test_units_are_never_mixed():
    """What is counted in powers of two says so: no size stands without GB or GiB, and both agree."""
    for decimal, binary in re.findall(r"([\d.,]+) GB \(([\d.,]+) GiB\)", llama().out):
        assert float(decimal) * 1e9 == pytest.approx(float(binary) * 2**30, rel=0.01)


@pytest.mark.parametrize(
    ("model", "columns"), [*((model, 80) for model in MODELS), *(("llama-3.1-8b", n) for n in (60, 100, 200))]
)
def test_no_line_is_wider_than_the_terminal(model, columns):
    """Every kind of model, on any width: lines stay within it, without trailing blanks."""
    for gpus in ("b200-sxm", "b200-sxm,mi300x"):
        text = run("--model", model, "--gpu", gpus, "--gpus", 2, "--data-parallel", 2, "--concurrency", 16, columns=columns).out
        assert max(map(len, text.splitlines())) <= columns
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_a_pipe_gets_plain_text():
    """Not a terminal: no escape codes, and a width at which calculations stand beside their figures."""
    text = llama(columns=None).out
    assert "\x1b" not in text
    assert "15.30 GB / 3.35 TB/s" in next(line for line in text.splitlines() if "TPOT floor" in line)


@pytest.mark.parametrize(("environ", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_can_be_turned_off(environ, has_colours):
    """A terminal gets emphasis, and no colours with NO_COLOR."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="standard", width=100, _environ=environ)
    asked = Asked(models=["llama-3.1-70b"], gpus=["h100-sxm"])
    show(asked, {}, as_json=False, explains=False, plot=None, console=console)

    assert ("\x1b[31m" in output.getvalue()) is has_colours


def test_several_workers_stand_side_by_side():
    """One column each, in blocks as wide as the terminal, with rows where any has a figure and a dash where one has none."""
    narrow = run("--model", "llama-3.1-70b", "--gpu", "h100-sxm,mi300x", columns=60).out
    assert narrow.count("In short") == 2
    text = run("--model", "llama-3.1-70b", "--gpu", "h100-sxm,mi300x").out
    assert line_of(text, "TPOT floor") == "TPOT floor 41.7 ms 26.4 ms"
    assert re.fullmatch(r"KV cache holds - [\d,]+ tokens", line_of(text, "KV cache holds"))
    assert "half the longest output" not in text
    swapped = run("--model", "llama-3.1-70b", "--gpu", "mi300x,h100-sxm").out
    labels = [line.strip().split("  ")[0] for line in swapped.splitlines()]
    assert labels.index("left for the cache") < labels.index("missing") < labels.index("requests at once need")
    assert "error: 1 x h100-sxm: does not fit" in text


def test_explain_adds_formula_and_source():
    """Every computed figure has its formula in words; side by side, each worker follows in full."""
    text = llama("--explain").out
    assert "= max(bytes / bandwidth, FLOP / peak)" in line_of(text, "TPOT floor")
    assert "from H100 data sheet" in line_of(text, "GPU")
    assert "from least squares over 1,092 published" in line_of(text, "engine")
    both = run("--model", "llama-3.1-8b", "--gpu", "h100-sxm,l40s", "--explain").out
    assert both.count("= max(bytes / bandwidth, FLOP / peak)") == 2


def test_sources_are_headings_of_the_theory():
    """Where a figure is said to be derived, there is such a heading."""
    headings = set(re.findall(r"^#+ (.+)$", (ROOT / "docs/theory.md").read_text(), flags=re.MULTILINE))
    text = " ".join(llama("--explain", "--concurrency", 32, "--rate", 2, "--cached-tokens", 100, columns=500).out.split())
    cited = set(re.findall(r'docs/theory.md, "([^"]+)"', text))

    assert len(cited) >= 8
    assert cited <= headings


def test_kinds_of_attention_have_their_own_formula():
    """MLA, windows and recurrent layers are told as what they are."""
    deepseek = run("--model", "deepseek-v3", "--gpu", "h200-sxm", "--gpus", 8).out
    assert "61 layers x (512 + 64) x 2 bytes" in line_of(deepseek, "one token")
    assert "every GPU holds all of it" in line_of(deepseek, "of it on each GPU")
    assert "multi-token prediction" in line_of(deepseek, "left out")
    oss = run("--model", "gpt-oss-120b", "--gpu", "h100-sxm").out
    assert "in the last 128" in line_of(oss, "windows, at most")
    hybrid = run("--model", "qwen3-next-80b-a3b-instruct", "--gpu", "b200-sxm").out
    assert "whatever the length" in line_of(hybrid, "states")
    sparse = run("--model", "deepseek-v3.2", "--gpu", "h200-sxm", "--gpus", 8, "--kv-dtype", "fp8").out
    assert "sparse MLA" in line_of(sparse, "attention")
