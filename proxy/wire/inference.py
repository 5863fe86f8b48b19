"""The body of a request: the few fields that matter here, and changes to them made in the bytes.

The body is looked at once. `messages`, `prompt` and `tools` stay raw, and nothing is ever written out again from parsed values:
number formats, key order and unknown fields reach the worker as the client sent them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from proxy.wire.errors import ClientFault

ASK_FOR_USAGE = b'"stream_options":{"include_usage":true}'
MAX_TOKENS = 2**40
"""More than any context: a larger output limit is read as this, so that sums with it stay exact."""
_MAX_CHOICES = 2**20  # more than any worker makes; the same

_BOM = b"\xef\xbb\xbf"
_MOST_BYTES_WITH_CONSTANTS = 1024 * 1024
_MOST_RESTORED = 1000  # characters: no name or id is longer
_CONSTANTS = tuple((name, b"{%b}" % (b" " * (len(name) - 2))) for name in (b"-Infinity", b"Infinity", b"NaN"))
_NOTHING = msgspec.Raw(b"")


class InferenceRequest(msgspec.Struct, frozen=True, gc=False):
    """What a client asked for, as far as the gateway needs to know; ``None`` is absent or not of a usable type."""

    model: str | None
    stream: bool  # exactly JSON true
    include_usage: bool | None  # stream_options.include_usage
    has_stream_options: bool  # the key is there, whatever its value
    max_tokens: int | None  # the smaller of max_tokens and max_completion_tokens, at most MAX_TOKENS
    prompts: int  # more than one in a batch of completions
    choices: int  # finish reasons that a whole answer has: prompts times n
    text_bytes: int  # raw JSON of what will be tokenised: messages or prompt, and tools; token ids left out
    token_ids: int  # ids in a prompt that is given as such
    is_ascii: bool  # the whole body
    echoes: bool = False  # the first text of each choice is the prompt's alone
    previous_id: str | None = None  # of the response that this request goes on from
    hides_reasoning: bool = False  # nothing is sent while the model thinks
    system: msgspec.Raw = _NOTHING  # raw JSON of a system prompt that stands beside the messages
    session: msgspec.Raw = _NOTHING  # of a field that names its session
    messages: msgspec.Raw = _NOTHING  # of a conversation, or what stands for them
    prompt: msgspec.Raw = _NOTHING  # texts, ids, or lists of them
    others: tuple[msgspec.Raw, ...] = ()  # raw texts beside the messages: tools, instructions
    has_tools: bool = False
    is_salted: bool = False  # it asks for a prefix cache of its own

    @property
    def leading(self) -> msgspec.Raw:
        """Raw JSON of what its prompt begins with."""
        return self.messages or self.prompt


class Work(Enum):
    """What a worker does with a request's text."""

    GENERATE = "generate"
    READ = "read"  # the prompt is computed, and nothing is generated
    COUNT = "count"  # it is only looked at, so it need not fit and is no load


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Body(msgspec.Struct, gc=False):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | msgspec.UnsetType | None = msgspec.UNSET
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    prompt_cache_key: msgspec.Raw = _NOTHING
    cache_salt: msgspec.Raw = _NOTHING
    user: msgspec.Raw = _NOTHING
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    include_reasoning: bool | None = None


class _OtherBody(_Body, gc=False):
    """Fields that only other paths have; in a completion they mean nothing."""

    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    input: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    system: msgspec.Raw = _NOTHING
    query: msgspec.Raw = _NOTHING
    queries: msgspec.Raw = _NOTHING
    documents: msgspec.Raw = _NOTHING
    text_1: msgspec.Raw = _NOTHING
    text_2: msgspec.Raw = _NOTHING


class _Said(msgspec.Struct, gc=False):
    role: str | None = None


_AnyBody = TypeVar("_AnyBody", bound=_Body)
_OTHER_TEXTS = ("messages", "tools", "instructions", "system", "query", "queries", "documents", "text_1", "text_2")
_decode = msgspec.json.Decoder(_Body).decode
_decode_other = msgspec.json.Decoder(_OtherBody).decode
_decode_loosely = {
    kind: msgspec.json.Decoder(
        msgspec.defstruct("_Raw", [(field.name, msgspec.Raw, _NOTHING) for field in msgspec.structs.fields(kind)], gc=False)
    ).decode
    for kind in (_Body, _OtherBody)
}
_MOST_OBJECTS = 50_000  # among messages of which the last is looked for


def parse_request(body: bytes) -> InferenceRequest:
    """Read the body of a chat completion or completion.

    Raises `ClientFault` when it is no JSON object. A field of an unexpected type is read as absent: what to say about it is
    for the worker, to whom the body goes unchanged. Counts may be whole numbers of any spelling (``7.0``, ``"7"``).
    """
    fields = _fields(body, _decode, _Body)
    options = fields.stream_options
    max_tokens, other_limit = fields.max_tokens, fields.max_completion_tokens
    if max_tokens is None or (other_limit is not None and 0 <= other_limit < max_tokens):
        max_tokens = other_limit
    prompts = 1
    choices = min(fields.n, _MAX_CHOICES) if fields.n is not None and fields.n > 0 else 1
    text_bytes = len(fields.messages) + len(fields.tools)
    token_ids = 0
    if fields.prompt:
        prompts, token_ids = _count_prompts(fields.prompt)
        choices *= prompts
        text_bytes += 0 if token_ids else len(fields.prompt)
    return InferenceRequest(
        fields.model,
        fields.stream is True,
        options.include_usage if isinstance(options, _StreamOptions) else None,
        options is not msgspec.UNSET,
        min(max_tokens, MAX_TOKENS) if max_tokens is not None and max_tokens >= 0 else None,
        prompts,
        choices,
        text_bytes,
        token_ids,
        body.isascii(),
        fields.echo is True and _echoes_alone(fields, max_tokens),
        None,
        fields.include_reasoning is False,
        _NOTHING,
        fields.prompt_cache_key or fields.user,
        fields.messages,
        fields.prompt,
        (fields.tools,) if fields.tools else (),
        bool(fields.tools),
        bool(fields.cache_salt),
    )


def parse_other(body: bytes, work: Work) -> InferenceRequest:
    """The same for every other path: one choice, and whatever its text is called there."""
    fields = _fields(body, _decode_other, _OtherBody)
    text_bytes = sum(len(getattr(fields, name)) for name in _OTHER_TEXTS)
    prompts, token_ids = _count_prompts(fields.input) if work is Work.READ and fields.input else (1, 0)
    text_bytes += 0 if token_ids else len(fields.input)
    max_tokens = fields.max_output_tokens if fields.max_tokens is None else fields.max_tokens
    if work is not Work.GENERATE:
        max_tokens = 0
    return InferenceRequest(
        fields.model,
        fields.stream is True,
        None,
        True,  # not a field of these
        min(max_tokens, MAX_TOKENS) if max_tokens is not None and max_tokens >= 0 else None,
        prompts,
        1,
        0 if work is Work.COUNT else text_bytes,
        token_ids,
        body.isascii(),
        previous_id=fields.previous_response_id,
        system=fields.system or fields.instructions,
        session=fields.prompt_cache_key or fields.user,
        messages=fields.messages or (fields.input if work is Work.GENERATE else _NOTHING),
        prompt=fields.input if work is Work.READ else _NOTHING,
        others=tuple(text for name in _OTHER_TEXTS[1:] if (text := getattr(fields, name))),
        has_tools=bool(fields.tools),
        is_salted=bool(fields.cache_salt),
    )


def _echoes_alone(fields: _Body, max_tokens: int | None) -> bool:
    """Whether the echo comes by itself: a chat repeats the last message if its role is the answer's, and a completion puts the
    first token behind the prompt, unless none was asked for."""
    if not fields.messages:
        return max_tokens == 0
    if bytes(fields.messages).count(b"{") > _MOST_OBJECTS:
        return False
    try:
        said = msgspec.json.decode(fields.messages, type=list[_Said])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(said) and (fields.add_generation_prompt is False or said[-1].role == "assistant")


def _fields(body: bytes, decode: Callable[[bytes], _AnyBody], kind: type[_AnyBody]) -> _AnyBody:
    try:
        return decode(body)
    except msgspec.ValidationError:
        return _parse_loosely(body, kind)
    except RecursionError as error:
        raise ClientFault("invalid_json", "The request body is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        readable = _readable(body)
        if readable != body and not readable.startswith(_BOM):
            return _with_texts(_fields(readable, decode, kind))
        raise _no_json(body, f"is not valid JSON: {_plain(error)}") from error


def _readable(body: bytes) -> bytes:
    """A copy to look at, without what most parsers take and this one does not, a byte order mark among it.

    Made by plain replacement, inside texts too, so that a large body holds the loop for no longer than others do; `_restored`
    is for the texts that matter. In a large body ``NaN`` and ``Infinity`` are left, and make it unreadable.
    """
    text = body.removeprefix(_BOM).replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\uE")  # no halves of pairs any more
    if len(text) <= _MOST_BYTES_WITH_CONSTANTS:
        for name, value in _CONSTANTS:
            text = text.replace(name, value)  # a value that no field can have
    return text


def _no_json(body: bytes, why: str) -> ClientFault:
    if len(body) > _MOST_BYTES_WITH_CONSTANTS and (b"NaN" in body or b"Infinity" in body):
        why += "; NaN and Infinity are no JSON, and only in small bodies let through"
    return ClientFault("invalid_json", f"The request body {why}.")


def _restored(text: str) -> str:
    """A text of a readable copy as it was meant, a half of a pair as the replacement character."""
    if len(text) > _MOST_RESTORED:
        return text
    for constant, value in _CONSTANTS:
        text = text.replace(value.decode(), constant.decode())
    text = "".join(chr(ord(each) - 0x1000) if "\ue000" <= each <= "\uefff" else each for each in text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _with_texts(fields: _AnyBody) -> _AnyBody:
    """The same for the texts in these fields."""
    if fields.model is not None:
        fields.model = _restored(fields.model)
    if isinstance(fields, _OtherBody) and fields.previous_response_id is not None:
        fields.previous_response_id = _restored(fields.previous_response_id)
    return fields


def _parse_loosely(body: bytes, kind: type[_AnyBody]) -> _AnyBody:
    try:
        raw = _decode_loosely[kind](body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        readable = _readable(body)
        if readable != body and not isinstance(error, RecursionError):
            return _with_texts(_parse_loosely(readable, kind))
        raise _no_json(body, "must be a JSON object") from error
    fields = kind()
    for field in msgspec.structs.fields(kind):
        name = field.name
        value = getattr(raw, name)
        if not value:
            continue
        is_count = field.type == (int | None)
        try:
            # Workers take 7.0 and "7" for the count 7, so it is one here too.
            setattr(fields, name, msgspec.json.decode(value, type=field.type, strict=not is_count))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if name == "stream_options":
                fields.stream_options = None
    return fields


def _count_prompts(raw: msgspec.Raw) -> tuple[int, int]:
    """How many prompts a ``prompt`` holds, and how many token ids: a list of numbers is one, a list of lists is many."""
    text = bytes(raw)
    match = _FIRST_ITEM.match(text)
    if match is None:
        return 1, 0
    if match[1] == b'"':
        return text.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"') // 2, 0
    return text.count(b"[") - 1 if match[1] == b"[" else 1, text.count(b",") + 1


_FIRST_ITEM = re.compile(rb'\[\s*+(["\[\d-])')  # of a list of texts, of lists or of ids: counted without making a value of each


def _plain(error: Exception) -> str:
    """The library's reason without the position's surroundings; it never quotes the body."""
    return str(error).removeprefix("JSON is malformed: ").rstrip(".")


def ask_for_usage(body: bytes, request: InferenceRequest) -> list[bytes | memoryview] | None:
    """The pieces of ``body`` with ``stream_options.include_usage`` true; ``None`` if that cannot be done safely.

    A key that is not there is put in front of the others. One that is there is changed in place, which is only done where
    it can be proven that the right bytes were found.
    """
    if not request.has_stream_options:
        start = body.index(b"{") + 1
        return [body[:start], ASK_FOR_USAGE + b",", memoryview(body)[start:]]
    value = body.count(b'"stream_options"') == 1 and _STREAM_OPTIONS.search(body)
    if not value:
        return None
    if value[1] == b"null":
        options = b'{"include_usage":true}'
    elif b'"include_usage"' in value[1]:
        options = _INCLUDE_USAGE.sub(b'"include_usage":true', _CONTINUOUS.sub(rb"\1false", value[1]))
    else:
        inner = _CONTINUOUS.sub(rb"\1false", value[1][1:-1].strip())
        options = b'{"include_usage":true' + (b"," + inner if inner else b"") + b"}"
    changed = body[: value.start(1)] + options + body[value.end(1) :]
    try:
        proof = parse_request(changed)
    except ClientFault:
        return None
    same = (
        proof.include_usage is True
        and proof.model == request.model
        and len(changed) - len(body) == len(options) - len(value[1])
    )
    return [changed] if same else None


_STREAM_OPTIONS = re.compile(rb'"stream_options"\s*+:\s*+(null|\{[^{}\[\]\\]{0,4096}\})')
_INCLUDE_USAGE = re.compile(rb'"include_usage"\s*:\s*(?:true|false|null)')
# Without include_usage it has no effect; together they would put usage into every event, which the client did not ask for.
_CONTINUOUS = re.compile(rb'("continuous_usage_stats"\s*:\s*)(?:[-+.\w]+|"[^"]*")')


def rename_model(body: bytes, old: str, new: str) -> bytes | None:
    """``body`` with its model field changed from an alias to the name that workers know; ``None`` if it cannot be found."""
    if body.count(b'"model"') > _MOST_CANDIDATES:
        return None
    longest = 2 + _LONGEST_CHARACTER * len(old)
    spans = [
        match.span(1) for match in _MODEL.finditer(body) if match.end(1) - match.start(1) <= longest and _text(match[1]) == old
    ]
    if not spans:
        return None
    # Number them all in one copy: the name that is read from it tells which of them is the field.
    numbered = [b'"%d %b"' % (number, _NUMBERED) for number in range(len(spans))]
    try:
        chosen = parse_request(_spliced(body, spans, numbered)).model or ""
    except ClientFault:
        return None
    number, _, mark = chosen.partition(" ")
    if mark.encode() != _NUMBERED:
        return None
    start, end = spans[int(number)]
    return body[:start] + msgspec.json.encode(new) + body[end:]


_MODEL = re.compile(rb'"model"\s*+:\s*+("(?:[^"\\]++|\\.)*+")')
_MOST_CANDIDATES = 4096
_LONGEST_CHARACTER = 12  # bytes, of a pair of escapes
_NUMBERED = b"of the fields named model"


def _text(literal: bytes) -> str | None:
    """The text of a JSON string as the reader of a whole body sees it."""
    try:
        return msgspec.json.decode(literal, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return _restored(msgspec.json.decode(_readable(literal), type=str))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _spliced(body: bytes, spans: Sequence[tuple[int, int]], replacements: Sequence[bytes]) -> bytes:
    """``body`` with the bytes of each span replaced; spans rise and do not overlap."""
    pieces: list[bytes] = []
    position = 0
    for (start, end), replacement in zip(spans, replacements, strict=True):
        pieces += (body[position:start], replacement)
        position = end
    return b"".join((*pieces, body[position:]))
