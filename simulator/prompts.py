"""What a request gives to the model: prompts as texts or token ids, conversations as one text, tools and their calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from simulator.engine.prefix import BLOCK_TOKENS, Prompt, prompt_of_ids, prompt_of_text
from simulator.refusals import Refusal, bad_value
from simulator.text import ToolCall
from simulator.vocabulary import ids_of_text, is_known, text_of_ids

_EXAMPLES: dict[str, Any] = {"string": "water", "integer": 3, "number": 0.5, "boolean": True, "array": [], "object": {}}


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One prompt: as it was given, and as the engine sees it."""

    given: str | tuple[int, ...]
    prompt: Prompt

    @property
    def digest(self) -> bytes:
        """What the answer is drawn from; the same for equal prompts, however they are kept apart in the cache."""
        raw = self.given.encode() if isinstance(self.given, str) else repr(self.given).encode()
        return blake2b(raw, digest_size=8).digest()

    def ids(self) -> list[int]:
        """The prompt's tokens by number."""
        return ids_of_text(self.given) if isinstance(self.given, str) else list(self.given)

    def text(self) -> str:
        """The prompt as a text."""
        return self.given if isinstance(self.given, str) else text_of_ids(self.given)


def source_of(given: str | Sequence[int], salt: str = "", block_tokens: int = BLOCK_TOKENS) -> Source:
    """The prompt for a text or for token ids. `Refusal` if there is nothing in it, or an id outside the vocabulary."""
    if isinstance(given, str):
        return Source(given=given, prompt=prompt_of_text(given, salt, block_tokens))
    for number in given:
        if not is_known(number):
            raise Refusal(400, "BadRequestError", f"Token id {number} is out of vocabulary")
    return Source(given=tuple(given), prompt=prompt_of_ids(given, salt, block_tokens))


def sources_of(
    prompt: str | list[int | str | list[int]] | None, salt: str = "", block_tokens: int = BLOCK_TOKENS
) -> tuple[Source, ...]:
    """The prompts of a completion: one or several texts, or one or several lists of token ids. `Refusal` for anything else."""
    if prompt is None or prompt == "":
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return (source_of(prompt, salt, block_tokens),)
    if not prompt:
        raise bad_value("You must pass at least one prompt")
    numbers = [each for each in prompt if isinstance(each, int)]
    if len(numbers) == len(prompt):
        return (source_of(numbers, salt, block_tokens),)
    if numbers or not all(prompt):
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    return tuple(source_of(each, salt, block_tokens) for each in prompt if not isinstance(each, int))


def render(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, model: str) -> str:
    """A conversation as one text, as a chat template would; what comes first stays first, so that prefixes are shared.

    `Refusal` if there is no message, or something in one that is no text.
    """
    if not messages:
        raise bad_value("Cannot apply chat template to an empty conversation. Provide at least one message.")
    parts = [json.dumps(tools)] if tools else []
    for message in messages:
        calls = json.dumps(message.tool_calls) if message.tool_calls else ""
        parts.append(f"<|{message.role}|>\n{text_of(message, model)}{calls}\n")
    return "".join((*parts, "<|assistant|>\n"))


def text_of(message: Message, model: str) -> str:
    """The text of a message. `Refusal` if there is something else in it."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    if any(part.get("type") != "text" for part in message.content):
        raise bad_value(f"{model} is not a multimodal model")
    return "".join(str(part.get("text", "")) for part in message.content)


def chosen_tool(tools: Sequence[dict[str, Any]] | None, choice: str | dict[str, Any] | None) -> tuple[ToolCall, bool] | None:
    """The call that is made when ``tools`` are there, and whether the client insists on it; ``None`` for no call.

    `Refusal` for a choice that cannot be.
    """
    if choice not in (None, "none") and not tools:
        raise bad_value("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if not tools or choice == "none":
        return None
    functions = [tool.get("function") or tool for tool in tools]
    if not isinstance(choice, dict):
        is_insisted = choice == "required"
        return _call(functions[0], "tool_calls", "" if is_insisted else None), is_insisted
    wanted = (choice.get("function") or choice).get("name")
    for function in functions:
        if function.get("name") == wanted:
            return _call(function, "stop", ""), True
    raise bad_value("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")


def _call(function: dict[str, Any], finish_reason: str, beside: str | None) -> ToolCall:
    schema = function.get("parameters") or function.get("input_schema") or {}
    properties = schema.get("properties") or {}
    arguments = {name: _example(properties.get(name) or {}) for name in schema.get("required") or properties}
    name = str(function.get("name", ""))
    return ToolCall(name=name, arguments=json.dumps(arguments), finish_reason=finish_reason, beside=beside)


def _example(schema: dict[str, Any]) -> Any:
    """A value that the schema allows."""
    return schema["enum"][0] if schema.get("enum") else _EXAMPLES.get(str(schema.get("type", "string")), "water")
