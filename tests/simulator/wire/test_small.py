"""The small answers, held against captured ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.dialect import DIALECTS, NEWEST
from simulator.refusals import Refusal, engine_died, shutting_down, too_many_waiting, unknown_model
from simulator.wire import small as wire_small
from tests.captures import load


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    return [shape(item) for item in value] if isinstance(value, list) else type(value).__name__


def test_models_look_like_the_captured_list():
    """The list of models has the captured fields in their order, one card a name; an adapter has the model as its parent."""
    captured = json.loads(load("get_models").payload)
    ours = json.loads(wire_small.models_body({"tiny": None, "tiny-alias": None}, "tiny", 1, 32768, ["x", "y"]))
    adapter = json.loads(wire_small.models_body({"tuned": "tiny"}, "tiny", 1, 32768, ["x"]))["data"][0]

    assert shape(ours) == shape(captured)
    assert [(card["id"], card["root"]) for card in ours["data"]] == [("tiny", "tiny"), ("tiny-alias", "tiny")]
    assert (adapter["id"], adapter["parent"]) == ("tuned", "tiny")


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("err_unknown_model", unknown_model("nope", ("tiny", "tiny-alias"))),
        ("overload_503_stream", too_many_waiting()),
        ("midstream_engine_killed_nonstream", engine_died()),
    ],
)
def test_errors_are_the_captured_ones(name, refusal):
    """Byte for byte, with the captured status."""
    capture = load(name)

    assert wire_small.error_body(refusal) == capture.payload
    assert capture.response_head.startswith(b"HTTP/1.1 %d " % refusal.status)


def test_the_error_event_is_the_captured_one():
    """What comes in a stream when the engine dies."""
    assert wire_small.error_event(engine_died()) in load("midstream_engine_killed").payload


def test_old_errors_are_flat():
    """Before they were put below "error" the fields were the body itself; in a stream they never were."""
    refusal = Refusal(400, "BadRequestError", "no", "n")
    expected = {"object": "error", "message": "no", "type": "BadRequestError", "param": "n", "code": 400}

    assert json.loads(wire_small.error_body(refusal, DIALECTS["0.9.2"])) == expected
    assert wire_small.error_event(refusal).startswith(b'data: {"error": {')


def test_small_bodies():
    """Version, load, tokens, unknown path and missing key answer as captured from vLLM 0.32.0."""
    assert wire_small.version_body(NEWEST) == b'{"version":"0.32.0"}'
    assert wire_small.load_body(3) == b'{"server_load":3}'
    assert wire_small.tokenize_body([0, 1], 32768) == b'{"count":2,"max_model_len":32768,"tokens":[0,1],"token_strs":null}'
    assert wire_small.detokenize_body("it") == b'{"prompt":"it"}'
    assert wire_small.detail_body("Not Found") == b'{"detail":"Not Found"}'
    assert wire_small.flag_body("is_paused", False) == b'{"is_paused":false}'
    assert wire_small.UNAUTHORIZED == b'{"error":"Unauthorized"}'
    assert wire_small.aborted_body(1) == load("abort_requests_reply").payload


def test_requests_to_abort_are_named():
    """A list of ids is read; anything else is refused."""
    assert wire_small.read_request_ids(b'{"request_ids":["a"]}') == {"a"}
    for raw in (b"{}", b"{"):
        with pytest.raises(Refusal):
            wire_small.read_request_ids(raw)


def test_the_refusal_while_shutting_down_is_a_500():
    """It is no 503, although another worker could do it."""
    assert (shutting_down().status, shutting_down().message) == (500, "cannot schedule new futures after shutdown")
