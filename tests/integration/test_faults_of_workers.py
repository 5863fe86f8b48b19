"""Each fault that a simulated worker can have, and what the gateway makes of it: client, record, requests in flight."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from simulator.faults import End, Faults
from simulator.server import RunningWorker, WorkerSettings, start_worker
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.raw_client import Answer, RawClient, request_bytes
from tests.integration.raw_client import End as Ended
from tests.integration.scene import CHAT, chat_body, events_of

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

STEP_SECONDS = 0.007  # of the GPU that the workers take their timing from
ILL = Faults(health_status=503)
MESSAGES = [{"role": "user", "content": "water " * 200}]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request from both ends."""

    answer: Answer
    record: dict[str, Any]

    @property
    def texts(self) -> str:
        """All that the model said in a stream."""
        chunks = [chunk for chunk in events_of(self.answer.body) if isinstance(chunk, dict) and chunk.get("choices")]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


class Stage:
    """A gateway before simulated workers, by model."""

    def __init__(self, gateway: Gateway, workers: dict[str, list[RunningWorker]], mortal: asyncio.subprocess.Process) -> None:
        self.gateway = gateway
        self.workers = workers
        self.mortal = mortal  # the process of the model of that name
        self._ids = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Stage {self.gateway!r}>"

    async def ask(self, model: str = "tiny", *, stream: bool = True, **fields: Any) -> Seen:
        """Send one request, read its answer to the end, and wait for its record."""
        request_id = f"fault-{next(self._ids)}"
        body = chat_body(model, stream=stream, **{"max_tokens": 6, "ignore_eos": True, "messages": MESSAGES, **fields})
        async with await RawClient.connect(self.gateway.base_url) as client:
            await client.send(request_bytes("POST", CHAT, body, [("X-Request-Id", request_id)]))
            answer = await client.read_answer()
        return Seen(answer, await self._record(request_id))

    async def quiet(self) -> None:
        """Wait until nothing is in flight any more. TimeoutError when something stays."""
        async with asyncio.timeout(5):
            while True:
                _, page = await self.gateway.get(self.gateway.observe_url + "/metrics")
                lines = [line for line in page.splitlines() if line.startswith("ridgeline_in_flight_requests{")]
                if lines and all(float(line.rpartition(" ")[2]) == 0 for line in lines):
                    return
                await asyncio.sleep(0.02)

    async def _record(self, request_id: str) -> dict[str, Any]:
        async with asyncio.timeout(5):
            while True:
                for line in self.gateway.log_lines():
                    if line.get("request_id") == request_id:
                        return line
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    """Models with one worker, with one and short limits, with two in turn, and with two of which one is ill from the start."""
    counts = {"tiny": 1, "hasty": 1, "two": 2, "half": 2}
    pools: dict[str, dict[str, Any]] = {
        "hasty": {"limits": {"first_byte_seconds": 1, "token_gap_seconds": 1}},
        "two": {"policy": "round-robin"},
        "half": {"policy": "round-robin"},
    }
    workers: dict[str, list[RunningWorker]] = {model: [] for model in counts}
    async with AsyncExitStack() as stack:
        mortal, mortal_url = await stack.enter_async_context(mortal_worker())
        models = [{"name": "mortal", "workers": [mortal_url]}]
        for model, count in counts.items():
            urls = []
            for number in range(count):
                faults = ILL if model == "half" and number == 0 else Faults()
                settings = WorkerSettings(
                    model=model,
                    shape="llama-3.1-8b",
                    gpu="h100-sxm",
                    port=0,
                    prompt_tokens_details=True,
                    faults=faults,
                    control_port=0,
                )
                running, url = await start_worker(settings)
                stack.push_async_callback(running.cleanup)
                workers[model].append(running)
                urls.append(url)
            models.append({"name": model, "pools": [{"name": "default", "workers": urls, **pools.get(model, {})}]})
        gateway = await stack.enter_async_context(running_gateway({"models": models}))
        await gateway.ready(gateway.observe_url)
        yield Stage(gateway, workers, mortal)


@asynccontextmanager
async def mortal_worker() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A worker in a process of its own, which ends in the middle of its first answer; and its URL."""
    faults = json.dumps({"end": "exit", "end_at_token": 3})
    command = [
        "-m",
        "simulator.worker",
        "--model",
        "mortal",
        "--shape",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
        "--port",
        "0",
        "--faults",
        faults,
    ]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        yield process, line.decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def no_faults_left(stage: Stage) -> AsyncIterator[None]:
    """What a test puts in force ends with it, and nothing stays in flight."""
    yield
    for model in ("tiny", "hasty", "two"):
        for running in stage.workers[model]:
            await running.apply(Faults())
    await stage.quiet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fault, and how a request ends that it hits."""

    faults: Faults
    outcome: str
    status: int = 200
    end: Ended = Ended.COMPLETE
    code: str | None = None  # of the gateway's own error, as the answer or as its last event
    stream: bool = True
    model: str = "tiny"
    record: dict[str, Any] = field(default_factory=dict)


CUT: dict[str, Any] = {"outcome": "truncated", "end": Ended.CUT, "code": "worker_disconnected"}
FAILED: dict[str, Any] = {"outcome": "worker_error", "status": 502, "code": "worker_failed"}
LATE: dict[str, Any] = {"outcome": "timeout", "status": 504, "code": "first_byte_timeout", "model": "hasty"}
CASES = {
    "none": Case(faults=Faults(), outcome="ok", record={"completion_tokens": 6, "missing_end": None}),
    # states of the worker
    "paused": Case(faults=Faults(pause=True), **LATE),
    "draining": Case(faults=Faults(draining=True), outcome="worker_error", status=500, record={"worker_status": 500}),
    "draining, plain": Case(faults=Faults(draining=True), outcome="worker_error", status=500, stream=False),
    "refusing": Case(faults=Faults(refuse=True), outcome="worker_error", status=503, code="worker_unreachable"),
    # instead of tokens
    "silent": Case(faults=Faults(silent=True), **LATE),
    "silent, plain": Case(faults=Faults(silent=True), stream=False, **LATE),
    "busy": Case(faults=Faults(status=429, retry_after_seconds=7), outcome="worker_busy", status=429),
    "busy, without a word of when": Case(faults=Faults(status=503), outcome="worker_busy", status=503),
    "failing": Case(faults=Faults(status=500), outcome="worker_error", status=500),
    # in place of a token
    "reset at once": Case(faults=Faults(end=End.RESET), **FAILED),
    "reset": Case(faults=Faults(end=End.RESET, end_at_token=3), **CUT),
    "reset, plain": Case(faults=Faults(end=End.RESET, end_at_token=3), stream=False, **FAILED),
    "closed": Case(faults=Faults(end=End.CLOSE, end_at_token=3), **CUT),
    "closed, plain": Case(faults=Faults(end=End.CLOSE, end_at_token=3), stream=False, **FAILED),
    "stalled": Case(
        faults=Faults(end=End.STALL, end_at_token=3), outcome="stalled", end=Ended.CUT, code="worker_stalled", model="hasty"
    ),
    "stalled, with comments": Case(
        faults=Faults(end=End.STALL, end_at_token=3, comment_seconds=0.1),
        outcome="stalled",
        end=Ended.CUT,
        code="worker_stalled",
        model="hasty",
    ),
    "ended without a finish": Case(faults=Faults(end=End.CUT, end_at_token=3), outcome="truncated"),
    "half of a plain answer": Case(
        faults=Faults(end=End.CUT, end_at_token=3), outcome="truncated", end=Ended.CUT, stream=False
    ),
    "a bad chunk": Case(faults=Faults(end=End.BAD_CHUNK, end_at_token=3), **CUT),
    "a bad chunk at once": Case(faults=Faults(end=End.BAD_CHUNK), **FAILED),
    "an error event at once": Case(faults=Faults(end=End.ERROR), outcome="worker_error", record={"ttft_seconds": None}),
    "an error event": Case(faults=Faults(end=End.ERROR, end_at_token=3), outcome="worker_error"),
    "an error, plain": Case(faults=Faults(end=End.ERROR, end_at_token=3), outcome="worker_error", status=500, stream=False),
    "aborted": Case(faults=Faults(end=End.ABORT, end_at_token=3), outcome="aborted", record={"completion_tokens": 3}),
    "aborted, plain": Case(faults=Faults(end=End.ABORT, end_at_token=3), outcome="aborted", stream=False),
    # in another form
    "byte by byte": Case(faults=Faults(bytewise=True), outcome="ok", record={"completion_tokens": 6, "token_events": 6}),
    "byte by byte, plain": Case(faults=Faults(bytewise=True), outcome="ok", stream=False, record={"completion_tokens": 6}),
    "lines end in CR LF": Case(faults=Faults(crlf=True), outcome="ok", record={"completion_tokens": 6, "token_events": 6}),
    "several tokens an event": Case(
        faults=Faults(tokens_per_event=5), outcome="ok", record={"completion_tokens": 6, "token_events": 2}
    ),
    "no end mark": Case(faults=Faults(missing_done=True), outcome="ok", record={"missing_end": "done"}),
    "no usage": Case(
        faults=Faults(missing_usage=True),
        outcome="ok",
        record={"prompt_is_estimate": True, "completion_is_estimate": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_how_a_fault_ends_a_request(stage: Stage, name: str) -> None:
    """The client gets what can be had and can tell it from a whole answer, and the record says how it ended."""
    case = CASES[name]
    for running in stage.workers[case.model]:
        await running.apply(case.faults)

    seen = await stage.ask(case.model, stream=case.stream)

    assert (seen.answer.status, seen.answer.end, seen.record["outcome"]) == (case.status, case.end, case.outcome)
    assert {name: seen.record[name] for name in case.record} == case.record
    if case.code is not None:
        error = seen.answer.json() if seen.answer.end is Ended.COMPLETE else events_of(seen.answer.body)[-1]
        assert error["error"]["code"] == case.code
    if case.faults.retry_after_seconds is not None:
        assert seen.answer.head is not None
        assert seen.answer.head.get("retry-after") == "7"


@pytest.mark.parametrize("faults", [Faults(bytewise=True), Faults(tokens_per_event=5), Faults(missing_done=True)])
async def test_the_form_does_not_change_what_is_said(stage: Stage, faults: Faults) -> None:
    """A client reads the same text, in whatever pieces it came."""
    expected = (await stage.ask()).texts
    await stage.workers["tiny"][0].apply(faults)

    assert (await stage.ask()).texts == expected


async def test_a_slow_worker_is_measured_as_slow(stage: Stage) -> None:
    """Five times as long a step is about five times as long a gap between tokens."""
    usual = await stage.ask(max_tokens=12)
    await stage.workers["tiny"][0].apply(Faults(slow_factor=5))
    slow = await stage.ask(max_tokens=12)

    assert usual.record["tpot_seconds"] >= 0.9 * STEP_SECONDS
    assert slow.record["tpot_seconds"] >= 4.5 * STEP_SECONDS


async def test_the_role_event_is_no_token(stage: Stage) -> None:
    """A first event without text, however early, and comments behind it do not count as the first token."""
    await stage.workers["tiny"][0].apply(Faults(first_token_delay_seconds=0.4, comment_seconds=0.1))

    seen = await stage.ask()

    assert b": keep-alive" in seen.answer.body
    assert 0.4 <= seen.record["ttft_seconds"] < seen.record["e2e_seconds"]
    assert seen.record["ttft_first_byte_seconds"] < 0.3


async def test_a_cold_cache_is_seen_in_the_counts(stage: Stage) -> None:
    """A prompt that was warm is not found any more, and is warm again when the fault is over."""
    cached = []
    for faults in (Faults(), Faults(), Faults(cold_cache=True), Faults()):
        await stage.workers["tiny"][0].apply(faults)
        cached.append((await stage.ask()).record["cached_tokens"])

    assert cached[2] == 0
    assert cached[1] == cached[3] > 200


async def test_an_unhealthy_worker_gets_no_requests(stage: Stage) -> None:
    """When /health says 503 on one of two workers, requests go to the other."""
    await stage.gateway.metrics_when(lambda metrics: metrics.total("ridgeline_worker_up", model="half") == 1, 15)

    outcomes = [(await stage.ask("half")).record["outcome"] for _ in range(4)]

    assert outcomes == ["ok"] * 4
    assert [running.worker.switch.seen for running in stage.workers["half"]] == [0, 4]


async def test_another_worker_answers_when_the_first_refuses(stage: Stage) -> None:
    """A worker that is not reached costs an attempt and no answer, while another one is well."""
    await stage.workers["two"][0].apply(Faults(refuse=True))

    seen = [await stage.ask("two") for _ in range(2)]

    assert [one.record["outcome"] for one in seen] == ["ok", "ok"]
    assert sorted(one.record["attempts"] for one in seen) == [1, 2]


async def test_faults_of_a_few_requests_hit_a_few(stage: Stage) -> None:
    """A count of one hits the first request only."""
    await stage.workers["tiny"][0].apply(Faults(end=End.CLOSE, end_at_token=2, count=1))

    outcomes = [(await stage.ask()).record["outcome"] for _ in range(3)]

    assert outcomes == ["truncated", "ok", "ok"]


async def test_a_process_that_is_gone(stage: Stage) -> None:
    """A worker whose process ends in mid-stream cuts the answer; after that its port refuses."""
    first = await stage.ask("mortal")
    status = await asyncio.wait_for(stage.mortal.wait(), 5)
    second = await stage.ask("mortal")

    assert status == 1
    assert (first.record["outcome"], first.answer.end) == ("truncated", Ended.CUT)
    assert second.answer.status in (502, 503)


async def test_faults_are_changed_at_run_time(stage: Stage) -> None:
    """The control port puts faults in force and ends them, while the worker serves."""
    url = f"{stage.workers['tiny'][0].control_url}/faults"
    outcomes = [(await stage.ask()).record["outcome"]]
    async with aiohttp.ClientSession(trust_env=False) as http:
        async with http.put(url, json={"end": "cut", "end_at_token": 2}) as answer:
            assert answer.status == 200
        outcomes.append((await stage.ask()).record["outcome"])
        async with http.delete(url) as answer:
            assert (await answer.json())["faults"] == {}
    outcomes.append((await stage.ask()).record["outcome"])

    assert outcomes == ["ok", "truncated", "ok"]
