"""A request's body: what the gateway reads in it is what a worker's JSON reader does, and a change changes one field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from proxy.wire.errors import ClientFault
from proxy.wire.inference import (
    MAX_TOKENS,
    InferenceRequest,
    Work,
    ask_for_usage,
    parse_other,
    parse_request,
    rename_model,
)
from tests.fuzz.inputs import put_together, take_apart

WORDS = (
    *(b'"model":"m"', b'"mod\\u0065l"', b'"stream":true', b'"stream_options":{', b'"include_usage":true', b'"max_tokens":5'),
    *(b'"max_completion_tokens":', b'"n":2', b'"messages":[{"role":"user","content":"', b'"prompt":[', b'"prompt":[[1,2],[3]]'),
    *(b'"continuous_usage_stats":true', b'"echo":true', b'"user":"u"', b'"tools":[{}]', b'\\"', b"\\\\", b"\\ud800", b"NaN"),
    *(b"null", b"1e400", b"-0", b"\xef\xbb\xbf", b"\xff", b'"', b"{", b"}", b"[", b"]", b",", b":", b"Infinity", b"\\u0000"),
    *(b'"input":"', b'"previous_response_id":"r"', b'"max_output_tokens":1', b'"model":"a","model":"b"'),
    *(b'"max_tokens":1000.0', b'"max_tokens":"7"', b'"max_tokens":1e3', b'"n":"2"', b".0", b"e3"),
)
LONGEST = 600
_FAULTS = (ValueError, RecursionError)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # of JSON
_MOST_EXACT = 2.0**53  # larger numbers with a fraction or an exponent are no counts of anything


def check(data: bytes, parse: Callable[[bytes], InferenceRequest] = parse_request) -> None:
    """Against ``json.loads``, which is what vLLM's server reads a body with."""
    choices, pieces = take_apart(data)
    body = b"".join(pieces)
    other = _attempt(lambda text: parse_other(text, (Work.GENERATE, Work.READ, Work.COUNT)[choices % 3]), body)
    request = _attempt(parse, body)
    assert (request is None) is (other is None)
    plain = _plain(body)
    if request is None or other is None:
        assert plain is None or b"\\u" in body or b"NaN" in body or b"Infinity" in body, "a body that a worker reads is refused"
        return
    _check_sense(request)
    _check_sense(other)
    if plain is not None:
        _compare(request, other, plain)
        _check_changes(body, request, plain)


def _attempt(parse: Callable[[bytes], InferenceRequest], body: bytes) -> InferenceRequest | None:
    try:
        return parse(body)
    except ClientFault:
        return None


def _plain(body: bytes) -> dict[str, Any] | None:
    """The object that a worker reads; None where it is no object, or no UTF-8."""
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except _FAULTS:
        return None
    return value if isinstance(value, dict) else None


def _check_sense(request: InferenceRequest) -> None:
    assert request.max_tokens is None or 0 <= request.max_tokens <= MAX_TOKENS
    assert request.prompts >= 0
    assert request.choices >= 0
    assert request.text_bytes >= 0
    assert request.token_ids >= 0


def _compare(request: InferenceRequest, other: InferenceRequest, plain: dict[str, Any]) -> None:
    for read in (request, other):
        assert _is_private(plain.get("model")) or read.model == _text(plain.get("model"))
        assert read.stream is (plain.get("stream") is True)
        assert read.has_tools is ("tools" in plain)
    options = plain.get("stream_options")
    assert request.has_stream_options is ("stream_options" in plain)
    included = options.get("include_usage") if isinstance(options, dict) else None
    assert request.include_usage is (included if isinstance(included, bool) else None)
    limits = [_count(plain.get(name)) for name in ("max_tokens", "max_completion_tokens")]
    if all(limit is None or limit >= 0 for limit in limits):
        assert request.max_tokens == min((min(limit, MAX_TOKENS) for limit in limits if limit is not None), default=None)
    assert _is_private(plain.get("previous_response_id")) or other.previous_id == _text(plain.get("previous_response_id"))
    prompt = plain.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(one, str) for one in prompt):
        assert (request.prompts, request.token_ids) == (len(prompt), 0)
    elif isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        assert (request.prompts, request.token_ids) == (1, len(prompt))


def _text(value: object) -> str | None:
    """The text as the gateway keeps it: half of a pair is the replacement character."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if isinstance(value, str) else None


def _is_private(value: object) -> bool:
    """Whether a text has what the gateway's copy of an odd body uses for halves of pairs, or confuses with it; no name has."""
    return isinstance(value, str) and ("\\u" in value or any("\ue000" <= character <= "\uefff" for character in value))


def _count(value: object) -> int | None:
    """A whole number, however it is written: vLLM takes 7.0 and "7" for 7."""
    if isinstance(value, str):
        return _count(json.loads(value)) if _NUMBER.fullmatch(value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _MOST_EXACT else None
    return value if type(value) is int else None


def _check_changes(body: bytes, request: InferenceRequest, plain: dict[str, Any]) -> None:
    asked = ask_for_usage(body, request) if request.stream else None
    if asked is not None:
        changed = _plain(b"".join(asked))
        assert changed is not None
        options = changed.pop("stream_options")
        assert options["include_usage"] is True
        assert _shown(changed) == _shown({name: value for name, value in plain.items() if name != "stream_options"})
    if request.model is not None:
        renamed = rename_model(body, request.model, 'new "name"')
        if renamed is not None:
            changed = _plain(renamed)
            assert changed is not None
            assert changed["model"] == 'new "name"'
            assert _shown({**changed, "model": ""}) == _shown({**plain, "model": ""})


def _shown(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)  # since NaN is not itself


def seeds() -> list[bytes]:
    """Bodies of each kind."""
    chat = b'{"model":"m","messages":[{"role":"user","content":"a \\u4e2d \\" b"}],"stream":true,"max_tokens":5}'
    return [
        put_together(body, (), choices)
        for choices in (0, 1, 2)
        for body in (
            chat,
            b'{"model":"m","stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true},"n":2}',
            b'{"stream_options":null,"model":"\\u006d","prompt":["a","b"],"max_completion_tokens":7,"echo":true}',
            b'{"model":"m","prompt":[1,2,3],"tools":[{"a":[]}],"user":"u","metadata":{"model":"x","stream":true}}',
            b'{"model":"a","model":"b","input":[[1],[2]],"instructions":"x","previous_response_id":"r"}',
            b'\xef\xbb\xbf{"model":"\\ud800","logit_bias":{"1":NaN},"messages":null}',
            b'{"model":1,"stream":"true","max_tokens":1e3,"n":null}',
            b'{"model":"m"} x',
        )
    ]
