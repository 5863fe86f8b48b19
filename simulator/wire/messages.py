"""The bytes of vLLM's answers on ``/v1/messages``: named events, blocks of content, and input tokens without cached ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

from simulator.refusals import Refusal
from simulator.vocabulary import Part, Token
from simulator.wire.common import Choice, Delta, Head, Style, Timing, Usage, encode

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}
_KINDS = {Part.CONTENT: "text", Part.REASONING: "thinking", Part.TOOL_NAME: "tool_use", Part.TOOL_ARGUMENTS: "tool_use"}


class MessagesFormat:
    """``/v1/messages``. One for each answer: it remembers which block is open."""

    def __init__(self, head: Head, style: Style) -> None:
        self._head = head
        self._style = style
        self._open: str | None = None  # kind of the block that is open
        self._index = -1
        self._finish: tuple[str | None, str | None] = (None, None)  # stop reason, stop sequence

    def greeting(self) -> bytes:
        """Nothing."""
        return b""

    def opening(self, index: int, usage: Usage | None, prompt_ids: Sequence[int] | None) -> bytes:
        """The start of the message: no token, sent with the first one."""
        message: dict[str, Any] = {
            "id": f"chatcmpl-{self._head.identifier}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._head.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": usage.prompt_tokens if usage else 0, "output_tokens": 0},
        }
        return _event("message_start", {"message": message})

    def echoed(self, index: int, text: str) -> bytes:
        """Nothing: there is no such wish."""
        return b""

    def piece(self, delta: Delta) -> bytes:
        """Deltas of blocks, with their starts and ends."""
        events = []
        for part, tokens in groupby((token for token in delta.tokens if token.text), key=lambda token: token.part):
            if part is not Part.REASONING or self._style.shows_reasoning:
                events.append(self._block(part, tokens))
        if delta.finish_reason is not None:
            sequence = delta.stop_reason if isinstance(delta.stop_reason, str) else None
            reason = "stop_sequence" if sequence is not None else _STOP_REASONS.get(delta.finish_reason)
            self._finish = reason, sequence
        return b"".join(events)

    def frame(self, index: int) -> None:
        """None: an event depends on those before it."""

    def closing(self, usage: Usage, timing: Timing | None) -> bytes:
        """The end of the last block, then why it ended and the counts."""
        reason, sequence = self._finish
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return self._close() + _event("message_delta", {"delta": delta, "usage": self._usage(usage)})

    def ending(self) -> bytes:
        """The last event; there is no end mark."""
        return _event("message_stop", {})

    def answer(
        self, choices: Sequence[Choice], usage: Usage, timing: Timing | None, transfer: dict[str, Any] | None = None
    ) -> bytes:
        """A ``message`` object."""
        output = choices[0].output
        content: list[dict[str, Any]] = []
        if self._style.shows_reasoning and (thinking := output.text(part=Part.REASONING)):
            content.append({"type": "thinking", "thinking": thinking, "signature": self._signature()})
        if text := output.text():
            content.append({"type": "text", "text": text})
        if name := output.text(part=Part.TOOL_NAME):
            arguments = json.loads(output.text(part=Part.TOOL_ARGUMENTS))
            content.append({"type": "tool_use", "id": self._tool_id(), "name": name, "input": arguments})
        return encode(
            {
                "id": f"chatcmpl-{self._head.identifier}",
                "type": "message",
                "role": "assistant",
                "content": content,
                "model": self._head.model,
                "stop_reason": _STOP_REASONS.get(output.finish_reason),
                "usage": self._usage(usage),
            }
        )

    def _block(self, part: Part, tokens: Iterable[Token]) -> bytes:
        text, kind = "".join(token.text for token in tokens), _KINDS[part]
        start = b""
        if self._open != kind:
            start = self._close()
            self._open, self._index = kind, self._index + 1
            block: dict[str, Any] = {"type": kind, kind: ""}
            if kind == "tool_use":
                block = {"type": kind, "id": self._tool_id(), "name": text, "input": {}}
            start += _event("content_block_start", {"content_block": block, "index": self._index})
        match part:
            case Part.TOOL_NAME:
                return start
            case Part.TOOL_ARGUMENTS:
                delta = {"type": "input_json_delta", "partial_json": text}
            case _:
                delta = {"type": f"{kind}_delta", kind: text}
        return start + _event("content_block_delta", {"delta": delta, "index": self._index})

    def _close(self) -> bytes:
        """The end of the block that is open, if one is."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        signed = b""
        if kind == "thinking":
            delta = {"type": "signature_delta", "signature": self._signature()}
            signed = _event("content_block_delta", {"delta": delta, "index": self._index})
        return signed + _event("content_block_stop", {"index": self._index})

    def _usage(self, usage: Usage) -> dict[str, int]:
        if not self._style.details:
            return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        created, cached = usage.created_cache_tokens, usage.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens - cached - created,
            "output_tokens": usage.completion_tokens,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": cached,
        }

    def _signature(self) -> str:
        return blake2b(self._head.identifier.encode(), digest_size=16).hexdigest()

    def _tool_id(self) -> str:
        return f"chatcmpl-tool-{self._head.identifier}"


def messages_error_body(refusal: Refusal) -> bytes:
    """The error object of this endpoint; what the validation layer refuses is told as everywhere else."""
    return encode({"type": "error", "error": {"type": refusal.kind, "message": refusal.message}})


def count_body(tokens: int) -> bytes:
    """The answer of ``/v1/messages/count_tokens``."""
    return encode({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: ".encode() + encode({"type": name, **fields}) + b"\n\n"
