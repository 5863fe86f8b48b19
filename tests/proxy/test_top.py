"""What `ridgeline top` makes of answers, and of none."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console, RenderableType

from dashboards.live.shown import Fleet
from proxy.doctor.observations import Answer, Failure
from proxy.top import Drawing, Unseen, fleet_of
from tests.dashboards.terminal.fleets import a_fleet, a_worker

URL = "http://127.0.0.1:8081"


def text_of(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_fleet_is_read():
    """What the admin listener gives."""
    body = msgspec.json.encode(a_fleet(a_worker()))

    assert isinstance(fleet_of(Answer(status=200, body=body), URL), Fleet)


def test_what_is_wrong_is_said_with_what_would_be_right():
    """Nobody there, no token, not the admin listener, another version."""
    said = {
        "refused": fleet_of(Failure.REFUSED, URL),
        "RIDGELINE_ADMIN_TOKEN": fleet_of(Answer(status=401), URL),
        "not the admin listener": fleet_of(Answer(status=404), URL),
        "another version": fleet_of(Answer(status=200, body=b'{"pools": 1}'), URL),
    }

    for words, seen in said.items():
        assert isinstance(seen, Unseen)
        assert words in seen.text
        assert URL in seen.text


def test_a_gateway_that_is_lost_leaves_its_last_figures_with_their_age():
    """A restart of the gateway does not empty the screen, and nobody takes old figures for new ones."""
    drawing = Drawing(lambda: 9)
    lost = Unseen("no gateway answers")

    assert "no gateway answers" in text_of(drawing.next(lost, 1.0))
    assert "old" not in text_of(drawing.next(a_fleet(a_worker()), 2.0))
    after = text_of(drawing.next(lost, 14.0))
    assert "no gateway answers" in after
    assert "12 s old" in after
    assert "short-1" in after
    assert "old" not in text_of(drawing.next(a_fleet(a_worker()), 15.0))
