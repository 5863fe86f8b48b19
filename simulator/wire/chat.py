"""The bytes of vLLM's answers on ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from simulator.vocabulary import Part, Token
from simulator.wire.common import (
    DONE,
    Choice,
    Counts,
    Delta,
    Head,
    Style,
    Timing,
    Usage,
    encode,
    event,
    likely,
    logprob,
    split_frame,
)


class ChatFormat:
    """``/v1/chat/completions``."""

    def __init__(self, head: Head, style: Style) -> None:
        self._head = head
        self._style = style
        self._dialect = style.dialect
        self._counts = Counts(style)

    def greeting(self) -> bytes:
        """Nothing."""
        return b""

    def opening(self, index: int, usage: Usage | None, prompt_ids: Sequence[int] | None) -> bytes:
        """The role event: no token, sent with the first one."""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        chunk = self._chunk([choice], usage)
        if self._dialect.tells_token_ids:
            chunk["prompt_token_ids"] = prompt_ids
        if self._dialect.tells_recent_fields:
            chunk["prompt_text"] = None
        return event(chunk)

    def echoed(self, index: int, text: str) -> bytes:
        """The text that the answer goes on from."""
        choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
        return event(self._chunk([choice], None)) if text else b""

    def piece(self, delta: Delta) -> bytes:
        """A delta of content, reasoning or a tool call; empty when only the end token is left to tell."""
        style, reason = self._style, delta.finish_reason
        content = self._delta(delta)
        if not content and reason is None and style.has_parser and not style.token_ids and style.top_logprobs is None:
            return b""
        if not content and not style.has_parser:
            content = {"content": ""}
        choice: dict[str, Any] = {
            "index": delta.index,
            "delta": content,
            "logprobs": None if style.top_logprobs is None else self._logprobs(delta.tokens, style.top_logprobs),
            "finish_reason": reason,
        }
        if reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if self._dialect.tells_token_ids:
            choice["token_ids"] = [token.identifier for token in delta.tokens] if style.token_ids else None
        chunk = self._chunk([choice], delta.usage)
        if delta.is_last and self._dialect.tells_recent_fields:
            chunk["system_fingerprint"] = self._head.fingerprint
        return event(chunk)

    def frame(self, index: int) -> tuple[bytes, bytes] | None:
        """Ordinary unless ids or logprobs of tokens are told."""
        return None if self._style.token_ids or self._style.top_logprobs is not None else split_frame(self, index)

    def closing(self, usage: Usage, timing: Timing | None) -> bytes:
        """Usage with what was cached and what the cache learned."""
        chunk = self._chunk([], None)
        chunk["usage"] = {**usage.counts(), **self._counts.stream_details(usage, tells_created=True)}
        return event(self._counts.closed(chunk, self._head, timing))

    def ending(self) -> bytes:
        """The end mark."""
        return DONE

    def answer(
        self, choices: Sequence[Choice], usage: Usage, timing: Timing | None, transfer: dict[str, Any] | None = None
    ) -> bytes:
        """A ``chat.completion`` object."""
        recent, dialect = self._dialect.tells_recent_fields, self._dialect
        whole: dict[str, Any] = {
            "id": f"chatcmpl-{self._head.identifier}",
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": [self._choice(choice) for choice in choices],
        }
        if dialect.tells_token_ids:
            whole |= {"service_tier": None, "system_fingerprint": self._head.fingerprint if recent else None}
        whole["usage"] = self._counts.answer_usage(usage, usage.created_cache_tokens)
        whole["prompt_logprobs"] = None
        if dialect.tells_token_ids:
            whole["prompt_token_ids"] = choices[0].prompt_ids
        if recent:
            whole["prompt_text"] = None
        whole["kv_transfer_params"] = transfer
        return encode(self._counts.ended(whole, timing))

    def _chunk(self, choices: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": f"chatcmpl-{self._head.identifier}",
            "object": "chat.completion.chunk",
            "created": self._head.created,
            "model": self._head.model,
            "choices": choices,
        }
        if usage is not None:
            chunk["usage"] = usage.counts()
            if self._dialect.tells_recent_fields:
                chunk["usage"]["completion_tokens_details"] = self._counts.reasoning(usage)
        return chunk

    def _delta(self, delta: Delta) -> dict[str, Any]:
        """What the tokens add to the message; empty if a client sees nothing of them."""
        texts: dict[Part, str] = {}
        for token in delta.tokens:
            if token.text:
                texts[token.part] = texts.get(token.part, "") + token.text
        found: dict[str, Any] = {}
        reasoning, content = texts.get(Part.REASONING), texts.get(Part.CONTENT)
        if reasoning is not None and self._style.shows_reasoning:
            found |= dict.fromkeys(self._dialect.reasoning_fields, reasoning)
        if content is not None:
            found["content"] = content
            if not self._style.shows_reasoning:
                found |= dict.fromkeys(self._dialect.reasoning_fields)
        function = {}
        if Part.TOOL_NAME in texts:
            function["name"] = texts[Part.TOOL_NAME]
        if Part.TOOL_ARGUMENTS in texts:
            function["arguments"] = texts[Part.TOOL_ARGUMENTS]
        if function:
            identity = {"id": self._tool_id(delta.index), "type": "function"} if "name" in function else {}
            found = {**found, "content": None, "tool_calls": [{**identity, "index": 0, "function": function}]}
        return found

    def _choice(self, choice: Choice) -> dict[str, Any]:
        dialect, output, style = self._dialect, choice.output, self._style
        whole: dict[str, Any] = {
            "index": choice.index,
            "message": self._message(choice),
            "logprobs": None if style.top_logprobs is None else self._logprobs(output.tokens, style.top_logprobs),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if dialect.tells_token_ids:
            whole["token_ids"] = [token.identifier for token in output.tokens] if style.token_ids else None
        if dialect.tells_recent_fields:
            whole["routed_experts"] = None
        return whole

    def _message(self, choice: Choice) -> dict[str, Any]:
        name = choice.output.text(part=Part.TOOL_NAME)
        content: str | None = choice.echo + choice.output.text()
        calls: list[dict[str, Any]] = []
        if name:
            function = {"name": name, "arguments": choice.output.text(part=Part.TOOL_ARGUMENTS)}
            calls = [{"id": self._tool_id(choice.index), "type": "function", "function": function}]
            content = content or choice.beside_call
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._dialect.tells_token_ids:
            message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
        if calls or self._dialect.has_empty_tool_calls:
            message["tool_calls"] = calls
        reasoning = choice.output.text(part=Part.REASONING) if self._style.shows_reasoning else ""
        return {**message, **dict.fromkeys(self._dialect.reasoning_fields, reasoning or None)}

    def _tool_id(self, index: int) -> str:
        return f"chatcmpl-tool-{self._head.identifier}{index or ''}"

    @staticmethod
    def _logprobs(tokens: Iterable[Token], top: int) -> dict[str, Any]:
        return {
            "content": [
                {**_spelled(token.spelling, logprob(token)), "top_logprobs": [_spelled(*pair) for pair in likely(token, top)]}
                for token in tokens
            ]
        }


def _spelled(spelling: str, value: float) -> dict[str, Any]:
    return {"token": spelling, "logprob": value, "bytes": list(spelling.encode())}
