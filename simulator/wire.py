"""The bytes of vLLM 0.32.0's answers: SSE events, plain answers, error bodies. Field for field in its order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

VLLM_VERSION = "0.32.0"  # whose formats these are
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every event of an answer says."""

    identifier: str  # the part after "chatcmpl-" or "cmpl-"
    created: int  # seconds since the epoch
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one answer so far."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_cache_tokens: int

    def counts(self) -> dict[str, Any]:
        """The three counts that each form of usage begins with."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


class Format(Protocol):
    """How one endpoint writes its answers. ``usage`` is ``None`` where the client did not ask for it."""

    def opening(self, head: Head, usage: Usage | None) -> bytes:
        """What goes out before the first text; may be nothing."""

    def piece(self, head: Head, text: str, finish_reason: str | None, usage: Usage | None, *, is_last: bool) -> bytes:
        """The event for some generated text; ``is_last`` if no usage event will follow."""

    def closing(self, head: Head, usage: Usage) -> bytes:
        """The usage event."""

    def answer(self, head: Head, text: str, finish_reason: str, usage: Usage) -> bytes:
        """The whole answer of a request that is not streamed."""


class ChatFormat:
    """``/v1/chat/completions``."""

    def opening(self, head: Head, usage: Usage | None) -> bytes:
        """The role event: no token, sent with the first one."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return _event({**self._chunk(head, [choice], usage), "prompt_token_ids": None, "prompt_text": None})

    def piece(self, head: Head, text: str, finish_reason: str | None, usage: Usage | None, *, is_last: bool) -> bytes:
        """A content delta; empty when only the end token is left to tell."""
        delta = {} if finish_reason and not text else {"content": text}
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        if finish_reason:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        return _event({**self._chunk(head, [choice], usage), **_fingerprint(head, is_last)})

    def closing(self, head: Head, usage: Usage) -> bytes:
        """Usage with what was cached and what the cache learned."""
        details = {"cached_tokens": usage.cached_tokens, "created_cache_tokens": usage.created_cache_tokens}
        counts = {**usage.counts(), "prompt_tokens_details": details}
        return _event({**self._chunk(head, [], None), "usage": counts, **_fingerprint(head, True)})

    def answer(self, head: Head, text: str, finish_reason: str, usage: Usage) -> bytes:
        """A ``chat.completion`` object."""
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
        return _json(
            {
                "id": f"chatcmpl-{head.identifier}",
                "object": "chat.completion",
                "created": head.created,
                "model": head.model,
                "choices": [choice],
                "service_tier": None,
                "system_fingerprint": head.fingerprint,
                "usage": _answer_usage(usage, usage.created_cache_tokens),
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _chunk(self, head: Head, choices: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        chunk = {
            "id": f"chatcmpl-{head.identifier}",
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "choices": choices,
        }
        return {**chunk, "usage": {**usage.counts(), "completion_tokens_details": None}} if usage else chunk


class CompletionFormat:
    """``/v1/completions``: no role event, and no word about what the cache learned."""

    def opening(self, head: Head, usage: Usage | None) -> bytes:
        """Nothing: the first event carries text."""
        return b""

    def piece(self, head: Head, text: str, finish_reason: str | None, usage: Usage | None, *, is_last: bool) -> bytes:
        """A text event; the text is empty when only the end token is left to tell."""
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        counts = {"usage": usage.counts()} if usage else {}
        return _event({**self._chunk(head, [choice]), **counts, **_fingerprint(head, is_last)})

    def closing(self, head: Head, usage: Usage) -> bytes:
        """Usage with what was cached."""
        counts = {**usage.counts(), "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}
        return _event({**self._chunk(head, []), "usage": counts, **_fingerprint(head, True)})

    def answer(self, head: Head, text: str, finish_reason: str, usage: Usage) -> bytes:
        """A ``text_completion`` object."""
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        return _json(
            {
                **self._chunk(head, [choice]),
                "service_tier": None,
                "system_fingerprint": head.fingerprint,
                "usage": _answer_usage(usage, None),
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _chunk(self, head: Head, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{head.identifier}",
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": choices,
        }


def error_body(status: int, kind: str, message: str, param: str | None) -> bytes:
    """An error object; ``kind`` is what vLLM puts into ``error.type``."""
    return _json({"error": {"message": message, "type": kind, "param": param, "code": status}})


def detail_body(text: str) -> bytes:
    """What unknown paths and methods get."""
    return _json({"detail": text})


UNAUTHORIZED = b'{"error":"Unauthorized"}'


def models_body(model: str, created: int, max_model_len: int, permission: str) -> bytes:
    """The list of the one model there is. ``permission`` is any identifier."""
    granted = {
        "id": f"modelperm-{permission}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [granted],
    }
    return _json({"object": "list", "data": [card]})


def version_body() -> bytes:
    """The version whose formats these are."""
    return _json({"version": VLLM_VERSION})


def tokenize_body(tokens: int, max_model_len: int) -> bytes:
    """The count of a text; the token ids are only its positions, as there is no vocabulary."""
    return _json({"count": tokens, "max_model_len": max_model_len, "tokens": list(range(tokens)), "token_strs": None})


def _answer_usage(usage: Usage, created_cache_tokens: int | None) -> dict[str, Any]:
    details = {
        "cached_tokens": usage.cached_tokens,
        "created_cache_tokens": created_cache_tokens,
        "multimodal_tokens": None,
    }
    return {**usage.counts(), "prompt_tokens_details": details, "completion_tokens_details": None}


def _fingerprint(head: Head, is_last: bool) -> dict[str, str]:
    return {"system_fingerprint": head.fingerprint} if is_last else {}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
