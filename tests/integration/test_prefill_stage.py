"""A pool whose prompts are computed by a stage of other workers: the exchange, and what becomes of requests when it fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from simulator.server import WorkerSettings, start_worker
from tests.integration.answers import chat_answer, chat_events, plain, stream_of, usage_of
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.raw_client import Answer, RawClient, request_bytes
from tests.integration.scene import CHAT, chat_body, events_of
from tests.integration.scripted_worker import ScriptedWorker
from tests.integration.shared_cells import figures
from tests.integration.steps import Close, Hang, Script, Send, Wait

pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

PLACE = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [[1, 2]], "remote_host": "h", "remote_port": 1}
_MOVED = re.compile(r'vllm:prompt_tokens_by_source_total{.*source="external_kv_transfer"')
PROMPT_WORK = ("ridgeline_ledger_sent_prompt_tokens", "ridgeline_ledger_pending_prompt_tokens")
STREAM = stream_of(chat_events(["a", "b"], usage=usage_of(5, 2, 4)))


def computed(**fields: Any) -> bytes:
    """What a prefill worker answers that has a connector."""
    return plain(200, {"id": "1", "choices": [], "usage": usage_of(5, 1, 0), "kv_transfer_params": PLACE, **fields})


class Pair:
    """A gateway before one scripted prefill worker and one or two scripted decode workers."""

    def __init__(self, gateway: Gateway, first: ScriptedWorker, seconds: list[ScriptedWorker]) -> None:
        self.gateway, self.first, self.seconds = gateway, first, seconds
        self.count = 0

    def __repr__(self) -> str:
        return f"<Pair {self.gateway!r}>"

    async def ask(self, first: Script, *seconds: Script, stream: bool = True, **fields: Any) -> tuple[Answer, dict[str, Any]]:
        """One request: what the client gets, and its record."""
        scripts = list(seconds)
        self.first.script = lambda _request: first
        for worker in self.seconds:
            worker.script = lambda _request: scripts.pop(0) if len(scripts) > 1 else scripts[0]
        async with await RawClient.connect(self.gateway.base_url) as client:
            answer = await client.request("POST", CHAT, chat_body("tiny", stream=stream, **fields))
        self.count += 1
        return answer, (await self.gateway.records(self.count))[-1]

    @property
    def asked(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Bodies that prefill and decode workers have had, oldest first."""
        seconds = sorted((each for worker in self.seconds for each in worker.requests), key=lambda each: each.arrived_at)
        return [json.loads(each.body) for each in self.first.requests], [json.loads(each.body) for each in seconds]

    async def quiet(self) -> None:
        """Nothing is in flight at either stage, exactly."""
        await self.gateway.metrics_when(
            lambda page: page.total("ridgeline_in_flight_requests") == page.total("ridgeline_in_flight_tokens") == 0
        )


@asynccontextmanager
async def pair(
    decoders: int = 1, config: dict[str, Any] | None = None, up: int | None = None, **prefill: Any
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(1 + decoders)]
        first, *seconds = workers
        pool = {
            "name": "p",
            "policy": "round-robin",
            "workers": [worker.url for worker in seconds],
            "prefill": {"workers": [first.url], **prefill},
        }
        whole = {"models": [{"name": "tiny", "pools": [pool]}], **(config or {})}
        gateway = await stack.enter_async_context(running_gateway(whole))
        await gateway.metrics_when(lambda page: page.total("ridgeline_worker_up") == (up or len(workers)), 10)
        yield Pair(gateway, first, seconds)


async def test_a_request_is_computed_at_the_stage_and_generated_in_the_pool() -> None:
    """The prefill worker is asked for one token and for its blocks; the other one gets the request with where they are."""
    fields = {"max_completion_tokens": 50, "min_tokens": 10, "temperature": 1.50, "tools": [{"type": "function"}]}
    async with pair() as both:
        answer, record = await both.ask([Wait(0.2), Send(computed())], STREAM, **fields)
        plain_answer, _ = await both.ask([Send(computed())], [Send(chat_answer("x", usage=usage_of(5, 2)))], stream=False)
        await both.quiet()
        assert figures(both.gateway, PROMPT_WORK)["ridgeline_ledger_sent_prompt_tokens"][0] == 0  # to the decode worker
        metrics = await both.gateway.metrics()
    (first, _), (second, _) = both.asked
    sent = chat_body("tiny", stream=True, **fields)

    assert (answer.status, events_of(answer.body)[-1], plain_answer.status) == (200, "[DONE]", 200)
    assert second == {**sent, "kv_transfer_params": PLACE}
    assert (first["max_tokens"], first["max_completion_tokens"], first["min_tokens"], first["stream"]) == (1, 1, 0, False)
    assert "stream_options" not in first
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert {name: first[name] for name in ("messages", "tools", "temperature")} == {
        name: sent[name] for name in ("messages", "tools", "temperature")
    }
    assert both.first.requests[0].headers["x-request-id"] == both.seconds[0].requests[0].headers["x-request-id"]
    assert (record["outcome"], record["attempts"], record["prefill_result"]) == ("ok", 1, "computed")
    assert record["prefill_worker"] == both.first.url.removeprefix("http://")
    assert record["prompt_tokens"] == 5
    assert 0.2 <= record["prefill_leg_seconds"] < 0.4
    assert record["upstream_ttft_seconds"] < 0.2 <= record["ttft_seconds"]
    assert record["overhead_seconds"] < 0.1
    assert metrics.value("ridgeline_prefill_legs_total", pool="p", result="computed") == 2
    assert metrics.value("ridgeline_prefill_leg_seconds_count", pool="p") == 2
    assert metrics.value("ridgeline_attempts_total", pool="p-prefill", result="answered") == 2
    assert metrics.total("ridgeline_prompt_tokens_total") == 10
    assert metrics.total("ridgeline_requests_total", outcome="ok") == 2


async def test_what_was_cached_is_what_the_stage_says() -> None:
    """The decode worker reports as cached what it fetched, here 4 of 5 tokens; that is no hit.

    Nothing said is 0 only from a prefill worker that has told of hits: versions leave the details out when there was none.
    """
    silent, odd = usage_of(5, 1), [usage_of(9, 1, 8), None, "odd", usage_of(5, 1, -1), {}]
    usages = [silent, usage_of(5, 1, 3), usage_of(5, 1, 0), silent, *odd]
    async with pair() as both:
        records = [(await both.ask([Send(computed(usage=usage))], STREAM))[1] for usage in usages]
        _, whole = await both.ask([Send(plain(500, {}))], STREAM)
        metrics = await both.gateway.metrics()

    assert {record["prefill_result"] for record in records} == {"computed"}
    assert [record["cached_tokens"] for record in records] == [None, 3, 0, 0] + [None] * len(odd)
    assert [record["cached_inferred"] for record in records].index(True) == 3
    assert (whole["prefill_result"], whole["cached_tokens"]) == ("refused", 4)  # it computed the rest itself
    assert metrics.value("ridgeline_cached_tokens_total", pool="p") == 3 + 4
    assert metrics.value("ridgeline_cache_known_prompt_tokens_total", pool="p") == 4 * 5
    assert metrics.value("ridgeline_cache_unknown_requests_total", pool="p") == 1 + len(odd)


FAILURES: dict[str, tuple[Script, str]] = {
    "500": ([Send(plain(500, {"error": {"message": "no"}}))], "refused"),
    "429": ([Send(plain(429, {"error": {"message": "no"}}, [("retry-after", "0")]))], "refused"),
    "400": ([Send(plain(400, {"error": {"message": "no"}}))], "refused"),
    "closed": ([Close()], "failed"),
    "cut": ([Send(computed()[:-10]), Close()], "failed"),
    "silent": ([Hang()], "timeout"),
    "no connector": ([Send(computed(kv_transfer_params=None))], "not_offered"),
    "no JSON": ([Send(plain(200, b"<html>"))], "not_offered"),
}


async def test_whatever_goes_wrong_at_the_stage_the_pool_serves() -> None:
    """The decode worker gets the request as the client wrote it and computes the prompt itself; it is counted why."""
    seen = {}
    async with pair(timeout_seconds=0.5) as both:
        for name, (script, result) in FAILURES.items():
            answer, record = await both.ask(script, STREAM)
            seen[name] = (answer.status, record["outcome"], record["prefill_result"])
            assert seen[name] == (200, "ok", result), name
        await both.quiet()
        metrics = await both.gateway.metrics()

    assert both.asked[1] == [chat_body("tiny")] * len(FAILURES)
    for result in ("refused", "failed", "timeout", "not_offered"):
        count = sum(each == result for _, each in FAILURES.values())
        assert metrics.value("ridgeline_prefill_legs_total", pool="p", result=result) == count


async def test_a_stage_that_is_down_is_not_asked() -> None:
    """Its health checks tell, as for any worker; requests go to the pool at once."""
    async with pair() as both:
        await both.first.stop()
        _, first = await both.ask([], STREAM)
        await both.gateway.metrics_when(lambda page: page.total("ridgeline_worker_up") == 1, 15)
        _, second = await both.ask([], STREAM)

    assert [(record["outcome"], record["prefill_result"]) for record in (first, second)] == [
        ("ok", "failed"),
        ("ok", "no_worker"),
    ]


async def test_a_stage_finds_its_workers(tmp_path: Path) -> None:
    """While nobody is there the pool computes; who is found then is asked."""
    names = tmp_path / "stage.yaml"
    names.write_text("[]")
    async with pair(workers={"file": str(names)}, up=1) as both:
        _, before = await both.ask([Send(computed())], STREAM)
        names.write_text(f"[{{name: s-1, url: '{both.first.url}'}}]")
        await both.gateway.metrics_when(lambda page: page.total("ridgeline_worker_up") == 2, 10)
        await asyncio.sleep(1.0)  # the serving process takes it over meanwhile
        _, found = await both.ask([Send(computed())], STREAM)

    assert [record["prefill_result"] for record in (before, found)] == ["no_worker", "computed"]
    assert found["prefill_worker"] == "s-1"


async def test_what_gains_nothing_goes_to_the_pool_at_once() -> None:
    """Several choices, one token, what transfers itself or asks for log-probabilities of the prompt, and a short prompt."""
    gains: list[dict[str, Any]] = [
        {"n": 2},
        {"max_tokens": 1},
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"prompt_logprobs": 1},
    ]
    async with pair() as both:
        records = [(await both.ask([Send(computed())], STREAM, **fields))[1] for fields in gains]
    async with pair(min_prompt_tokens=1000) as other:
        records.append((await other.ask([Send(computed())], STREAM))[1])

    assert both.asked == ([], [chat_body("tiny", **fields) for fields in gains])
    assert other.asked == ([], [chat_body("tiny")])
    assert {record["prefill_result"] for record in records} == {None}


async def test_a_decode_worker_that_fails_is_followed_by_one_that_computes() -> None:
    """The blocks were for the one that failed: the next one gets the request as the client wrote it, and no second leg."""
    async with pair(2, {"retries": {"budget_per_second": 100}}) as both:
        answer, record = await both.ask([Send(computed())], [Send(plain(500, {"error": {"message": "no"}}))], STREAM)
        await both.quiet()
        metrics = await both.gateway.metrics()

    assert (answer.status, record["outcome"], record["attempts"]) == (200, "ok", 2)
    assert len(both.asked[0]) == 1
    assert [body.get("kv_transfer_params") for body in both.asked[1]] == [PLACE, None]
    assert (record["prefill_result"], record["cached_tokens"]) == ("lost", 4)  # of the cache of who answered
    assert metrics.value("ridgeline_prefill_legs_total", pool="p", result="lost") == 1


async def test_a_decode_worker_that_refuses_the_blocks_computes() -> None:
    """The prefill worker has taken the request, so what is wrong may be the blocks, or who has them may have gone: it is asked
    once more, without them. What it says then is the answer."""
    refused = [Send(plain(400, {"error": {"message": "no such blocks"}}))]
    broken = [Send(plain(500, {"error": {"message": "no"}}))]
    async with pair() as both:
        first = await both.ask([Send(computed())], refused, STREAM)
        second = await both.ask([Send(computed())], broken, STREAM)
        third = await both.ask([Send(computed())], refused)
        await both.quiet()
        sent, pending = figures(both.gateway, PROMPT_WORK).values()

    told = [(answer.status, record["attempts"], record["prefill_result"]) for answer, record in (first, second, third)]
    assert told == [(200, 2, "lost"), (200, 2, "lost"), (400, 2, "lost")]
    assert [body.get("kv_transfer_params") for body in both.asked[1]] == [PLACE, None] * 3
    assert sent[0] == 3 * third[1]["estimated_prompt_tokens"] > 0  # computed there after all, each once
    assert pending == [0, 0]


async def test_a_client_that_leaves_ends_the_first_leg() -> None:
    """The prefill worker's connection is closed at once, nobody decodes, and nothing stays in flight."""
    async with pair() as both:
        both.first.script = lambda _request: [Hang()]
        async with await RawClient.connect(both.gateway.base_url) as client:
            await client.send(request_bytes("POST", CHAT, chat_body("tiny")))
            (asked,) = await both.first.received(1)
            client.reset()
            await asked.closed(timeout_seconds=1.5)
        (record,) = await both.gateway.records(1)
        await both.quiet()

    assert (record["outcome"], record["phase"], record["prefill_result"]) == ("client_gone", "wait", "abandoned")
    assert both.asked[1] == []


async def test_simulated_workers_take_the_blocks() -> None:
    """A worker that checks the exchange as vLLM's does: the prompt's tokens come from the other one, all but the last.

    Asked again, the stage has them in its prefix cache, and that is the hit. Of the two legs only the pace has limits.
    """
    async with AsyncExitStack() as stack:
        urls = []
        for _ in range(2):
            settings = WorkerSettings(
                model="tiny",
                shape="llama-3.1-8b",
                gpu="h100-sxm",
                port=0,
                control_port=0,
                kv_connector=True,
                prompt_tokens_details=True,
            )
            worker, url = await start_worker(settings)
            stack.push_async_callback(worker.cleanup)
            urls.append(url)
        pool = {"name": "p", "gpu": "h100-sxm", "workers": [urls[1]], "prefill": {"workers": [urls[0]]}}
        model = {"name": "tiny", "shape": "llama-3.1-8b", "pools": [pool]}
        gateway = await stack.enter_async_context(running_gateway({"models": [model]}))
        async with await RawClient.connect(gateway.base_url) as client:
            body = chat_body("tiny", max_tokens=8, ignore_eos=True) | {
                "messages": [{"role": "user", "content": "water " * 2000}]
            }
            answer = await client.request("POST", CHAT, body)
            (record,) = await gateway.records(1)
            _, page = await gateway.get(urls[1] + "/metrics")
            again = await client.request("POST", CHAT, body)
            _, warm = await gateway.records(2)

    (moved,) = [line for line in page.splitlines() if _MOVED.match(line)]
    assert (answer.status, record["prefill_result"], record["completion_tokens"]) == (200, "computed", 8)
    assert float(moved.rsplit(" ", 1)[1]) == record["prompt_tokens"] - 1 > 2000
    assert (again.status, warm["prefill_result"], record["cached_tokens"]) == (200, "computed", 0)
    assert 1900 < warm["cached_tokens"] < warm["prompt_tokens"] - 1
    assert record["ttft_floor_seconds"] is None
    assert 0.0 < record["tpot_floor_seconds"] < record["tpot_expected_seconds"]
