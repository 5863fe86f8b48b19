"""Bodies of the two other APIs for chats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.bodies import Generation, Served
from simulator.bodies_more import parse_count, parse_messages, parse_responses
from simulator.refusals import Refusal

SERVED = Served(models=("m",), max_model_len=4096, calls_tools=True)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "f", "input_schema": {"properties": {"a": {"type": "integer"}}}}
FUNCTION = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}


def message(**fields: Any) -> Generation:
    return parse_messages(json.dumps({"messages": HELLO, "max_tokens": 5, **fields}).encode(), SERVED)


def response(**fields: Any) -> Generation:
    return parse_responses(json.dumps({"input": "hello", **fields}).encode(), SERVED)


def text(wanted: Generation) -> str:
    return wanted.sources[0].text()


def test_no_response_is_kept_for_later():
    """A worker without a store says so to who wants an answer in the background."""
    with pytest.raises(Refusal, match="background mode") as refused:
        response(background=True)

    assert (refused.value.status, refused.value.param) == (400, "background")
    assert response(background=False).wishes


def test_a_message_is_a_chat_that_always_gets_its_usage():
    """Limit, stops and stream are read; counts are told in any case."""
    wanted = message(stop_sequences=["x"], stream=True)

    assert (wanted.wishes[0].limit_tokens, wanted.wishes[0].stop, wanted.stream) == (5, ("x",), True)
    assert (wanted.wants_usage, wanted.wants_running_usage) == (True, True)


@pytest.mark.parametrize("system", ["be brief", [{"type": "text", "text": "be brief"}]])
def test_the_system_prompt_comes_first(system):
    """It is a field of its own there, as text or in blocks."""
    assert text(message(system=system)) == "<|system|>\nbe brief\n<|user|>\nhello\n<|assistant|>\n"


def test_blocks_of_all_kinds_are_texts():
    """What was thought, called and found is part of the conversation, and a result is a tool's."""
    blocks = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "rain"}]},
    ]
    wanted = message(messages=[*HELLO, *blocks], tools=[TOOL])

    assert '<|assistant|>\nhm{"a":1}\n<|tool|>\n"rain"\n' in text(wanted)
    assert wanted.wishes[0].tool is None
    with pytest.raises(Refusal, match="m is not a multimodal model"):
        message(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        (None, True),
        ({"type": "auto"}, True),
        ({"type": "any"}, True),
        ({"type": "none"}, False),
        ({"type": "tool", "name": "f"}, True),
    ],
)
def test_tools_of_messages(choice, called):
    """The choices of that API are those of chats under other names."""
    wish = message(tools=[TOOL], **({} if choice is None else {"tool_choice": choice})).wishes[0]

    assert (wish.tool is not None) is called
    if wish.tool is not None:
        assert (wish.tool.name, wish.tool.arguments) == ("f", '{"a": 3}')


def test_a_message_needs_its_limit():
    """The field that chats may leave out is missing here."""
    with pytest.raises(Refusal, match=r"'loc': 'body\.max_tokens', 'msg': 'Field required'"):
        parse_messages(json.dumps({"messages": HELLO}).encode(), SERVED)


def test_tokens_are_counted_as_they_would_be():
    """The count of a conversation is that of its prompt, tools included."""
    body = {"messages": HELLO, "system": "be brief", "tools": [TOOL]}

    counted = parse_count(json.dumps(body).encode(), SERVED)

    assert counted == message(system="be brief", tools=[TOOL]).sources[0].prompt.tokens
    assert counted > parse_count(json.dumps({"messages": HELLO}).encode(), SERVED)


def test_a_response_repeats_what_it_was_asked():
    """Settings of the request stand in the answer, with their defaults."""
    plain = response()
    full = response(instructions="be brief", max_output_tokens=7, temperature=0, tools=[FUNCTION], tool_choice="required")
    assert plain.response is not None
    assert full.response is not None

    assert (plain.response.temperature, plain.response.tool_choice, plain.response.tools) == (1.0, "none", ())
    assert (full.response.temperature, full.response.max_output_tokens, full.response.instructions) == (0, 7, "be brief")
    assert (full.response.tool_choice, full.response.tools) == ("required", (FUNCTION,))
    assert text(full).startswith('[{"type": "function"')
    assert full.wishes[0].tool is not None


def test_input_may_be_items():
    """Messages, calls and their results are one conversation."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "output": "rain"},
    ]
    wanted = response(input=items, tools=[FUNCTION])

    assert '<|user|>\nhello\n<|assistant|>\n{"a": 1}\n<|tool|>\nrain\n' in text(wanted)
    assert wanted.wishes[0].tool is None


def test_nothing_is_stored():
    """There is no response to go on from."""
    with pytest.raises(Refusal) as caught:
        response(previous_response_id="resp_1")

    assert (caught.value.status, caught.value.message) == (404, "Response with id 'resp_1' not found.")
