"""From a request's body to what a worker is sent, and to which worker: every check that can refuse it on the way."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from proxy.endpoints import Endpoint, Endpoints, may_use
from proxy.errors import ClientFault, ProxyError, Refusal, WorkerFault
from proxy.inference import InferenceRequest, ask_for_usage, parse_request, rename_model
from routing.estimate import TokenEstimate, estimate_tokens
from routing.policy import Decision, Impossible, Snapshot, choose
from routing.topology import Key, Model
from telemetry.record import Rejection

if TYPE_CHECKING:
    from proxy.request_head import RequestHead
    from proxy.state import ServingState


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A request that may be sent to any worker of its model."""

    request: InferenceRequest
    model: Model
    estimate: TokenEstimate
    pieces: list[bytes | memoryview]  # the body as the worker gets it
    size: int  # its bytes
    strips_usage: bool  # usage was asked for on the gateway's own account


def admit(head: RequestHead, endpoint: Endpoint, state: ServingState) -> Key | None:
    """Judge what the head alone tells; give back the key it came with. Raises `ProxyError`."""
    if endpoint.fault is not None:
        raise endpoint.fault()
    key = None
    if state.keys:
        key = state.find_key(head.api_key)
        if key is None:
            what = "No API key was given" if head.api_key is None else "The API key is not known"
            raise Refusal(401, "invalid_api_key", f"{what}; send it as 'Authorization: Bearer KEY'.", reason=Rejection.AUTH)
    if head.is_encoded:
        raise ClientFault("unsupported_encoding", "Compressed request bodies are not accepted.", status=415)
    return key


def prepare(body: bytes, endpoint: Endpoint, endpoints: Endpoints, key: Key | None) -> Prepared:
    """Read the body and change what has to be changed in it. Raises `ProxyError` for a request that cannot be sent."""
    request = parse_request(body)
    model = endpoints.model(request.model)
    if key is not None and not may_use(key, model):
        raise Refusal(403, "model_not_allowed", "This API key may not use this model.", reason=Rejection.AUTH)
    estimate = estimate_tokens(request.text_bytes, request.token_ids, is_ascii=request.is_ascii)
    if request.model is not None and request.model != model.name:
        renamed = rename_model(body, request.model, model.name)
        if renamed is None:
            raise ClientFault("invalid_model", "The model field could not be read.")
        body = renamed
        request = msgspec.structs.replace(request, model=model.name)
    if request.stream and request.include_usage is not True and endpoint.has_usage and model.pools[0].asks_usage:
        pieces = ask_for_usage(body, request)
        if pieces is not None:
            return Prepared(request, model, estimate, pieces, sum(map(len, pieces)), True)
    return Prepared(request, model, estimate, [body], len(body), False)


def decide(prepared: Prepared, endpoints: Endpoints, snapshot: Snapshot, tried: Collection[str]) -> Decision:
    """Choose a worker that has not been tried. Raises `ProxyError` when there is none."""
    # After a reload the model of a request that is tried again is another value, or gone.
    model = endpoints.model(prepared.model.name) if tried else prepared.model
    decision = choose(model, prepared.estimate, prepared.request.max_tokens, snapshot, tried)
    if isinstance(decision, Decision):
        return decision
    raise _refusal(decision, prepared, tried)


def _refusal(why: Impossible, prepared: Prepared, tried: Collection[str]) -> ProxyError:
    if why is Impossible.FIT:
        limit = prepared.model.pools[-1].max_total_tokens
        return Refusal(
            400,
            "context_length_exceeded",
            f"The prompt (at least {prepared.estimate.least} tokens) and the output budget of "
            f"{prepared.request.max_tokens or 0} tokens are over the {limit} tokens that this model is served with.",
            reason=Rejection.FIT,
        )
    if tried:
        return WorkerFault("worker_unreachable", "No worker could be reached for this model.")
    return Refusal(
        503, "no_worker", "No worker takes requests for this model now.", reason=Rejection.NO_WORKER, retry_after_seconds=2
    )
