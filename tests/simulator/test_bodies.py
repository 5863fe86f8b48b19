"""What request bodies ask for, and how wrong ones are refused."""

from __future__ import annotations

import json

import pytest

from simulator.bodies import Refusal, Served, parse_chat, parse_completion, parse_tokenize, unsupported_media_type
from simulator.wire import error_body
from tests.captures import load

SERVED = Served(model="tiny", max_model_len=32768)
SUM_TOO_LONG = (
    "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your prompt contains "
    "at least 769 input tokens, for a total of at least 32769 tokens. Please reduce the length of the input prompt or the "
    "number of requested output tokens. (parameter=input_tokens, value=769)"
)
HELLO = [{"role": "user", "content": "hello"}]


def a_chat(**fields) -> bytes:
    return json.dumps({"model": "tiny", "messages": HELLO, **fields}).encode()


def a_completion(**fields) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "hello", **fields}).encode()


def refused(parse, raw: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(raw, SERVED)
    return caught.value


def as_body(refusal: Refusal) -> bytes:
    return error_body(refusal.status, refusal.kind, refusal.message, refusal.param)


def test_what_is_asked_for_is_read():
    """Limits, streaming and usage options of a chat come through."""
    wanted = parse_chat(
        a_chat(stream=True, max_tokens=7, ignore_eos=True, stream_options={"include_usage": True}, nonsense={"a": 1}), SERVED
    )

    assert (wanted.limit_tokens, wanted.ignores_end, wanted.stream) == (7, True, True)
    assert (wanted.wants_usage, wanted.wants_running_usage) == (True, False)


def test_running_usage_needs_usage():
    """Usage in every event comes only together with usage at the end."""
    only = parse_chat(a_chat(stream=True, stream_options={"continuous_usage_stats": True}), SERVED)
    both = parse_chat(a_chat(stream=True, stream_options={"continuous_usage_stats": True, "include_usage": True}), SERVED)

    assert (only.wants_running_usage, both.wants_running_usage) == (False, True)


def test_the_newer_name_of_the_limit_wins():
    """``max_completion_tokens`` counts if both are there."""
    assert parse_chat(a_chat(max_tokens=12, max_completion_tokens=2), SERVED).limit_tokens == 2


def test_without_a_limit_a_chat_may_fill_the_context_and_a_completion_gets_16_tokens():
    """The two endpoints have the defaults of vLLM."""
    chat = parse_chat(a_chat(), SERVED)

    assert chat.limit_tokens == 32768 - chat.prompt.tokens
    assert parse_completion(a_completion(), SERVED).limit_tokens == 16


def test_the_model_may_be_left_out():
    """A request without a model is for the one there is."""
    assert parse_completion(b'{"prompt":"hello"}', SERVED).prompt.tokens == 2


def test_conversations_share_what_they_begin_with():
    """Two chats of one system prompt share its blocks; a salt or tools before it separate them."""
    system = {"role": "system", "content": "rules " * 100}

    def blocks(question: str, **fields) -> set[bytes]:
        messages = [system, {"role": "user", "content": question}]
        return set(parse_chat(a_chat(messages=messages, **fields), SERVED).prompt.blocks)

    assert len(blocks("one") & blocks("two")) == 9
    assert not blocks("one") & blocks("one", cache_salt="s")
    assert not blocks("one") & blocks("one", tools=[{"type": "function", "function": {"name": "f"}}])


def test_content_in_parts_is_the_same_as_in_one_text():
    """A list of text parts is their texts joined."""
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]

    assert parse_chat(a_chat(messages=[{"role": "user", "content": parts}]), SERVED) == parse_chat(a_chat(), SERVED)


@pytest.mark.parametrize(("prompt", "tokens"), [("hello", 2), (["hello"], 2), ([1, 2, 3], 3), ([[1, 2, 3]], 3)])
def test_a_completion_prompt_is_a_text_or_token_ids(prompt, tokens):
    """One prompt is accepted in each of the four forms of the API."""
    assert parse_completion(a_completion(prompt=prompt), SERVED).prompt.tokens == tokens


def test_tokenize_counts_texts_and_conversations():
    """The count is the one that the engine would use."""
    assert parse_tokenize(b'{"prompt":"hello"}', SERVED) == 2
    assert parse_tokenize(a_chat(), SERVED) == parse_chat(a_chat(), SERVED).prompt.tokens


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("err_invalid_json", b'{"model": "tiny", "messages": ['),
        ("err_too_long", a_chat(messages=[{"role": "user", "content": "a" * 240_000}], max_tokens=12)),
        ("err_unknown_model", json.dumps({"model": "nope", "messages": HELLO}).encode()),
        ("chat_max0", a_chat(max_tokens=0)),
        ("chat_stream_options_without_stream", a_chat(stream_options={"include_usage": True})),
    ],
)
def test_refusals_are_the_captured_ones(name, raw):
    """The error body is byte for byte the captured one, but for the aliases that our worker does not have."""
    captured = load(name).payload.replace(b"tiny, tiny-alias", b"tiny")

    assert as_body(refused(parse_chat, raw)) == captured


@pytest.mark.parametrize(
    ("parse", "raw", "expected"),
    [
        (parse_chat, b"", "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}"),
        (
            parse_chat,
            b'{"model": "tiny"}',
            "{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}",
        ),
        (parse_chat, a_chat(temperature="hot"), "'loc': 'body.temperature'"),
        (parse_chat, a_chat(messages=[{"content": "x"}]), "'loc': 'body.messages.0.role', 'msg': 'Field required'"),
        (parse_chat, b"[]", "'loc': 'body'"),
        (parse_tokenize, b"{}", "'loc': 'body.prompt'"),
    ],
)
def test_bodies_of_the_wrong_form_are_refused_by_validation(parse, raw, expected):
    """What is missing or of another type is a 400 of type "Bad Request" that says where."""
    refusal = refused(parse, raw)

    assert (refusal.status, refusal.kind) == (400, "Bad Request")
    assert expected in refusal.message


@pytest.mark.parametrize(
    ("parse", "raw", "expected"),
    [
        (parse_chat, a_chat(messages=[]), "Cannot apply chat template to an empty conversation. Provide at least one message."),
        (
            parse_chat,
            a_chat(max_tokens=40000),
            "max_tokens=40000 cannot be greater than max_model_len=32768. Please request fewer output tokens.",
        ),
        (parse_chat, a_chat(n=0), "n must be at least 1, got 0."),
        (parse_chat, a_chat(n=2), "this simulated worker gives one choice a request: n must be 1, got 2."),
        (
            parse_chat,
            a_chat(temperature=-1.0),
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
        ),
        (
            parse_chat,
            a_chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]),
            "tiny is not a multimodal model",
        ),
        (
            parse_completion,
            a_completion(prompt="a" * 4000, max_tokens=32000),
            SUM_TOO_LONG,
        ),
        (parse_completion, a_completion(prompt=""), "Either prompt or prompt_embeds must be provided and non-empty."),
        (parse_completion, a_completion(prompt=[]), "You must pass at least one prompt"),
        (parse_completion, a_completion(prompt=["one", "two"]), "this simulated worker takes one prompt a request."),
        (parse_chat, b"\xff\xff\xff\xff", "There was an error parsing the body"),
    ],
)
def test_bad_values_are_refused_in_the_words_of_vllm(parse, raw, expected):
    """What cannot be done is a 400 of type "BadRequestError"."""
    refusal = refused(parse, raw)

    assert (refusal.status, refusal.kind) == (400, "BadRequestError")
    assert refusal.message.startswith(expected)


def test_other_media_types_are_refused():
    """A body that is not announced as JSON gets the captured error."""
    expected = (
        b'{"error":{"message":"1 validation error:\\n  Unsupported Media Type: Only \'application/json\' is allowed",'
        b'"type":"Bad Request","param":null,"code":400}}'
    )

    assert as_body(unsupported_media_type()) == expected
