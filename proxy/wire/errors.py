"""What can go wrong with a request, by whose turn it is to act; each with a status, a stable code and a text for the client."""

from __future__ import annotations

import errno

from telemetry.record import Outcome, Rejection

RETRY_AFTER_SECONDS = 2
"""When to ask again where no worker takes requests: health checks notice within seconds."""


class ProxyError(Exception):
    """A request ends without a worker's answer. The text goes to the client and names no host, port or key."""

    def __init__(
        self, status: int, code: str, text: str, *, outcome: Outcome, reason: str, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(text)
        self.lines = b""  # of the answer's head, beside those that every error has
        self.allow: str | None = None  # methods that the path answers
        self.status = status
        self.code = code
        self.text = text
        self.outcome = outcome
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class ClientFault(ProxyError):
    """The client has to change its request."""

    def __init__(self, code: str, text: str, *, status: int = 400) -> None:
        super().__init__(status, code, text, outcome=Outcome.CLIENT_ERROR, reason=code)


class Refusal(ProxyError):
    """The gateway will not take this request, now or with these credentials; the reason is one of `Rejection`."""

    def __init__(self, status: int, code: str, text: str, *, reason: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(status, code, text, outcome=Outcome.REJECTED, reason=reason, retry_after_seconds=retry_after_seconds)


class WorkerFault(ProxyError):
    """The worker could not be reached, fell silent or made no sense."""

    def __init__(
        self,
        code: str,
        text: str,
        *,
        status: int = 502,
        outcome: Outcome = Outcome.WORKER_ERROR,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(status, code, text, outcome=outcome, reason=code, retry_after_seconds=retry_after_seconds)


def wrong_method(allowed: str) -> ClientFault:
    """The path is there and answers other methods, named as in an ``Allow`` header."""
    fault = ClientFault("method_not_allowed", f"This path answers {allowed} only.", status=405)
    fault.allow = allowed
    return fault


def response_not_found() -> ClientFault:
    """No worker that was asked has the response."""
    return ClientFault("response_not_found", "No worker has a response with this id.", status=404)


def body_too_large(limit_bytes: int) -> ClientFault:
    """The body is, or says it will be, over the limit."""
    return ClientFault("body_too_large", f"The request body is over the limit of {limit_bytes} bytes.", status=413)


def no_answer() -> WorkerFault:
    """The worker gave nothing that could be passed on, and the client has had nothing."""
    return WorkerFault("worker_failed", "The worker gave no usable answer.")


def answer_cut() -> WorkerFault:
    """The answer stopped in the middle, after its head had gone out."""
    text = "The worker stopped before its answer was complete."
    return WorkerFault("worker_disconnected", text, outcome=Outcome.TRUNCATED)


def no_worker(*, has_tried: bool) -> ProxyError:
    """There is nobody to ask, or nobody who could be reached."""
    if has_tried:
        text = "No worker could be reached for this model."
        return WorkerFault("worker_unreachable", text, status=503, retry_after_seconds=RETRY_AFTER_SECONDS)
    text = "No worker takes requests for this model now."
    return Refusal(503, "no_worker", text, reason=Rejection.NO_WORKER, retry_after_seconds=RETRY_AFTER_SECONDS)


def queue_full(retry_after_seconds: int) -> Refusal:
    """Every worker has as much to do as it may, and as many wait as may."""
    text = "All workers for this model are busy and too many requests wait for them."
    return Refusal(429, "queue_full", text, reason=Rejection.QUEUE, retry_after_seconds=retry_after_seconds)


def queue_timeout(retry_after_seconds: int) -> Refusal:
    """No worker had room for as long as a request may wait."""
    text = "No worker had room for this request in time."
    return Refusal(503, "queue_timeout", text, reason=Rejection.QUEUE, retry_after_seconds=retry_after_seconds)


def quota_exceeded(which: str, limit: int, retry_after_seconds: int) -> Refusal:
    """The key has used what it may: requests or tokens a minute, or requests at a time (``concurrency``)."""
    what = {
        "requests": f"{limit} requests a minute",
        "tokens": f"{limit} tokens a minute",
        "concurrency": f"{limit} requests at a time",
    }[which]
    text = f"This API key is over its limit of {what}. Try again in {retry_after_seconds} s."
    return Refusal(429, "rate_limit_exceeded", text, reason=Rejection.RATE, retry_after_seconds=retry_after_seconds)


def too_large_for_quota(limit: int) -> Refusal:
    """No waiting helps: the prompt and the output budget of one request are over what the key has in a minute."""
    text = f"The prompt and the output budget of this request are over the {limit} tokens a minute of this API key."
    return Refusal(400, "request_over_quota", text, reason=Rejection.RATE)


def quota_store_away() -> Refusal:
    """Limits are shared by several gateways, what keeps them is away, and that lets nobody in."""
    text = "The limits of this API key cannot be checked now."
    return Refusal(503, "quota_unavailable", text, reason=Rejection.RATE, retry_after_seconds=RETRY_AFTER_SECONDS)


def bodies_too_large() -> Refusal:
    """The bodies of the requests under way hold as much memory as they may."""
    text = "The gateway holds too many large requests now."
    return Refusal(503, "body_memory", text, reason=Rejection.MEMORY, retry_after_seconds=2)


_SHORTAGES = {
    errno.EMFILE: ("descriptors", "no file descriptors left"),
    errno.ENFILE: ("descriptors", "no file descriptors left"),
    errno.EADDRNOTAVAIL: ("ports", "no ports left"),
    errno.ENOBUFS: ("memory", "no memory left"),
    errno.ENOMEM: ("memory", "no memory left"),
}


def own_shortage(number: int | None) -> Refusal | None:
    """What this machine lacks for a connection to a worker, by the number of an OSError; None: that is not what it says."""
    if number not in _SHORTAGES:
        return None
    what, text = _SHORTAGES[number]
    return Refusal(
        503,
        f"gateway_out_of_{what}",
        f"The gateway has {text} for a connection to a worker.",
        reason=Rejection.SHORTAGE,
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def worker_not_trusted() -> WorkerFault:
    """No safe connection to the worker: its certificate, its name or its CA is not what it has to be."""
    return WorkerFault("worker_not_trusted", "The worker could not be reached over a connection that can be trusted.")


def gateway_refused() -> WorkerFault:
    """The worker does not take the key that the gateway has for it, which no client can mend."""
    return WorkerFault("worker_refused_gateway", "The worker does not accept the gateway's credentials.")


def shutting_down() -> ProxyError:
    """The time for running requests is over."""
    return ProxyError(503, "shutting_down", "The gateway is shutting down.", outcome=Outcome.SHUTDOWN, reason="drain")


def internal_error() -> ProxyError:
    """A fault of the gateway itself; what it is goes to its log."""
    text = "The gateway failed."
    return ProxyError(500, "internal_error", text, outcome=Outcome.INTERNAL_ERROR, reason="internal_error")
