"""What ties a request to a worker is looked for where a policy asks for it, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.serving.dispatch import Prepared, prepare
from proxy.serving.endpoints import Endpoints
from proxy.serving.ties import Ties
from routing.affinity import session_of
from tests.routing.topologies import a_model, a_pool, a_topology

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def prepared(body: Any, *, policy: str, path: bytes = b"/v1/chat/completions", lines: bytes = b"", **pool: Any) -> Prepared:
    endpoints = Endpoints(a_topology(a_model(a_pool(0, 1, policy=policy, **pool))), 0)
    return prepare(json.dumps(body).encode(), endpoints.find(b"POST", path), endpoints, None, lines)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/chat/completions", CHAT),
        (b"/v1/completions", {"model": "m", "prompt": "hello"}),
        (b"/v1/completions", {"model": "m", "prompt": [1, 2, 3]}),
        (b"/v1/responses", {"model": "m", "input": "hello"}),
        (b"/v1/responses", {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}),
        (b"/v1/messages", {"model": "m", "max_tokens": 9, "system": "Be kind.", **CHAT}),
    ],
)
def test_every_kind_of_prompt_has_a_beginning(path, body):
    """Chat, completion, response and message alike; the policy that looks at the load alone makes no hash."""
    demand = prepared(body, policy="prefix-affinity", path=path).demand
    assert demand.affinity is not None
    assert demand.session is None
    assert prepared(body, policy="least-load", path=path).demand.affinity is None


def test_a_system_prompt_beside_the_messages_counts():
    """Instructions and system prompts are part of the beginning."""
    kind, rude = (
        prepared({**CHAT, "system": system}, policy="prefix-affinity", path=b"/v1/messages").demand.affinity
        for system in ("Be kind.", "Be rude.")
    )
    assert kind != rude


def test_what_generates_nothing_is_not_tied():
    """An embedding leaves no prefix behind that is worth going back to."""
    body = {"model": "m", "input": "hello"}
    assert prepared(body, policy="prefix-affinity", path=b"/v1/embeddings").demand.affinity is None


@pytest.mark.parametrize(
    ("lines", "fields", "expected"),
    [
        (b"X-Session: alpha \r\n", {"user": "u", "prompt_cache_key": "k"}, b"alpha"),
        (b"x-other: alpha\r\n", {"user": "u", "prompt_cache_key": "k"}, b"k"),
        (b"x-session: \r\n", {"user": "ü"}, "ü".encode()),
        (b"", {"user": 7}, None),
        (b"", {"user": ""}, None),
        (b"", {"user": None}, None),
        (b"", {}, None),
    ],
)
def test_what_names_a_session(lines, fields, expected):
    """The configured header, else the body's cache key, else its user; what is no text names nothing."""
    demand = prepared({**CHAT, **fields}, policy="session", lines=lines, session_header="x-session").demand

    assert demand.session == (None if expected is None else session_of(expected))
    assert demand.affinity is not None


def test_models_that_ask_for_nothing():
    """One worker leaves no choice, and so nothing is looked for."""
    assert Ties.of(a_model(a_pool(0, policy="session"))) is None
    assert "session>" in repr(Ties.of(a_model(a_pool(0, 1, policy="session", session_header="x-session"))))
