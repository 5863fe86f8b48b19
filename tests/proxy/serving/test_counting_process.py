"""Counting tokens in a process of its own."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from proxy.serving.counting_process import LENGTH, Counted, Counters, Job, count_text, load, serve
from routing.topology import TokenizerSource
from tests.tokenizers_made import a_tiktoken_file, a_tokenizer_file

SPECIAL = "<|endoftext|> <|im_start|>system<|im_end|> <|endofprompt|> <|fim_prefix|><|fim_middle|><|fim_suffix|>"


@pytest.fixture(params=["file", "tiktoken"])
def source(request, tmp_path: Path) -> TokenizerSource:
    if request.param == "file":
        return TokenizerSource(file=str(a_tokenizer_file(tmp_path)))
    return TokenizerSource(tiktoken=str(a_tiktoken_file(tmp_path)))


def test_texts_are_counted(source):
    """Byte by byte, as these little vocabularies have nothing longer but one word."""
    assert load(source)("hello abc") == 5


def test_the_text_of_special_tokens_is_text(source):
    """It takes as many tokens as any other text of its length, and raises nothing."""
    assert load(source)(SPECIAL) == len(SPECIAL)


def test_a_job_is_counted_from_raw_json(source):
    """Only texts count, with their escapes undone; of a batch the longest."""
    counters = Counters()
    messages = [
        {"role": "user", "content": "ab\n"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "image"}]},
    ]

    assert counters.run(Job(1, source, json.dumps(messages).encode())) == Counted(1, 4)
    assert counters.run(Job(2, source, prompt=b'["a","bcdf","ab"]')) == Counted(2, 4)
    assert counters.run(Job(3, source, prompt=b'"\\u4e2d"')) == Counted(3, 3)
    assert counters.run(Job(4, source, b'[{"content":"a"}]', others=(b'"bc"',))) == Counted(4, 3)


@pytest.mark.parametrize("messages", [b"null", b"[null]", b'[{"content":null}]', b"[1]", b"{", b"\xff", b'"\\ud800"'])
def test_odd_jobs_are_counted_or_fail(source, messages):
    """None ends the process."""
    assert Counters().run(Job(1, source, messages)).number == 1


def test_what_cannot_be_loaded_fails_its_jobs(tmp_path, caplog):
    """The file is gone or no tokenizer; nothing of the prompt is written anywhere."""
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    for source in (
        TokenizerSource(file="/nowhere"),
        TokenizerSource(file=str(broken)),
        TokenizerSource(tiktoken="/nowhere"),
        TokenizerSource(),
    ):
        assert Counters().run(Job(7, source, b'[{"content":"secret words"}]')) == Counted(7, None)
    assert [message.split(":")[0] for message in caplog.messages] == ["counting failed"] * 4
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "^" * 100_000, "\n" * 100_000, base64.b64encode(random.Random(1).randbytes(750_000)).decode()]
)
def test_long_runs_take_time_in_proportion(source, text):
    """They are counted in pieces, so that nothing grows with the square of their length or overflows a stack."""
    count = load(source)
    started_at = time.perf_counter()

    assert count_text(text, count) == pytest.approx(count("ab" * 50) / 100 * len(text), rel=0.01)
    assert time.perf_counter() - started_at < 20


def test_pieces_add_up():
    """Nothing of a text is left out or counted twice."""
    seen: list[str] = []

    def count(text: str) -> int:
        seen.append(text)
        return len(text)

    text = "word " * 3000 + "x" * 25_000 + " end " + "\n" * 30_000 + "tail" + "yz" * 9000
    assert count_text(text, count) == len(text)
    assert "".join(seen) == text
    assert max(map(len, seen)) <= 40_000


def test_jobs_come_and_results_go_as_frames(source):
    """Until its input ends, even in the middle of a job."""
    jobs, results = io.BytesIO(), io.BytesIO()
    for number in (1, 2):
        body = msgspec.msgpack.encode(Job(number, source, prompt=b'"abc"'))
        jobs.write(LENGTH.pack(len(body)) + body)
    jobs.write(b"\x00\x00")
    jobs.seek(0)

    serve(jobs, results)

    results.seek(0)
    found = []
    while head := results.read(LENGTH.size):
        found.append(msgspec.msgpack.decode(results.read(LENGTH.unpack(head)[0]), type=Counted))
    assert found == [Counted(1, 3), Counted(2, 3)]


def test_its_lines_look_like_those_of_other_processes():
    """With the time, the level and the process, so that one pattern reads them all."""
    job = msgspec.msgpack.encode(Job(1, TokenizerSource(file="/nowhere"), b'[{"content":"a"}]'))
    run = subprocess.run(
        [sys.executable, "-m", "proxy.serving.counting_process"],
        input=LENGTH.pack(len(job)) + job,
        capture_output=True,
        check=True,
    )

    assert re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING counting: counting failed: \w+\n", run.stderr)
