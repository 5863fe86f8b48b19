"""The official clients, unchanged, in front of what real workers sent: streams of each format, tool calls, errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pydantic
import pytest
import pytest_asyncio

from tests.captures import load
from tests.integration.answers import chat_answer, chat_events, plain, stream_of, usage_of
from tests.integration.scene import Scene, running_scene
from tests.integration.scripted_worker import Received
from tests.integration.steps import Script, Send

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "sk-app"
ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
CALL = {"city": "Paris", "days": 3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway whose worker answers with the capture that the request names as its user."""

    def script(request: Received) -> Script:
        fields = json.loads(request.body)
        name = fields.get("user") or fields["metadata"]["user_id"]
        return [Send(plain(503, {"error": {"message": "busy"}}))] if name == "busy" else [Send(load(name).response)]

    keys = [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]
    async with running_scene(config={"keys": keys}) as one:
        one.worker.script = script
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def claude(scene: Scene) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=scene.gateway.base_url, api_key=KEY, max_retries=0) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def gpt(scene: Scene) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=scene.gateway.base_url + "/v1", api_key=KEY, max_retries=0) as one:
        yield one


def named(name: str) -> dict[str, str]:
    """Headers with an id by which the record can be found."""
    return {"X-Request-Id": f"client-{name}"}


@pytest.mark.parametrize(
    ("name", "text", "thinking", "call"),
    [
        ("messages_eos_stream", "tokens.", False, False),
        ("messages_thinking_stream", "forty-two.", True, False),
        ("messages_tool_stream", "", False, True),
    ],
)
async def test_messages_are_streamed(
    scene: Scene, claude: anthropic.AsyncAnthropic, name: str, text: str, thinking: bool, call: bool
) -> None:
    """The client puts the message together; the record has its tokens and the reason why it ended."""
    async with claude.messages.stream(
        model="tiny", max_tokens=60, messages=ASK, metadata={"user_id": name}, extra_headers=named(name)
    ) as stream:
        message = await stream.get_final_message()
    record = await scene.record(f"client-{name}")
    kinds = [block.type for block in message.content]

    assert ("thinking" in kinds, "tool_use" in kinds) == (thinking, call)
    assert [block.text.endswith(text) for block in message.content if block.type == "text"] in ([True], [])
    assert [block.input for block in message.content if block.type == "tool_use"] == ([CALL] if call else [])
    assert record["completion_tokens"] == message.usage.output_tokens
    assert (record["endpoint"], record["outcome"], record["finish_reasons"]) == ("messages", "ok", [message.stop_reason])


async def test_messages_without_a_stream(scene: Scene, claude: anthropic.AsyncAnthropic) -> None:
    """A whole message, and tokens that are only counted."""
    message = await claude.messages.create(
        model="tiny", max_tokens=6, messages=ASK, metadata={"user_id": "messages_tool_nonstream"}
    )
    counted = await claude.messages.count_tokens(
        model="tiny", messages=ASK, extra_body={"metadata": {"user_id": "messages_count_tokens"}}
    )

    assert [block.input for block in message.content if block.type == "tool_use"] == [CALL]
    assert counted.input_tokens == 18


async def test_errors_of_messages(scene: Scene, claude: anthropic.AsyncAnthropic) -> None:
    """Errors of the gateway and of the worker are of the client's own classes, with their text."""
    with pytest.raises(anthropic.NotFoundError, match="model"):
        await claude.messages.create(model="nobody", max_tokens=6, messages=ASK)
    with pytest.raises(anthropic.InternalServerError):
        await claude.messages.create(model="tiny", max_tokens=6, messages=ASK, metadata={"user_id": "busy"})
    with pytest.raises(anthropic.AuthenticationError):
        await claude.with_options(api_key="sk-wrong").messages.create(model="tiny", max_tokens=6, messages=ASK)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("responses_stream", ["message"]),
        ("responses_reasoning_stream", ["reasoning", "message"]),
        ("responses_tool_stream", ["function_call"]),
    ],
)
async def test_responses_are_streamed(scene: Scene, gpt: openai.AsyncOpenAI, name: str, kinds: list[str]) -> None:
    """The client sees every event and the whole response; the record has its tokens."""
    stream = await gpt.responses.create(model="tiny", input="Hi", stream=True, user=name, extra_headers=named(name))
    events = [event async for event in stream]
    record = await scene.record(f"client-{name}")
    [done] = [event.response for event in events if event.type == "response.completed"]

    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [item.type for item in done.output] == kinds
    assert [json.loads(item.arguments) for item in done.output if item.type == "function_call"] == (
        [CALL] if "tool" in name else []
    )
    assert done.usage is not None
    assert (record["prompt_tokens"], record["completion_tokens"]) == (done.usage.input_tokens, done.usage.output_tokens)
    assert (record["endpoint"], record["outcome"]) == ("responses", "ok")


async def test_a_response_is_asked_for_again(scene: Scene, gpt: openai.AsyncOpenAI) -> None:
    """What was answered at once can be retrieved and cancelled by its id, where the worker keeps it."""
    made = await gpt.responses.create(model="tiny", input="Hi", user="responses_nonstream")
    kept = scene.worker.script
    scene.worker.script = [Send(load("responses_nonstream").response)]
    try:
        found = await gpt.responses.retrieve(made.id)
        cancelled = await gpt.responses.cancel(made.id)
    finally:
        scene.worker.script = kept

    assert (found.id, cancelled.id) == (made.id, made.id)
    assert [request.path for request in scene.worker.requests[-2:]] == [
        f"/v1/responses/{made.id}",
        f"/v1/responses/{made.id}/cancel",
    ]


async def test_a_response_in_the_background(scene: Scene, gpt: openai.AsyncOpenAI) -> None:
    """It is asked for while it is computed, at the worker that has it, until it is done or cancelled."""
    whole = json.loads(load("responses_nonstream").payload)
    kept, states = scene.worker.script, ["queued", "in_progress", "completed"]

    def script(request: Received) -> Script:
        state = "cancelled" if request.path.endswith("/cancel") else states.pop(0)
        begun = {} if state == "completed" else {"output": [], "usage": None}
        return [Send(plain(200, whole | {"status": state, "background": True} | begun))]

    scene.worker.script = script
    try:
        made = await gpt.responses.create(
            model="tiny", input="Hi", background=True, store=True, extra_headers=named("background")
        )
        record = await scene.record("client-background")
        seen = [(await gpt.responses.retrieve(made.id)).status for _ in range(2)]
        cancelled = await gpt.responses.cancel(made.id)
    finally:
        scene.worker.script = kept

    assert made.status == "queued"
    assert (seen, cancelled.status) == (["in_progress", "completed"], "cancelled")
    assert (record["outcome"], record["completion_tokens"]) == ("ok", None)


class Weather(pydantic.BaseModel):
    """What a model is to answer."""

    city: str
    days: int


@pytest.mark.parametrize("stream", [True, False])
async def test_structured_outputs(scene: Scene, gpt: openai.AsyncOpenAI, *, stream: bool) -> None:
    """The schema reaches the worker as the client wrote it, and what comes back is the object, streamed or not."""
    text, name = json.dumps(CALL), f"structured-{stream}"
    kept = scene.worker.script
    scene.worker.script = (
        stream_of(chat_events([text[:9], text[9:]], usage=usage_of(5, 2)))
        if stream
        else [Send(chat_answer(text, usage=usage_of(5, 2)))]
    )
    try:
        if stream:
            asked = gpt.chat.completions.stream(model="tiny", messages=ASK, response_format=Weather, extra_headers=named(name))
            async with asked as events:
                found = (await events.get_final_completion()).choices[0].message.parsed
        else:
            parsed = await gpt.chat.completions.parse(
                model="tiny", messages=ASK, response_format=Weather, extra_headers=named(name)
            )
            found = parsed.choices[0].message.parsed
        record = await scene.record(f"client-{name}")
    finally:
        scene.worker.script = kept
    sent = json.loads(scene.worker.requests[-1].body)["response_format"]["json_schema"]

    assert found == Weather(**CALL)
    assert (sent["name"], sent["strict"], sorted(sent["schema"]["properties"])) == ("Weather", True, ["city", "days"])
    assert (record["outcome"], record["completion_tokens"]) == ("ok", 2)


@pytest.mark.parametrize("name", ["tool_auto_stream", "tool_required_stream", "tool_named_stream"])
async def test_tool_calls_of_a_chat(scene: Scene, gpt: openai.AsyncOpenAI, name: str) -> None:
    """The pieces of a call's arguments make one JSON object, and the first of them is the first token."""
    pieces = ""
    stream = await gpt.chat.completions.create(model="tiny", messages=ASK, stream=True, user=name, extra_headers=named(name))
    async for part in stream:
        for choice in part.choices:
            pieces += "".join(call.function.arguments or "" for call in choice.delta.tool_calls or () if call.function)
    record = await scene.record(f"client-{name}")

    assert json.loads(pieces) == CALL
    assert (record["ttft_seconds"] > 0, record["ttft_visible_seconds"], record["outcome"]) == (True, None, "ok")


async def test_embeddings(scene: Scene, gpt: openai.AsyncOpenAI) -> None:
    """Vectors arrive, and the prompt is counted."""
    name = "embed_base64_batch"
    found = await gpt.embeddings.create(
        model="tiny", input=["Tell me about water", "The world"], user=name, extra_headers=named(name)
    )
    record = await scene.record(f"client-{name}")

    assert len(found.data) == 2
    assert (record["endpoint"], record["prompt_tokens"], record["completion_tokens"]) == ("embeddings", 6, 0)
