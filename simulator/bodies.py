"""Request bodies: read, checked as vLLM checks them, and turned into what the engine is to do."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from simulator.prefix import Prompt, prompt_of_ids, prompt_of_text

DEFAULT_COMPLETION_TOKENS = 16  # /v1/completions without max_tokens; chat goes on to the context limit


class Refusal(Exception):  # noqa: N818 -- an answer to the client, and no fault of ours
    """A request the worker answers with an error instead of tokens."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind  # vLLM's `error.type`
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the worker serves, as far as a request can be wrong about it."""

    model: str
    max_model_len: int  # prompt and output tokens together


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one request asks for, checked."""

    prompt: Prompt
    limit_tokens: int  # most output tokens
    ignores_end: bool
    stream: bool
    wants_usage: bool  # a last event with usage; streams only
    wants_running_usage: bool  # usage in every event; streams only


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Body(msgspec.Struct, kw_only=True):
    """The fields both endpoints share; others are ignored."""

    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    cache_salt: str | None = None


class _ChatBody(_Body):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None


class _CompletionBody(_Body):
    prompt: str | list[int | str | list[int]] | None = None


class _TokenizeBody(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None


_B = TypeVar("_B", _ChatBody, _CompletionBody, _TokenizeBody)


def parse_chat(raw: bytes, served: Served) -> Generation:
    """What a chat body asks for. `Refusal` if it asks for what cannot be."""
    body = _read(raw, _ChatBody)
    if not body.messages:
        raise _bad_value("Cannot apply chat template to an empty conversation. Provide at least one message.")
    prompt = prompt_of_text(_render(body.messages, body.tools, served.model), body.cache_salt or "")
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _generation(body, prompt, asked, served, default=served.max_model_len)


def parse_completion(raw: bytes, served: Served) -> Generation:
    """What a completion body asks for. `Refusal` if it asks for what cannot be."""
    body = _read(raw, _CompletionBody)
    return _generation(body, _completion_prompt(body), body.max_tokens, served, default=DEFAULT_COMPLETION_TOKENS)


def parse_tokenize(raw: bytes, served: Served) -> int:
    """How many tokens the text or the conversation has. `Refusal` if there is neither."""
    body = _read(raw, _TokenizeBody)
    _check_model(body.model, served)
    if body.messages is not None:
        return prompt_of_text(_render(body.messages, None, served.model)).tokens
    if body.prompt is None:
        raise _missing("body.prompt", 0)
    return prompt_of_text(body.prompt).tokens


def _generation(body: _Body, prompt: Prompt, asked: int | None, served: Served, *, default: int) -> Generation:
    _check_model(body.model, served)
    options = body.stream_options
    if options is not None and not body.stream:
        raise _bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.n is not None and body.n < 1:
        raise _bad_value(f"n must be at least 1, got {body.n}.")
    if body.n is not None and body.n > 1:
        raise _bad_value(f"this simulated worker gives one choice a request: n must be 1, got {body.n}.", "n", body.n)
    if body.temperature is not None and body.temperature < 0:
        raise _bad_value(f"temperature must be non-negative, got {body.temperature}.", "temperature", body.temperature)
    wants_usage = bool(options and options.include_usage)
    return Generation(
        prompt=prompt,
        limit_tokens=_output_limit(prompt.tokens, asked, served.max_model_len, default),
        ignores_end=body.ignore_eos,
        stream=bool(body.stream),
        wants_usage=wants_usage,
        wants_running_usage=wants_usage and bool(options and options.continuous_usage_stats),
    )


def _output_limit(prompt_tokens: int, asked: int | None, longest: int, default: int) -> int:
    """How many tokens may be generated within the context limit."""
    if asked is not None and asked < 1:
        raise _bad_value(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
    if asked is not None and asked > longest:
        text = f"max_tokens={asked} cannot be greater than max_model_len={longest}. Please request fewer output tokens."
        raise _bad_value(text, "max_tokens", asked)
    limit = f"This model's maximum context length is {longest} tokens. However, "
    if prompt_tokens > longest - (asked is None):
        text = (
            f"your prompt contains at least {longest + 1} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt."
        )
        raise _bad_value(limit + text, "input_tokens", longest + 1)
    if asked is not None and prompt_tokens + asked > longest:
        least = longest + 1 - asked  # vLLM stops counting there
        text = (
            f"you requested {asked} output tokens and your prompt contains at least {least} input tokens, for a total of "
            f"at least {longest + 1} tokens. Please reduce the length of the input prompt or the number of requested output "
            "tokens."
        )
        raise _bad_value(limit + text, "input_tokens", least)
    return min(default if asked is None else asked, longest - prompt_tokens)


def _completion_prompt(body: _CompletionBody) -> Prompt:
    salt = body.cache_salt or ""
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = list(prompt[0]) if isinstance(prompt[0], list) else prompt[0]
    if not prompt:
        if isinstance(prompt, list):
            raise _bad_value("You must pass at least one prompt")
        raise _bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return prompt_of_text(prompt, salt)
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise _bad_value("this simulated worker takes one prompt a request.", "prompt")
    return prompt_of_ids(ids, salt)


def _render(messages: list[_Message], tools: list[dict[str, Any]] | None, model: str) -> str:
    """A conversation as one text, as a chat template would; what comes first stays first, so that prefixes are shared."""
    parts = [json.dumps(tools)] if tools else []
    for message in messages:
        content = message.content or ""
        if not isinstance(content, str):
            if any(part.get("type") != "text" for part in content):
                raise _bad_value(f"{model} is not a multimodal model")
            content = "".join(str(part.get("text", "")) for part in content)
        calls = json.dumps(message.tool_calls) if message.tool_calls else ""
        parts.append(f"<|{message.role}|>\n{content}{calls}\n")
    return "".join((*parts, "<|assistant|>\n"))


def _check_model(name: str | None, served: Served) -> None:
    if name is not None and name != served.model:
        text = f"The model `{name}` does not exist. Valid aliases: {served.model}."
        raise Refusal(404, "NotFoundError", text, "model")


def _read(raw: bytes, kind: type[_B]) -> _B:
    """The body as a value; `Refusal` in the words of vLLM's validation if it is none."""
    if not raw:
        raise _missing("body", None)
    try:
        value = json.loads(raw)
    except json.JSONDecodeError as error:
        raise _invalid("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>", error.msg) from None
    except UnicodeDecodeError as error:
        raise _bad_value(f"There was an error parsing the body: {error.reason}") from None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        missing = re.match(r"Object missing required field `(\w+)`(?: - at `\$(.*)`)?", text)
        if missing:
            raise _missing(f"{_place(missing[2] or '')}.{missing[1]}", len(value)) from None
        reason, _, path = text.partition(" - at `$")
        raise _invalid("type_error", _place(path.rstrip("`")), reason, type(value).__name__) from None


def _place(path: str) -> str:
    """Where in the body, as vLLM writes it: ``body.messages.0``."""
    return "body" + re.sub(r"\[(\d+)\]", r".\1", path)


def _missing(where: str, items: int | None) -> Refusal:
    return _invalid("missing", where, "Field required", "None" if items is None else f"<dict of {items} items>")


def _invalid(kind: str, where: str, message: str, given: str, reason: str | None = None) -> Refusal:
    """Refused by the validation layer, before anybody looked at a value."""
    found: dict[str, Any] = {"type": kind, "loc": where, "msg": message, "input": given}
    if reason is not None:
        found["ctx"] = {"error": reason}
    return Refusal(400, "Bad Request", f"1 validation error:\n  {found}", where)


def unsupported_media_type() -> Refusal:
    """What a body gets that is not announced as JSON."""
    text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return Refusal(400, "Bad Request", text)


def _bad_value(message: str, param: str | None = None, value: object = None) -> Refusal:
    where = "" if param is None else f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    return Refusal(400, "BadRequestError", message + where, param)
