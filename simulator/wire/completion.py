"""The bytes of vLLM's answers on ``/v1/completions``: no role event, and no word about what the cache learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.vocabulary import Token
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


class CompletionFormat:
    """``/v1/completions``."""

    def __init__(self, head: Head, style: Style) -> None:
        self._head = head
        self._style = style
        self._dialect = style.dialect
        self._counts = Counts(style)

    def greeting(self) -> bytes:
        """Nothing."""
        return b""

    def opening(self, index: int, usage: Usage | None, prompt_ids: Sequence[int] | None) -> bytes:
        """Nothing: the first event carries text."""
        return b""

    def echoed(self, index: int, text: str) -> bytes:
        """Nothing: the prompt is in the event of the first token."""
        return b""

    def piece(self, delta: Delta) -> bytes:
        """A text event; the text is empty when only the end token is left to tell."""
        style = self._style
        choice: dict[str, Any] = {
            "index": delta.index,
            "text": delta.echo + "".join(token.text for token in delta.tokens),
            "logprobs": self._logprobs(delta.tokens, delta.start),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self._dialect.tells_token_ids:
            choice["prompt_token_ids"] = delta.prompt_ids
            choice["token_ids"] = [token.identifier for token in delta.tokens] if style.token_ids else None
        chunk = self._chunk([choice])
        if delta.usage is not None:
            chunk["usage"] = delta.usage.counts()
        if delta.is_last and self._dialect.tells_recent_fields:
            chunk["system_fingerprint"] = self._head.fingerprint
        return event(chunk)

    def frame(self, index: int) -> tuple[bytes, bytes] | None:
        """Ordinary unless ids or logprobs of tokens are told."""
        return None if self._style.token_ids or self._style.top_logprobs is not None else split_frame(self, index)

    def closing(self, usage: Usage, timing: Timing | None) -> bytes:
        """Usage with what was cached."""
        details = self._counts.stream_details(usage, tells_created=False)
        details.pop("completion_tokens_details", None)
        chunk = {**self._chunk([]), "usage": {**usage.counts(), **details}}
        return event(self._counts.closed(chunk, self._head, timing))

    def ending(self) -> bytes:
        """The end mark."""
        return DONE

    def answer(
        self, choices: Sequence[Choice], usage: Usage, timing: Timing | None, transfer: dict[str, Any] | None = None
    ) -> bytes:
        """A ``text_completion`` object."""
        whole = self._chunk([self._choice(choice) for choice in choices])
        if self._dialect.tells_token_ids:
            fingerprint = self._head.fingerprint if self._dialect.tells_recent_fields else None
            whole |= {"service_tier": None, "system_fingerprint": fingerprint}
        whole["usage"] = self._counts.answer_usage(usage, None)
        whole["kv_transfer_params"] = transfer
        return encode(self._counts.ended(whole, timing))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._head.identifier}",
            "object": "text_completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": choices,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        output = choice.output
        tokens = () if choice.hides_output else output.tokens
        whole: dict[str, Any] = {
            "index": choice.index,
            "text": choice.echo + ("" if choice.hides_output else output.text()),
            "logprobs": self._logprobs((*choice.echo_tokens, *tokens), 0, unknown=bool(choice.echo_tokens)),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if self._dialect.tells_token_ids:
            whole["token_ids"] = [token.identifier for token in tokens] if self._style.token_ids else None
        whole["prompt_logprobs"] = choice.prompt_logprobs
        if self._dialect.tells_token_ids:
            whole["prompt_token_ids"] = choice.prompt_ids
        if self._dialect.tells_recent_fields:
            whole["routed_experts"] = None
        return whole

    def _logprobs(self, tokens: Sequence[Token], start: int, *, unknown: int = 0) -> dict[str, Any] | None:
        """The logarithms of probability; of the first ``unknown`` tokens, which nothing precedes, there are none."""
        top = self._style.top_logprobs
        if top is None:
            return None
        offsets = []
        for token in tokens:
            offsets.append(start)
            start += len(token.text)
        return {
            "text_offset": offsets,
            "token_logprobs": [*[None] * unknown, *(logprob(token) for token in tokens[unknown:])],
            "tokens": [token.spelling for token in tokens],
            "top_logprobs": [*[None] * unknown, *(dict(likely(token, top)) for token in tokens[unknown:])],
        }
