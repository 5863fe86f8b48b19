"""The books of a run: what clients, the gateway's counters, its log and the workers say of the same requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.client import Verdict
from tests.integration.gateway import Metrics
from tests.soak.disturbing import Killed, Kind
from tests.soak.leaving import Leaving
from tests.soak.traffic import Sent

# So long before control is killed records may still be on their way to it.
_BEFORE_CONTROL_SECONDS = 1.0
# So long before a serving process is killed a request may have ended whose record it still holds, or whose client has left; so
# long afterwards a client may send on a connection that it does not know to be dead.
_AROUND_SERVING_SECONDS = 0.25
FINISHED = "completion tokens of finished answers: clients, "  # and the name of a worker
_SHOWN = 5  # requests of a check that fails
_NOT_SENT = ("connect_failed", "connect_timeout", "stale")  # results of attempts that no worker has read
_NO_LINE: Mapping[str, Any] = {"worker": None}
_OUTCOMES = {
    Verdict.SERVED: {"ok"},
    Verdict.LEFT: {"ok", "client_gone"},  # it may have left after the last byte
    Verdict.CUT: {"worker_error", "truncated", "stalled", "timeout", "aborted"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Two figures that have to be the same, or to differ by so much at most."""

    name: str
    expected: float
    found: float
    may_differ_by: float = 0
    who: tuple[str, ...] = ()  # some of those that should not be there

    @property
    def holds(self) -> bool:
        """Whether they do."""
        return abs(self.expected - self.found) <= self.may_differ_by


def nobody(name: str, found: Sequence[Sent]) -> Check:
    """There should be no such request."""
    who = [f"{one.request_id} {one.result.verdict} {one.result.worker}: {one.result.detail}" for one in found[:_SHOWN]]
    return Check(name=name, expected=0, found=len(found), who=tuple(who))


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What each party says."""

    sent: Sequence[Sent]
    killed: Sequence[Killed]
    metrics: Metrics
    lines: Sequence[Mapping[str, Any]]  # of the log, requests only
    worker_requests: Mapping[str, float]  # by worker, as it counts; those that were killed or removed meanwhile left out
    worker_tokens: Mapping[str, float]  # of answers that it finished; only workers to which nothing was done

    @property
    def endpoints(self) -> list[str]:
        """What was asked for."""
        return sorted({one.endpoint for one in self.sent})

    @property
    def by_id(self) -> dict[str, Mapping[str, Any]]:
        """The lines of the log by the request that they are of."""
        return {line["request_id"]: line for line in self.lines}

    def in_flight_when_killed(self, key: str | None = None) -> list[Sent]:
        """Requests that a killed serving process may have taken with it."""
        instants = [one.killed_at for one in self.killed if one.kind is Kind.KILL_SERVING]
        return [one for one in self.sent if key in (None, one.key) and any(_is_around(one, at) for at in instants)]

    def on_the_way_when_killed(self) -> list[Sent]:
        """Requests whose record may have been between the processes when control was killed."""
        spans = [(one.killed_at - _BEFORE_CONTROL_SECONDS, one.back_at) for one in self.killed if one.kind is Kind.KILL_CONTROL]
        return [one for one in self.sent if any(begin <= one.result.ended_at <= end for begin, end in spans)]


def _is_around(one: Sent, instant: float) -> bool:
    begin, end = one.result.started_at - _AROUND_SERVING_SECONDS, one.result.ended_at + _AROUND_SERVING_SECONDS
    return begin <= instant <= end


def balance(books: Books) -> list[Check]:
    """All that has to agree."""
    return [*_between_clients_and_counters(books), *_between_counters_and_log(books), *_with_workers(books), *_at_rest(books)]


def _between_clients_and_counters(books: Books) -> list[Check]:
    metrics, sent = books.metrics, books.sent
    lost = books.in_flight_when_killed()
    checks = [
        Check(
            name=f"requests of {endpoint}: clients, /metrics",
            expected=sum(one.endpoint == endpoint for one in sent),
            found=metrics.total("ridgeline_requests_total", endpoint=endpoint),
            may_differ_by=sum(one.endpoint == endpoint for one in lost),
        )
        for endpoint in books.endpoints
    ]
    for key in sorted({one.key for one in sent}):
        own, lost_of_key = [one for one in sent if one.key == key], books.in_flight_when_killed(key)
        checks += [
            Check(
                name=f"requests of key {key}: clients, /metrics",
                expected=len(own),
                found=metrics.total("ridgeline_key_requests_total", key=key),
                may_differ_by=len(lost_of_key),
            ),
            Check(
                name=f"requests of key {key} refused by quota: clients, /metrics",
                expected=sum(one.is_limited for one in own),
                found=total_of(metrics, "ridgeline_quota_refusals_total", key=key),
                may_differ_by=len(lost_of_key),
            ),
        ]
    return checks


def _between_counters_and_log(books: Books) -> list[Check]:
    """One line for each request, and in each what its client saw."""
    metrics, lines = books.metrics, books.lines
    by_id = books.by_id
    on_the_way = books.on_the_way_when_killed()
    unsure = {one.request_id for one in books.in_flight_when_killed()}
    known = {one.request_id for one in books.sent}
    excused = {one.request_id for one in on_the_way} | unsure
    dropped = metrics.total("ridgeline_records_dropped_total")
    served = [one for one in books.sent if one.result.verdict is Verdict.SERVED and one.request_id in by_id]
    missing_tokens = sum(one.completion_tokens for one in on_the_way)
    return [
        Check(name="requests with two lines in the log", expected=0, found=len(lines) - len(by_id)),
        Check(name="lines of requests that nobody made", expected=0, found=len(by_id.keys() - known)),
        nobody(
            "requests without a line, none of them under way at a kill",
            [one for one in books.sent if one.request_id not in by_id.keys() | excused],
        ),
        Check(
            name="requests: /metrics, log",
            expected=sum(metrics.total("ridgeline_requests_total", endpoint=endpoint) for endpoint in books.endpoints),
            found=len(by_id),
            may_differ_by=max(dropped, len(on_the_way)),
        ),
        nobody("outcomes: lines that say another than the client saw", _other_outcomes(books, by_id)),
        nobody("phases: lines of clients that left in their upload and say otherwise", _other_phases(books, by_id)),
        Check(
            name="completion tokens of answers: clients, log",
            expected=sum(one.completion_tokens for one in served),
            found=sum(by_id[one.request_id]["completion_tokens"] or 0 for one in served),
        ),
        Check(
            name="completion tokens: log, /metrics",
            expected=sum(line["completion_tokens"] or 0 for line in lines),
            found=metrics.total("ridgeline_completion_tokens_total"),
            may_differ_by=missing_tokens,
        ),
        *(
            Check(
                name=f"completion tokens of key {key}: log, /metrics",
                expected=sum(line["completion_tokens"] or 0 for line in lines if line["key"] == key),
                found=metrics.total("ridgeline_key_tokens_total", key=key, kind="completion"),
                may_differ_by=missing_tokens,
            )
            for key in sorted({one.key for one in books.sent})
        ),
    ]


def _other_outcomes(books: Books, by_id: Mapping[str, Mapping[str, Any]]) -> list[Sent]:
    found = []
    for one in books.sent:
        line = by_id.get(one.request_id)
        allowed = {"rejected"} if one.is_limited else _OUTCOMES.get(one.result.verdict)
        # It was told of an error before it left, or may have been.
        if one.result.verdict is Verdict.LEFT and one.result.detail != "cut":
            allowed = _OUTCOMES[Verdict.LEFT] | _OUTCOMES[Verdict.CUT]
        if line is not None and allowed is not None and line["outcome"] not in allowed:
            found.append(one)
    return found


def _other_phases(books: Books, by_id: Mapping[str, Mapping[str, Any]]) -> list[Sent]:
    uploading = [one for one in books.sent if one.left is Leaving.UPLOAD and one.request_id in by_id]
    return [one for one in uploading if by_id[one.request_id]["phase"] != "upload"]


def _with_workers(books: Books) -> list[Check]:
    """Each worker that lived all along has read as many requests as the gateway says it sent.

    One that nothing was done to has finished the answers that clients got, and perhaps some that nobody waited for.
    """
    lost, by_id = books.in_flight_when_killed(), books.by_id
    # Whoever leaves while a connection is made for it has an attempt that no worker has read.
    unread = Counter(line["worker"] for line in books.lines if line["phase"] == "connect")
    requests = [
        Check(
            name=f"attempts at {worker}: /metrics, worker",
            expected=sum(
                sample.value
                for sample in books.metrics.matching("ridgeline_attempts_total", worker=worker)
                if sample.labels["result"] not in _NOT_SENT
            )
            - unread[worker],
            found=count,
            may_differ_by=len(lost),
        )
        for worker, count in sorted(books.worker_requests.items())
    ]
    tokens = []
    for worker, count in sorted(books.worker_tokens.items()):
        own = [one for one in books.sent if worker == (one.result.worker or by_id.get(one.request_id, _NO_LINE)["worker"])]
        unsure = [one for one in own if one.result.verdict is not Verdict.SERVED or one in lost]
        tokens.append(
            Check(
                name=f"{FINISHED}{worker}",
                expected=sum(one.completion_tokens for one in own if one.result.verdict is Verdict.SERVED),
                found=count,
                may_differ_by=sum(one.completion_tokens for one in unsure),
            )
        )
    return [*requests, *tokens]


def _at_rest(books: Books) -> list[Check]:
    """Nothing is left when all clients have gone."""
    names = (
        "ridgeline_in_flight_requests",
        "ridgeline_in_flight_tokens",
        "ridgeline_queued_requests",
        "ridgeline_key_in_flight_requests",
    )
    checks = [Check(name=f"{name} at rest", expected=0, found=total_of(books.metrics, name)) for name in names]
    failed = books.metrics.total("ridgeline_reloads_total", result="failed")
    restarts = Counter(one.kind for one in books.killed)
    return [
        *checks,
        Check(name="reloads that failed", expected=0, found=failed),
        *(
            Check(
                name=f"restarts of {role}: killed, /metrics",
                expected=restarts[kind],
                found=books.metrics.total("ridgeline_process_restarts_total", role=role),
            )
            for role, kind in (("serving", Kind.KILL_SERVING), ("control", Kind.KILL_CONTROL))
        ),
    ]


def total_of(metrics: Metrics, name: str, **labels: str) -> float:
    """The sum, 0 where the page has no such family."""
    return metrics.total(name, **labels) if name in metrics else 0.0
