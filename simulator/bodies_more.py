"""Bodies of the endpoints that other APIs have for chats: ``/v1/messages`` and ``/v1/responses``, read as chats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from simulator.bodies import ChatBody, Generation, ResponseAsked, Served, generation_of_chat, read_body
from simulator.prompts import Message
from simulator.refusals import Refusal

_CHOICES = {"any": "required", "auto": "auto", "none": "none"}


class _MessagesBody(msgspec.Struct, kw_only=True):
    max_tokens: int
    messages: list[Message]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class _CountBody(msgspec.Struct, kw_only=True):
    messages: list[Message]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class _Item(msgspec.Struct, kw_only=True):
    type: str = "message"
    role: str = "user"
    content: str | list[dict[str, Any]] | None = None
    output: str | None = None
    arguments: str | None = None


class _ResponsesBody(msgspec.Struct, kw_only=True):
    input: str | list[_Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    temperature: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    previous_response_id: str | None = None
    background: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None


_NO_STORE = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. "
    "To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)


def parse_messages(raw: bytes, served: Served) -> Generation:
    """What a message body asks for; it always gets its usage. `Refusal` if it asks for what cannot be."""
    body = read_body(raw, _MessagesBody)
    choice: str | dict[str, Any] | None = None
    if body.tool_choice is not None:
        kind = str(body.tool_choice.get("type"))
        choice = {"function": {"name": body.tool_choice.get("name")}} if kind == "tool" else _CHOICES.get(kind)
    chat = ChatBody(
        model=body.model,
        messages=[*_system(body.system), *(_plain(message) for message in body.messages)],
        stream=body.stream,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        tools=body.tools,
        tool_choice=choice,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return replace(generation_of_chat(chat, served), wants_usage=True, wants_running_usage=True)


def parse_count(raw: bytes, served: Served) -> int:
    """How many tokens the conversation of a count body has. `Refusal` if there is none."""
    body = read_body(raw, _CountBody)
    messages = [*_system(body.system), *(_plain(message) for message in body.messages)]
    chat = ChatBody(model=body.model, messages=messages, tools=body.tools, tool_choice="none" if body.tools else None)
    return generation_of_chat(chat, served).sources[0].prompt.tokens


def parse_responses(raw: bytes, served: Served) -> Generation:
    """What a response body asks for; it always gets its usage. `Refusal` if it asks for what cannot be."""
    body = read_body(raw, _ResponsesBody)
    if body.background:
        raise Refusal(400, "invalid_request_error", _NO_STORE, "background")
    if body.previous_response_id is not None:
        text = f"Response with id '{body.previous_response_id}' not found."
        raise Refusal(404, "invalid_request_error", text, "response_id")
    items = [_Item(content=body.input)] if isinstance(body.input, str) else body.input
    messages = _system(body.instructions)
    for item in items:
        if item.type == "function_call_output":
            messages.append(Message(role="tool", content=item.output))
        elif item.type == "function_call":
            messages.append(Message(role="assistant", content=item.arguments))
        else:
            messages.append(_plain(Message(role=item.role, content=item.content)))
    chat = ChatBody(
        model=body.model,
        messages=messages,
        stream=body.stream,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        tools=body.tools,
        tool_choice=body.tool_choice,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    choice = body.tool_choice if isinstance(body.tool_choice, str) else None
    asked = ResponseAsked(
        temperature=1.0 if body.temperature is None else body.temperature,
        max_output_tokens=body.max_output_tokens,
        instructions=body.instructions,
        tools=tuple(body.tools or ()),
        tool_choice=choice or ("auto" if body.tools else "none"),
    )
    return replace(generation_of_chat(chat, served), wants_usage=True, response=asked)


def _system(system: str | list[dict[str, Any]] | None) -> list[Message]:
    return [_plain(Message(role="system", content=system))] if system else []


def _plain(message: Message) -> Message:
    """The same message with blocks of text only; one with the result of a tool is a tool's."""
    if not isinstance(message.content, list):
        return message
    parts, role = [], message.role
    for block in message.content:
        match block.get("type"):
            case "text" | "input_text" | "output_text" | "thinking":
                parts.append({"type": "text", "text": block.get("text") or block.get("thinking") or ""})
            case "tool_use":
                parts.append({"type": "text", "text": msgspec.json.encode(block.get("input")).decode()})
            case "tool_result":
                role = "tool"
                parts.append({"type": "text", "text": msgspec.json.encode(block.get("content")).decode()})
            case _:
                parts.append(block)
    return Message(role=role, content=parts)
