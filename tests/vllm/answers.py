"""Requests to a real worker, and what is the same in two of its answers to one request.

Which tokens share an event is a matter of timing: vLLM joins what waits when its client or itself falls behind. So two streams
are compared by what they say (text, token ids, finish reasons), and by the sequence of their events' forms.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any

from tests.integration.gateway import Gateway
from tests.integration.raw_client import Answer, RawClient
from tests.integration.scene import CHAT, COMPLETIONS, events_of

GREEDY = {"model": "tiny", "temperature": 0, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}
_ids = itertools.count(1)


def chat(text: str, max_tokens: int = 16, **fields: Any) -> dict[str, Any]:
    """A greedy chat request that ends by ``max_tokens`` only."""
    return {**GREEDY, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **fields}


def completion(prompt: Any, max_tokens: int = 16, **fields: Any) -> dict[str, Any]:
    """A greedy completion request that ends by ``max_tokens`` only."""
    return {**GREEDY, "prompt": prompt, "max_tokens": max_tokens, **fields}


def path_of(body: dict[str, Any]) -> str:
    """The endpoint that a body is for."""
    return CHAT if "messages" in body else COMPLETIONS


def new_id() -> str:
    """A request id that no other request of this run has."""
    return f"test-{next(_ids)}"


async def ask(base_url: str, body: dict[str, Any], request_id: str | None = None) -> Answer:
    """Send one request on a connection of its own and read its answer. The first of its kind may take ten seconds more."""
    async with await RawClient.connect(base_url) as client:
        headers = [("X-Request-Id", request_id or new_id())]
        return await client.request("POST", path_of(body), body, headers, timeout_seconds=60.0)


async def record_of(gateway: Gateway, request_id: str, timeout_seconds: float = 10.0) -> dict[str, Any]:
    """The record of one request. TimeoutError when none comes."""
    ends_at = time.monotonic() + timeout_seconds
    while True:
        for line in gateway.log_lines():
            if line.get("request_id") == request_id:
                return line
        if time.monotonic() > ends_at:
            raise TimeoutError(f"no record of {request_id}\n{gateway.stderr}")
        await asyncio.sleep(0.02)


@dataclass(slots=True)
class Said:
    """What one choice of a stream came to."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    stop_reasons: list[Any] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)  # of its events, those that follow each other and are equal only once


@dataclass(slots=True)
class Told:
    """A whole stream, less what differs from one time to the next."""

    ids: set[str] = field(default_factory=set)
    choices: dict[int, Said] = field(default_factory=dict)
    tail: list[Any] = field(default_factory=list)  # the events without a choice, the end marker included
    fingerprint_at: list[str] = field(default_factory=list)  # where `system_fingerprint` stands: "finish" or "usage"


def told(body: bytes) -> Told:
    """Read a stream. `system_fingerprint` is taken out of the events and told apart."""
    found = Told()
    for event in events_of(body):
        if not isinstance(event, dict):
            found.tail.append(event)
            continue
        found.ids.add(event["id"])
        del event["created"]
        if event.pop("system_fingerprint", None) is not None:
            found.fingerprint_at.append("finish" if event["choices"] else "usage")
        if not event["choices"]:
            found.tail.append(event)
        for choice in event["choices"]:
            _add(found.choices.setdefault(choice["index"], Said()), choice, event)
    return found


def _add(said: Said, choice: dict[str, Any], event: dict[str, Any]) -> None:
    said.text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
    said.token_ids += choice.get("token_ids") or []
    if logprobs := choice.get("logprobs"):
        said.logprobs += logprobs.get("content") or logprobs.get("tokens") or []
    if choice["finish_reason"] is not None:
        said.finish_reasons.append(choice["finish_reason"])
        said.stop_reasons.append(choice.get("stop_reason"))
    form = form_of({**event, "choices": [choice]})
    if not said.forms or said.forms[-1] != form:
        said.forms.append(form)


def form_of(value: Any) -> Any:
    """The keys of a JSON value, in their order, with the types of what they hold; of a list only the first item counts."""
    if isinstance(value, dict):
        return [(key, form_of(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [form_of(item) for item in value[:1]]
    return type(value).__name__


def whole(answer: Answer) -> dict[str, Any]:
    """A plain answer without the time at which it was made."""
    found: dict[str, Any] = json.loads(answer.body)
    del found["created"]
    return found
