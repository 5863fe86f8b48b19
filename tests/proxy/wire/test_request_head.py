"""Heads of requests: one reading or none, and nothing sent on that is the client's secret or its connection's."""

from __future__ import annotations

import pytest

from proxy.wire.errors import ClientFault
from proxy.wire.request_head import MAX_HEADERS, RequestHead, parse_request_head

LINE = b"POST /v1/completions HTTP/1.1"


def parse(*lines: bytes, line: bytes = LINE, host: bytes | None = b"Host: h") -> RequestHead:
    return parse_request_head(b"\r\n".join((line, *([host] if host is not None else []), *lines, b"", b"")))


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([b"Content-Length: 3", b"Transfer-Encoding: chunked"], 400),
        ([b"Transfer-Encoding: chunked", b"Content-Length: 3"], 400),
        ([b"Content-Length: 3", b"Content-Length: 3"], 400),
        ([b"Content-Length: 3", b"Content-Length: 4"], 400),
        ([b"Content-Length: 3, 3"], 400),
        ([b"Content-Length: +3"], 400),
        ([b"Content-Length: -3"], 400),
        ([b"Content-Length: 0x3"], 400),
        ([b"Content-Length: 3_0"], 400),
        ([b"Content-Length: "], 400),
        ([b"Content-Length: 3 4"], 400),
        ([b"Content-Length: 1234567890123456"], 400),
        ([b"Content-Length: 99999999999999999999999"], 400),
        ([b"Content-Length\t: 3"], 400),
        ([b"Content-Length : 3"], 400),
        ([b"Transfer-Encoding : chunked"], 400),
        ([b"Transfer-Encoding: gzip, chunked"], 501),
        ([b"Transfer-Encoding: chunked, gzip"], None),
        ([b"Transfer-Encoding: gzip"], None),
        ([b"Transfer-Encoding: identity"], None),
        ([b"Transfer-Encoding: xchunked"], None),
        ([b"Transfer-Encoding: \x0bchunked"], None),
        ([b'Transfer-Encoding: "chunked"'], None),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], None),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"], None),
        ([b"Transfer-Encoding: "], None),
        ([b"X: a", b" folded"], 400),
        ([b"X: a", b"\tContent-Length: 3"], 400),
        ([b" X: a"], 400),
        ([b"X: a\nContent-Length: 3"], 400),
        ([b"X: a\rContent-Length: 3"], 400),
        ([b"X: a\0b"], 400),
        ([b"X\0: a"], 400),
        ([b"X y: a"], 400),
        ([b"X: \x7f"], 400),
        ([b"X: \x01"], 400),
        ([b": a"], 400),
        ([b"no colon"], 400),
        ([b"Host: other"], 400),
        ([b"host: h"], 400),
    ],
)
def test_heads_that_can_be_read_in_two_ways_are_refused(lines, status):
    """Both lengths, several lengths, odd codings, folds, bare line ends, NUL and a second Host are the client's fault."""
    with pytest.raises(ClientFault) as raised:
        parse(*lines)

    assert raised.value.status in ({400, 501} if status is None else {status})


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT worker:8000 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET v1/models HTTP/1.1",
        b"GET ftp://h/v1/models HTTP/1.1",
        b"GET  HTTP/1.1",
        b"GET /v1/models",
        b"GET /v1/mo dels HTTP/1.1",
        b"GET /v1/models\t HTTP/1.1",
        b"GET /v1/models HTTP/2.0",
        b"GET /v1/models HTTP/0.9",
        b"GET /v1/models HTTP/1.2",
        b"GET /v1/models http/1.1",
        b"GET /v1/models HTTPS/1.1",
        b"get /v1/models HTTP/1.1",
        b"BOGUS /v1/models HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/models\0 HTTP/1.1",
        b"\x00",
    ],
)
def test_first_lines_that_are_refused(line):
    """CONNECT, other versions, the HTTP/2 preface, TLS and odd targets end as the client's fault, never in a worker's path."""
    with pytest.raises(ClientFault) as raised:
        parse(line=line)

    assert raised.value.status in {400, 505}


def test_the_http2_preface_is_refused():
    """As it comes from a client that takes HTTP/2 for granted."""
    with pytest.raises(ClientFault):
        parse_request_head(b"PRI * HTTP/2.0\r\n\r\n")


@pytest.mark.parametrize("ending", [b"\n\r\n", b"\n\n"])
def test_bare_line_feeds_are_refused(ending):
    """A line that ends in LF alone has two readings."""
    with pytest.raises(ClientFault):
        parse_request_head(b"GET / HTTP/1.1\r\nHost: h\r\nX: a" + ending + b"\r\n\r\n")


def test_host_is_required_once():
    """HTTP/1.1 needs exactly one Host; HTTP/1.0 may do without."""
    with pytest.raises(ClientFault):
        parse(host=None)
    assert not parse(host=None, line=b"GET / HTTP/1.0").is_http11
    with pytest.raises(ClientFault):
        parse(b"Host: h", line=b"GET / HTTP/1.0")


def test_the_number_of_headers_is_bounded():
    """As many as allowed pass, one more is refused with a status of its own."""
    assert parse(*[b"X: 1"] * (MAX_HEADERS - 1)).forwarded == b"X: 1\r\n" * (MAX_HEADERS - 1)
    with pytest.raises(ClientFault) as raised:
        parse(*[b"X: 1"] * MAX_HEADERS)

    assert raised.value.status == 431


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/models", b"/v1/models"),
        (b"/v1/models?x=/y?z", b"/v1/models"),
        (b"/?", b"/"),
        (b"http://worker:8000/v1/models?x", b"/v1/models"),
        (b"https://h/a//b", b"/a//b"),
        (b"http://h", b"/"),
        (b"http://h?x", b"/"),
        (b"//h/v1/models", b"//h/v1/models"),
        (b"/v1/../metrics", b"/v1/../metrics"),
        (b"/v1/%6dodels", b"/v1/%6dodels"),
    ],
)
def test_targets(target, path):
    """The path is taken as it stands, without its query; the host of an absolute form decides nothing."""
    assert parse(line=b"GET " + target + b" HTTP/1.1").path == path


@pytest.mark.parametrize(
    ("version", "lines", "keeps"),
    [
        (b"1.1", [], True),
        (b"1.1", [b"Connection: close"], False),
        (b"1.1", [b"Connection: X, Close"], False),
        (b"1.1", [b"Connection: keep-alive"], True),
        (b"1.1", [b"Connection: close", b"Connection: keep-alive"], False),
        (b"1.0", [], False),
        (b"1.0", [b"Connection: Keep-Alive"], True),
        (b"1.0", [b"Connection: close"], False),
    ],
)
def test_keeping_the_connection(version, lines, keeps):
    """HTTP/1.1 keeps it unless told not to, HTTP/1.0 only when asked."""
    assert parse(*lines, line=b"GET / HTTP/" + version).keeps_alive is keeps


def test_an_offer_to_switch_protocols_is_ignored():
    """The request is read as what it is, and the offer goes no further."""
    head = parse(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: x", b"X: 1")

    assert (head.path, head.forwarded) == (b"/v1/completions", b"X: 1\r\n")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_connection_names_is_dropped_wherever_it_stands(at):
    """Fields named by Connection stay here in any case and order; fields that matter cannot be named away."""
    lines = [b"X-One: 1", b"x-TWO: 2"]
    lines.insert(at, b"Connection: X-one,, X-Two, Host, content-length")

    head = parse(*lines, b"Content-Length: 3", b"X-Three: 3")

    assert head.forwarded == b"X-Three: 3\r\n"
    assert head.content_length == 3


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "X-Api-Key",
        "Api-Key",
        "Host",
        "TE",
        "Trailer",
        "Keep-Alive",
        "Proxy-Connection",
        "Upgrade",
        "Accept-Encoding",
        "Expect",
        "X-Request-Id",
        "Baggage",
    ],
)
@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
def test_what_is_never_sent_on(name, case):
    """Credentials, cookies, hop-by-hop fields and what the gateway writes itself do not reach a worker in any spelling."""
    line = case(name).encode() + b": secret"
    head = parse(b"X: 1", line, host=None if name == "Host" else b"Host: h")

    assert head.forwarded == b"X: 1\r\n"


def test_the_rest_is_sent_on_as_it_came():
    """Names, values, order and repetitions stay, also bytes above ASCII."""
    lines = [b"Content-Type: application/json", b"X-Data-Residency: eu", b"X-A: \xe4\xb8\xad", b"x-a: 2", b"User-Agent: u"]

    assert parse(*lines).forwarded == b"\r\n".join((*lines, b""))


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"Bearer sk-1", b"sk-1"),
        (b"bearer  sk-1 ", b"sk-1"),
        (b"BEARER sk 1", b"sk 1"),
        (b"Bearer", b""),
        (b"Basic abc", None),
        (b"sk-1", None),
        (b"", None),
    ],
)
def test_keys(value, key):
    """Only a Bearer token is a key; its scheme is written in any case."""
    assert parse(b"Authorization: " + value).api_key == key


@pytest.mark.parametrize(
    ("lines", "request_id"),
    [
        ([b"X-Request-Id: abc-1.2_3:4"], "abc-1.2_3:4"),
        ([b"X-Request-Id: " + b"a" * 128], "a" * 128),
        ([b"X-Request-Id: " + b"a" * 129], None),
        ([b"X-Request-Id: "], None),
        ([b"X-Request-Id: -a"], None),
        ([b"X-Request-Id: a b"], None),
        ([b"X-Request-Id: a/b"], None),
        ([b'X-Request-Id: a"b'], None),
        ([b"X-Request-Id: \xe4"], None),
        ([b"X-Request-Id: a", b"X-Request-Id: b"], None),
        ([], None),
    ],
)
def test_request_ids(lines, request_id):
    """A client's id is used when it is short and plain, and there is only one."""
    assert parse(*lines).request_id == request_id


@pytest.mark.parametrize(
    ("value", "trace_id"),
    [
        (b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", "a" * 32),
        (b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01", None),
        (b"00-abc-def-01", None),
    ],
)
def test_trace_ids(value, trace_id):
    """A well-formed trace context is read; it goes on to the worker either way."""
    head = parse(b"traceparent: " + value)

    assert head.trace_id == trace_id
    assert head.forwarded == b"traceparent: " + value + b"\r\n"


def test_what_the_body_is():
    """Lengths, codings and expectations are read from the head."""
    assert parse(b"Content-Length: 007").content_length == 7
    assert parse(b"Transfer-Encoding: Chunked").is_chunked
    assert parse(b"Expect: 100-Continue").expects_continue
    assert parse(b"Content-Encoding: gzip").is_encoded
    assert not parse(b"Content-Encoding: identity").is_encoded
    assert repr(parse()) == "<RequestHead b'POST' b'/v1/completions'>"


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        (b"x-api-key: k", b"k"),
        (b"X-Api-Key:  k ", b"k"),
        (b"x-api-key: k\r\nAuthorization: Bearer b", b"b"),
        (b"Authorization: Bearer b\r\nx-api-key: k", b"b"),
        (b"Authorization: Basic b\r\nx-api-key: k", None),
        (b"x-api-key: ", None),
    ],
)
def test_a_key_as_anthropic_clients_send_it(lines, key):
    """It counts where no Authorization header is, and goes on to nobody."""
    head = parse(lines)

    assert head.api_key == key
    assert head.forwarded == b""


@pytest.mark.parametrize(
    ("target", "query"),
    [
        (b"/v1/responses/a", b""),
        (b"/v1/responses/a?stream=true&starting_after=4", b"stream=true&starting_after=4"),
        (b"http://h/v1/responses/a?stream=true", b"stream=true"),
        (b"/v1/responses/a?x=y z", b""),
        (b"/v1/responses/a?x=<", b""),
        (b"/v1/responses/a?" + b"x" * 513, b""),
    ],
)
def test_plain_queries_are_kept(target, query):
    """One that could be read in two ways, or is very long, is as good as none."""
    try:
        head = parse_request_head(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target)
    except ClientFault:
        assert b" " in target[1:]
    else:
        assert head.query == query
