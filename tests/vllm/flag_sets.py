"""Sets of flags that vLLM is run with, each of which changes what it puts on the wire, and what to ask of each.

Together they are the settings under which the streams in tests/data/captures were recorded, less adapters, traces, KV events
and the modes for developers, which change nothing of a stream's form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.vllm.answers import chat, completion

KEY = "sk-test"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
LONG = "know the people that come down to the water and make a long sound " * 30  # three blocks of 128 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSet:
    """How one vLLM is started."""

    name: str
    flags: tuple[str, ...] = ()
    is_scripted: bool = False  # fixed texts instead of noise: reasoning and tool calls can be had
    has_key: bool = False
    is_pooling: bool = False  # it embeds, and generates nothing
    tells_cached: bool = True  # on every path; else nobody but the worker knows

    @property
    def arguments(self) -> tuple[str, ...]:
        """For deploy/vllm-cpu/serve.py, whose own flags come first."""
        return (*(("--scripted",) if self.is_scripted else ()), *self.flags, *(("--api-key", KEY) if self.has_key else ()))


_PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
FLAG_SETS = (
    FlagSet(
        name="everything told",
        flags=(
            *("--served-model-name", "tiny", "tiny-alias", "--enable-request-id-headers", "--enable-server-load-tracking"),
            *("--enable-per-request-metrics", "--enable-mfu-metrics", "--kv-cache-metrics"),
            *("--kv-cache-metrics-sample", "1.0", *_PARSERS, "--scheduling-policy", "priority"),
        ),
        has_key=True,
    ),
    FlagSet(
        name="usage forced, parsers",
        flags=(*_PARSERS, "--reasoning-parser", "qwen3", "--enable-force-include-usage"),
        is_scripted=True,
    ),
    FlagSet(
        name="speculating",
        flags=(
            "--speculative-config",
            json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}),
            *("--max-num-queued-reqs", "64", "--shutdown-timeout", "10"),
        ),
    ),
    FlagSet(
        name="eight tokens an event",
        flags=(
            *("--stream-interval", "8", "--sse-keep-alive-interval", "1"),
            *("--max-num-seqs", "4", "--max-num-batched-tokens", "1024"),
        ),
    ),
    FlagSet(name="two engines", flags=("--data-parallel-size", "2")),
    FlagSet(name="embedding", flags=("--runner", "pooling", "--convert", "embed"), is_pooling=True),
    FlagSet(name="no details", flags=("--no-enable-prompt-tokens-details",), tells_cached=False),
    FlagSet(name="as served here"),
)
BY_NAME = {each.name: each for each in FLAG_SETS}
QUESTIONS: Mapping[str, dict[str, Any]] = {
    "not asked": {},
    "asked": {"stream_options": {"include_usage": True}},
    "refused": {"stream_options": {"include_usage": False}},
    "asked in each event": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


def streamed(flag_set: FlagSet) -> list[dict[str, Any]]:
    """Streams that have to be the same through the gateway and without it."""
    if flag_set.is_pooling:
        return []
    kinds = [chat("the people know how water would come down", 24), completion("the people know how", 24)]
    if flag_set.is_scripted:
        plain = {"ignore_eos": False}
        kinds = [
            chat("talk", 24, **plain),
            chat("think", 24, chat_template_kwargs={"enable_thinking": True}, **plain),
            chat("call", 40, tools=[_TOOL], tool_choice="auto", **plain),
        ]
    return [{**kind, **question, "stream": True} for kind in kinds for question in QUESTIONS.values()]


def counted(flag_set: FlagSet) -> list[tuple[str, dict[str, Any]]]:
    """Path and body of requests whose tokens have to be those that the worker counts."""
    if flag_set.is_pooling:
        return [
            ("/v1/embeddings", {"model": "tiny", "input": "one"}),
            ("/v1/embeddings", {"model": "tiny", "input": ["one two", "three four five"]}),
            ("/v1/embeddings", {"model": "tiny", "input": [301, 302, 303]}),
            ("/v1/rerank", {"model": "tiny", "query": "water", "documents": ["the water", "a sound"]}),
            ("/v1/score", {"model": "tiny", "text_1": "water", "text_2": "sound"}),
        ]
    short = {"ignore_eos": not flag_set.is_scripted}
    chats = [
        chat("one", 12, **short),
        chat("two", 12, stream=True, **short),
        chat("three", 12, stream=True, stream_options={"include_usage": True}, **short),
        chat(f"{LONG} cold", 6, stream=True, **short),
        chat(f"{LONG} warm", 6, **short),
    ]
    completions = [completion("five", 12, stream=True, **short), completion([301, 302, 303], 12, **short)]
    greedy = {"model": "tiny", "temperature": 0}
    responses = [
        {**greedy, "input": "six", "max_output_tokens": 12, "stream": True},
        {**greedy, "input": "seven", "max_output_tokens": 12},
        {**greedy, "input": LONG, "max_output_tokens": 12},
        {**greedy, "input": f"{LONG} eight", "max_output_tokens": 12, "stream": True},
    ]
    messages = [
        {**greedy, "messages": [{"role": "user", "content": "nine"}], "max_tokens": 12, "stream": True},
        {**greedy, "messages": [{"role": "user", "content": f"{LONG} ten"}], "max_tokens": 12},
    ]
    return [
        *(("/v1/chat/completions", body) for body in chats),
        *(("/v1/completions", body) for body in completions),
        *(("/v1/responses", body) for body in responses),
        *(("/v1/messages", body) for body in messages),
    ]


def timed(flag_set: FlagSet, number: int) -> dict[str, Any]:
    """A stream whose times are compared: long enough that a mean of its gaps says something."""
    return chat(f"{number} the people", 48, stream=True, ignore_eos=not flag_set.is_scripted)
