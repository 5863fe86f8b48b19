"""Addresses: every spelling of one worker comes to the same thing, and what cannot work is refused with a clear text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.errors import RefusedError
from proxy.config.worker_url import WorkerUrl, parse_listen_address, parse_worker_url


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000/v1", "http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000/v1//", "http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000/sub/path/v1/", "http://10.0.0.1:8000/sub/path", "10.0.0.1:8000/sub/path"),
        ("http://10.0.0.1:8000/sub", "http://10.0.0.1:8000/sub", "10.0.0.1:8000/sub"),
        ("http://10.0.0.1:8000/xv1", "http://10.0.0.1:8000/xv1", "10.0.0.1:8000/xv1"),
        ("HTTP://Worker-A.Example:8000", "http://worker-a.example:8000", "worker-a.example:8000"),
        ("http://vllm", "http://vllm", "vllm:80"),
        ("http://vllm:80", "http://vllm", "vllm:80"),
        ("http://my_worker:8000", "http://my_worker:8000", "my_worker:8000"),
        ("http://[FD00::0:1]:8000", "http://[fd00::1]:8000", "[fd00::1]:8000"),
        ("http://[fd00::1]", "http://[fd00::1]", "[fd00::1]:80"),
        ("http://[::1]:8000/v1", "http://[::1]:8000", "[::1]:8000"),
        ("http://::1", "http://[::1]", "[::1]:80"),
        ("http://fd00:1:2:3:4:5:6:7:8000", "http://[fd00:1:2:3:4:5:6:7]:8000", "[fd00:1:2:3:4:5:6:7]:8000"),
    ],
)
def test_spellings_come_to_one_form(text, url, name):
    """Slashes, /v1, upper case and IPv6 spellings all come to one URL and one default name."""
    parsed = parse_worker_url(text)
    assert (url, name) == (parsed.url, parsed.default_name)
    assert parsed == parse_worker_url(parsed.url)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("localhost:8000", "scheme"),
        ("10.0.0.1", "scheme"),
        ("//host", "scheme"),
        ("ftp://a", "scheme ftp"),
        ("http://", "host"),
        ("http://:8000", "host"),
        ("http://a:", "port"),
        ("http://a:0", "range"),
        ("http://a:65536", "range"),
        ("http://a:\uff18\uff10", "ASCII"),
        ("http://a:8000x", "port"),
        ("http://a b:8000", "blank"),
        ("http://a:8000\n", "blank"),
        ("http://a:8000?x=1", "query"),
        ("http://a:8000/#f", "fragment"),
        ("http://user:pw@a:8000", "password"),
        ("http://[fe80::1%eth0]:8000", "zone"),
        ("http://fe80::1%25eth0", "zone"),
        ("http://[fd00::1", "without ]"),
        ("http://[fd00::1]8000", "between"),
        ("http://[10.0.0.1]:8000", "brackets"),
        ("http://fd00::1:8000", "brackets"),
        ("http://a:b:c", "colon"),
        ("http://10.0.0.300:8000", "IPv4"),
        ("http://10.1:8000", "IPv4"),
        ("http://-a:8000", "host name"),
        ("http://a..b:8000", "host name"),
        ("http://a/../b", "path"),
        ("http://a/b//c", "path"),
        ("http://a/%zz", "path"),
        ("http://a/v1/chat/completions", "endpoint"),
        ("http://a/v1/models", "endpoint"),
    ],
)
def test_what_cannot_work_is_refused(text, word):
    """Each URL that is not a plain http base URL is refused, and the text says why."""
    with pytest.raises(RefusedError, match=word):
        parse_worker_url(text)


def test_a_refusal_never_shows_a_password():
    """The password or query of a URL is in neither half of the refusal."""
    for text in (
        "http://user:hunter2@a",
        "https://user:hunter2@a",
        "user:hunter2@a",
        "http://a/?key=hunter2",
        "http://a hunter2",
    ):
        with pytest.raises(RefusedError) as caught:
            parse_worker_url(text)
        assert "hunter2" not in caught.value.wrong + caught.value.right


@given(st.text(max_size=40) | st.from_regex(r"http://[\[\]:.%@/a-f0-9-]{0,30}", fullmatch=True))
def test_any_text_is_parsed_or_refused(text):
    """Whatever the text, it is refused or comes to a form that parses to itself."""
    try:
        parsed = parse_worker_url(text)
    except RefusedError:
        return
    assert isinstance(parsed, WorkerUrl)
    assert parsed == parse_worker_url(parsed.url)


def test_ambiguous_ipv6_shows_both_readings():
    """An address whose last part may be a port is refused with both ways to write it."""
    with pytest.raises(RefusedError) as caught:
        parse_worker_url("http://fd00::1:8000")
    assert "http://[fd00::1]:8000" in caught.value.right
    assert "http://[fd00::1:8000]" in caught.value.right


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0.0.0.0:8080", "0.0.0.0:8080"),
        ("[::]:8080", "[::]:8080"),
        (":::8080", "[::]:8080"),
        ("localhost:1", "localhost:1"),
        ("[0:0::1]:65535", "[::1]:65535"),
    ],
)
def test_listen_addresses(text, shown):
    """Host and port are taken apart and shown in one form."""
    assert shown == str(parse_listen_address(text))


@pytest.mark.parametrize(
    "text",
    ["", "8080", ":8080", "*:8080", "a", "a:", "a:0", "a:65536", "a:http", "[::]", "http://a:80", "a:80/x", "[fe80::1%1]:80"],
)
def test_listen_addresses_that_cannot_work(text):
    """What is not host:port with a port from 1 to 65535 is refused with an example."""
    with pytest.raises(RefusedError) as caught:
        parse_listen_address(text)
    assert caught.value.right


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("127.0.0.1:1", "0.0.0.0:1", True),
        ("[::]:1", "10.0.0.1:1", True),
        ("localhost:1", "127.0.0.1:1", True),
    ],
)
def test_overlap(one, other, both):
    """Two listeners overlap when they share a port and one host includes the other."""
    first, second = parse_listen_address(one), parse_listen_address(other)
    assert both is first.overlaps(second) is second.overlaps(first)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [("127.0.0.9:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False), ("a:1", False)],
)
def test_loopback(text, loopback):
    """Loopback is what only this machine can reach."""
    assert loopback is parse_listen_address(text).is_loopback
