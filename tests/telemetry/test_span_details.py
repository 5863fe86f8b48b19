"""What spans tell of a request and of how its answer calls itself, read from the bytes of both."""

from __future__ import annotations

import pytest

from telemetry.record import Asked, Told
from telemetry.span_details import asked_in, told_in
from tests import captures


def test_what_a_request_asks_for() -> None:
    """Numbers of the sampling, whichever way JSON writes them."""
    body = b'{"temperature":1,"top_p":0.9,"top_k":40,"seed":-7,"frequency_penalty":1e-1,"presence_penalty":0,"n":2}'

    assert asked_in(body) == Asked(
        temperature=1.0, top_p=0.9, top_k=40, seed=-7, frequency_penalty=0.1, presence_penalty=0.0, choices=2
    )


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"temperature":null,"top_k":"40","seed":1.5,"n":[1],"top_p":{},"previous_response_id":7}',
        b'{"seed":9223372036854775808}',
        b'{"previous_response_id":"\\ud800"}',
        b"[" * 100_000,
        b"--form\r\n",
        b"",
    ],
)
def test_what_cannot_be_read_is_not_told(body: bytes) -> None:
    """A field of another type, one that no span can hold, half a character, a form, and what is no JSON at all."""
    assert asked_in(body) == Asked()


def test_one_wrong_field_spoils_no_other() -> None:
    """What the worker will refuse is no reason to lose the rest."""
    assert asked_in(b'{"temperature":"hot","top_p":0.5}') == Asked(top_p=0.5)


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("chat_stream", "chatcmpl-"),
        ("chat_nonstream", "chatcmpl-"),
        ("completion_stream", "cmpl-"),
        ("responses_stream", "resp_"),
        ("responses_nonstream", "resp_"),
        ("messages_stream", "chatcmpl-"),
        ("messages_nonstream", "chatcmpl-"),
        ("embed_nonstream", "embd-"),
    ],
)
@pytest.mark.parametrize("is_framed", [False, True])
def test_how_real_answers_call_themselves(name: str, begins: str, is_framed: bool) -> None:
    """In each format, with the chunk sizes around it that a client gets and without."""
    payload = captures.load(name).payload
    first = payload.split(b"\n\n")[0] + b"\n\n" if b"data: " in payload[:100] else payload
    told = told_in(b"%x\r\n%b\r\n" % (len(first), first) if is_framed else first)

    assert told.answer_id is not None
    assert told.answer_id.startswith(begins)
    assert told.model == ("tiny-embed" if name.startswith("embed") else "tiny")


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b'{"id":7}',
        b'{"id":"a',
        b"data: [DONE]\n\n",
        b": keep-alive\n\n",
        b'data: {"id":"\\ud800"}\n\n',
        b'{"id":"long","text":"%b"}' % (b"x" * 65_536),
    ],
)
def test_an_answer_that_does_not_say(beginning: bytes) -> None:
    """Nothing is made up, and nothing raised."""
    assert told_in(beginning) == Told()


def test_a_comment_in_front_is_passed_over() -> None:
    """What keeps a connection alive names nobody."""
    assert told_in(b': {"id":"no"}\n\ndata:{"id":"yes","model":"m"}\n\n') == Told(answer_id="yes", model="m")
