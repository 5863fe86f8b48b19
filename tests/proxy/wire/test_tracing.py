"""Contexts of traces: read strictly, continued or begun, and passed on."""

from __future__ import annotations

from random import Random

import pytest

from proxy.wire.request_head import RequestHead, parse_request_head
from proxy.wire.tracing import MOST_ATTEMPTS, SampledTrace, TraceContext, Tracer, hash_of, header_pattern, parse_traceparent

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def a_head(*lines: str) -> RequestHead:
    return parse_request_head("\r\n".join(["POST /v1/completions HTTP/1.1", "Host: h", *lines, "", ""]).encode())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"00-{TRACE}-{PARENT}-01", TraceContext(TRACE, PARENT, is_sampled=True)),
        (f"00-{TRACE}-{PARENT}-00", TraceContext(TRACE, PARENT, is_sampled=False)),
        (f"00-{TRACE}-{PARENT}-03", TraceContext(TRACE, PARENT, is_sampled=True)),
        (f"00-{TRACE}-{PARENT}-fe", TraceContext(TRACE, PARENT, is_sampled=False)),
        (f"01-{TRACE}-{PARENT}-01", TraceContext(TRACE, PARENT, is_sampled=True)),
        (f"cc-{TRACE}-{PARENT}-01-what-may-come", TraceContext(TRACE, PARENT, is_sampled=True)),
        (f"00-{TRACE}-{PARENT}-01-x", None),
        (f"00-{TRACE}-{PARENT}-01-", None),
        (f"01-{TRACE}-{PARENT}-01x", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE[1:]}-{PARENT}-01", None),
        (f"00-{TRACE}-{PARENT}-1", None),
        (f"00-{TRACE}-{PARENT}", None),
        (f"0g-{TRACE}-{PARENT}-01", None),
        (f"00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01", None),
        ("", None),
    ],
)
def test_what_a_context_is(value: str, expected: TraceContext | None) -> None:
    """A context is read by the letter of the standard, or not at all."""
    assert parse_traceparent(value.encode()) == expected


def test_blanks_around_a_context_do_not_matter() -> None:
    """Blanks around a header's value are not part of it."""
    assert a_head(f"traceparent: \t00-{TRACE}-{PARENT}-01 \t").context == TraceContext(TRACE, PARENT, is_sampled=True)


@pytest.mark.parametrize("first", [f"00-{TRACE}-{PARENT}-01", "nonsense"])
def test_two_contexts_are_none(first: str) -> None:
    """Of two contexts none counts, whichever of them could be read."""
    head = a_head(f"traceparent: {first}", f"Traceparent: 00-{TRACE}-{PARENT}-01")

    assert (head.context, head.trace_id, head.has_context_lines) == (None, None, True)


def test_a_sampled_context_is_continued() -> None:
    """The client's trace goes on below its span; its own line makes way for that of the attempt, its state stays."""
    head = a_head(f"Traceparent: 00-{TRACE}-{PARENT}-01", "Tracestate: a=b", "Tracestate: c=d", "X: y")

    trace = Tracer(0.0).begin(head)

    assert trace is not None
    assert (trace.trace_id, trace.parent_id, head.trace_id) == (TRACE, PARENT, TRACE)
    assert head.forwarded == b"Tracestate: a=b\r\nTracestate: c=d\r\nX: y\r\n"


def test_an_unsampled_context_passes_as_it_came() -> None:
    """Whoever does not sample is obeyed, whatever the ratio, and no line changes."""
    head = a_head(f"Traceparent: 00-{TRACE}-{PARENT}-00", "Tracestate: a=b")

    assert Tracer(1.0).begin(head) is None
    assert head.forwarded == f"Traceparent: 00-{TRACE}-{PARENT}-00\r\nTracestate: a=b\r\n".encode()
    assert head.trace_id == TRACE


def test_what_cannot_be_read_is_not_passed_on() -> None:
    """With a bad context its state goes too, and nothing else."""
    head = a_head("X: traceparent: no", "TRACEPARENT: nonsense", "tracestate: a=b", "Y: z")

    trace = Tracer(1.0).begin(head)

    assert trace is not None
    assert head.forwarded == b"X: traceparent: no\r\nY: z\r\n"
    assert (head.trace_id, trace.parent_id) == (trace.trace_id, None)


def test_a_state_without_a_context_is_not_passed_on() -> None:
    """A state belongs to a context, and means nothing to a trace that begins here."""
    head = a_head("tracestate: a=b")
    Tracer(1.0).begin(head)

    assert head.forwarded == b""


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 400, 600), (1.0, 2000, 2000)])
def test_the_ratio_decides_for_new_traces(ratio: float, least: int, most: int) -> None:
    """Of the traces that begin here the given share is sampled, none for 0 and all for 1."""
    tracer = Tracer(ratio, Random(7))

    assert least <= sum(tracer.begin(RequestHead()) is not None for _ in range(2000)) <= most


def test_other_samplers_by_ratio_agree() -> None:
    """A trace is sampled exactly when the lower half of its id is below the ratio, as OpenTelemetry's samplers have it."""
    tracer = Tracer(0.3, Random(3))
    for _ in range(200):
        head = RequestHead()
        is_sampled = tracer.begin(head) is not None
        assert is_sampled == (int((head.trace_id or "")[16:], 16) < round(0.3 * 2**64))


def test_unsampled_requests_get_a_valid_context() -> None:
    """The worker's line has the id that the record has, and says that nothing is recorded."""
    head = a_head("X: y")

    assert Tracer(0.0, Random(1)).begin(head) is None
    line = head.forwarded.removeprefix(b"X: y\r\ntraceparent: ").removesuffix(b"\r\n")
    context = parse_traceparent(line)
    assert context is not None
    assert (context.trace_id, context.is_sampled) == (head.trace_id, False)


def test_ids_differ() -> None:
    """No two traces and no two spans of one process have the same id."""
    tracer = Tracer(1.0)
    traces = [trace for trace in (tracer.begin(RequestHead()) for _ in range(500)) if trace is not None]
    for trace in traces:
        trace.begin("w", 1.0)
        trace.end("answered", 2.0, 200)
    done = [trace.finish(0.0, 3.0, None) for trace in traces]

    assert len({trace.trace_id for trace in traces}) == 500
    assert len({span_id for each in done for span_id in (each.span_id, each.attempts[0].span_id)}) == 1000


def test_attempts_are_kept_with_their_instants() -> None:
    """Each attempt has the id that its worker was told, and its instants since the first byte of the request."""
    trace = SampledTrace(TRACE, PARENT, 0xFF)
    trace.begin("w-0", 10.5)
    first = trace.line()
    trace.end("connect_failed", 10.75, None)
    trace.end("abandoned", 11.0, None)
    trace.begin("w-1", 11.25)
    second = trace.line()
    trace.end("answered", 12.0, 200)

    done = trace.finish(10.0, 12.5, None)

    assert (done.span_id, done.parent_id, done.seconds) == ("00000000000000ff", PARENT, 2.5)
    assert [(each.worker, each.began_seconds, each.ended_seconds, each.result, each.status) for each in done.attempts] == [
        ("w-0", 0.5, 0.75, "connect_failed", None),
        ("w-1", 1.25, 2.0, "answered", 200),
    ]
    assert [first, second] == [f"traceparent: 00-{TRACE}-{each.span_id}-01\r\n".encode() for each in done.attempts]


@pytest.mark.parametrize("span", [0, 1, 2**64 - 2, 2**64 - 1])
def test_no_span_has_the_forbidden_id(span: int) -> None:
    """An id of zeros means no span, and is never given, even where counting on runs over."""
    trace = SampledTrace(TRACE, None, span)
    lines = [trace.line()]
    for _ in range(3):
        trace.begin("w", 0.0)
        lines.append(trace.line())

    assert not [line for line in lines if b"-0000000000000000-" in line]


def test_very_many_attempts_are_bounded() -> None:
    """A request that tries hundreds of workers keeps the first of its attempts."""
    trace = SampledTrace(TRACE, None, 1)
    for number in range(100):
        trace.begin(f"w-{number}", 0.0)
        trace.end("connect_failed", 1.0, None)

    assert len(trace.finish(0.0, 1.0, None).attempts) == MOST_ATTEMPTS


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("x-session-id: a b \r\n", b"a b"),
        ("Y: z\r\nX-Session-Id:a\r\n", b"a"),
        ("y: x-session-id: a\r\n", None),
        ("xx-session-id: a\r\n", None),
        ("x-session-id-2: a\r\n", None),
        ("x-session-id:\r\n", b""),
        ("", None),
    ],
)
def test_a_header_is_found_among_lines(lines: str, value: bytes | None) -> None:
    """The configured header is found by its whole name, in whatever case."""
    found = header_pattern("x-session-id").search(lines.encode())

    assert (found and found[1].strip()) == value


def test_a_hash_tells_values_apart_and_not_what_they_are() -> None:
    """Equal values have equal hashes, in every process."""
    assert hash_of(b"session-1") == hash_of(b"session-1") != hash_of(b"session-2")
    assert len(hash_of(b"x" * 10_000)) == 16


@pytest.mark.parametrize("wins", [True, False])
def test_an_attempt_beside_another_has_a_span_of_its_own(wins: bool) -> None:
    """Both are children of the request; the one that answered is the last, whichever it was."""
    trace = SampledTrace(TRACE, None, 5)
    trace.begin("first", 1.0)
    beside = trace.branch()
    beside.begin("second", 2.0)
    lines = {trace.line(), beside.line()}
    (trace if wins else beside).end("outrun", 3.0, None)
    trace.join(beside)
    trace.end("answered", 4.0, 200)
    attempts = trace.finish(0.5, 5.0, None).attempts

    assert len(lines) == len({attempt.span_id for attempt in attempts}) == 2
    assert [(attempt.worker, attempt.result) for attempt in attempts] == (
        [("first", "outrun"), ("second", "answered")] if wins else [("second", "outrun"), ("first", "answered")]
    )
    assert next(one.span_id for one in attempts if one.worker == "second").encode() in beside.line()
