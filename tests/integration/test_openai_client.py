"""The official client, unchanged, against the gateway in front of simulated workers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from simulator.server import WorkerSettings, start_worker
from tests.http1 import chunk
from tests.integration.answers import chat_events, event, plain, sse_head
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.scene import Scene, running_scene
from tests.integration.steps import Close, Send, Wait

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL, KEY = "llama-3.1-8b", "sk-app"
MESSAGES: Any = [{"role": "user", "content": "Tell me about water."}]
KEYS = {"keys": [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway in front of one simulated worker, which runs on this loop."""
    settings = WorkerSettings(model=MODEL, shape="llama-3.1-8b", gpu="h100-sxm", port=0, speed=20.0, max_model_len=4096)
    runner, url = await start_worker(settings)
    try:
        models = [{"name": MODEL, "aliases": ["llama"], "workers": [url]}]
        async with running_gateway({"models": models, **KEYS}) as one:
            yield one
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=gateway.base_url + "/v1", api_key=KEY, max_retries=0) as one:
        yield one


async def test_a_chat_is_streamed(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    """Chunks arrive with text and one finish reason, without usage that was not asked for; the record has the counts."""
    texts, reasons = [], []
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, max_tokens=8)
    async for part in stream:
        assert part.usage is None
        assert len(part.choices) == 1
        texts.append(part.choices[0].delta.content or "")
        reasons += [part.choices[0].finish_reason] if part.choices[0].finish_reason else []
    record = (await gateway.records())[-1]

    assert "".join(texts)
    assert reasons == record["finish_reasons"]
    assert (record["outcome"], record["stream"], record["completion_tokens"]) == ("ok", True, 8)
    assert record["ttft_seconds"] > 0


async def test_usage_comes_when_it_is_asked_for(client: openai.AsyncOpenAI) -> None:
    """With `include_usage` the last chunk has no choices and the counts."""
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, max_tokens=5, stream_options={"include_usage": True}
    )
    parts = [part async for part in stream]

    assert [part.usage is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 5


async def test_a_chat_is_answered_at_once(client: openai.AsyncOpenAI) -> None:
    """A plain answer parses, and its raw headers name the request, the worker and the pool."""
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, extra_headers={"X-Request-Id": "my-id-1"}
    )
    answer = raw.parse()

    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert raw.headers["x-request-id"] == answer._request_id == "my-id-1"
    assert raw.headers["x-ridgeline-worker"]
    assert raw.headers["x-ridgeline-pool"] == "default"


async def test_completions(client: openai.AsyncOpenAI) -> None:
    """The older endpoint, streamed and not, by name and by alias."""
    whole = await client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=6)
    parts = [part async for part in await client.completions.create(model="llama", prompt="Once", max_tokens=6, stream=True)]

    assert whole.choices[0].text
    assert "".join(part.choices[0].text for part in parts)
    assert parts[-1].choices[0].finish_reason


async def test_models(client: openai.AsyncOpenAI) -> None:
    """Models are listed with their aliases and can be looked up one by one."""
    listed = [model.id async for model in client.models.list()]

    assert set(listed) == {MODEL, "llama"}
    assert (await client.models.retrieve("llama")).id == "llama"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nobody")


async def test_the_synchronous_client(gateway: Gateway) -> None:
    """The client without asyncio works in the same way, in a thread."""

    def talk() -> tuple[str, str, list[str]]:
        with openai.OpenAI(base_url=gateway.base_url + "/v1", api_key=KEY, max_retries=0) as client:
            plain_one = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4)
            parts = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=True)
            streamed = "".join(part.choices[0].delta.content or "" for part in parts)
            completed = client.completions.create(model=MODEL, prompt="Once", max_tokens=4)
            return plain_one.choices[0].message.content or "", streamed, [completed.choices[0].text]

    answered, streamed, completed = await asyncio.to_thread(talk)

    assert answered
    assert streamed
    assert all(completed)


async def test_many_at_once(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    """Thirty requests at once are all answered."""

    async def one(number: int) -> int:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=number)
        assert answer.usage is not None
        return answer.usage.completion_tokens

    assert await asyncio.gather(*(one(number) for number in range(1, 31))) == list(range(1, 31))


ERRORS: list[tuple[type[openai.APIStatusError], dict[str, Any], str | None]] = [
    (openai.AuthenticationError, {"api_key": "sk-wrong"}, "invalid_api_key"),
    (openai.NotFoundError, {"model": "nobody"}, "model_not_found"),
    (openai.BadRequestError, {"max_tokens": 100_000}, None),
]


@pytest.mark.parametrize(("kind", "change", "code"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_their_classes(
    client: openai.AsyncOpenAI, kind: type[openai.APIStatusError], change: dict[str, Any], code: str | None, stream: bool
) -> None:
    """What the gateway refuses and what the worker refuses arrives as the exception that the client has for it."""
    used = client.with_options(api_key=change["api_key"]) if "api_key" in change else client
    wanted = {"model": MODEL, "messages": MESSAGES, "stream": stream, **{k: v for k, v in change.items() if k != "api_key"}}
    with pytest.raises(kind) as raised:
        await used.chat.completions.create(**wanted)

    assert raised.value.request_id
    assert raised.value.body
    if code is not None:
        assert raised.value.code == code


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway with a worker that answers as it is told."""
    async with running_scene(config={"limits": {"body_bytes": 10_000}}) as one:
        yield one


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
async def test_a_workers_errors_have_their_classes(scene: Scene, status: int, kind: type[openai.APIStatusError]) -> None:
    """A worker's refusal is the same exception as without the gateway."""
    error = {"error": {"message": "no", "type": "x", "param": None, "code": status}}
    request_id = scene.plays([Send(plain(status, error))])
    async with openai.AsyncOpenAI(base_url=scene.gateway.base_url + "/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(kind) as raised:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, extra_headers={"X-Request-Id": request_id})

    assert (raised.value.status_code, raised.value.body, raised.value.request_id) == (status, error["error"], request_id)


async def test_a_client_that_stops_reading_a_stream(scene: Scene) -> None:
    """Closing a stream early ends the request at the worker too; the record says that the client left."""
    role, token = (Send(chunk(event(item))) for item in chat_events(["a"])[:2])
    request_id = scene.plays([Send(sse_head()), role, *[step for _ in range(500) for step in (token, Wait(0.02))]])
    async with openai.AsyncOpenAI(base_url=scene.gateway.base_url + "/v1", api_key="x", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, extra_headers={"X-Request-Id": request_id}
        )
        async for _ in stream:
            break
        await stream.close()
        await (await scene.arrival(request_id)).closed(timeout_seconds=1)
    record = await scene.record(request_id)

    assert (record["outcome"], record["phase"]) == ("client_gone", "answer")
    await scene.quiet()


async def test_the_gateways_own_errors_have_their_classes(scene: Scene) -> None:
    """A worker that vanishes is an internal server error, a body that is too large a status error of 413; both have a code."""
    request_id = scene.plays([Close()])
    async with openai.AsyncOpenAI(base_url=scene.gateway.base_url + "/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, extra_headers={"X-Request-Id": request_id})
        with pytest.raises(openai.APIStatusError) as too_large:
            await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 20_000}])

    assert (failed.value.status_code, failed.value.code) == (502, "worker_failed")
    assert (too_large.value.status_code, too_large.value.code) == (413, "body_too_large")
