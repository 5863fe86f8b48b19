"""The page of the record: every field of a log line, with what the code says of it."""

from __future__ import annotations

import msgspec

from telemetry.record import RequestRecord
from telemetry.record_reference import PAGE, comments, page_text
from telemetry.sinks.jsonlog import json_object


def test_page_is_up_to_date():
    """After a change of the record run `make fix`."""
    assert PAGE.read_text(encoding="utf-8") == page_text()


def test_every_field_of_a_log_line_has_a_row():
    """No more and no fewer, in their order."""
    line = msgspec.json.decode(json_object(RequestRecord(request_id="r", ended_unix_seconds=0.0)))
    table = page_text().split("\n## ")[0]

    rows = [row.split("`")[1] for row in table.splitlines() if row.startswith("| `")]

    assert rows == list(line)


def test_every_value_of_a_closed_set_has_a_meaning():
    """A new one has to say what it is before the page can be written."""
    for rows in page_text().split("\n## ")[1:]:
        for row in rows.splitlines()[4:]:
            assert len(row.strip("| ").split(" | ")) == 2, row


def test_comments_are_those_behind_a_member():
    """A comment on a line of its own, one inside a text, and those of another class belong to no member."""
    source = "\n".join(
        [
            *(
                "class A:",
                "    # alone",
                "    x: int = 1  # first",
                '    y = "# no"',
                "    z: int = (",
                "        2",
                "    )  # last",
            ),
            *("class B:", "    x = 1", ""),
        ]
    )

    assert comments(source, "A") == {"x": "first", "z": "last"}
    assert comments(source, "B") == {}
