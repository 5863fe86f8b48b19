"""What a client reads from an answer of each API: the text, why it ended, the tokens, and whether it was told of an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class Heard:
    """An answer as far as it came. ``None``: not told."""

    text: str = ""  # contents and arguments of calls, one after another
    finish: str | None = None  # in the API's own words
    completion_tokens: int | None = None
    error: object = None  # that it told in place of its end
    starts: int = 0  # how often it began
    ends: int = 0  # end marks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dialect:
    """One API. Finish reasons are named by those of a chat, ``stop``, ``length`` and ``tool_calls``."""

    path: str
    endpoint: str  # the label of metrics and the log
    read_plain: Callable[[dict[str, Any]], Heard]
    read_event: Callable[[dict[str, Any], Heard], None]
    finishes: dict[str, str]
    asks_for_usage: bool = False  # a stream has usage only if it was asked for

    def plain(self, received: bytes) -> Heard:
        """A whole answer that does not stream."""
        return self.read_plain(json.loads(received))

    def stream(self, received: bytes) -> Heard:
        """The whole events of a stream, which may have been cut."""
        heard = Heard()
        for event in received.split(b"\n\n")[:-1]:
            data = b"".join(line.removeprefix(b"data: ") for line in event.split(b"\n") if line.startswith(b"data: "))
            if data == b"[DONE]":
                heard.ends += 1
            elif data:
                found = json.loads(data)
                if found.get("error") or found.get("type") in ("error", "response.failed"):
                    heard.error = heard.error or found
                else:
                    self.read_event(found, heard)
        return heard


def _chat(found: dict[str, Any]) -> Heard:
    choice = found["choices"][0]
    message = choice["message"]
    calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
    return Heard(
        text=(message["content"] or "") + calls,
        finish=choice["finish_reason"],
        completion_tokens=found["usage"]["completion_tokens"],
    )


def _chat_event(found: dict[str, Any], heard: Heard) -> None:
    _take_usage(found, heard)
    for choice in found.get("choices", ()):
        delta = choice["delta"]
        heard.starts += "role" in delta
        heard.text += delta.get("content") or ""
        heard.text += "".join(call["function"].get("arguments") or "" for call in delta.get("tool_calls") or ())
        heard.finish = choice["finish_reason"] or heard.finish


def _completion(found: dict[str, Any]) -> Heard:
    choice = found["choices"][0]
    tokens = found["usage"]["completion_tokens"]
    return Heard(text=choice["text"], finish=choice["finish_reason"], completion_tokens=tokens)


def _completion_event(found: dict[str, Any], heard: Heard) -> None:
    _take_usage(found, heard)
    for choice in found.get("choices", ()):
        heard.starts = 1  # nothing marks a beginning
        heard.text += choice["text"]
        heard.finish = choice["finish_reason"] or heard.finish


def _take_usage(found: dict[str, Any], heard: Heard) -> None:
    if found.get("usage"):
        heard.completion_tokens = found["usage"]["completion_tokens"]


def _message(found: dict[str, Any]) -> Heard:
    texts = [block["text"] if block["type"] == "text" else json.dumps(block["input"]) for block in found["content"]]
    return Heard(text="".join(texts), finish=found["stop_reason"], completion_tokens=found["usage"]["output_tokens"])


def _message_event(found: dict[str, Any], heard: Heard) -> None:
    match found["type"]:
        case "message_start":
            heard.starts += 1
        case "content_block_delta":
            heard.text += found["delta"].get("text") or found["delta"].get("partial_json") or ""
        case "message_delta":
            heard.finish, heard.completion_tokens = found["delta"]["stop_reason"], found["usage"]["output_tokens"]
        case "message_stop":
            heard.ends += 1


def _response(found: dict[str, Any]) -> Heard:
    texts = [item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"] for item in found["output"]]
    return Heard(text="".join(texts), finish=found["status"], completion_tokens=found["usage"]["output_tokens"])


def _response_event(found: dict[str, Any], heard: Heard) -> None:
    match found["type"]:
        case "response.created":
            heard.starts += 1
        case "response.output_text.delta" | "response.function_call_arguments.delta":
            heard.text += found["delta"]
        case "response.completed" | "response.incomplete":
            heard.ends += 1
            heard.finish, heard.completion_tokens = (
                found["response"]["status"],
                found["response"]["usage"]["output_tokens"],
            )


def _embeddings(found: dict[str, Any]) -> Heard:
    return Heard(text=json.dumps([one["embedding"] for one in found["data"]]), finish="stop", completion_tokens=0)


def _no_event(found: dict[str, Any], heard: Heard) -> None:
    raise AssertionError(f"an embedding does not stream: {found}")


_AS_CHAT = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}

CHAT = Dialect(
    path="/v1/chat/completions",
    endpoint="chat",
    read_plain=_chat,
    read_event=_chat_event,
    finishes=_AS_CHAT,
    asks_for_usage=True,
)
COMPLETIONS = Dialect(
    path="/v1/completions",
    endpoint="completions",
    read_plain=_completion,
    read_event=_completion_event,
    finishes=_AS_CHAT,
    asks_for_usage=True,
)
MESSAGES = Dialect(
    path="/v1/messages",
    endpoint="messages",
    read_plain=_message,
    read_event=_message_event,
    finishes={"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"},
)
RESPONSES = Dialect(
    path="/v1/responses",
    endpoint="responses",
    read_plain=_response,
    read_event=_response_event,
    finishes={"stop": "completed", "length": "incomplete", "tool_calls": "completed"},
)
EMBEDDINGS = Dialect(
    path="/v1/embeddings",
    endpoint="embeddings",
    read_plain=_embeddings,
    read_event=_no_event,
    finishes=_AS_CHAT,
)
