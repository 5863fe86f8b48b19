"""Answers through the gateway are those of a direct call.

vLLM 0.32 puts `system_fingerprint` on each event that finishes a choice, or on the usage event if usage is asked for. The
gateway asks for usage when the client did not, takes the usage event out of the stream again, and gives the fingerprint back to
the events with a finish reason. So one difference is known, and allowed here: as long as it has not seen a fingerprint of this
worker, the events that finish the other choices have none, and the last one neither when the usage event was late, because no
event is held long.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.gateway import Gateway
from tests.integration.raw_client import End
from tests.vllm.answers import USAGE, ask, chat, completion, new_id, record_of, told, whole
from tests.vllm.worker import RealWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "the people know how water would come down and make a long sound"
SAMPLED = {"temperature": 1, "seed": 11}

BODIES = {
    "chat": chat(TEXT, return_token_ids=True),
    "chat of one token": chat(TEXT, 1, return_token_ids=True),
    "chat with logprobs": chat(TEXT, 8, logprobs=True, top_logprobs=2),
    "chat with two choices": chat(TEXT, n=2, return_token_ids=True, **SAMPLED),
    "completion": completion(TEXT, return_token_ids=True),
    "completion of token ids": completion([301, 302, 303], return_token_ids=True),
    "completion with its prompt": completion(TEXT, echo=True),
    "completion with two choices": completion(TEXT, n=2, return_token_ids=True, **SAMPLED),
    "batch": completion([TEXT, "you", "all"], return_token_ids=True),
    "batch of token ids": completion([[301, 302, 303], [304, 305]], return_token_ids=True),
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "not asked": {},
    "asked": USAGE,
    "refused": {"stream_options": {"include_usage": False}},
    "asked with each event": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "with each event but not asked": {"stream_options": {"include_usage": False, "continuous_usage_stats": True}},
}


async def assert_streams_equal(gateway: Gateway, worker: RealWorker, body: dict[str, Any]) -> None:
    """Send one streamed request both ways, with the same id, and compare all that was said and how."""
    request_id = new_id()
    direct = await ask(worker.url, body, request_id)
    ours = await ask(gateway.base_url, body, request_id)
    record = await record_of(gateway, request_id)

    assert (direct.status, ours.status, ours.end) == (200, 200, End.COMPLETE)
    assert ours.head is not None
    assert direct.head is not None
    assert ours.head.get("content-type") == direct.head.get("content-type")
    expected, found = told(direct.body), told(ours.body)
    asks = body.get("stream_options", {}).get("include_usage", False)
    assert expected.fingerprint_at == (["usage"] if asks else ["finish"] * len(expected.choices))
    assert found.fingerprint_at in ([["usage"]] if asks else [expected.fingerprint_at, ["finish"], []])
    found.fingerprint_at = expected.fingerprint_at
    assert found == expected
    assert found.tail[-1] == "[DONE]"
    assert len(found.tail) == 1 + asks
    assert all(said.finish_reasons for said in found.choices.values())
    if body.get("return_token_ids"):
        assert all(said.token_ids for said in found.choices.values())
    assert (record["outcome"], record["stream"], record["missing_end"]) == ("ok", True, None)
    assert record["completion_tokens"] > 0


@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_is_the_one_of_a_direct_call(gateway: Gateway, worker: RealWorker, name: str) -> None:
    """Text, token ids, log probabilities, finish reasons, events and the answer's id are those of a direct call."""
    await assert_streams_equal(gateway, worker, {**BODIES[name], "stream": True})


@pytest.mark.parametrize("name", ["chat", "batch"])
@pytest.mark.parametrize("question", QUESTIONS)
async def test_usage_comes_as_in_a_direct_call(gateway: Gateway, worker: RealWorker, name: str, question: str) -> None:
    """Whichever way a client asks for usage or does not, it sees usage where a direct call shows it, and nowhere else."""
    await assert_streams_equal(gateway, worker, {**BODIES[name], **QUESTIONS[question], "stream": True})


async def test_the_fingerprint_stays_in_the_stream(gateway: Gateway) -> None:
    """Of five streams without usage, at most one loses the field that vLLM had moved to the usage event."""
    streams = [told((await ask(gateway.base_url, {**BODIES["chat"], "stream": True})).body) for _ in range(5)]

    assert sum(stream.fingerprint_at == ["finish"] for stream in streams) >= 4
    assert all(stream.tail == ["[DONE]"] for stream in streams)


@pytest.mark.parametrize("name", BODIES)
async def test_a_plain_answer_is_the_one_of_a_direct_call(gateway: Gateway, worker: RealWorker, name: str) -> None:
    """An answer in one piece is equal in everything but the second in which it was made."""
    request_id = new_id()
    direct = await ask(worker.url, BODIES[name], request_id)
    ours = await ask(gateway.base_url, BODIES[name], request_id)
    record = await record_of(gateway, request_id)

    assert (direct.status, ours.status) == (200, 200)
    assert whole(ours) == whole(direct)
    assert (record["outcome"], record["stream"], record["ttft_seconds"]) == ("ok", False, None)
    assert record["completion_tokens"] == whole(direct)["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["string", "token"])
async def test_stops_are_those_of_a_direct_call(gateway: Gateway, worker: RealWorker, kind: str, stream: bool) -> None:
    """A stop string, for which vLLM holds text back, and a stop token end an answer at the same place, for the same reason."""
    choice = whole(await ask(worker.url, completion(TEXT, return_token_ids=True)))["choices"][0]
    stop: dict[str, Any] = (
        {"stop": [choice["text"][-6:-3]]} if kind == "string" else {"stop_token_ids": [choice["token_ids"][9]]}
    )
    body = completion(TEXT, return_token_ids=True, **stop)
    if stream:
        await assert_streams_equal(gateway, worker, {**body, "stream": True})
        return
    request_id = new_id()
    direct = whole(await ask(worker.url, body, request_id))
    ours = whole(await ask(gateway.base_url, body, request_id))

    assert ours == direct
    assert ours["choices"][0]["finish_reason"] == "stop"
    assert ours["choices"][0]["stop_reason"] in (*stop.get("stop", ()), *stop.get("stop_token_ids", ()))


@pytest.mark.parametrize("stream", [True, False])
async def test_what_surely_does_not_fit_is_refused_as_by_the_worker(gateway: Gateway, worker: RealWorker, stream: bool) -> None:
    """With the same status and in the gateway's words, which name its limit: control has asked the worker for it."""
    body = chat(TEXT, 100_000, stream=stream)
    direct, ours = await ask(worker.url, body), await ask(gateway.base_url, body)

    assert (ours.status, direct.status) == (400, 400)
    error = ours.json()["error"]
    assert "32768" in error["message"]
    assert "32768" in direct.json()["error"]["message"]
    if error["code"] != "context_length_exceeded":  # the worker has not been asked yet: its own words are passed on
        assert ours.json() == direct.json()


@pytest.mark.parametrize("stream", [True, False])
async def test_refusals_are_those_of_a_direct_call(gateway: Gateway, worker: RealWorker, stream: bool) -> None:
    """What vLLM refuses comes with its status and its words."""
    body = chat(TEXT, stream=stream, return_token_ids=True) | {"temperature": "hot"}
    request_id = new_id()
    direct = await ask(worker.url, body, request_id)
    ours = await ask(gateway.base_url, body, request_id)
    record = await record_of(gateway, request_id)

    assert (ours.status, ours.json()) == (direct.status, direct.json())
    assert (record["outcome"], record["reason"]) == ("client_error", "worker_refused")
