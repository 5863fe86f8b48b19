"""What the two legs of a request are made of."""

from __future__ import annotations

import json

import pytest

from proxy.upstream.prefill_leg import prefill_body, transfer_in, with_transfer

BODY = b'{ "model":"m","temperature":1.50,"messages":[{"role":"user","content":"\\u4e2d \xe4\xb8\xad"}],"stream":true}'


def test_the_first_leg_asks_for_one_token_and_keeps_the_rest() -> None:
    """Values that are not changed are the client's own bytes: number formats and escapes among them."""
    body = prefill_body(BODY)
    assert body is not None
    found = json.loads(body)

    assert (found["max_tokens"], found["stream"]) == (1, False)
    assert found["kv_transfer_params"]["do_remote_decode"] is True
    assert b'"temperature":1.50' in body
    assert b'"content":"\\u4e2d \xe4\xb8\xad"' in body


def test_what_contradicts_one_token_is_changed_only_where_it_is() -> None:
    """Fields that a worker refuses beside it, or that ask for more."""
    fields = {"max_tokens": 9, "max_completion_tokens": 9, "n": 1, "min_tokens": 5, "stream_options": {}, "echo": True}
    body = prefill_body(json.dumps({"model": "m", **fields}).encode())
    assert body is not None
    found = json.loads(body)

    assert {name: found[name] for name in ("max_tokens", "max_completion_tokens", "n", "min_tokens")} == {
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "n": 1,
        "min_tokens": 0,
    }
    assert not found.keys() & {"stream_options", "echo", "best_of"}


@pytest.mark.parametrize(
    "body",
    [b'{"kv_transfer_params":null}', b'{"prompt_logprobs":1}', b'{"x":NaN}', b"[1]", b"\xff", b'{"a":' + b"[" * 100_000],
)
def test_some_requests_have_no_first_leg(body: bytes) -> None:
    """They transfer on their own account, ask for what only the other worker can tell, or cannot be taken apart."""
    assert prefill_body(body) is None


def test_the_second_leg_is_the_request_with_one_field_more() -> None:
    """In front of all others, in however many pieces it comes."""
    for pieces in ([BODY], [BODY[:1], b'"stream_options":{"include_usage":true},', memoryview(BODY)[1:]]):
        whole = b"".join(with_transfer(pieces, b'{"remote_port":1.0}'))

        assert whole.replace(b'"kv_transfer_params":{"remote_port":1.0},', b"", 1) == b"".join(pieces)
        assert json.loads(whole)["kv_transfer_params"] == {"remote_port": 1.0}


@pytest.mark.parametrize(
    ("answer", "transfer"),
    [
        (b'{"id":"1","kv_transfer_params":{"remote_port":1.0}}', b'{"remote_port":1.0}'),
        (b'{"id":"1","kv_transfer_params":null}', None),
        (b'{"id":"1","kv_transfer_params":{}}', None),
        (b'{"id":"1","kv_transfer_params":[1]}', None),
        (b'{"id":"1"}', None),
        (b"", None),
        (b'"text"', None),
        (b'{"kv_transfer_params":{"remote_host":"\xff"}}', None),  # which would make the request that it goes into no JSON
    ],
)
def test_what_the_stage_says_goes_on_as_it_is(answer: bytes, transfer: bytes | None) -> None:
    """Only an object that says something; what it says is between the workers."""
    assert transfer_in(answer) == transfer
