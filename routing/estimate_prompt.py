"""From the raw JSON of a request's texts to what its estimate is made from. Whatever is in them, something comes back.

A chat's messages are taken apart, so that only their texts are counted as text: not the keys around them, and no images in
base64. What cannot be read is counted as text as it stands; whether it is a request at all is for the worker to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from routing.estimate import Prompt
from routing.estimate_text import COARSE, FINE, NOTHING, Mix, count_raw, count_text

_NONE = msgspec.Raw(b"")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SMALL_BYTES = 16 * 1024
_LARGE_BYTES = 128 * 1024
_MOST_MESSAGES = 5000  # in a large text; more are not taken apart, as it would hold the loop for many milliseconds
_MOST_PARTS = 2000  # the same of all messages together
_MOST_UNKNOWN_BYTES = 4096  # of a part of an unknown type that counts as text; a larger one is held to be an image

_IMAGES = frozenset({"image_url", "input_image", "image", "image_pil", "image_embeds", "video_url", "video", "input_video"})
_AUDIOS = frozenset({"input_audio", "audio_url", "audio"})


class _Plain(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message as most are."""

    content: str
    role: str | None = None


class _Message(msgspec.Struct, gc=False):
    """A message of a chat, or an item of a response's input; everything in it that becomes text."""

    content: msgspec.Raw = _NONE
    tool_calls: msgspec.Raw = _NONE
    reasoning_content: msgspec.Raw = _NONE
    arguments: msgspec.Raw = _NONE
    output: msgspec.Raw = _NONE


class _Part(msgspec.Struct, gc=False):
    type: str | None = None
    text: msgspec.Raw = _NONE
    refusal: msgspec.Raw = _NONE
    thinking: msgspec.Raw = _NONE
    content: msgspec.Raw = _NONE  # of a tool's result
    input: msgspec.Raw = _NONE  # of a tool's use


_plain_of = msgspec.json.Decoder(list[_Plain]).decode
_messages_of = msgspec.json.Decoder(list[_Message]).decode
_items_of = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message_of = msgspec.json.Decoder(_Message).decode
_part_of = msgspec.json.Decoder(_Part).decode


class _Pieces:
    """The texts of one prompt, and what else is in it."""

    __slots__ = ("audios", "images", "messages", "parts", "texts")

    def __init__(self) -> None:
        self.texts: list[bytes | msgspec.Raw] = []
        self.messages = 0
        self.parts = 0
        self.images = 0
        self.audios = 0

    def add_messages(self, raw: bytes | msgspec.Raw) -> None:
        if len(raw) > _LARGE_BYTES and _has_many_messages(bytes(raw)):
            self.messages += 1
            self.texts.append(raw)
            return
        try:
            messages = _messages_of(raw)
        except _UNREADABLE:
            messages = self._readable(raw)
        self.messages += len(messages)
        for message in messages:
            content = message.content
            if content:
                self.add_content(content, 0)
            if message.tool_calls or message.arguments or message.output or message.reasoning_content:
                if message.output:
                    self.add_content(message.output, 0)
                self.texts += [text for text in (message.tool_calls, message.arguments, message.reasoning_content) if text]

    def _readable(self, raw: bytes | msgspec.Raw) -> list[_Message]:
        """Those of the messages that are objects; the rest counts as text."""
        try:
            items = _items_of(raw)
        except _UNREADABLE:
            self.add_content(raw, 0)  # a text alone, as the input of a response may be
            self.messages += 1
            return []
        if len(items) > _MOST_PARTS:
            self.texts.append(raw)
            self.messages += len(items)
            return []
        found = []
        for item in items:
            try:
                found.append(_message_of(item))
            except _UNREADABLE:
                self.texts.append(item)
        return found

    def add_other(self, raw: bytes | msgspec.Raw) -> None:
        """Text of any form: a list of tools goes into the prompt as it stands."""
        if raw != b"null":
            self.texts.append(raw)

    def add_content(self, raw: bytes | msgspec.Raw, depth: int) -> None:
        """A text, a list of parts, or null."""
        first = bytes(memoryview(raw)[:1])
        if first == b"[" and depth < 2:
            try:
                parts = _items_of(raw)
            except _UNREADABLE:
                self.texts.append(raw)
                return
            if self.parts + len(parts) > _MOST_PARTS:
                self.parts += len(parts)
                self.texts.append(raw)
                return
            for part in parts:
                self._add_part(part, depth)
        elif first != b"n":  # null
            self.texts.append(raw)

    def _add_part(self, raw: msgspec.Raw, depth: int) -> None:
        self.parts += 1
        try:
            part = _part_of(raw)
        except _UNREADABLE:
            self.texts.append(raw)  # a bare text
            return
        if part.type in _IMAGES:
            self.images += 1
            return
        if part.type in _AUDIOS:
            self.audios += 1
            return
        texts = [text for text in (part.text, part.refusal, part.thinking, part.input) if text]
        if part.content:
            self.add_content(part.content, depth + 1)
        elif not texts:
            if len(raw) > _MOST_UNKNOWN_BYTES:
                self.images += 1
                return
            texts = [raw]
        self.texts += texts


def _has_many_messages(text: bytes) -> bool:
    """Whether there may be more than are taken apart.

    Braces are looked for one by one: prose has few, and to count them goes through every byte, which takes longer than to read
    all of it as JSON.
    """
    at = -1
    for _ in range(_MOST_MESSAGES + 1):
        at = text.find(b"{", at + 1)
        if at < 0:
            return False
    return text.count(b'"role"') > _MOST_MESSAGES


def read_chat(
    messages: bytes | msgspec.Raw, others: Sequence[bytes | msgspec.Raw], *, has_tools: bool, is_fine: bool = True
) -> Prompt:
    """Read a conversation. ``others`` are texts beside it, raw: tools, instructions. ``is_fine``: something hangs on it."""
    sampling = FINE if is_fine else COARSE
    if not others and len(messages) <= _SMALL_BYTES:
        try:
            plain = _plain_of(messages)
        except _UNREADABLE:
            pass
        else:
            said = len(plain)
            text = plain[0].content if said == 1 else "\n".join([message.content for message in plain])
            counts, mix = count_text(text, sampling, said)
            return Prompt(counts, mix, is_fine=is_fine, text_bytes=len(messages))
    pieces = _Pieces()
    if messages:
        pieces.add_messages(messages)
    for other in others:
        pieces.add_other(other)
    texts = pieces.texts
    raw = bytes(texts[0]) if len(texts) == 1 else b" ".join(texts)
    counts, mix = count_raw(raw, sampling, pieces.messages, 1 if has_tools else 0, pieces.parts)
    return Prompt(
        counts, mix, True, 0, pieces.images, pieces.audios, is_fine=is_fine, text_bytes=len(messages) + sum(map(len, others))
    )


def read_prompt(raw: bytes | msgspec.Raw, *, is_fine: bool = True) -> Prompt:
    """Read the prompt of a completion: a text, ids, or a list of either. Of a list the longest is read."""
    text = bytes(raw)
    start = _FIRST_ITEM.match(text)
    if start is None:
        return _text(text, 1, 1.0, is_fine=is_fine)
    kind = start[1]
    if kind in b'["':
        return _longest(text, is_fine=is_fine)
    return _ids(text.count(b",") + 1, 1, 1.0)


_FIRST_ITEM = re.compile(rb'\[\s*+(["\[\d-])')


def _longest(text: bytes, *, is_fine: bool) -> Prompt:
    try:
        items = _items_of(text)
    except _UNREADABLE:
        return _text(text, 1, 1.0, is_fine=is_fine)
    longest = bytes(max(items, key=len))
    if not longest.startswith(b"["):
        return _text(longest, len(items), sum(map(len, items)) / max(1, len(longest)), is_fine=is_fine)
    ids = [bytes(item).count(b",") + 1 if len(item) > 2 else 0 for item in items]
    most = max(ids)
    return _ids(most, len(items), sum(ids) / most if most else 1.0)


def _text(raw: bytes, prompts: int, ratio: float, *, is_fine: bool) -> Prompt:
    counts, mix = count_raw(raw, FINE if is_fine else COARSE)
    return Prompt(counts, mix, prompts=prompts, batch_ratio=ratio, is_fine=is_fine)


def _ids(count: int, prompts: int, ratio: float) -> Prompt:
    return Prompt(NOTHING, Mix.SHORT, False, count, prompts=prompts, batch_ratio=ratio)


NO_PROMPT = _ids(0, 1, 1.0)


def texts_of(messages: bytes, others: Sequence[bytes], prompt: bytes) -> list[str]:
    """The texts that are tokenised, as `read_chat` and `read_prompt` find them; of a batch those of its longest prompt."""
    pieces = _Pieces()
    if messages:
        pieces.add_messages(messages)
    elif prompt.startswith(b"["):
        try:
            pieces.texts.append(max(_items_of(prompt), key=len))
        except (*_UNREADABLE, ValueError):
            pieces.texts.append(prompt)
    elif prompt:
        pieces.texts.append(prompt)
    for other in others:
        pieces.add_other(other)
    return [_text_of(bytes(raw)) for raw in pieces.texts]


def _text_of(raw: bytes) -> str:
    if raw.startswith(b'"'):
        try:
            return msgspec.json.decode(raw, type=str)
        except _UNREADABLE:
            pass
    return raw.decode("utf-8", "replace")
