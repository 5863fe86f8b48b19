"""The paths of the API: which exist, and how each is answered. Everything else is 404."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import msgspec

from proxy.serving.ties import Ties
from proxy.wire.errors import ClientFault, ProxyError, wrong_method
from proxy.wire.inference import Work
from routing.topology import Key, Model, Topology
from telemetry.dialects import CHAT, MESSAGES, RESPONSES, Dialect

PROBES = (b"/livez", b"/readyz", b"/health")
"""Answered by the serving process itself, without a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method and path of the API."""

    name: str  # label value; paths that do the same share one
    method: bytes
    path: bytes  # canonical; this is what a worker is asked for
    has_usage: bool = False  # its streams can be asked for usage
    work: Work = Work.GENERATE
    is_form: bool = False  # the body is a form with a file, not JSON
    dialect: Dialect = CHAT  # how its answers are read
    response_id: str | None = None  # asks for this answer, which some worker keeps
    answer: Callable[[Key | None], bytes] | None = None  # answered by the gateway itself, for this key
    fault: Callable[[], ProxyError] | None = None  # makes the error that says why nothing answers here


_ONE_MODEL = b"/v1/models/"
ANSWER_ID = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.:-]{1,200}"
"""Pattern of the ids that a path can name."""
_ONE_RESPONSE = re.compile(rb"/v1/responses/(%b)(/cancel)?" % ANSWER_ID.encode())
_WORKED_ON = (
    Endpoint(name="chat", method=b"POST", path=b"/v1/chat/completions", has_usage=True),
    Endpoint(name="completions", method=b"POST", path=b"/v1/completions", has_usage=True),
    Endpoint(name="responses", method=b"POST", path=b"/v1/responses", dialect=RESPONSES),
    Endpoint(name="messages", method=b"POST", path=b"/v1/messages", dialect=MESSAGES),
    Endpoint(name="tokenize", method=b"POST", path=b"/v1/messages/count_tokens", work=Work.COUNT, dialect=MESSAGES),
    Endpoint(name="embeddings", method=b"POST", path=b"/v1/embeddings", work=Work.READ),
    Endpoint(name="rerank", method=b"POST", path=b"/v1/rerank", work=Work.READ),
    Endpoint(name="rerank", method=b"POST", path=b"/v1/score", work=Work.READ),
    Endpoint(name="audio", method=b"POST", path=b"/v1/audio/transcriptions", is_form=True),
    Endpoint(name="audio", method=b"POST", path=b"/v1/audio/translations", is_form=True),
    Endpoint(name="tokenize", method=b"POST", path=b"/tokenize", work=Work.COUNT),
    Endpoint(name="tokenize", method=b"POST", path=b"/detokenize", work=Work.COUNT),
)
NO_ENDPOINT = Endpoint(
    name="other", method=b"", path=b"", fault=lambda: ClientFault("not_found", "There is no such path.", status=404)
)


class Endpoints:
    """The route table of one topology."""

    __slots__ = ("_by_path", "_created_unix_seconds", "_models", "_names", "ties")

    def __init__(self, topology: Topology, created_unix_seconds: int) -> None:
        self._created_unix_seconds = created_unix_seconds  # shown as the age of every model
        self._models = topology.models
        self._names: Mapping[str, Model] = {name: model for model in topology.models for name in (model.name, *model.aliases)}
        self.ties = {model.name: Ties.of(model) for model in topology.models}  # what policies look for in requests
        endpoints = [
            *_WORKED_ON,
            Endpoint(name="models", method=b"GET", path=b"/v1/models", answer=self._list_models),
        ]
        self._by_path = {endpoint.path: endpoint for endpoint in endpoints}

    @property
    def listed(self) -> Collection[Endpoint]:
        """All with a path of their own; those with an id or a model's name in it come on top."""
        return self._by_path.values()

    @property
    def routes(self) -> dict[str, tuple[str, str]]:
        """Method and path by the name of an endpoint; of several with one name those of the first."""
        found: dict[str, tuple[str, str]] = {}
        for endpoint in self._by_path.values():
            found.setdefault(endpoint.name, (endpoint.method.decode(), endpoint.path.decode()))
        return found

    def find(self, method: bytes, path: bytes) -> Endpoint:
        """What answers this method on this path; one with a `fault` if nothing does."""
        endpoint = self._by_path.get(path) or _response_endpoint(path) or self._model_endpoint(path)
        if endpoint.method == method or endpoint is NO_ENDPOINT:
            return endpoint
        allowed = endpoint.method.decode()
        return Endpoint(
            name=endpoint.name,
            method=method,
            path=path,
            dialect=endpoint.dialect,
            fault=lambda: wrong_method(allowed),
        )

    def _model_endpoint(self, path: bytes) -> Endpoint:
        if not path.startswith(_ONE_MODEL):
            return NO_ENDPOINT
        name = unquote(path.removeprefix(_ONE_MODEL).decode("latin-1"))
        if name not in self._names:
            return Endpoint(name="models", method=b"GET", path=path, fault=_no_such_model)
        return Endpoint(name="models", method=b"GET", path=path, answer=partial(self._show_model, name))

    def model(self, name: str | None) -> Model:
        """The model of this name or alias; the only one if none is named. Raises `ClientFault` for any other."""
        model = self._names.get(name) if name is not None else None
        if model is not None:
            return model
        if name is None:
            if len(self._models) == 1:
                return self._models[0]
            raise ClientFault("model_missing", "Name a model in the field 'model'; GET /v1/models lists them.")
        raise _no_such_model()

    def _object(self, name: str) -> dict[str, object]:
        shown: dict[str, object] = {
            "id": name,
            "object": "model",
            "created": self._created_unix_seconds,
            "owned_by": "ridgeline",
        }
        largest = self._names[name].pools[-1].max_total_tokens
        if largest is not None:
            shown["max_model_len"] = largest
        return shown

    def _list_models(self, key: Key | None) -> bytes:
        data = [self._object(name) for name, model in self._names.items() if may_use(key, model)]
        return msgspec.json.encode({"object": "list", "data": data})

    def _show_model(self, name: str, key: Key | None) -> bytes:
        if not may_use(key, self._names[name]):
            raise _no_such_model()
        return msgspec.json.encode(self._object(name))


def _response_endpoint(path: bytes) -> Endpoint | None:
    match = _ONE_RESPONSE.fullmatch(path)
    if match is None:
        return None
    method = b"GET" if match[2] is None else b"POST"
    return Endpoint(
        name="response_lookup", method=method, path=path, work=Work.COUNT, dialect=RESPONSES, response_id=match[1].decode()
    )


def may_use(key: Key | None, model: Model) -> bool:
    """Whether a request with this key may use the model; without configured keys everybody may."""
    return key is None or key.models is None or model.name in key.models


def _no_such_model() -> ClientFault:
    return ClientFault("model_not_found", "The model does not exist; GET /v1/models lists those that do.", status=404)
