"""Requests that nobody else makes, in every API, each with its one right answer.

Where a request can say what is to be answered, the answer is made of a mark that no other request has; elsewhere it is drawn
from the prompt, which has the mark. What is right is what a simulated worker says by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

from simulator.bodies import Generation, Served, parse_chat, parse_completion
from simulator.bodies_more import parse_messages, parse_responses
from simulator.text import write_output
from simulator.vocabulary import Part
from tests.chaos.client import Question
from tests.chaos.dialects import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Dialect
from tests.chaos.workers import MODEL

OTHER_MODEL = "another-model"
EMBEDDING_MODEL = "embedding-model"
_SERVED = Served(models=(MODEL, OTHER_MODEL), max_model_len=131_072)
_PARSERS: dict[str, Callable[[bytes, Served], Generation]] = {
    CHAT.endpoint: parse_chat,
    COMPLETIONS.endpoint: parse_completion,
    MESSAGES.endpoint: parse_messages,
    RESPONSES.endpoint: parse_responses,
}
_SHARES = {CHAT: 0.45, COMPLETIONS: 0.15, MESSAGES: 0.15, RESPONSES: 0.15, EMBEDDINGS: 0.1}
_CALLS_RATIO = 0.25  # of the conversations call a tool
_VECTOR = 16  # numbers of an embedding


def make_question(number: int, seed: int, dice: Random) -> Question:
    """The question of this number: of every API, one in ten with a long prompt, one in four for the other model."""
    mark = "q" + sha256(f"{seed}:{number}".encode()).hexdigest()[:20]
    (dialect,) = dice.choices(list(_SHARES), list(_SHARES.values()))
    if dialect is EMBEDDINGS:
        return _embedding(mark, dice)
    answer = " ".join(mark if place % 8 == 0 else f"w{dice.randrange(100)}" for place in range(dice.choice((8, 24, 64, 160))))
    is_long = dice.random() < 0.1
    words = " ".join(f"{mark}-{dice.randrange(10**4)}" for _ in range(2500 if is_long else dice.randint(4, 120)))
    model = MODEL if is_long or dice.random() < 0.75 else OTHER_MODEL
    system = f"You are assistant {number % 7}. Answer with care. " * 8
    tool = _tool(answer) if dialect is not COMPLETIONS and dice.random() < _CALLS_RATIO else None
    return _answered({"model": model, **_asking(dialect, system, words, answer, tool)}, dialect)


def _asking(dialect: Dialect, system: str, words: str, answer: str, tool: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of a body. Only chats and completions can say what is to be answered; calls can everywhere."""
    said = {"structured_outputs": {"choice": [answer]}, "max_tokens": 200}
    if dialect is COMPLETIONS:
        return {"prompt": system + words, **said}
    if dialect is CHAT:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": words}]
        tools = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
        return {"messages": messages, "max_tokens": 200, **(said if tool is None else tools)}
    if dialect is MESSAGES:
        tools = {"tools": [{"name": "say", "input_schema": tool["parameters"]}], "tool_choice": {"type": "any"}} if tool else {}
        return {"system": system, "messages": [{"role": "user", "content": words}], "max_tokens": 200, **tools}
    tools = {"tools": [{"type": "function", **tool}], "tool_choice": "required"} if tool else {}
    return {"instructions": system, "input": words, "max_output_tokens": 200, **tools}


def _tool(answer: str) -> dict[str, Any]:
    """A function whose one argument can only be this."""
    text = {"type": "object", "properties": {"text": {"type": "string", "enum": [answer]}}, "required": ["text"]}
    return {"name": "say", "parameters": text}


def _answered(body: dict[str, Any], dialect: Dialect) -> Question:
    wanted = _PARSERS[dialect.endpoint](json.dumps(body).encode(), _SERVED)
    output = write_output(wanted.sources[0].digest, wanted.wishes[0])
    return Question(
        body=body,
        text=output.text() + output.text(part=Part.TOOL_ARGUMENTS),
        completion_tokens=len(output.tokens),
        finish_reason=output.finish_reason,
        dialect=dialect,
    )


def _embedding(mark: str, dice: Random) -> Question:
    inputs = [f"{mark}-{dice.randrange(10**4)}" for _ in range(dice.randint(1, 4))]
    return Question(
        body={"model": EMBEDDING_MODEL, "input": inputs},
        text=json.dumps([vector_of(text) for text in inputs]),
        completion_tokens=0,
        finish_reason="stop",
        dialect=EMBEDDINGS,
    )


def vector_of(text: str) -> list[float]:
    """The embedding of a text."""
    return [byte / 256 for byte in sha256(text.encode()).digest()[:_VECTOR]]
