"""From a request's body to what a worker is sent, and to which worker: every check that can refuse it on the way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from proxy.serving.endpoints import Endpoint, Endpoints, may_use
from proxy.serving.estimating import demand_of
from proxy.wire.errors import ClientFault, ProxyError, Refusal, no_worker
from proxy.wire.forms import Span, boundary_of, read_form, request_of
from proxy.wire.inference import InferenceRequest, Work, ask_for_usage, parse_other, parse_request, rename_model
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import NO_GUIDANCE, Guidance
from routing.policy import Decision, Impossible, Reason, Snapshot, choose
from routing.pools import most_total_tokens
from routing.topology import Key, Model
from telemetry.record import Rejection

if TYPE_CHECKING:
    from proxy.serving.state import ServingState
    from proxy.wire.request_head import RequestHead


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A request that may be sent to any worker of its model."""

    request: InferenceRequest
    model: Model
    demand: Demand
    pieces: list[bytes | memoryview]  # the body as the worker gets it
    size: int  # its bytes
    strips_usage: bool  # usage is asked for in them on the gateway's own account
    body: bytes  # the same without the question


def admit(head: RequestHead, endpoint: Endpoint, state: ServingState) -> Key | None:
    """Judge what the head alone tells; give back the key it came with. Raises `ProxyError`."""
    if endpoint.fault is not None:
        raise endpoint.fault()
    key = None
    if state.keys:
        key = None if head.key_hash is None else state.keys.get(head.key_hash)
        if key is None:
            what = "No API key was given" if head.api_key is None else "The API key is not known"
            raise Refusal(401, "invalid_api_key", f"{what}; send it as 'Authorization: Bearer KEY'.", reason=Rejection.AUTH)
    if head.is_encoded:
        raise ClientFault("unsupported_encoding", "Compressed request bodies are not accepted.", status=415)
    return key


def prepare(
    body: bytes,
    endpoint: Endpoint,
    endpoints: Endpoints,
    key: Key | None,
    header_lines: bytes = b"",
    guidance: Guidance = NO_GUIDANCE,
) -> Prepared:
    """Read the body and change what has to be changed in it. Raises `ProxyError` for a request that cannot be sent."""
    form: Mapping[str, Span] | None = None
    if endpoint.has_usage:
        request = parse_request(body)
    elif endpoint.is_form:
        boundary = boundary_of(header_lines)
        if boundary is None:
            raise ClientFault("invalid_form", "This path takes a form: send 'Content-Type: multipart/form-data; boundary=...'.")
        form = read_form(body, boundary)
        request = request_of(body, form)
    else:
        request = parse_other(body, endpoint.work)
    model = endpoints.model(request.model)
    if key is not None and not may_use(key, model):
        raise Refusal(403, "model_not_allowed", "This API key may not use this model.", reason=Rejection.AUTH)
    demand = demand_of(request, model, key, guidance)
    ties = endpoints.ties[model.name]
    if ties is not None and endpoint.work is Work.GENERATE:
        affinity, session = ties.find(request, header_lines)
        demand = msgspec.structs.replace(demand, affinity=affinity, session=session)
    if request.model is not None and request.model != model.name:
        if form is None:
            renamed = rename_model(body, request.model, model.name)
        else:
            start, end = form["model"]
            renamed = b"".join((body[:start], model.name.encode(), body[end:]))
        if renamed is None:
            raise ClientFault(
                "invalid_model",
                "The field 'model' holds an alias and could not be found among all that are called so; send the model's name.",
            )
        body = renamed
        request = msgspec.structs.replace(request, model=model.name)
    if request.stream and request.include_usage is not True and endpoint.has_usage and _asks_usage(model):
        pieces = ask_for_usage(body, request)
        if pieces is not None:
            return Prepared(request, model, demand, pieces, sum(map(len, pieces)), True, body)
    return Prepared(request, model, demand, [body], len(body), False, body)


def prepare_lookup(decision: Decision, endpoints: Endpoints) -> Prepared:
    """A request that names no model, for the worker of this decision."""
    return Prepared(_NO_BODY, endpoints.model(decision.pool.model), Demand(TokenEstimate(0, 0, 0)), [b""], 0, False, b"")


_NO_BODY = parse_other(b"{}", Work.COUNT)


def _asks_usage(model: Model) -> bool:
    return any(pool.asks_usage for pool in model.pools)


def decide(
    prepared: Prepared, endpoints: Endpoints, snapshot: Snapshot, tried: Collection[str], owner: str | None = None
) -> Decision | None:
    """Choose a worker that has not been tried, the one at URL ``owner`` if possible. Raises `ProxyError` if there is none.

    ``None``: there are workers, and none of them has room now.
    """
    # After a reload the model of a request that is tried again is another value, or gone.
    model = endpoints.model(prepared.model.name) if tried else prepared.model
    if owner is not None:  # it alone can answer, whatever its load
        snapshot = msgspec.structs.replace(snapshot, caps=None)
    decision = choose(model, prepared.demand, snapshot, tried)
    if decision is Impossible.BUSY:
        return None
    if isinstance(decision, Decision):
        return decision if owner is None else _kept_with(owner, decision, model, snapshot, tried)
    raise _refusal(decision, prepared, model, tried, snapshot.guidance)


def _kept_with(owner: str, decision: Decision, model: Model, snapshot: Snapshot, tried: Collection[str]) -> Decision:
    """Only the worker that made an answer can go on from it, whatever the load."""
    for pool in model.pools:
        for worker in pool.workers:
            if worker.url == owner and snapshot.is_up[worker.index] != 0.0 and worker.name not in tried:
                return Decision(pool, worker, decision.pool_reason, pool.policy, Reason.OWNER)
    return decision


def _refusal(why: Impossible, prepared: Prepared, model: Model, tried: Collection[str], guidance: Guidance) -> ProxyError:
    if why is Impossible.FIT:
        limit = most_total_tokens(model, guidance)
        return Refusal(
            400,
            "context_length_exceeded",
            f"The prompt (at least {prepared.demand.estimate.least} tokens) and the output budget of "
            f"{prepared.demand.max_tokens or 0} tokens are over the {limit} tokens that this model is served with.",
            reason=Rejection.FIT,
        )
    return no_worker(has_tried=bool(tried))
