"""Answers as their tokens come, without an engine and without sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulator.answering import Answering, Circumstances
from simulator.bodies import Served, parse_chat, parse_completion
from simulator.dialect import NEWEST
from simulator.drive import Driver
from simulator.engine.engine import Engine, EngineSettings, Progress
from simulator.faults import NO_FAULTS, End, Faults
from simulator.plain import PlainAnswer
from simulator.streamed import StreamedAnswer
from simulator.wire.chat import ChatFormat
from simulator.wire.common import Head, Style
from simulator.wire.completion import CompletionFormat
from tests.simulator.engine_runs import GPU

SERVED = Served(models=("m",), max_model_len=4096)
HEAD = Head(identifier="x", created=1, model="m", fingerprint="f")


class FakeReply:
    """What an answer was told to do."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.head: Any = None
        self.is_paused = False
        self.is_over = False
        self.is_bytewise = False
        self.on_resume: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self.ended: str | None = None

    def begin(self, headers: Any) -> None:
        self.head = list(headers)

    def promise(self, size: int, headers: Any) -> None:
        self.head = size

    def answer(self, status: int, body: bytes, headers: Any) -> None:
        self.head = status
        self.sent.append(body)
        self._over("whole")

    def send(self, data: bytes) -> None:
        assert not self.is_over
        self.sent.append(data)

    raw = send

    def end(self) -> None:
        self._over("whole")

    def close(self) -> None:
        self._over("closed")

    def reset(self) -> None:
        self._over("reset")

    def _over(self, how: str) -> None:
        self.is_over, self.ended = True, how


class Play:
    """An answer that gets its tokens from the test."""

    def __init__(self, *, path: str = "chat", stream: bool = True, faults: Faults = NO_FAULTS, **fields: Any) -> None:
        circumstances = {name: fields.pop(name) for name in ("stream_interval", "tells_timing") if name in fields}
        body = {"max_tokens": 6, "ignore_eos": True, "stream": stream, **fields}
        if path == "chat":
            wanted = parse_chat(json.dumps({"messages": [{"role": "user", "content": "hi"}], **body}).encode(), SERVED)
            form: Any = ChatFormat(HEAD, Style())
        else:
            wanted = parse_completion(json.dumps({"prompt": "hi", **body}).encode(), SERVED)
            form = CompletionFormat(HEAD, Style())
        self.exits = 0
        self.reply: Any = FakeReply()
        self.driver = Driver(Engine(EngineSettings(**GPU)), clock=lambda: 0.0)
        shared = Circumstances(driver=self.driver, seed=0, headers=(), dialect=NEWEST, exit=self._exit, **circumstances)
        kind: Any = StreamedAnswer if stream else PlainAnswer
        self.answer: Answering = kind(self.reply, wanted, form, faults, shared, "x")
        self.answer.start(None)

    def tokens(self, generated: int, *, index: int = 0, new: int = 1, finished: bool | None = None) -> None:
        """So many tokens are there now."""
        is_finished = generated == len(self.answer.outputs[index].tokens) if finished is None else finished
        self.answer.tickets[index].generated_tokens = generated
        self.answer.advance(
            index,
            Progress(
                identifier="r",
                generated_tokens=generated,
                new_tokens=new,
                cached_tokens=0,
                created_cache_tokens=0,
                is_finished=is_finished,
            ),
        )

    def run(self) -> None:
        """All tokens, one after another."""
        for generated in range(1, len(self.answer.outputs[0].tokens) + 1):
            if not self.reply.is_over:
                self.tokens(generated)

    @property
    def words(self) -> list[int]:
        """How many words each event has that has any."""
        found = []
        for data in self.reply.sent:
            if data.startswith(b"data: {") and (choices := json.loads(data[6:]).get("choices")):
                text = choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
                found.append(len(text.split()))
        return [count for count in found if count]

    def _exit(self) -> None:
        self.exits += 1


async def test_tokens_are_told_as_they_come():
    """Each token is an event, then come the end mark and the end."""
    play = Play()
    play.run()

    assert play.words == [1] * 6
    assert (play.reply.sent[-1], play.reply.ended) == (b"data: [DONE]\n\n", "whole")
    assert play.driver.ledgers[0].asked_tokens.sum == 6


async def test_what_a_slow_reader_missed_is_told_at_once():
    """While nothing can be written tokens pile up; they come in one event when it can, and none is lost."""
    play = Play()
    play.tokens(1)
    play.reply.is_paused = True
    for generated in range(2, 5):
        play.tokens(generated)
    assert play.words == [1]
    play.reply.is_paused = False
    play.reply.on_resume()
    play.tokens(5)
    play.tokens(6)

    assert play.words == [1, 3, 1, 1]


async def test_an_answer_that_ended_while_nothing_could_be_written_is_ended_later():
    """The end waits for the reader, too."""
    play = Play()
    play.reply.is_paused = True
    play.run()
    assert play.reply.sent == []
    play.reply.is_paused = False
    play.reply.on_resume()

    assert (play.words, play.reply.ended) == ([6], "whole")


@pytest.mark.parametrize(("interval", "expected"), [(1, [1] * 6), (3, [1, 3, 2]), (5, [1, 5])])
async def test_events_of_several_tokens(interval, expected):
    """The first token comes alone, then so many at a time; the flag, the request and a fault do the same."""
    for fields in ({"stream_interval": interval}, {"faults": Faults(tokens_per_event=interval)}):
        play = Play(**fields)
        play.run()
        assert play.words == expected


async def test_speculation_brings_several_tokens_in_one_event():
    """What the engine gives at once is told at once."""
    play = Play()
    play.tokens(1)
    play.tokens(5, new=4)
    play.tokens(6)

    assert play.words == [1, 4, 1]


async def test_the_quick_way_says_the_same_as_the_slow_one():
    """Ordinary events are made from a frame; with a harmless fault they are not, and the bytes are the same."""
    quick, slow = Play(), Play(faults=Faults(tokens_per_event=1))
    for play in (quick, slow):
        play.run()

    assert quick.reply.sent == slow.reply.sent


@pytest.mark.parametrize("end", list(End))
async def test_ends_of_a_stream(end):
    """Each end comes behind the tokens before it, and the engine has nothing more to do for the request."""
    play = Play(faults=Faults(end=end, end_at_token=2))
    play.run()
    told = {
        End.RESET: "reset",
        End.CLOSE: "closed",
        End.CUT: "whole",
        End.ERROR: "whole",
        End.ABORT: "whole",
    }

    assert play.words == [1, 1]
    assert play.reply.ended == told.get(end)
    assert (play.exits > 0) is (end is End.EXIT)
    assert play.driver.engine.waiting == 0


@pytest.mark.parametrize("end", list(End))
async def test_ends_of_a_plain_answer(end):
    """Nothing has been said before, so most ends are no answer at all."""
    play = Play(stream=False, faults=Faults(end=end, end_at_token=2))
    play.run()
    heads = {End.CUT: int, End.BAD_CHUNK: list, End.ERROR: int, End.ABORT: int}

    assert type(play.reply.head) is heads.get(end, type(None))
    if end is End.ERROR:
        assert play.reply.head == 500
    if end is End.ABORT:
        choice = json.loads(play.reply.sent[0])["choices"][0]
        assert (choice["finish_reason"], len(choice["message"]["content"].split())) == ("abort", 2)
    if end is End.CUT:
        assert len(play.reply.sent[0]) == play.reply.head // 2
    assert play.driver.engine.waiting == 0


async def test_an_end_behind_the_answer_never_comes():
    """An answer that is shorter ends as usual."""
    play = Play(faults=Faults(end=End.RESET, end_at_token=6))
    play.run()

    assert (play.words, play.reply.ended) == ([1] * 6, "whole")


async def test_an_error_at_once_is_the_first_event():
    """Before the first token there is no role event either."""
    play = Play(faults=Faults(end=End.ERROR))
    play.run()

    assert play.reply.sent[0].startswith(b'data: {"error": ')


async def test_an_end_within_what_comes_at_once():
    """Of tokens that come together only those before the end are told."""
    play = Play(faults=Faults(end=End.CUT, end_at_token=3))
    play.tokens(1)
    play.tokens(5, new=4)

    assert play.words == [1, 2]


async def test_lines_may_end_otherwise():
    """With that fault each line of each event ends in CR LF."""
    play = Play(faults=Faults(crlf=True))
    play.run()

    assert all(data.endswith(b"\r\n\r\n") and b"\n" not in data.replace(b"\r\n", b"") for data in play.reply.sent)


async def test_usage_and_end_mark_may_be_missing():
    """With those faults the stream ends with the last token's event."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    play = Play(faults=Faults(missing_usage=True, missing_done=True), stream_options=options)
    play.run()

    assert not any(b"usage" in data for data in play.reply.sent)
    assert b'"finish_reason":"length"' in play.reply.sent[-1]


async def test_only_an_echo_may_be_asked_for():
    """The output is neither told nor lost: the prompt is the whole text."""
    streamed, plain = (Play(path="completion", stream=stream, echo=True, max_tokens=0) for stream in (True, False))
    for play in (streamed, plain):
        play.run()

    assert json.loads(streamed.reply.sent[0][6:])["choices"][0]["text"] == "hi"
    assert json.loads(plain.reply.sent[0])["choices"][0]["text"] == "hi"


async def test_a_client_that_leaves_takes_its_request_along():
    """Nothing stays in the engine."""
    play = Play()
    assert play.driver.engine.waiting == 1
    play.reply.on_gone()

    assert play.driver.engine.waiting == 0
    assert repr(play.answer) == "<StreamedAnswer x, 1 of 1 choices unfinished>"


async def test_running_usage_counts_each_choice_by_itself():
    """Usage in an event is that of its choice; the last event has the sum."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    play = Play(n=2, stream_options=options)
    for generated in range(1, 7):
        for index in (0, 1):
            play.tokens(generated, index=index)
    events = [json.loads(data[6:]) for data in play.reply.sent[:-1]]

    assert [event["usage"]["completion_tokens"] for event in events] == [
        0,
        0,
        *(each for n in range(1, 7) for each in (n, n)),
        12,
    ]


def test_circumstances_can_be_varied():
    """They are values: a request may have headers of its own."""
    driver = Driver(Engine(EngineSettings(**GPU)), clock=lambda: 0.0)
    shared = Circumstances(driver=driver, seed=0, headers=(), dialect=NEWEST, exit=lambda: None)

    assert replace(shared, headers=(("a", "b"),)).driver is driver
