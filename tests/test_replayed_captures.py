"""The table of replayed captures: all are alike however they are cut, and one that is not would be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.captures import load
from tests.replayed_captures import WAYS, Replayed, faults, line_of, replay, streams

SOME = ["chat_stream", "chat_stream_echo", "completion_stream_bytes", "messages_tool_stream", "spec_responses_stream"]


def replayed(name: str) -> dict[str, Replayed]:
    return {way: replay(load(name), way) for way in WAYS}


@pytest.mark.parametrize("name", SOME)
def test_a_capture_is_the_same_however_it_is_cut(name: str) -> None:
    """Bytes and counts agree, and the first token is known with the byte that ends its event."""
    assert list(faults(load(name), replayed(name))) == []


@pytest.mark.parametrize(
    ("way", "change"),
    [
        ("whole", {"client_bytes": b""}),
        ("by events", {"token_events": 1}),
        ("by bytes", {"tokens": 999}),
        ("by bytes", {"first_token_at": None}),
        ("by bytes", {"first_token_at": 600.0}),
    ],
)
def test_a_difference_is_told(way: str, change: dict[str, Any]) -> None:
    """Lost bytes, other counts, and a first token that is missing or late."""
    found = replayed("chat_stream")
    found[way] = replace(found[way], **change)

    assert list(faults(load("chat_stream"), found))


def test_every_stream_is_in_the_table() -> None:
    """No kind of stream is left out: chats, completions, the two other formats, cut ones and comments in between."""
    kinds = ("chat_", "completion_", "responses_", "messages_", "midstream_", "sigterm_", "keepalive_", "spec_", "load64_")

    assert all(any(name.startswith(kind) for name in streams()) for kind in kinds)
    assert line_of("chat_stream", replayed("chat_stream")).startswith("| chat_stream | - | ")
