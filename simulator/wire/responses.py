"""The bytes of vLLM's answers on ``/v1/responses``: numbered, named events, of which the first two come before any token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, groupby
from typing import Any

from simulator.bodies import ResponseAsked
from simulator.text import Output
from simulator.vocabulary import Part
from simulator.wire.common import Choice, Delta, Head, Style, Timing, Usage, encode

_TOOL_FIELDS = ("strict", "type", "allowed_callers", "async", "defer_loading", "description", "output_schema")


class ResponsesFormat:
    """``/v1/responses``. One for each answer: it numbers its events and remembers what it has said."""

    def __init__(self, head: Head, style: Style, asked: ResponseAsked) -> None:
        self._head = head
        self._style = style
        self._asked = asked
        self._numbers = count()
        self._items: list[dict[str, Any]] = []  # those that are done
        self._part: Part | None = None  # of the item that is open
        self._text = ""  # of the item that is open
        self._call = {Part.TOOL_NAME: "", Part.TOOL_ARGUMENTS: ""}
        self._finish_reason = "stop"

    def greeting(self) -> bytes:
        """What is sent at once, before the prompt is computed."""
        response = self._response("in_progress", [], None, None)
        return self._event("response.created", {"response": response}) + self._event(
            "response.in_progress", {"response": response}
        )

    def opening(self, index: int, usage: Usage | None, prompt_ids: Sequence[int] | None) -> bytes:
        """Nothing: an item begins with its first text."""
        return b""

    def echoed(self, index: int, text: str) -> bytes:
        """Nothing: there is no such wish."""
        return b""

    def piece(self, delta: Delta) -> bytes:
        """Deltas of items, with their starts and ends; a call is told as a whole at the end."""
        events = []
        for part, tokens in groupby((token for token in delta.tokens if token.text), key=lambda token: token.part):
            text = "".join(token.text for token in tokens)
            if part in self._call:
                self._call[part] += text
            elif part is Part.CONTENT or self._style.shows_reasoning:
                events.append(self._say(part, text))
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
        return b"".join(events)

    def frame(self, index: int) -> None:
        """None: an event depends on those before it."""

    def closing(self, usage: Usage, timing: Timing | None) -> bytes:
        """The end of the last item, then the whole response."""
        data = self._end_item()
        if self._call[Part.TOOL_NAME]:
            data += self._tell_call()
        return data + self._event(
            "response.completed", {"response": self._response(self._status(), self._items, usage, timing)}
        )

    def ending(self) -> bytes:
        """Nothing: there is no end mark."""
        return b""

    def answer(
        self, choices: Sequence[Choice], usage: Usage, timing: Timing | None, transfer: dict[str, Any] | None = None
    ) -> bytes:
        """A ``response`` object."""
        output = choices[0].output
        self._finish_reason = output.finish_reason
        return encode(self._response(self._status(), self._whole_items(output), usage, timing))

    def _say(self, part: Part, text: str) -> bytes:
        start = b""
        if self._part is not part:
            start = self._end_item()
            self._part, self._text = part, ""
            item = self._item(part, None, "in_progress")
            start += self._event("response.output_item.added", {"item": item, "output_index": len(self._items)})
            begun: dict[str, Any] = {"text": "", "type": "reasoning_text"}
            if part is Part.CONTENT:
                begun = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            start += self._event("response.content_part.added", self._placed({}, {"part": begun}))
        self._text += text
        return start + self._event(f"response.{self._kind()}.delta", self._placed({"delta": text}, {}))

    def _end_item(self) -> bytes:
        """The end of the item that is open, if one is."""
        part = self._part
        if part is None:
            return b""
        item = self._item(part, self._text, "completed")
        data = self._event(f"response.{self._kind()}.done", self._placed({}, {}), last={"text": self._text})
        data += self._event("response.content_part.done", self._placed({}, {"part": item["content"][0]}))
        data += self._event("response.output_item.done", {"item": item, "output_index": len(self._items)})
        self._items.append(item)
        self._part = None
        return data

    def _tell_call(self) -> bytes:
        name, arguments = self._call.values()
        place = {"output_index": len(self._items)}
        identity = {"item_id": self._item_id("fc"), **place}
        data = self._event("response.output_item.added", {"item": self._call_item(name, "", "in_progress"), **place})
        data += self._event("response.function_call_arguments.delta", {"delta": arguments, **identity})
        data += self._event("response.function_call_arguments.done", {"arguments": arguments, **identity}, more={"name": name})
        item = self._call_item(name, arguments, "completed")
        data += self._event("response.output_item.done", {"item": item, **place})
        self._items.append(item)
        return data

    def _whole_items(self, output: Output) -> list[dict[str, Any]]:
        items = []
        reasoning, text = output.text(part=Part.REASONING), output.text()
        if reasoning and self._style.shows_reasoning:
            items.append(self._item(Part.REASONING, reasoning, None))
        if text:
            items.append(self._item(Part.CONTENT, text, "completed"))
        if name := output.text(part=Part.TOOL_NAME):
            items.append(self._call_item(name, output.text(part=Part.TOOL_ARGUMENTS), "completed"))
        return items

    def _item(self, part: Part, text: str | None, status: str | None) -> dict[str, Any]:
        """A message or a piece of reasoning; ``text`` ``None``: it only begins."""
        if part is Part.REASONING:
            content = None if text is None else [{"text": text, "type": "reasoning_text"}]
            return {
                "id": self._item_id("rs"),
                "summary": [],
                "type": "reasoning",
                "content": content,
                "encrypted_content": None,
                "status": status,
            }
        said: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
        return {
            "id": self._item_id("msg"),
            "content": [] if text is None else [said],
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _call_item(self, name: str, arguments: str, status: str) -> dict[str, Any]:
        return {
            "arguments": arguments,
            "call_id": f"chatcmpl-tool-{self._head.identifier}",
            "name": name,
            "type": "function_call",
            "id": self._item_id("fc"),
            **dict.fromkeys(("async", "caller", "namespace")),
            "status": status,
        }

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self._head.identifier}"

    def _kind(self) -> str:
        return "output_text" if self._part is Part.CONTENT else "reasoning_text"

    def _placed(self, first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
        """Fields of an event about the item that is open."""
        identity = {"item_id": self._item_id("msg" if self._part is Part.CONTENT else "rs")}
        logprobs: dict[str, Any] = {"logprobs": []} if self._part is Part.CONTENT and "part" not in last else {}
        return {"content_index": 0, **first, **identity, **logprobs, "output_index": len(self._items), **last}

    def _status(self) -> str:
        return "incomplete" if self._finish_reason == "length" else "completed"

    def _response(self, status: str, items: list[dict[str, Any]], usage: Usage | None, timing: Timing | None) -> dict[str, Any]:
        asked = self._asked
        return {
            "id": f"resp_{self._head.identifier}",
            "created_at": self._head.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "metadata": None,
            "model": self._head.model,
            "object": "response",
            "output": items,
            "parallel_tool_calls": True,
            "temperature": float(asked.temperature),
            "tool_choice": asked.tool_choice,
            "tools": [_repeated(tool) for tool in asked.tools],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": asked.max_output_tokens,
            **dict.fromkeys(("max_tool_calls", "previous_response_id", "prompt", "reasoning")),
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": None,
            **({} if timing is None else {"metrics": {**timing.as_object(), "speculative_decoding": None}}),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")),
        }

    def _event(
        self, name: str, fields: dict[str, Any], *, last: dict[str, Any] | None = None, more: dict[str, Any] | None = None
    ) -> bytes:
        """An event; ``last`` stands between its number and its type, ``more`` behind its type."""
        whole = {**fields, "sequence_number": next(self._numbers), **(last or {}), "type": name, **(more or {})}
        return f"event: {name}\ndata: ".encode() + encode(whole) + b"\n\n"


def _repeated(tool: dict[str, Any]) -> dict[str, Any]:
    known = {"name": tool.get("name"), "parameters": tool.get("parameters")}
    return {**known, **{field: tool.get(field) for field in _TOOL_FIELDS}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.created_cache_tokens,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
