"""What the fuzzer tries, tried with the inputs that it begins with; and each check notices a fault that it is there for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import msgspec
import pytest

from proxy.control.worker_page import WorkerFigures, scan_page
from proxy.upstream.usage_filter import UsageFilter
from proxy.wire.forms import read_form
from proxy.wire.framing import AnswerHead, parse_answer_head
from proxy.wire.inference import InferenceRequest, parse_request
from proxy.wire.request_head import RequestHead, parse_request_head
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.sse import SseReader
from tests.fuzz import body, client, config, form, meter, metrics, sse, usage, worker
from tests.fuzz.inputs import AT_EDGES, put_together, take_apart
from tests.fuzz.mutating import mutated
from tests.fuzz.streams import read_whole
from tests.fuzz.targets import TARGETS, load


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_to_begin_with(name):
    """Seeds, what earlier runs kept, and a few hundred made of them: the gateway and the second reading agree."""
    target = load(name)
    chance = random.Random(1)
    more = [mutated(chance, target.seeds, target.words, target.longest) for _ in range(300)]

    for data in [*target.seeds, *more]:
        target.check(data)

    assert len(target.seeds) > 5
    assert all(len(data) <= target.longest for data in more)


class LosesLines(SseReader):
    """Takes the last data line for all of them."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        return (data.rpartition(b"\n")[2] for data in super().feed(piece))


class WaitsForMore(SseReader):
    """Gives events back one piece late."""

    def __init__(self, *most: int) -> None:
        super().__init__(*most)
        self._late: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        late, self._late = self._late, list(super().feed(piece))
        yield from late

    def finish(self) -> Iterator[bytes]:
        yield from (*self._late, *super().finish())


class CountsPieces(StreamMeter):
    """Counts a token for each piece of an event."""

    def feed(self, arrivals: Iterable[float], pieces: Iterable[bytes]) -> None:
        arrivals, pieces = list(arrivals), list(pieces)
        super().feed(arrivals, pieces)
        self.found.token_events += sum(b'"content"' in piece and not piece.endswith(b"\n\n") for piece in pieces)


class TakesRoleForToken(StreamMeter):
    """Finds a token in each choice."""

    def finish(self, at: float) -> Measurements:
        found = super().finish(at)
        found.token_events += found.token_events > 0
        return found


class TakesAll(UsageFilter):
    """Takes each event with usage out, whatever else it has."""

    def _pass(self, event: bytes) -> bytes:
        return b"" if b'"usage"' in event else super()._pass(event)


class ForgetsAtCuts(UsageFilter):
    """Loses what it has held of an event when the next piece comes."""

    def feed(self, piece: bytes) -> bytes:
        self._held = self._held[:-1]
        return super().feed(piece)


def believes_the_first_length(data: bytes) -> RequestHead:
    return parse_request_head(data.replace(b"Content-Length: 13", b"Content-Length: 12"))


def forwards_all(data: bytes) -> RequestHead:
    head = parse_request_head(data)
    head.forwarded += b"Transfer-Encoding: chunked\r\n"
    return head


def cuts_answers(head: bytes) -> AnswerHead:
    found = parse_answer_head(head)
    return found if not found.content_length else msgspec.structs.replace(found, content_length=found.content_length - 1)


def passes_lengths(head: bytes) -> AnswerHead:
    found = parse_answer_head(head)
    return msgspec.structs.replace(found, passed=found.passed + b"content-length: 1\r\n")


def takes_the_first_model(text: bytes) -> InferenceRequest:
    return parse_request(text.replace(b'"model":"b"', b'"other":"b"'))


def takes_texts_for_booleans(text: bytes) -> InferenceRequest:
    return parse_request(text.replace(b'"stream":"true"', b'"stream":true'))


def takes_the_first_field(text: bytes, boundary: bytes) -> Mapping[str, tuple[int, int]]:
    found = read_form(text, boundary)
    return {name: (text.index(b"m\r\n"), text.index(b"m\r\n")) for name in found}


def takes_other_numbers(text: str, environ: Mapping[str, str], source: str) -> object:
    document, problems = config.parse_document(text.replace("b: 1,", "b: 2,"), environ, source)
    return document, problems


def shows_secrets(text: str, environ: Mapping[str, str], source: str) -> object:
    document, _ = config.parse_document(text, environ, source)
    return document, [config.Problem(path="", line=1, wrong=config.SECRET, right="x")]


def adds_up_the_largest(page: bytes) -> WorkerFigures | None:
    return scan_page(page.replace(b"} 2\n", b"} 1\n"))


@pytest.mark.parametrize(
    ("target", "check"),
    [
        (sse, partial(sse.check, make=LosesLines)),
        (sse, partial(sse.check, make=WaitsForMore)),
        (meter, partial(meter.check, make=CountsPieces)),
        (meter, partial(meter.check, make=TakesRoleForToken)),
        (usage, partial(usage.check, make=TakesAll)),
        (usage, partial(usage.check, make=ForgetsAtCuts)),
        (client, partial(client.check, parse=believes_the_first_length)),
        (client, partial(client.check, parse=forwards_all)),
        (worker, partial(worker.check, parse=cuts_answers)),
        (worker, partial(worker.check, parse=passes_lengths)),
        (body, partial(body.check, parse=takes_the_first_model)),
        (body, partial(body.check, parse=takes_texts_for_booleans)),
        (form, partial(form.check, read=takes_the_first_field)),
        (config, partial(config.check, parse=takes_other_numbers)),
        (config, partial(config.check, parse=shows_secrets)),
        (metrics, partial(metrics.check, scan=adds_up_the_largest)),
    ],
    ids=lambda value: next(iter(value.keywords.values())).__name__ if isinstance(value, partial) else "",
)
def test_a_planted_fault_is_noticed(target, check):
    """A reader with a fault fails with one of the seeds at the latest."""
    assert any(_fails(check, data) for data in target.seeds())


def _fails(check: Callable[[bytes], None], data: bytes) -> bool:
    try:
        check(data)
    except AssertionError:
        return True
    return False


def test_cuts():
    """Lengths are used again and again, no byte is lost, and what was put together comes apart."""
    assert take_apart(put_together(b"abcdefgh", (1, 3), 5)) == (5, [b"a", b"bcd", b"e", b"fgh"])
    assert take_apart(put_together(b"abc")) == (0, [b"abc"])
    assert take_apart(bytes((7, AT_EDGES)) + b"a\n\nb\n\n\nc") == (7, [b"a\n\n", b"b\n\n", b"\nc"])
    assert take_apart(b"") == (0, [])
    assert b"".join(take_apart(put_together(b"x" * 1000, (1,)))[1]) == b"x" * 1000


def test_the_plain_reading():
    """Line ends of each kind, with and without the space, several data lines, comments, and an unfinished event."""
    events, rest = read_whole(b"\xef\xbb\xbfdata: a\r\rdata:b\ndata:  c\r\n\r\n: d\n\ndata\n\nevent: e\n\ndata: f\ndata")

    assert [event.data for event in events] == [b"a", b"b\n c", b""]
    assert [event.end for event in events] == [12, 30, 42]
    assert rest == b"f\n"
