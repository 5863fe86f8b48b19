"""From a body to what a worker gets, and every refusal on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan

import pytest

from proxy.serving.dispatch import Prepared, decide, prepare
from proxy.serving.endpoints import Endpoint, Endpoints
from proxy.wire.errors import ClientFault, Refusal, WorkerFault
from routing.policy import PoolReason, Reason, Snapshot
from routing.topology import Key
from telemetry.record import Rejection
from tests.routing.topologies import a_model, a_pool, a_topology

TOPOLOGY = a_topology(
    a_model(a_pool(0, 1, name="short", upto=2000), a_pool(2, name="long", upto=8000), name="org/m", aliases=("org/alias",)),
    a_model(replace(a_pool(3), asks_usage=False), name="q"),
)
ENDPOINTS = Endpoints(TOPOLOGY, 0)
CHAT = ENDPOINTS.find(b"POST", b"/v1/chat/completions")
ALL_UP = Snapshot((1.0,) * 4, (0.0,) * 4, 0)


def prepared(body: bytes, *, endpoint: Endpoint = CHAT, key: Key | None = None) -> Prepared:
    return prepare(body, endpoint, ENDPOINTS, key)


def sent(body: bytes) -> tuple[dict[str, object], bool]:
    """The document that the worker gets, and whether the usage event has to be taken out."""
    made = prepared(body)
    whole = b"".join(made.pieces)
    assert len(whole) == made.size
    return json.loads(whole), made.strips_usage


def test_a_plain_request_goes_as_it_is():
    """Not a byte is changed in a request that is not streamed, or asks for usage itself."""
    for body in (b'{ "model":"org/m","x":1.0 }', b'{"model":"org/m","stream":true,"stream_options":{"include_usage":true}}'):
        made = prepared(body)
        assert (made.pieces, made.size, made.strips_usage) == ([body], len(body), False)


@pytest.mark.parametrize("name", ["org/m", "org/alias", "org\\/alias"])
@pytest.mark.parametrize(
    "options", [None, "null", "{}", '{"include_usage":false}', '{"x":1}'], ids=["absent", "null", "empty", "false", "other"]
)
def test_usage_is_asked_for_in_streams(name, options):
    """Also under an alias, and whatever options there are, the worker is asked and the event will be taken out."""
    more = "" if options is None else f',"stream_options":{options}'

    document, strips = sent(f'{{"model":"{name}","stream":true{more}}}'.encode())

    assert strips
    assert document["model"] == "org/m"
    assert document["stream_options"]["include_usage"] is True  # type: ignore[index]


@pytest.mark.parametrize("stream", ["", '"stream":null,', '"stream":false,', '"stream":"true",', '"stream":1,'])
@pytest.mark.parametrize("options", ["", '"stream_options":{"include_usage":false},', '"stream_options":{},'])
def test_what_does_not_stream_goes_unchanged(stream, options):
    """Only exactly true is a stream: what a worker thinks of anything else is its own business."""
    body = f'{{{stream}{options}"model":"org/m"}}'.encode()

    made = prepared(body)

    assert (made.pieces, made.strips_usage) == ([body], False)


def test_usage_is_not_asked_for_where_it_is_switched_off():
    """A pool whose workers are not to be asked gets the stream request unchanged; so does a path without usage."""
    assert not prepared(b'{"model":"q","stream":true}').strips_usage
    assert not prepared(b'{"model":"org/m","stream":true}', endpoint=replace(CHAT, has_usage=False)).strips_usage


def test_an_alias_is_renamed():
    """Workers know the model by its configured name only."""
    assert sent(b'{"messages":[],"model":"org/alias"}') == ({"messages": [], "model": "org/m"}, False)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"x", 400, "invalid_json"),
        (b"{}", 400, "model_missing"),
        (b'{"model":"x"}', 404, "model_not_found"),
        (rb'{"mod\u0065l":"org/alias"}', 400, "invalid_model"),
    ],
)
def test_bodies_that_cannot_be_sent(body, status, code):
    """Each is the client's fault, with a code of its own."""
    with pytest.raises(ClientFault) as raised:
        prepared(body)

    assert (raised.value.status, raised.value.code) == (status, code)


def test_a_key_for_other_models():
    """It is refused, also under the model's alias."""
    key = Key(index=0, name="k", sha256=bytes(32), models=frozenset({"q"}))
    for name in (b"org/m", b"org/alias"):
        with pytest.raises(Refusal) as raised:
            prepared(b'{"model":"%b"}' % name, key=key)
        assert (raised.value.status, raised.value.reason) == (403, Rejection.AUTH)
    assert prepared(b'{"model":"q"}', key=key).model.name == "q"


def test_the_decision():
    """Prompt and budget choose the pool, the snapshot the worker."""
    short = decide(prepared(b'{"model":"org/m","messages":"hi"}'), ENDPOINTS, ALL_UP, ())
    long = decide(prepared(b'{"model":"org/m","messages":"hi","max_tokens":3000}'), ENDPOINTS, ALL_UP, ())

    assert (short.pool.name, short.reason) == ("short", Reason.LEAST_LOAD)
    assert (long.pool.name, long.reason, long.pool_reason) == ("long", Reason.ONLY_WORKER, PoolReason.CONTEXT_LENGTH)


def test_who_keeps_the_answer_before_gets_the_next_one():
    """Unless it is down, has been tried or serves another model; then the others are chosen from as ever."""
    pool = a_pool(0, 1, 2)
    workers = tuple(replace(worker, url=f"http://w-{worker.index}") for worker in pool.workers)
    endpoints = Endpoints(a_topology(a_model(replace(pool, workers=workers))), 0)
    made = prepare(b'{"input":"x","previous_response_id":"r"}', endpoints.find(b"POST", b"/v1/responses"), endpoints, None)
    busy = Snapshot((1.0,) * 3, (0.0, 0.0, 9e9), 0)

    kept = decide(made, endpoints, busy, (), "http://w-2")

    assert made.request.previous_id == "r"
    assert (kept.worker.name, kept.reason) == ("w-2", Reason.OWNER)
    assert decide(made, endpoints, busy, (), "http://other").worker.name != "w-2"
    assert decide(made, endpoints, busy, ("w-2",), "http://w-2").worker.name != "w-2"
    assert decide(made, endpoints, Snapshot((1.0, 1.0, 0.0), (0.0,) * 3, 0), (), "http://w-2").worker.name != "w-2"


def test_a_request_that_surely_does_not_fit():
    """It is refused with the numbers, before any worker is asked."""
    with pytest.raises(Refusal) as raised:
        decide(prepared(b'{"model":"org/m","prompt":[%b],"max_tokens":1}' % b",".join([b"1"] * 8000)), ENDPOINTS, ALL_UP, ())

    assert (raised.value.status, raised.value.code, raised.value.reason) == (400, "context_length_exceeded", Rejection.FIT)
    assert all(number in raised.value.text for number in ("8000", "1 tokens"))


def test_no_worker_is_up():
    """The client may come back soon."""
    with pytest.raises(Refusal) as raised:
        decide(prepared(b'{"model":"q"}'), ENDPOINTS, Snapshot((1.0, 1.0, 1.0, 0.0), (0.0,) * 4, 0), ())

    assert (raised.value.status, raised.value.reason, raised.value.retry_after_seconds) == (503, Rejection.NO_WORKER, 2)


def test_every_worker_was_tried():
    """Then it is the workers' fault, not a refusal; workers of unknown health are tried, too."""
    request = prepared(b'{"model":"org/m","messages":"hi"}')
    unknown = Snapshot((nan,) * 4, (0.0,) * 4, 0)

    assert decide(request, ENDPOINTS, unknown, ("w-0",)).worker.index == 1
    with pytest.raises(WorkerFault) as raised:
        decide(request, ENDPOINTS, unknown, ("w-0", "w-1"))
    assert raised.value.status == 503
