"""Which refusals are about the question for usage, and how long they are remembered."""

from __future__ import annotations

import pytest

from proxy.upstream.usage_refusals import UsageRefusals, is_about_usage, may_be_about_usage, may_quote, says_unknown


@pytest.mark.parametrize(("status", "may"), [(400, True), (422, True), (200, False), (404, False), (429, False), (500, False)])
def test_statuses(status, may):
    """Only those with which a body is refused."""
    assert may_be_about_usage(status) is may


@pytest.mark.parametrize(
    ("body", "is_about"),
    [
        (b'{"error":{"message":"Extra inputs are not permitted","param":"stream_options"}}', True),
        (b'{"detail":[{"loc":["body","stream_options","include_usage"]}]}', True),
        (b"unknown field include_usage", True),
        (b'{"error":{"message":"temperature"}}', False),
        (b"", False),
    ],
)
def test_bodies(body, is_about):
    """One that names what the gateway added."""
    assert is_about_usage(body) is is_about


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"Extra inputs are not permitted: stream_options"}}',
        b'{"error":{"message":"Extra inputs are not permitted","param":"stream_options"}}',
        b'{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}',
        b"{\"error\":{\"message\":\"[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options', 'include_usage')}]\"}}",
        b"unknown field include_usage",
        b'json: unknown field \\"stream_options\\"',
        b"unknown field `stream_options`, expected one of",
        b'{"error":{"message":"Unrecognized request argument supplied: stream_options"}}',
        b'{"message":"Unknown field stream_options"}',
        b"Unknown parameter: 'stream_options'.",
        b"create() got an unexpected keyword argument 'stream_options'",
    ],
)
def test_words_for_an_unknown_field(body):
    """As workers of several kinds say it."""
    assert says_unknown(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"404, message=Not Found, url=http://example.org/stream_options.png"}}',
        b"{\"error\":{\"message\":\"input: {'stream_options': 1, 'temperature': 'x'}\"}}",
        b'{"error":{"message":"Extra inputs are not permitted: temperature, input: stream_options"}}',
        b'{"detail":[{"loc":["body","temperature"],"input":"stream_options"}]}',
        b"",
    ],
)
def test_words_that_are_no_proof(body):
    """The name is somewhere else, where it may be a quotation."""
    assert not says_unknown(body)


@pytest.mark.parametrize(
    ("request_body", "may"),
    [
        (b'{"messages":[{"content":"Extra inputs are not permitted: stream_options"}]}', True),
        (b'{"messages":[{"content":"unknown field stream\\u005foptions"}]}', True),
        (b'{"messages":[{"content":"\\u00e9"}]}', False),
        (b'{"messages":[{"content":"\\u00"}]}', True),
        (b'{"messages":[{"content":"Hi"}]}', False),
    ],
)
def test_what_a_refusal_can_quote(request_body, may):
    """A client that writes the name itself, escaped or not, proves nothing."""
    assert may_quote(request_body) is may


def refused(times: int, at: float = 100.0) -> UsageRefusals:
    refusals = UsageRefusals()
    for _ in range(times):
        refusals.add("http://a", at)
    return refusals


def test_one_refusal_is_not_enough():
    """It takes three in a row; one question that is taken shows that the field is known."""
    refusals = refused(2)
    assert not refusals.has("http://a", 100.0)
    refusals.clear("http://a")
    refusals.add("http://a", 101.0)
    refusals.add("http://a", 102.0)

    assert not refusals.has("http://a", 102.0)
    refusals.add("http://a", 103.0)
    assert refusals.has("http://a", 103.0)


def test_a_worker_is_remembered_for_five_minutes():
    """Then it is asked again, since it may be another one by now; others are not concerned."""
    refusals = refused(3)

    assert refusals.has("http://a", 400.0)
    assert not refusals.has("http://b", 200.0)
    assert not refusals.has("http://a", 401.0)
    assert repr(refusals) == "<UsageRefusals of 0 workers>"
