"""Request bodies: read, checked as vLLM checks them, and turned into what the engine is to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from simulator.dialect import ForcedUsage
from simulator.engine.prefix import BLOCK_TOKENS
from simulator.prompts import Message, Source, chosen_tool, render, source_of, sources_of, text_of
from simulator.refusals import Refusal, bad_value, check_length, invalid, missing, unknown_model, wrong_form
from simulator.text import ToolCall, Wish
from simulator.transfer import Transfer, read_transfer

DEFAULT_COMPLETION_TOKENS = 16  # /v1/completions without max_tokens; chat goes on to the context limit
_MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the worker serves, as far as a request can be wrong about it or is read differently for it."""

    models: tuple[str, ...]  # names of the one model; the first is the one in answers
    max_model_len: int  # prompt and output tokens together
    adapters: tuple[str, ...] = ()  # LoRA adapters, which are asked for as models too
    calls_tools: bool = False  # --enable-auto-tool-choice
    thinks: bool = False  # --reasoning-parser
    thoughts: str | None = None  # what is always thought then; None: some words
    answer: str | None = None  # what is always said, unless a request wants more tokens; None: some words
    forced_usage: ForcedUsage | None = None
    transfers: bool = False  # a KV connector is configured
    salt: str = ""  # prompts read under another salt share no block of the cache
    block_tokens: int = BLOCK_TOKENS  # of one KV block


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAsked:
    """What an answer on ``/v1/responses`` repeats of its request."""

    temperature: float
    max_output_tokens: int | None
    instructions: str | None
    tools: tuple[dict[str, Any], ...]
    tool_choice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one request asks for, checked."""

    model: str  # the name in the answer
    sources: tuple[Source, ...]
    wishes: tuple[Wish, ...]  # one a source
    n: int = 1  # choices for each source
    stream: bool
    wants_usage: bool  # a last event with usage; streams only
    wants_running_usage: bool  # usage in every event; streams only
    top_logprobs: int | None = None  # alternatives told for each token; None: no logprobs
    prompt_logprobs: int | None = None
    wants_token_ids: bool = False
    shows_reasoning: bool = True
    echoes: tuple[str, ...] = ()  # what each source's answer begins with; none: nothing
    hides_output: bool = False  # only the echo was asked for
    asked_tokens: int | None = None  # max_tokens as given
    stream_interval: int = 1  # tokens an event, but for the first
    priority: int = 0
    identifier: str | None = None  # the body's own request id
    transfer: Transfer | None = None
    response: ResponseAsked | None = None  # of /v1/responses

    @property
    def choices(self) -> int:
        """How many choices there are in all; choice ``i`` answers source ``i // n``."""
        return len(self.sources) * self.n


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _StructuredOutputs(msgspec.Struct):
    choice: list[str] | None = None


class _Body(msgspec.Struct, kw_only=True):
    """The fields both endpoints share; others are ignored."""

    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    temperature: float | None = None
    cache_salt: str | None = None
    echo: bool | None = False
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    structured_outputs: _StructuredOutputs | None = None
    stream_interval: int | None = None
    priority: int = 0
    request_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class ChatBody(_Body):
    """The body of a chat."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool = True
    add_generation_prompt: bool = True


class _CompletionBody(_Body):
    prompt: str | list[int | str | list[int]] | None = None
    suffix: str | None = None
    logprobs: int | None = None


class _TokenizeBody(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = False


class _DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


_B = TypeVar("_B", bound=msgspec.Struct)


def parse_chat(raw: bytes, served: Served) -> Generation:
    """What a chat body asks for. `Refusal` if it asks for what cannot be."""
    return generation_of_chat(read_body(raw, ChatBody), served)


def generation_of_chat(body: ChatBody, served: Served) -> Generation:
    """What a chat asks for. `Refusal` if it asks for what cannot be."""
    text = render(body.messages, body.tools, served.models[0])
    source = source_of(text, _salt(body, served), served.block_tokens)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    kwargs = body.chat_template_kwargs or {}
    tool = _tool(body, served)
    wishes = _wishes(body, (source,), asked, served, default=served.max_model_len, tool=tool, thinks=kwargs)
    last = body.messages[-1]
    speaker = "assistant" if body.add_generation_prompt else last.role
    echo = text_of(last, served.models[0]) if body.echo and last.role == speaker else ""
    return _generation(
        body,
        served,
        sources=(source,),
        wishes=wishes,
        asked_tokens=asked,
        top_logprobs=_logprobs((body.top_logprobs or 0) if body.logprobs else None),
        shows_reasoning=body.include_reasoning,
        echoes=(echo,) if echo else (),
    )


def parse_completion(raw: bytes, served: Served) -> Generation:
    """What a completion body asks for. `Refusal` if it asks for what cannot be."""
    body = read_body(raw, _CompletionBody)
    if body.suffix is not None:
        text = "suffix is only supported for models with FIM completion rendering"
        raise Refusal(400, "BadRequestError", text, "suffix")
    sources = sources_of(body.prompt, _salt(body, served), served.block_tokens)
    only_echo = bool(body.echo) and body.max_tokens == 0
    asked = 1 if only_echo else body.max_tokens
    top = _logprobs(body.logprobs)
    return _generation(
        body,
        served,
        sources=sources,
        wishes=_wishes(body, sources, asked, served, default=DEFAULT_COMPLETION_TOKENS),
        asked_tokens=body.max_tokens,
        top_logprobs=top,
        prompt_logprobs=top if body.echo and top is not None else body.prompt_logprobs,
        echoes=tuple(source.text() for source in sources) if body.echo else (),
        hides_output=only_echo,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizing:
    """A text whose tokens are asked for."""

    source: Source
    wants_spellings: bool


def parse_tokenize(raw: bytes, served: Served) -> Tokenizing:
    """The text or the conversation. `Refusal` if there is neither."""
    body = read_body(raw, _TokenizeBody)
    _check_model(body.model, served)
    if body.messages is not None:
        text = render(body.messages, None, served.models[0])
    elif body.prompt is not None:
        text = body.prompt
    else:
        raise missing("body.prompt", 0)
    return Tokenizing(source=source_of(text), wants_spellings=bool(body.return_token_strs))


def parse_detokenize(raw: bytes, served: Served) -> str:
    """What the given tokens say. `Refusal` if one of them does not exist."""
    body = read_body(raw, _DetokenizeBody)
    _check_model(body.model, served)
    return source_of(body.tokens).text() if body.tokens else ""


def _generation(body: _Body, served: Served, **fields: Any) -> Generation:
    _check_model(body.model, served)
    options = body.stream_options
    if options is not None and not body.stream:
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.n is not None and body.n < 1:
        raise bad_value(f"n must be at least 1, got {body.n}.")
    if body.temperature is not None and body.temperature < 0:
        raise bad_value(f"temperature must be non-negative, got {body.temperature}.", "temperature", body.temperature)
    usage, running = _wanted_usage(options, served.forced_usage)
    return Generation(
        model=body.model if body.model in served.adapters else served.models[0],
        n=body.n or 1,
        stream=bool(body.stream),
        wants_usage=usage,
        wants_running_usage=running,
        wants_token_ids=bool(body.return_token_ids),
        stream_interval=max(1, body.stream_interval or 1),
        priority=body.priority,
        identifier=body.request_id,
        transfer=read_transfer(body.kv_transfer_params) if served.transfers and body.kv_transfer_params else None,
        **{"prompt_logprobs": body.prompt_logprobs, **fields},
    )


def _wanted_usage(options: _StreamOptions | None, forced: ForcedUsage | None) -> tuple[bool, bool]:
    """Whether a usage event is wanted, and whether usage is wanted in every event."""
    if forced is ForcedUsage.ALWAYS:
        return True, True
    is_forced = forced is ForcedUsage.FINAL or (forced is ForcedUsage.IF_OPTIONS and options is not None)
    usage = is_forced or bool(options and options.include_usage)
    return usage, usage and bool(options and options.continuous_usage_stats)


def _wishes(
    body: _Body,
    sources: tuple[Source, ...],
    asked: int | None,
    served: Served,
    *,
    default: int,
    tool: ToolCall | None = None,
    thinks: dict[str, Any] | None = None,
) -> tuple[Wish, ...]:
    """What the answer to each source is to look like. ``thinks``: the template's arguments, if it is a conversation."""
    _check_model(body.model, served)
    if asked is not None and asked < 1:
        raise bad_value(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
    choices = body.structured_outputs.choice if body.structured_outputs else None
    wishes = []
    for source in sources:
        tokens = source.prompt.tokens
        check_length(tokens, asked, served.max_model_len)
        wishes.append(
            Wish(
                limit_tokens=min(default if asked is None else asked, served.max_model_len - tokens),
                least_tokens=body.min_tokens,
                ignores_end=body.ignore_eos,
                thinks=served.thinks and thinks is not None and thinks.get("enable_thinking", True) is not False,
                tool=tool,
                thoughts=served.thoughts,
                fixed=choices[0] if choices else None if body.ignore_eos else served.answer,
                stop=(body.stop,) if isinstance(body.stop, str) else tuple(filter(None, body.stop or ())),
                includes_stop=body.include_stop_str_in_output,
                stop_ids=frozenset(body.stop_token_ids or ()),
            )
        )
    return tuple(wishes)


def _tool(body: ChatBody, served: Served) -> ToolCall | None:
    """The call that answers a conversation with tools, unless it already has the result of one."""
    found = chosen_tool(body.tools, body.tool_choice)
    if found is None:
        return None
    tool, is_insisted = found
    if not is_insisted and not served.calls_tools:
        text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        raise bad_value(text)
    return tool if is_insisted or body.messages[-1].role != "tool" else None


def _logprobs(count: int | None) -> int | None:
    if count is not None and count > _MOST_LOGPROBS:
        text = f"Requested sample logprobs of {count}, which is greater than max allowed: {_MOST_LOGPROBS}"
        raise bad_value(text, "logprobs", count)
    return count


def _check_model(name: str | None, served: Served) -> None:
    if name and name not in (*served.models, *served.adapters):
        raise unknown_model(name, served.models)


def _salt(body: _Body, served: Served) -> str:
    """What keeps the blocks of this prompt apart from those of equal ones: the client's salt, or another adapter."""
    return served.salt + (f"{body.model}/" if body.model in served.adapters else "") + (body.cache_salt or "")


def read_body(raw: bytes, kind: type[_B]) -> _B:
    """The body as a value; `Refusal` in the words of vLLM's validation if it is none."""
    if not raw:
        raise missing("body", None)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        return _read_laxly(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _read_slowly(raw, kind)


def _read_laxly(raw: bytes, kind: type[_B]) -> _B:
    """The same where types differ: like vLLM's, the reader takes 7.0 and "7" for 7."""
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_form(str(error), msgspec.json.decode(raw)) from None


def _read_slowly(raw: bytes, kind: type[_B]) -> _B:
    """The same with Python's own reader, which takes other encodings too and says where the fault is as vLLM does."""
    try:
        return msgspec.convert(json.loads(raw), kind)
    except json.JSONDecodeError as error:
        raise invalid("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>", error.msg) from None
    except UnicodeDecodeError as error:
        raise bad_value(f"There was an error parsing the body: {error.reason}") from None
    except msgspec.ValidationError as error:
        raise wrong_form(str(error), json.loads(raw)) from None
