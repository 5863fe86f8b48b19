"""What can go wrong with a request, by whose turn it is to act; each with a status, a stable code and a text for the client."""

from __future__ import annotations

from telemetry.record import Outcome


class ProxyError(Exception):
    """A request ends without a worker's answer. The text goes to the client and names no host, port or key."""

    def __init__(
        self, status: int, code: str, text: str, *, outcome: Outcome, reason: str, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(text)
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

    def __init__(self, code: str, text: str, *, status: int = 502, outcome: Outcome = Outcome.WORKER_ERROR) -> None:
        super().__init__(status, code, text, outcome=outcome, reason=code)
