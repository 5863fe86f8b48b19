"""Workers that are ill in ways that no health check shows: they get no new requests, nobody notices, and they come back."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from simulator.faults import End, Faults
from simulator.server import RunningWorker, WorkerSettings, start_worker
from tests.http1 import chunk, last_chunk
from tests.integration.answers import chat_events, event, sse_head
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.raw_client import Answer, RawClient, request_bytes
from tests.integration.raw_client import End as Ended
from tests.integration.scene import CHAT, chat_body, events_of, running_scene, unreachable
from tests.integration.steps import Hang, Send, Until

# They hold the gateway against a clock on a machine that others may use: a second look before a failure counts.
pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

MESSAGES = [{"role": "user", "content": "water " * 50}]
QUICK: dict[str, Any] = {"ejection_seconds": 1, "silence_seconds": 1, "slow_start_seconds": 0}
MANY: dict[str, Any] = {"budget_per_second": 1000}


class Ward:
    """A gateway before simulated workers of one model."""

    def __init__(self, gateway: Gateway, workers: list[RunningWorker], names: list[str]) -> None:
        self.gateway = gateway
        self.workers = workers
        self.names = names
        self._ids = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Ward {self.gateway!r}>"

    @property
    def seen(self) -> list[int]:
        """How many requests for tokens each worker has had since its faults were set last."""
        return [running.worker.switch.seen for running in self.workers]

    async def ask(self, *, stream: bool = True, timeout_seconds: float = 20.0, **fields: Any) -> tuple[Answer, dict[str, Any]]:
        """Send one request, read its answer to the end, and wait for its record."""
        request_id = f"health-{next(self._ids)}"
        body = chat_body("tiny", stream=stream, **{"max_tokens": 4, "ignore_eos": True, "messages": MESSAGES, **fields})
        async with await RawClient.connect(self.gateway.base_url) as client:
            await client.send(request_bytes("POST", CHAT, body, [("X-Request-Id", request_id)]))
            answer = await client.read_answer(timeout_seconds)
        async with asyncio.timeout(5):
            while True:
                for line in self.gateway.log_lines():
                    if line.get("request_id") == request_id:
                        return answer, line
                await asyncio.sleep(0.02)

    async def outcomes(self, count: int) -> list[tuple[str, int]]:
        """Outcome and attempts of so many requests, one after another."""
        records = [(await self.ask())[1] for _ in range(count)]
        return [(record["outcome"], record["attempts"]) for record in records]

    async def conditions(self) -> list[str]:
        """What the admin listener says of each worker."""
        _, text = await self.gateway.get(self.gateway.admin_url + "/api/state")
        return [worker["condition"] for worker in json.loads(text)["pools"][0]["workers"]]

    async def until(self, holds: Callable[[list[str]], bool], timeout_seconds: float = 10.0) -> list[str]:
        """Wait until the conditions are such. TimeoutError when they never are."""
        ends_at = time.monotonic() + timeout_seconds
        while not holds(found := await self.conditions()):
            if time.monotonic() > ends_at:
                raise TimeoutError(f"conditions are {found}")
            await asyncio.sleep(0.05)
        return found

    async def quiet(self) -> None:
        """Wait until nothing is in flight, exactly."""
        names = ("ridgeline_in_flight_requests", "ridgeline_in_flight_tokens")
        await self.gateway.metrics_when(
            lambda metrics: all(sample.value == 0 for name in names for sample in metrics[name]), 10
        )


@asynccontextmanager
async def ward(
    workers: int = 2,
    *,
    health: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    retries: Mapping[str, Any] = MANY,
    processes: int = 1,
) -> AsyncIterator[Ward]:
    async with AsyncExitStack() as stack:
        running, names = [], []
        for _ in range(workers):
            settings = WorkerSettings(model="tiny", shape="llama-3.1-8b", gpu="h100-sxm", port=0, control_port=0)
            worker, url = await start_worker(settings)
            stack.push_async_callback(worker.cleanup)
            running.append(worker)
            names.append(url.removeprefix("http://"))
        pool = {
            "name": "default",
            "policy": "round-robin",
            "workers": [f"http://{name}" for name in names],
            "limits": dict(limits or {}),
        }
        config = {
            "models": [{"name": "tiny", "pools": [pool]}],
            "health": {**QUICK, **(health or {})},
            "retries": dict(retries),
        }
        gateway = await stack.enter_async_context(running_gateway(config, processes=processes))
        await gateway.ready(gateway.observe_url)
        await gateway.metrics_when(lambda metrics: metrics.total("ridgeline_worker_up") == workers, 15)
        yield Ward(gateway, running, names)


async def test_a_worker_that_fails_its_requests_is_left_out_and_comes_back() -> None:
    """A worker that drains says 500 to all while its health check is well: nobody notices, soon nobody is sent there; then it
    gets one request as a trial, and its share when that goes well."""
    async with ward() as one:
        await one.workers[0].apply(Faults(draining=True))
        before = await one.outcomes(14)
        left_out = await one.until(lambda conditions: conditions[0] == "ejected: errors")
        page = await one.gateway.metrics_when(lambda metrics: metrics.value("ridgeline_worker_left_out", reason="errors") == 1)

        assert {outcome for outcome, _ in before} == {"ok"}
        assert sum(attempts for _, attempts in before) == 14 + 5
        assert left_out == ["ejected: errors", "up"]
        assert page.value("ridgeline_worker_up", worker=one.names[0]) == 1

        await one.workers[0].apply(Faults())
        await one.until(lambda conditions: conditions[0] != "up")
        await asyncio.sleep(1.7)
        after = await one.outcomes(8)
        await one.until(lambda conditions: conditions == ["up", "up"])

        assert after == [("ok", 1)] * 8
        assert one.seen[0] >= 3
        await one.gateway.metrics_when(lambda metrics: "ridgeline_worker_left_out" not in metrics)
        await asyncio.sleep(1.2)
        log = one.gateway.stderr
        assert f"worker {one.names[0]} gets no new requests: its requests fail" in log
        assert f"worker {one.names[0]} gets requests again" in log


async def test_a_trial_that_fails_costs_one_request_a_retry() -> None:
    """While the worker stays ill, one request finds out each time that its time is over, and the times grow."""
    async with ward() as one:
        await one.workers[0].apply(Faults(draining=True))
        await one.outcomes(12)
        seen = one.seen[0]
        ends_at = time.monotonic() + 4
        outcomes = []
        while time.monotonic() < ends_at:
            outcomes += await one.outcomes(1)
            await asyncio.sleep(0.02)

        assert {outcome for outcome, _ in outcomes} == {"ok"}
        assert 1 <= one.seen[0] - seen <= 2


async def test_a_worker_that_refuses_connections_is_left_out_at_once() -> None:
    """One request finds it out, the next ones go elsewhere; when it listens again it is taken back."""
    async with ward() as one:
        await one.workers[0].apply(Faults(refuse=True))
        outcomes = await one.outcomes(8)
        await one.until(lambda conditions: conditions[0] in ("ejected: errors", "down"))
        await one.workers[0].apply(Faults())

        assert {outcome for outcome, _ in outcomes} == {"ok"}
        assert sum(attempts for _, attempts in outcomes) == 9
        async with asyncio.timeout(15):
            while one.seen[0] == 0:
                assert (await one.outcomes(1))[0][0] == "ok"


async def test_an_engine_that_hangs_is_found_out_by_its_silence() -> None:
    """A worker whose health check is well and that answers nothing: what waits there goes to the other, as do new requests."""
    async with ward() as one:
        await one.workers[0].apply(Faults(pause=True))
        began = time.monotonic()
        pairs = await asyncio.gather(*(one.ask() for _ in range(6)))
        seconds = time.monotonic() - began
        found = await one.until(lambda conditions: conditions[0] == "ejected: silence")
        later = await one.outcomes(2)

        assert [record["outcome"] for _, record in pairs] == ["ok"] * 6
        assert sorted(record["attempts"] for _, record in pairs) == [1, 1, 1, 2, 2, 2]
        assert 1.0 < seconds < 5
        assert found == ["ejected: silence", "up"]
        assert [outcome for outcome, _ in later] == ["ok"] * 2
        await one.workers[0].apply(Faults())
        async with asyncio.timeout(20):
            while (await one.conditions())[0] != "up":
                await one.outcomes(1)
        await one.quiet()


async def test_no_first_byte_again_and_again_takes_a_worker_out() -> None:
    """Where the limit on the first byte is short, that limit finds it out, request by request."""
    async with ward(limits={"first_byte_seconds": 0.5}, health={"failures_in_row": 2, "silence_seconds": 60}) as one:
        await one.workers[0].apply(Faults(silent=True))
        outcomes = await one.outcomes(6)

        assert {outcome for outcome, _ in outcomes} == {"ok"}
        assert sum(attempts for _, attempts in outcomes) == 8
        assert await one.until(lambda conditions: conditions[0] == "ejected: silence")


async def test_streams_that_stand_still_take_a_worker_out_until_they_go_on() -> None:
    """When all streams of a worker stop in the middle it gets no new ones; those that run are left alone, and end well."""
    async with ward() as one:
        streams = [asyncio.create_task(one.ask(max_tokens=400)) for _ in range(4)]
        await asyncio.sleep(0.7)
        await one.workers[0].apply(Faults(pause=True))
        await one.until(lambda conditions: conditions[0] == "ejected: silence")
        during = await one.outcomes(4)
        seen = one.seen[0]
        await one.workers[0].apply(Faults())
        answers = await asyncio.gather(*streams)
        await one.until(lambda conditions: conditions[0] == "up")

        assert during == [("ok", 1)] * 4
        assert seen == 0
        assert [(record["outcome"], record["attempts"]) for _, record in answers] == [("ok", 1)] * 4


async def test_one_silent_stream_among_others_is_no_silent_worker() -> None:
    """A single request that never begins says nothing of a worker that answers the others."""
    async with ward(1, health={"max_ejected_ratio": 1.0}) as one:
        await one.workers[0].apply(Faults(silent=True, count=1))
        stuck = asyncio.create_task(one.ask())
        async with asyncio.timeout(5):
            while one.seen == [0]:  # noqa: ASYNC110 -- a count of the worker's, no event
                await asyncio.sleep(0.01)
        ends_at = time.monotonic() + 4
        while time.monotonic() < ends_at:
            assert (await one.outcomes(1)) == [("ok", 1)]
            assert await one.conditions() == ["up"]
            await asyncio.sleep(0.05)
        stuck.cancel()


async def test_a_long_answer_in_one_piece_is_no_silence() -> None:
    """A plain request says nothing until it is complete; that alone takes no worker out."""
    async with ward(1, health={"max_ejected_ratio": 1.0}) as one:
        asking = asyncio.create_task(one.ask(stream=False, max_tokens=400))
        while not asking.done():
            assert await one.conditions() == ["up"]
            await asyncio.sleep(0.2)
        _, record = await asking

        assert (record["outcome"], record["attempts"]) == ("ok", 1)
        assert record["e2e_seconds"] > 2


async def test_many_requests_at_a_hung_worker_do_not_harm_the_others() -> None:
    """With two hundred requests waiting at one worker, another pool is served as ever."""
    async with ward(2, health={"silence_seconds": 60}) as one:
        await one.workers[0].apply(Faults(pause=True))
        waiting = [asyncio.create_task(one.ask(timeout_seconds=60)) for _ in range(200)]
        await asyncio.sleep(1)
        done = [task for task in waiting if task.done()]
        began = time.monotonic()
        status, _ = await one.gateway.get(one.gateway.base_url + "/livez")
        assert (status, time.monotonic() - began < 0.5) == (200, True)
        assert len(done) >= 90
        assert {task.result()[1]["outcome"] for task in done} == {"ok"}
        await one.workers[0].apply(Faults())
        answers = await asyncio.gather(*waiting)
        assert {record["outcome"] for _, record in answers} == {"ok"}
        await one.quiet()


async def test_what_clients_do_wrong_is_not_held_against_workers() -> None:
    """Twenty requests that a worker refuses as too long leave it as it was."""
    async with ward(1, health={"max_ejected_ratio": 1.0, "failures_in_row": 3, "failure_ratio_requests": 3}) as one:
        await one.workers[0].apply(Faults(status=400))
        wrong = [await one.ask() for _ in range(20)]
        assert await one.conditions() == ["up"]
        await one.workers[0].apply(Faults())

        assert {(answer.status, record["attempts"]) for answer, record in wrong} == {(400, 1)}
        assert await one.outcomes(1) == [("ok", 1)]


@pytest.mark.parametrize("status", [503, 429])
async def test_traffic_resumes_at_once_after_a_worker_was_busy(status: int) -> None:
    """Refusals of a single worker with a full queue are passed on, and do not outlast it."""
    async with ward(1, health={"max_ejected_ratio": 1.0, "failures_in_row": 2}) as one:
        await one.workers[0].apply(Faults(status=status, retry_after_seconds=30))
        refused = [await one.ask() for _ in range(10)]
        await one.workers[0].apply(Faults())

        assert {(answer.status, record["outcome"]) for answer, record in refused} == {(status, "worker_busy")}
        assert await one.outcomes(3) == [("ok", 1)] * 3
        assert await one.conditions() == ["up"]


async def test_a_busy_worker_is_passed_over_while_another_is_free() -> None:
    """After its refusal requests go to the other one for as long as it asked for, and nobody is left out."""
    async with ward() as one:
        await one.workers[0].apply(Faults(status=429, retry_after_seconds=30))
        outcomes = await one.outcomes(8)

        assert {outcome for outcome, _ in outcomes} == {"ok"}
        assert one.seen[0] == 1
        assert await one.conditions() == ["up", "up"]


async def test_a_single_worker_is_never_left_out() -> None:
    """There is nobody else: its failures are passed on, and the first request after they end is served."""
    async with ward(1) as one:
        await one.workers[0].apply(Faults(status=500))
        failed = [await one.ask() for _ in range(8)]
        await one.workers[0].apply(Faults())

        assert {answer.status for answer, _ in failed} == {500}
        assert await one.outcomes(1) == [("ok", 1)]


async def test_when_all_fail_half_is_left_out_and_all_are_tried() -> None:
    """Of four workers that all fail, two are left out; requests are answered as soon as any of the others is well."""
    async with ward(4, retries={**MANY, "max_attempts": 4}) as one:
        for worker in one.workers:
            await worker.apply(Faults(status=500))
        for _ in range(12):
            answer, record = await one.ask()
            assert (answer.status, record["outcome"]) == (500, "worker_error")
        conditions = await one.until(lambda found: found.count("ejected: errors") == 2)
        await one.workers[conditions.index("ejected: errors")].apply(Faults())

        assert (await one.ask())[1]["outcome"] == "ok"


async def test_a_worker_that_becomes_unready_keeps_its_streams() -> None:
    """When a health check turns to 503 there are no new requests; those that run are left alone."""
    async with ward() as one:
        streams = [asyncio.create_task(one.ask(max_tokens=1200, timeout_seconds=40)) for _ in range(2)]
        await asyncio.sleep(0.3)
        await one.workers[0].apply(Faults(health_status=503))
        await one.until(lambda conditions: conditions[0] == "down", 20)
        during = await one.outcomes(4)

        assert during == [("ok", 1)] * 4
        assert one.seen[0] == 0
        answers = await asyncio.gather(*streams)
        assert [(answer.end, record["outcome"]) for answer, record in answers] == [(Ended.COMPLETE, "ok")] * 2
        assert all(len(events_of(answer.body)) > 1000 for answer, _ in answers)


async def test_one_process_tells_the_others() -> None:
    """With several serving processes, what one has found out is soon known to all of them."""
    async with ward(2, processes=2, health={"ejection_seconds": 30}) as one:
        await one.workers[0].apply(Faults(end=End.RESET))
        async with asyncio.timeout(20):
            while (await one.conditions())[0] == "up":
                assert (await one.outcomes(1))[0][0] == "ok"
        await asyncio.sleep(1.2)
        seen = one.seen[0]
        outcomes = [await one.outcomes(1) for _ in range(12)]

        assert [each[0][0] for each in outcomes] == ["ok"] * 12
        assert one.seen[0] == seen


async def test_a_worker_that_cannot_be_reached_delays_nobody() -> None:
    """While connections to one worker hang, a stream from another flows, and the gateway answers its own probes at once."""
    token = chunk(event(chat_events(["t"])[1]))
    async with running_scene({"tiny": {}, "far": {}}) as scene:
        far = scene.workers["far"][0]
        await scene.gateway.metrics_when(lambda metrics: metrics.value("ridgeline_worker_up", worker=far.url[7:]) == 1, 15)
        await far.stop()
        with unreachable(far.port):
            lost = [asyncio.create_task(scene.ask([Hang()], body=chat_body("far"))) for _ in range(20)]
            gates = [asyncio.Event() for _ in range(60)]
            steps = [step for gate in gates for step in (Until(gate), Send(token))]
            request_id = scene.plays([Send(sse_head()), *steps, Send(last_chunk())])
            delays, answers = [], []
            async with await scene.connect() as client:
                await client.send(scene.request(request_id, chat_body()))
                await scene.arrival(request_id)
                for gate in gates:
                    began = time.monotonic()
                    gate.set()
                    await client.read_until(b"\n\n")
                    delays.append(time.monotonic() - began)
                    began = time.monotonic()
                    status, _ = await scene.gateway.get(scene.gateway.base_url + "/livez")
                    answers.append((status, time.monotonic() - began))
                    await asyncio.sleep(0.05)
            seen = await asyncio.gather(*lost)
        await far.start()

        assert statistics.median(delays) < 0.01, delays
        assert {status for status, _ in answers} == {200}
        assert statistics.median(seconds for _, seconds in answers) < 0.1
        assert {one.answer.status for one in seen} == {503}
