"""Bytes that two parsers could read differently: what the gateway takes for a message, h11 takes for the same one.

The gateway may refuse what h11 takes, and does; never the other way round. One that reads more, less or other than its
neighbour is how requests are smuggled, whichever of the two is wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.answers import plain
from tests.integration.raw_client import RawClient
from tests.integration.scene import CHAT, Scene, running_scene
from tests.integration.scripted_worker import Received
from tests.integration.steps import Close, Script, Send
from tests.integration.two_parsers import Answer, Request, answer_in, requests_in

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]

KEY = "sk-client"
MUTATIONS = int(os.environ.get("MUTATED_REQUESTS", "600"))
BODY = b'{"model":"tiny","messages":[]}'
START = b"POST %b HTTP/1.1\r\nX-Case: %%d\r\nAuthorization: Bearer %b\r\n" % (CHAT.encode(), KEY.encode())
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
HEAD = START + b"Host: x\r\n"
WHOLE = HEAD + LENGTH + b"\r\n" + BODY
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS
HALVES = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])


def with_lines(lines: bytes, body: bytes = BODY) -> bytes:
    """A request with these header lines, ends included, besides the usual ones."""
    return HEAD + lines + b"\r\n" + body


CODING = b"Transfer-Encoding: chunked\r\n"
REQUESTS: dict[str, bytes] = {
    "plain": WHOLE,
    "chunked": CHUNKED,
    "several chunks": with_lines(CODING, HALVES),
    "three at once": WHOLE + CHUNKED + WHOLE,
    "line ends before the first line": b"\r\n\r\n" + WHOLE,
    "line ends between two": WHOLE + b"\r\n" + WHOLE,
    "both lengths": with_lines(LENGTH + CODING, CHUNKS),
    "both lengths, the coding first": with_lines(CODING + b"Content-Length: 5\r\n", CHUNKS),
    "two lengths": with_lines(LENGTH + b"Content-Length: 1\r\n"),
    "two equal lengths": with_lines(LENGTH + LENGTH),
    "a list of lengths": with_lines(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))),
    "a signed length": with_lines(b"Content-Length: +%d\r\n" % len(BODY)),
    "a negative length": with_lines(b"Content-Length: -1\r\n"),
    "a length with zeros": with_lines(b"Content-Length: 00%d\r\n" % len(BODY)),
    "a length of twenty digits": with_lines(b"Content-Length: 18446744073709551646\r\n"),
    "an empty length": with_lines(b"Content-Length: \r\n"),
    "blanks around the length": with_lines(b"Content-Length: \t %d \t\r\n" % len(BODY)),
    "a vertical tab before the length": with_lines(b"Content-Length:\x0b%d\r\n" % len(BODY)),
    "a length that is too small": with_lines(b"Content-Length: 10\r\n"),
    "a length that is too large": with_lines(b"Content-Length: 1000\r\n"),
    "no length": with_lines(b""),
    "a coding in capitals": with_lines(b"Transfer-Encoding: CHUNKED\r\n", CHUNKS),
    "a name in capitals": with_lines(b"TRANSFER-ENCODING: chunked\r\n", CHUNKS),
    "another coding": with_lines(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS),
    "an unknown coding": with_lines(b"Transfer-Encoding: xchunked\r\n", CHUNKS),
    "identity": with_lines(b"Transfer-Encoding: identity\r\n" + LENGTH),
    "chunked is not the last": with_lines(b"Transfer-Encoding: chunked, identity\r\n", CHUNKS),
    "chunked twice": with_lines(CODING + CODING, CHUNKS),
    "a quoted coding": with_lines(b'Transfer-Encoding: "chunked"\r\n', CHUNKS),
    "a comma before the coding": with_lines(b"Transfer-Encoding: ,chunked\r\n", CHUNKS),
    "a tab before the coding": with_lines(b"Transfer-Encoding:\tchunked\r\n", CHUNKS),
    "a blank before the colon": with_lines(b"Transfer-Encoding : chunked\r\n", CHUNKS),
    "a blank before the name": with_lines(b" Transfer-Encoding: chunked\r\n", CHUNKS),
    "a fold": with_lines(b"X-A: 1\r\n Transfer-Encoding: chunked\r\n" + LENGTH),
    "a folded coding": with_lines(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS),
    "bare line feeds": WHOLE.replace(b"\r\n", b"\n"),
    "a bare line feed": with_lines(b"X-A: 1\n" + LENGTH),
    "a bare carriage return": with_lines(b"X-A: 1\r" + LENGTH),
    "a null": with_lines(b"X-A: \0\r\n" + LENGTH),
    "a line without a colon": with_lines(b"X-A\r\n" + LENGTH),
    "a line without a name": with_lines(b": 1\r\n" + LENGTH),
    "an odd name": with_lines(b"X(A): 1\r\n" + LENGTH),
    "bytes above ASCII": with_lines(b"X-A: \xff\xfe\r\n" + LENGTH),
    "no host": START + LENGTH + b"\r\n" + BODY,
    "two hosts": with_lines(b"Host: y\r\n" + LENGTH),
    "a chunk extension": with_lines(CODING, b"1e;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a quoted chunk extension": with_lines(CODING, b'1e;a="\r\n"\r\n' + BODY + b"\r\n0\r\n\r\n"),
    "a chunk extension with a line feed": with_lines(CODING, b"1e;\n\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a blank behind the chunk size": with_lines(CODING, b"1e \r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a blank before the chunk size": with_lines(CODING, b" 1e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size in C": with_lines(CODING, b"0x1e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a signed chunk size": with_lines(CODING, b"+1e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an underscore in the chunk size": with_lines(CODING, b"1_e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size of seventeen digits": with_lines(CODING, b"1000000000000001e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size with zeros": with_lines(CODING, b"001E\r\n" + BODY + b"\r\n000\r\n\r\n"),
    "a chunk size without carriage return": with_lines(CODING, b"1e\n" + BODY + b"\r\n0\r\n\r\n"),
    "no line end behind a chunk": with_lines(CODING, b"1e\r\n" + BODY + b"0\r\n\r\n"),
    "two other bytes behind a chunk": with_lines(CODING, b"1e\r\n" + BODY + b"XX0\r\n\r\n"),
    "a bare line feed behind a chunk": with_lines(CODING, b"1e\r\n" + BODY + b"\n0\r\n\r\n"),
    "an empty chunk size": with_lines(CODING, b"\r\n" + CHUNKS),
    "trailers": with_lines(CODING, b"1e\r\n" + BODY + b"\r\n0\r\nX-T: 1\r\n\r\n"),
    "a length as a trailer": with_lines(CODING, b"1e\r\n" + BODY + b"\r\n0\r\nContent-Length: 3\r\n\r\n"),
    "a bad trailer": with_lines(CODING, b"1e\r\n" + BODY + b"\r\n0\r\nX T\r\n\r\n"),
    "no last chunk": with_lines(CODING, b"1e\r\n" + BODY + b"\r\n"),
    "HTTP/1.0": WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0") + WHOLE,
    "HTTP/1.0 in chunks": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/1.2": WHOLE.replace(b"HTTP/1.1", b"HTTP/1.2"),
    "HTTP/2.0": WHOLE.replace(b"HTTP/1.1", b"HTTP/2.0"),
    "no version": WHOLE.replace(b" HTTP/1.1", b""),
    "a version in small letters": WHOLE.replace(b"HTTP/1.1", b"http/1.1"),
    "two blanks in the first line": WHOLE.replace(b"POST ", b"POST  "),
    "a tab in the first line": WHOLE.replace(b"POST ", b"POST\t"),
    "a blank in the target": WHOLE.replace(CHAT.encode(), CHAT.encode() + b" /x"),
    "absolute form": WHOLE.replace(CHAT.encode(), b"http://elsewhere" + CHAT.encode()),
    "a query": WHOLE.replace(CHAT.encode(), CHAT.encode() + b"?a=/b"),
    "a fragment": WHOLE.replace(CHAT.encode(), CHAT.encode() + b"#a"),
    "close": with_lines(b"Connection: close\r\n" + LENGTH) + WHOLE,
    "an upgrade": with_lines(b"Connection: upgrade\r\nUpgrade: websocket\r\n" + LENGTH) + WHOLE,
    "an upgrade to HTTP/2": with_lines(b"Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + LENGTH) + WHOLE,
    "the go-ahead": with_lines(b"Expect: 100-continue\r\n" + LENGTH) + WHOLE,
    "another expectation": with_lines(b"Expect: 200-maybe\r\n" + LENGTH),
    "a request as a body": with_lines(b"Content-Length: %d\r\n" % (len(WHOLE) + 1), WHOLE),
    "a request in a chunk": with_lines(CODING, b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE) + 1, WHOLE)),
    "a length that Connection names": with_lines(b"Connection: content-length\r\n" + LENGTH) + WHOLE,
    "an underscore for a dash": with_lines(b"Transfer_Encoding: chunked\r\n" + LENGTH),
}
TOKENS = [
    *(b"\r\n", b"\r", b"\n", b" ", b"\t", b"\0", b":", b",", b";", b"\x0b", b"\xff", b"0", b"1", b"e", b"-", b"+", b"_", b'"'),
    *(
        LENGTH,
        CODING,
        b"Content-Length: 0\r\n",
        b"Content-Length: 5\r\n",
        b"Host: y\r\n",
        b"0\r\n\r\n",
        b"\r\n\r\n",
        b" HTTP/1.1",
    ),
    *(
        b"chunked",
        b"identity, ",
        b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
        BODY,
        b"1e\r\n",
        b"X: y\r\n z\r\n",
        b"GET / ",
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A gateway that waits for the rest of a request for a fifth of a second."""
    keys = [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]
    limits = {"request_head_seconds": 0.2, "request_body_seconds": 0.2, "client_idle_seconds": 0.2}
    async with running_scene(config={"keys": keys, "limits": limits}) as one:
        yield one


def mutated(chance: random.Random) -> bytes:
    """One to three requests with one to four changes."""
    data = b"".join(chance.choice((WHOLE, CHUNKED, REQUESTS["several chunks"])) for _ in range(chance.randint(1, 3)))
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data))
        length = chance.choice((0, 0, 1, 2, chance.randrange(40)))
        if b"X-Case" in data[max(0, start - 14) : start + length + 8]:
            continue  # it tells the cases apart
        data = data[:start] + chance.choice((b"", *TOKENS)) + data[start + length :]
    return data


async def send_all(scene: Scene, cases: dict[int, bytes]) -> dict[int, list[Received]]:
    """Send each on a connection of its own, read until the gateway closes, and tell which requests the worker got of it."""
    before = len(scene.worker.requests)

    async def send(data: bytes) -> None:
        async with await RawClient.connect(scene.gateway.base_url) as client:
            try:
                await client.send(data)
                while await client.read_some(10):
                    pass
            except (ConnectionResetError, BrokenPipeError):
                pass

    numbers = list(cases)
    for first in range(0, len(numbers), 200):
        await asyncio.gather(*(send(cases[number]) for number in numbers[first : first + 200]))
    got: dict[int, list[Received]] = {number: [] for number in cases}
    for request in scene.worker.requests[before:]:
        got[int(request.headers.get("x-case", "-1"))].append(request)
    return got


def as_the_worker_gets_it(request: Request) -> Request:
    """Without the host and the query of its target."""
    path = b"/" + request.target.split(b"://", 1)[-1].partition(b"/")[2] if b"://" in request.target else request.target
    return Request(request.method, path.partition(b"?")[0], request.body)


def differences(cases: dict[int, bytes], got: dict[int, list[Received]]) -> dict[int, tuple[list[Request], list[Request]]]:
    """Where the worker was sent anything that h11 does not read, in that order: what it was sent, what h11 reads.

    What h11 reads and no worker gets was refused, for its path, its key or its body.
    """
    found = {}
    for number, requests in got.items():
        sent = [Request(each.method.encode(), each.path.encode(), each.body) for each in requests]
        read = [as_the_worker_gets_it(each) for each in requests_in(cases[number])]
        left = iter(read)
        if not all(each in left for each in sent):  # each look goes on where the last one found
            found[number] = (sent, read)
    return found


async def test_the_gateway_passes_on_what_another_parser_reads(scene: Scene) -> None:
    """Eighty-five ways to write requests, good and bad: whatever reaches the worker is what h11 reads, in its order."""
    names = list(REQUESTS)
    cases = {number: REQUESTS[name].replace(b"%d", b"%d" % number) for number, name in enumerate(names)}

    got = await send_all(scene, cases)

    assert {names[number]: both for number, both in differences(cases, got).items()} == {}
    counts = {names[number]: len(requests) for number, requests in got.items()}
    assert (counts["plain"], counts["three at once"], counts["line ends between two"]) == (1, 3, 2)
    assert (counts["a request as a body"], counts["close"], counts["an upgrade"]) == (0, 1, 2)


async def test_what_the_worker_gets_can_be_read_in_one_way(scene: Scene) -> None:
    """h11 takes every request that the gateway wrote above, each with a length of its own and no coding."""
    assert len(scene.worker.requests) > 20
    for request in scene.worker.requests:
        [read] = requests_in(request.head.raw + request.body)
        assert read.body == request.body
        assert [name for name, _ in request.head.headers].count("content-length") == 1
        assert request.head.get("transfer-encoding") is None


async def test_mutated_requests_are_read_alike(scene: Scene) -> None:
    """Requests with bytes put in, taken out and replaced, whole lines among them (`MUTATED_REQUESTS` says how many)."""
    chance = random.Random(20)
    passed = 0
    for first in range(0, MUTATIONS, 1000):
        cases = {
            number: mutated(chance).replace(b"%d", b"%d" % number) for number in range(first, min(first + 1000, MUTATIONS))
        }
        got = await send_all(scene, cases)
        passed += sum(map(len, got.values()))
        assert {cases[number]: both for number, both in differences(cases, got).items()} == {}

    assert MUTATIONS / 3 < passed < MUTATIONS * 2


OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"content-type: application/json\r\n"
FIVE = b'{"a"}'
CHUNKED_ANSWER = OK + JSON + b"transfer-encoding: chunked\r\n\r\n"
ANSWERS: dict[str, bytes] = {
    "a length": OK + JSON + b"content-length: 5\r\n\r\n" + FIVE,
    "chunks": CHUNKED_ANSWER + b"5\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "until the end": OK + JSON + b"\r\n" + FIVE,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n" + FIVE,
    "HTTP/1.0 with chunks": b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "no version": b"200 OK\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "no reason": b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "a status of two digits": b"HTTP/1.1 20 OK\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "a status of four digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "a status with a sign": b"HTTP/1.1 +20 OK\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "a body without room": b"HTTP/1.1 204 No Content\r\n\r\n" + FIVE,
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    + OK
    + b"content-length: 5\r\n\r\n"
    + FIVE,
    "both lengths": OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\n" + FIVE + b"x",
    "a signed length": OK + b"content-length: +5\r\n\r\n" + FIVE,
    "a negative length": OK + b"content-length: -5\r\n\r\n" + FIVE,
    "a length in words": OK + b"content-length: five\r\n\r\n" + FIVE,
    "a length of forty digits": OK + b"content-length: " + b"9" * 40 + b"\r\n\r\n" + FIVE,
    "a length that is too large": OK + b"content-length: 6\r\n\r\n" + FIVE,
    "a length that is too small": OK + b"content-length: 4\r\n\r\n" + FIVE,
    "another coding": OK + b"transfer-encoding: gzip\r\n\r\n" + FIVE,
    "an odd coding": OK + b"transfer-encoding: chunked, x\r\n\r\n5\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "a fold": OK + b"x: 1\r\n y\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "a bare line feed": OK + b"x: 1\ncontent-length: 5\r\n\r\n" + FIVE,
    "a null": OK + b"x: \0\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "a blank before the colon": OK + b"content-length : 5\r\n\r\n" + FIVE,
    "a chunk size in C": CHUNKED_ANSWER + b"0x5\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "a signed chunk size": CHUNKED_ANSWER + b"-5\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "a huge chunk size": CHUNKED_ANSWER + b"f" * 30 + b"\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "a chunk that is too long": CHUNKED_ANSWER + b"4\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "a chunk that is too short": CHUNKED_ANSWER + b"6\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "bare line feeds around a chunk": CHUNKED_ANSWER + b"5\n" + FIVE + b"\n0\n\n",
    "an extension": CHUNKED_ANSWER + b"5;a=b\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "an extension of 100 kB": CHUNKED_ANSWER + b"5;" + b"a" * 100_000 + b"\r\n" + FIVE + b"\r\n0\r\n\r\n",
    "trailers": CHUNKED_ANSWER + b"5\r\n" + FIVE + b"\r\n0\r\nx: y\r\n\r\n",
    "endless trailers": CHUNKED_ANSWER + b"5\r\n" + FIVE + b"\r\n0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    "no last chunk": CHUNKED_ANSWER + b"5\r\n" + FIVE + b"\r\n",
    "a second answer behind it": (OK + b"content-length: 5\r\n\r\n" + FIVE) * 2,
    "a head of 200 kB": OK + b"x: " + b"y" * 200_000 + b"\r\ncontent-length: 5\r\n\r\n" + FIVE,
    "nothing": b"",
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_whole_answer_is_one_for_another_parser_too(scene: Scene, name: str) -> None:
    """Whatever a worker sends before it closes: a client gets a whole 200 only where h11 reads one, and with the same body."""
    script: Script = [Send(ANSWERS[name]), Close()] if ANSWERS[name] else [Close()]
    expected = answer_in(ANSWERS[name], closes=True)

    seen = await scene.ask(script, body=BODY, headers=[("Authorization", f"Bearer {KEY}")])
    after = await scene.ask([Send(plain(200, {"b": 1}))], body=BODY, headers=[("Authorization", f"Bearer {KEY}")])

    got = answer_in(seen.answer.raw, closes=False)
    if got is not None and got.status < 300:
        assert got == expected
    elif got is not None:
        assert (got.status, seen.record["outcome"]) == (502, "worker_error")
    assert got is None or got.status == 502 or expected is not None
    assert after.answer.json() == {"b": 1}
    if name in ("a length", "chunks", "until the end", "HTTP/1.0", "trailers", "an extension", "interim answers"):
        assert got == Answer(200, FIVE)
