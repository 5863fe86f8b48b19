"""Which refusals are about the question for usage, and how long they are remembered."""

from __future__ import annotations

import pytest

from proxy.usage_refusals import UsageRefusals, is_about_usage, may_be_about_usage


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


def test_a_worker_is_remembered_for_an_hour():
    """Then it is asked again, since it may be another one by now; others are not concerned."""
    refusals = UsageRefusals()
    assert not refusals.has("http://a", 0.0)
    refusals.add("http://a", 100.0)

    assert refusals.has("http://a", 3700.0)
    assert not refusals.has("http://b", 200.0)
    assert not refusals.has("http://a", 3701.0)
    assert repr(refusals) == "<UsageRefusals of 0 workers>"
