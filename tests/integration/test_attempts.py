"""What counts as an attempt."""

from __future__ import annotations

import pytest

from telemetry.labels import LABELS
from tests.integration.answers import chat_answer, chat_events, plain, stream_of, usage_of
from tests.integration.scene import chat_body, running_scene
from tests.integration.steps import Close, Send

# Whether a connection was stale is told by the time in which it ends.
pytestmark = [pytest.mark.asyncio, pytest.mark.flaky(reruns=2)]

ANSWER = [Send(chat_answer("x", usage=usage_of(5, 3)))]
STREAM = stream_of(chat_events(["a", "b"], usage=usage_of(5, 2)))
BODY = chat_body(stream=False)


async def test_attempts_of_records_and_metrics_add_up() -> None:
    """Every time that a worker is asked is one attempt, also over stale connections and questions for usage."""
    refusal = {"error": {"message": "Extra inputs are not permitted: stream_options", "code": 400}}
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with running_scene() as scene:
        seen = [
            await scene.ask(ANSWER, body=BODY),
            await scene.ask([Close()], ANSWER, body=BODY),
            await scene.ask([Send(plain(400, refusal))], STREAM, body=asked),
            await scene.ask([Send(plain(500, refusal))], body=BODY),
        ]
        metrics = await scene.quiet()

    name = "ridgeline_attempts_total"
    counts = {result: metrics.total(name, result=result) for result in LABELS["result"]}

    assert [one.record["attempts"] for one in seen] == [1, 2, 2, 1]
    assert {result: count for result, count in counts.items() if count} == {"answered": 4, "stale": 1, "failed": 1}
