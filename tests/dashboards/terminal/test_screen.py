"""What `ridgeline top` draws of a fleet."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from dashboards.terminal.screen import screen
from tests.dashboards.terminal.fleets import NOW, a_figure, a_fleet, a_worker


def drawn(what: RenderableType, width: int = 200) -> str:
    """The text without its colours."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined]


def line_of(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if name in line]
    return line


def test_a_worker_is_shown_with_state_figures_and_cause():
    """What it is since when, TTFT and TPOT beside what is expected, hit share, load, and what slow requests lost time to."""
    worker = a_worker(
        code="silence",
        ttft=a_figure(0.5),
        tpot=a_figure(0.02, attained=0.4),
        hit_ratio=0.62,
        kv_usage_ratio=0.81,
        running_requests=7,
        waiting_requests=3,
        lately={"requests": 1200, "failed": 2},
        causes={"batch": 1, "engine_queue": 5},
    )

    line = line_of(drawn(screen(a_fleet(worker), most_workers=9)), "short-1")

    for word in (
        "silent 40 s",
        "1,200",
        "500 ms",
        "1.50 s",
        "250 ms",
        "62%",
        "20 ms",
        "40%",
        "7",
        "3",
        "81%",
        "engine queue (5)",
    ):
        assert word in line


def test_what_is_not_known_is_a_dash_and_no_zero():
    """A worker that nobody asked and whose page was not read."""
    line = line_of(drawn(screen(a_fleet(a_worker()), most_workers=9)), "short-1")

    assert line.split() == ["short-1", "ok", "40", "s", "0", "0", *"--------", "0", *"---"]


def test_those_that_are_not_well_come_first_and_the_rest_is_counted():
    """A large fleet fits the screen, and whoever is in trouble is on it."""
    workers = [a_worker(f"well-{number}") for number in range(20)] + [a_worker("ill", code="down")]

    text = drawn(screen(a_fleet(*workers), most_workers=4))

    assert text.index("ill") < text.index("well-0")
    assert "and 17 more" in text
    assert text.count("well-") == 3


def test_findings_say_since_when_and_what_to_do():
    """The worst ones, and how many there are beyond them."""
    finding = {"kind": "kv", "severity": "warning", "text": "short-1 is full", "advice": "add workers"}
    many = tuple({**finding, "since_unix_seconds": NOW - 60 * number} for number in range(3, 10))

    text = drawn(screen(a_fleet(a_worker(), findings=many), most_workers=9))

    assert "short-1 is full  for 3 min  → add workers" in text
    assert "and 2 more" in text
    assert text.count("→") == 5


@pytest.mark.parametrize("width", [60, 80, 100, 130, 200])
def test_a_narrow_terminal_gets_fewer_columns_and_no_cut_ones(width: int):
    """Those least missed go first; a name, a state and failures are there at any width, and no TTFT without its hit."""
    worker = a_worker(
        code="slow_start",
        ttft=a_figure(0.5),
        tpot=a_figure(0.02, attained=0.4),
        hit_ratio=0.62,
        lately={"requests": 1200, "failed": 2},
        causes={"slower_than_peers": 5},
    )

    text = drawn(screen(a_fleet(worker, a_worker("w-1")), most_workers=9), width)

    head, _, line, _ = text.splitlines()[-4:]
    assert "…" not in head + line
    assert [word for word in ("short-1", "coming back 40 s", "20 ms") if word not in line] == []
    assert ("500 ms" in line, "62%" in line) == (width > 60, width > 60)
    assert ("failed" in head, "slower than peers (5)" in line) == (True, width >= 100)
    assert ("expected" in head) == (width == 200)


def test_a_finding_without_advice_has_no_arrow():
    """And it is as old as the headline says."""
    finding = {"kind": "x", "severity": "notice", "text": "short-1 is odd", "advice": "", "since_unix_seconds": NOW - 479}

    text = drawn(screen(a_fleet(a_worker(), findings=(finding,)), most_workers=9))

    assert "short-1 is odd  for 8 min" in text
    assert "→" not in text


def test_names_cannot_command_the_terminal():
    """Escape sequences in a name are shown as question marks, and markup is text."""
    text = drawn(screen(a_fleet(a_worker("\x1b[2Jevil[red]\n")), most_workers=9))

    assert "\x1b" not in text
    assert "?[2Jevil[red]?" in text


def test_requests_that_queue_are_shown_at_their_pool():
    """Nobody's worker has them yet."""
    assert "12 queued" in line_of(drawn(screen(a_fleet(a_worker(), queued_requests=12), most_workers=9)), "llama / short")


def test_a_beaten_floor_is_called_so():
    """The cause's own name, `facts`, says nothing to who reads it here."""
    shown = drawn(screen(a_fleet(a_worker(causes={"facts": 2})), most_workers=9))

    assert "floor beaten (2)" in shown
    assert "facts" not in shown
