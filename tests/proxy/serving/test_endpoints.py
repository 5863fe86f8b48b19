"""The paths of the API: the allow-list, and the answers of the gateway itself."""

from __future__ import annotations

import json

import pytest

from proxy.serving.endpoints import PROBES, Endpoints, may_use
from proxy.wire.errors import ClientFault, ProxyError
from routing.topology import Key
from telemetry.labels import LABELS
from tests.routing.topologies import a_model, a_pool, a_topology

TOPOLOGY = a_topology(
    a_model(a_pool(0, name="short", upto=100), a_pool(1, name="long", upto=900), name="org/m", aliases=("m", "alias")),
    a_model(a_pool(2), name="q"),
)
ENDPOINTS = Endpoints(TOPOLOGY, 1700000000)


def a_key(*models: str) -> Key:
    return Key(index=0, name="k", sha256=bytes(32), models=frozenset(models) if models else None)


def fault_of(method: bytes, path: bytes) -> ProxyError | None:
    endpoint = ENDPOINTS.find(method, path)
    return None if endpoint.fault is None else endpoint.fault()


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        (b"POST", b"/v1/chat/completions", "chat"),
        (b"POST", b"/v1/completions", "completions"),
        (b"POST", b"/v1/responses", "responses"),
        (b"GET", b"/v1/responses/resp_1", "response_lookup"),
        (b"POST", b"/v1/responses/resp_1/cancel", "response_lookup"),
        (b"GET", b"/v1/responses/.a", "response_lookup"),
        (b"GET", b"/v1/responses/...", "response_lookup"),
        (b"POST", b"/v1/messages", "messages"),
        (b"POST", b"/v1/messages/count_tokens", "tokenize"),
        (b"POST", b"/v1/embeddings", "embeddings"),
        (b"POST", b"/v1/rerank", "rerank"),
        (b"POST", b"/v1/score", "rerank"),
        (b"POST", b"/v1/audio/transcriptions", "audio"),
        (b"POST", b"/v1/audio/translations", "audio"),
        (b"POST", b"/tokenize", "tokenize"),
        (b"POST", b"/detokenize", "tokenize"),
        (b"GET", b"/v1/models", "models"),
        (b"GET", b"/v1/models/org/m", "models"),
        (b"GET", b"/v1/models/alias", "models"),
    ],
)
def test_paths_that_are_answered(method, path, name):
    """Each is known by method and canonical path; what a worker is asked for is the table's path, not the client's."""
    endpoint = ENDPOINTS.find(method, path)

    assert (endpoint.name, endpoint.path, endpoint.fault) == (name, path, None)


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/metrics",
        b"/v1",
        b"/v1/",
        b"/v1/completions/",
        b"//v1/completions",
        b"/v1//completions",
        b"/v1/./completions",
        b"/v1/x/../completions",
        b"/v1/%63ompletions",
        b"/V1/completions",
        b"/v1/completions;x",
        b"/sleep",
        b"/invocations",
        b"/v1/load_lora_adapter",
        b"/reset_prefix_cache",
        b"http://worker/v1/completions",
        b"/v1/responses/",
        b"/v1/responses/a/b",
        b"/v1/responses/a/cancel/",
        b"/v1/responses/a%2Fcancel",
        b"/v1/responses/%2e%2e",
        b"/v1/responses/.",
        b"/v1/responses/..",
        b"/v1/responses/./cancel",
        b"/v1/responses/../cancel",
        b"/v1/responses//cancel/cancel",
        b"/v1/responses/" + b"a" * 201,
        b"/v1/messages/batches",
        b"/score",
        b"/rerank",
        b"/pooling",
        b"*",
        b"",
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_everything_else_is_not_found(method, path):
    """No other spelling of a path and no control endpoint of a worker is reachable."""
    fault = fault_of(method, path)

    assert fault is not None
    assert (fault.status, fault.code) == (404, "not_found")
    assert ENDPOINTS.find(method, path).name == "other"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        (b"GET", b"/v1/completions", "POST"),
        (b"HEAD", b"/v1/chat/completions", "POST"),
        (b"POST", b"/v1/models", "GET"),
        (b"DELETE", b"/v1/models/q", "GET"),
        (b"GET", b"/v1/responses", "POST"),
        (b"DELETE", b"/v1/responses/resp_1", "GET"),
        (b"GET", b"/v1/responses/resp_1/cancel", "POST"),
        (b"GET", b"/tokenize", "POST"),
    ],
)
def test_other_methods_are_refused(method, path, allowed):
    """A known path says which method it answers."""
    fault = fault_of(method, path)

    assert fault is not None
    assert (fault.status, fault.code) == (405, "method_not_allowed")
    assert allowed in fault.text
    assert fault.allow == allowed


def test_every_name_is_a_label():
    """What requests are counted under is in the catalogue."""
    names = {endpoint.name for endpoint in ENDPOINTS.listed} | {"response_lookup", "other"}

    assert names == set(LABELS["endpoint"])


def test_probes_are_no_endpoints():
    """The paths that the process answers itself are not in the table, so they never reach a worker."""
    assert [fault_of(b"GET", path) is None for path in PROBES] == [False] * len(PROBES)


@pytest.mark.parametrize(("name", "expected"), [("org/m", "org/m"), ("m", "org/m"), ("alias", "org/m"), ("q", "q")])
def test_models_by_name_and_alias(name, expected):
    """A model is found by each of its names."""
    assert ENDPOINTS.model(name).name == expected


@pytest.mark.parametrize(("name", "status"), [("Q", 404), ("", 404), ("\ufffd", 404), ("none", 404), (None, 400)])
def test_models_that_do_not_exist(name, status):
    """An unknown name is not found, and no name among several models is a fault of its own."""
    with pytest.raises(ClientFault) as raised:
        ENDPOINTS.model(name)

    assert raised.value.status == status


def test_a_single_model_needs_no_name():
    """Where there is only one, it is the one that is meant; a wrong name is still wrong."""
    endpoints = Endpoints(a_topology(a_model(a_pool(0))), 0)

    assert endpoints.model(None).name == "m"
    with pytest.raises(ClientFault):
        endpoints.model("x")


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (None, ["org/m", "m", "alias", "q"]),
        (a_key(), ["org/m", "m", "alias", "q"]),
        (a_key("q"), ["q"]),
        (a_key("org/m"), ["org/m", "m", "alias"]),
        (a_key("other"), []),
    ],
)
def test_the_list_of_models(key, names):
    """It has every name that the key may use, and how long a request may be where that is known."""
    answer = ENDPOINTS.find(b"GET", b"/v1/models").answer
    assert answer is not None

    listed = json.loads(answer(key))

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == names
    for model in listed["data"]:
        assert (model["object"], model["created"], model["owned_by"]) == ("model", 1700000000, "ridgeline")
        assert model.get("max_model_len") == (None if model["id"] == "q" else 900)


def test_one_model():
    """A model is shown under the name it was asked for by, and hidden from a key that may not use it."""
    answer = ENDPOINTS.find(b"GET", b"/v1/models/alias").answer
    assert answer is not None

    assert json.loads(answer(None))["id"] == "alias"
    with pytest.raises(ClientFault) as raised:
        answer(a_key("q"))
    assert raised.value.status == 404


def test_who_may_use_a_model():
    """Keys name models, not aliases; without keys everybody may."""
    model = TOPOLOGY.models[0]

    assert [may_use(key, model) for key in (None, a_key(), a_key("org/m"), a_key("alias"))] == [True, True, True, False]


@pytest.mark.parametrize("path", [b"/v1/models/", b"/v1/models/unknown", b"/v1/models/q%00", b"/v1/models/../q"])
def test_a_model_that_does_not_exist_is_told_as_that(path):
    """A client that asks for one model by name learns that the model is missing, not the path."""
    fault = fault_of(b"GET", path)

    assert fault is not None
    assert (fault.status, fault.code) == (404, "model_not_found")


def test_a_model_may_be_asked_for_in_percent_encoding():
    """Clients encode the slash in a model's name."""
    assert ENDPOINTS.find(b"GET", b"/v1/models/org%2Fm").answer is not None
