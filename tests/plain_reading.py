"""What an answer of a worker says, read event by event in the plainest way: what the product is held against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_DELTA_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")
_TYPED_TEXT = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def timed_events(payload: bytes) -> Iterator[tuple[int, Any]]:
    """The data of each event of a stream, with the offset behind its blank line; the end marker is its text."""
    offset = 0
    for block in payload.split(b"\n\n")[:-1]:
        offset += len(block) + 2
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                text = line[5:].strip()
                yield offset, "[DONE]" if text == b"[DONE]" else json.loads(text)


def carries_token(data: Any) -> bool:
    """Whether an event has text, reasoning or a piece of a tool call, in any of the three formats."""
    if not isinstance(data, dict):
        return False
    kind = data.get("type") or ""
    if kind.endswith(".delta"):
        return bool(data.get("delta"))
    if kind == "response.output_item.added":
        return str(data["item"]["type"]).endswith("_call")
    if kind == "content_block_delta":
        return bool(data["delta"].get(_TYPED_TEXT.get(data["delta"]["type"], "")))
    if kind == "content_block_start":
        return bool(data["content_block"]["type"] == "tool_use")
    return any(_choice_carries_token(choice) for choice in data.get("choices") or ())


def _choice_carries_token(choice: Any) -> bool:
    """No format has both a delta and a text; where they are, the delta counts."""
    delta = choice.get("delta")
    return bool(choice.get("text")) if delta is None else any(delta.get(name) for name in _DELTA_FIELDS)


def token_offsets(payload: bytes, *, echoes: bool = False) -> list[int]:
    """Where each event with a token ends; with ``echoes`` the first of them only repeats the prompt."""
    return [offset for offset, data in timed_events(payload) if carries_token(data)][int(echoes) :]


def usage_of(data: Any) -> dict[str, int | None] | None:
    """Prompt, completion and cached tokens of a whole plain answer, or of an event that speaks for the whole stream."""
    if not isinstance(data, dict):
        return None
    kind = data.get("type") or ""
    if kind == "response.completed" or data.get("object") == "response":
        usage = data.get("response", data)["usage"]
        return _counts(usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"])
    if kind in ("message_delta", "message"):
        usage = data["usage"]
        cached = usage.get("cache_read_input_tokens")
        prompt = usage["input_tokens"] + (cached or 0) + (usage.get("cache_creation_input_tokens") or 0)
        return _counts(prompt, usage["output_tokens"], cached)
    usage = data.get("usage")
    if not usage or ("choices" in data and data["choices"] and data.get("object", "").endswith("chunk")):
        return None
    details = usage.get("prompt_tokens_details") or {}
    return _counts(usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens"))


def _counts(prompt: int | None, completion: int | None, cached: int | None) -> dict[str, int | None]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": cached}


def finish_reasons(items: list[Any]) -> list[str]:
    """Why each choice ended, in their order."""
    found: dict[int, str] = {}
    for data in items:
        if not isinstance(data, dict):
            continue
        for choice in data.get("choices") or ():
            if choice.get("finish_reason"):
                found[choice["index"]] = choice["finish_reason"]
        reason = (data.get("delta") if isinstance(data.get("delta"), dict) else data).get("stop_reason")
        if reason and not data.get("choices"):
            found[0] = reason
        response = data.get("response", data)
        if data.get("type") == "response.completed" or data.get("object") == "response":
            found[0] = (response.get("incomplete_details") or {}).get("reason") or response["status"]
    return [found[index] for index in sorted(found)]
