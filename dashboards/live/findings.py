"""What is wrong in the fleet, in sentences, worst first: what the page says at its top.

Each rule looks at one thing and says it once; what follows from something worse that is said already is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median

import msgspec

from dashboards import thresholds
from dashboards.live.fleet import FleetView, GatewayFacts, PoolView, Since, WorkerView, ratio
from dashboards.live.hour import Hour, Minute
from dashboards.live.words import OUTCOMES, cause_words, count, percent, seconds
from telemetry.prefix_drift import Drift

_RECENT_SECONDS = 60.0  # something that is counted happened "now" for so long
_DRIFT_SECONDS = 300.0  # a drift is news while requests of the changed text still come
_LEAST_FAILED = 3
_FAILED_RATIO = 0.05
_LEAST_DEVIATING = 3
_EXPLAINED_RATIO = 0.2
_PEERS_RATIO = 0.25  # less often slow than so much of a worker's share: they are no fellow sufferers
_LEAST_BEATEN = 5  # fewer may be a token that came late and the next one at once
_DEVIATING_RATIO = 0.2
_LOOP_LAG_SECONDS = 0.1
_CONTROL_LAG_SECONDS = 1.0
_KV_FULL_RATIO = 0.95
_UNKNOWN_RATIO = 0.5
_LEAST_HIT_TOKENS = 20_000  # prompt tokens of a minute, below which a hit share says nothing
_BASELINE_MINUTES = 5
_HIT_WORTH_RATIO = 0.2  # a usual hit share below it is not missed
_HIT_DROP_RATIO = 0.5


class Severity(IntEnum):
    """How bad; the numbers are their order."""

    CRITICAL = 0
    WARNING = 1
    NOTICE = 2


# What is nearer to the cause comes first, among those that are as bad.
_ORDER = (
    *("gateway", "pool_down", "worker_down", "worker_silence", "worker_errors", "facts", "drift", "failing", "loop_lag"),
    *("slow", "hit_drop", "kv", "queue", "waiting", "refused"),
)
_RANKS = {kind: rank for rank, kind in enumerate(_ORDER)}


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that is wrong or worth knowing, and what to do about it."""

    kind: str
    severity: str
    text: str  # a sentence without its full stop
    advice: str
    since_unix_seconds: float | None = None  # None: from before this control process looked first
    model: str | None = None
    pool: str | None = None
    worker: str | None = None
    key: str | None = None
    cause: str | None = None


def _order(finding: Finding) -> tuple[int, int]:
    return Severity[finding.severity.upper()], _RANKS.get(finding.kind, len(_RANKS))


class Headline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The one sentence."""

    severity: str  # also ok
    text: str
    more: int = 0  # further findings that are more than notices


@dataclass(slots=True)
class _Spell:
    value: float
    before: float  # as it was before it began to grow
    at: float


@dataclass(slots=True)
class Growth:
    """Tells by how much counters have grown lately: since they last stood still for a minute."""

    _known: dict[tuple[str, ...], _Spell] = field(default_factory=dict)

    def of(self, subject: tuple[str, ...], value: float, now: float) -> int:
        """The growth of the spell that is under way; 0 when nothing was added for a minute, and at the first look."""
        spell = self._known.get(subject)
        if spell is None:
            self._known[subject] = _Spell(value, value, now - _RECENT_SECONDS - 1.0)
            return 0
        if value != spell.value:
            if now - spell.at > _RECENT_SECONDS:
                spell.before = spell.value
            spell.value, spell.at = value, now
        return int(spell.value - spell.before) if now - spell.at <= _RECENT_SECONDS else 0


class Findings:
    """One per control process: the rules, and since when each finding stands."""

    def __init__(self) -> None:
        self._since = Since()
        self._growth = Growth()
        self._standing: set[tuple[str, ...]] = set()
        self._has_looked = False

    def __repr__(self) -> str:
        return f"<Findings, {len(self._standing)} standing>"

    def look(self, view: FleetView, drifts: Sequence[Drift], hour: Hour) -> list[Finding]:
        """All that is to be said now, worst first."""
        now = view.now_unix_seconds
        found: list[Finding] = []
        standing: set[tuple[str, ...]] = set()
        for finding in sorted(self._all(view, drifts, hour), key=_order):
            subject = (finding.kind, finding.model or "", finding.pool or "", finding.worker or "", finding.key or "")
            standing.add(subject)
            since = finding.since_unix_seconds
            if since is None:
                if subject not in self._standing and self._has_looked:
                    self._since.of(subject, "", now)  # it was not so at the look before
                since = self._since.of(subject, "standing", now)
            found.append(msgspec.structs.replace(finding, since_unix_seconds=since))
        self._since.keep_only(standing)
        self._standing, self._has_looked = standing, True
        return found

    def _all(self, view: FleetView, drifts: Sequence[Drift], hour: Hour) -> Iterator[Finding]:
        now, growth = view.now_unix_seconds, self._growth
        yield from _gateway(view.gateway, growth, now)
        for pool in view.pools:
            yield from _pool(pool, growth, now)
            if (dropped := _hit_drop(pool, hour.of(pool.model, pool.pool))) is not None:
                yield dropped
            slow = _slow_together(pool)
            if slow is not None:
                yield slow
            for worker in pool.workers:
                yield from _worker(pool, worker, growth, now)
                if slow is None and (alone := _slow(pool, worker)) is not None:
                    yield alone
        for drift in drifts:
            if now - drift.until <= _DRIFT_SECONDS:
                yield _drift(drift)


def headline(view: FleetView, findings: Sequence[Finding]) -> Headline:
    """What to say first: the worst finding with how long it has been so, or that all is well."""
    serious = [finding for finding in findings if finding.severity != "notice"]
    if serious:
        first = serious[0]
        since = first.since_unix_seconds
        text = first.text if since is None else f"{first.text}, for {seconds(max(1.0, round(view.now_unix_seconds - since)))}"
        return Headline(severity=first.severity, text=text, more=len(serious) - 1)
    workers = sum(len(pool.workers) for pool in view.pools)
    requests = sum(pool.lately.requests for pool in view.pools)
    text = f"All healthy: {count(workers, 'worker')}"
    text += f", {count(requests, 'request')} in the last two minutes" if requests else ", no request in the last two minutes"
    return Headline(severity="ok", text=text)


def _finding(
    severity: Severity,
    kind: str,
    text: str,
    advice: str,
    pool: PoolView | None = None,
    worker: WorkerView | None = None,
    *,
    since: float | None = None,
    cause: str | None = None,
) -> Finding:
    return Finding(
        kind=kind,
        severity=severity.name.lower(),
        text=text,
        advice=advice,
        since_unix_seconds=since,
        model=None if pool is None else pool.model,
        pool=None if pool is None else pool.pool,
        worker=None if worker is None else worker.worker,
        cause=cause,
    )


def _gateway(gateway: GatewayFacts, growth: Growth, now: float) -> Iterator[Finding]:
    if gateway.serving == 0:
        yield _finding(
            Severity.CRITICAL,
            "gateway",
            "No serving process is up: clients are not served",
            "Look at the gateway's standard error.",
        )
    elif gateway.serving < gateway.processes:
        text = f"Only {gateway.serving} of {gateway.processes} serving processes are up"
        yield _finding(Severity.WARNING, "gateway", text, "Look at the gateway's standard error; the supervisor restarts them.")
    lag = gateway.loop_lag_seconds or 0.0
    if lag >= _LOOP_LAG_SECONDS:
        text = f"The gateway itself is late by up to {seconds(lag)}"
        yield _finding(Severity.WARNING, "loop_lag", text, cause_words("loop_lag").advice, cause="loop_lag")
    control = gateway.control_lag_seconds or 0.0
    if control >= _CONTROL_LAG_SECONDS:
        text = f"The control process is late by up to {seconds(control)}: what is shown here is old, and probes are slow"
        yield _finding(Severity.NOTICE, "control_lag", text, "Give the machine more CPU.")
    if lost := growth.of(("records",), gateway.records_dropped, now):
        text = f"{count(lost, 'record')} of requests were lost: what is shown here is not all"
        yield _finding(Severity.NOTICE, "records_dropped", text, "The control process was away or behind; give it more CPU.")
    if lost := growth.of(("log",), gateway.log_lines_dropped, now):
        text = f"{count(lost, 'line')} of the request log were lost"
        yield _finding(Severity.NOTICE, "log_dropped", text, "Write log.path to a faster disk, or read the output faster.")
    strays = sum(gateway.unrouted.values())
    if missed := growth.of(("unrouted",), strays, now):
        text = f"{count(missed, 'request')} reached no pool lately: unknown model, bad key or bad request"
        yield _finding(Severity.NOTICE, "unrouted", text, "See them in the list below: pool none.")


def _pool(pool: PoolView, growth: Growth, now: float) -> Iterator[Finding]:
    able = [worker for worker in pool.workers if worker.state.code not in ("down", "errors", "silence")]
    name = f"pool {pool.pool} of {pool.model}"
    if not able:
        what = "has no worker" if not pool.workers else f"has none of its {count(len(pool.workers), 'worker')} left"
        advice = "Start workers, or see below why they are left out; requests for it are refused with 503."
        yield _finding(Severity.CRITICAL, "pool_down", _capital(f"{name} {what}"), advice, pool)
    refused = pool.totals.outcomes.get("rejected", 0) + pool.totals.outcomes.get("worker_busy", 0)
    if grown := growth.of(("refused", pool.model, pool.pool), refused, now):
        text = f"{count(grown, 'request')} for {name} were refused lately"
        advice = "See their reasons in the list below; a full queue or busy workers want more workers."
        yield _finding(Severity.WARNING, "refused", text, advice, pool)
    if pool.queued_requests:
        severity = Severity.WARNING if pool.queued_requests >= max(1, len(able)) else Severity.NOTICE
        text = f"{count(pool.queued_requests, 'request')} of {name} in the gateway's queue: no worker has room"
        yield _finding(severity, "queue", text, cause_words("gateway_queue").advice, pool, cause="gateway_queue")
    lately = pool.lately
    if lately.hit_unknown > _UNKNOWN_RATIO * lately.requests and lately.hit_unknown >= _LEAST_DEVIATING:
        text = f"Workers of {name} do not say how many prompt tokens were cached"
        yield _finding(Severity.NOTICE, "hit_unknown", text, "Start vLLM with --enable-prompt-tokens-details.", pool)
    yield from _late(pool, name)


def _late(pool: PoolView, name: str) -> Iterator[Finding]:
    """The objectives, where no limits are known that would say more."""
    if pool.hardware is not None:
        return
    for figure, what, most in ((pool.ttft, "TTFT", thresholds.TTFT_SECONDS), (pool.tpot, "TPOT", thresholds.TPOT_SECONDS)):
        if figure is not None and figure.requests >= _LEAST_DEVIATING and figure.p50_seconds > most:
            text = f"Half of the requests of {name} have a {what} above {seconds(most)}"
            advice = "Set gpu in the pool to see whether that is slow for these prompts and this hardware, and why."
            yield _finding(Severity.WARNING, f"late_{what.lower()}", text, advice, pool)


_STATES = {
    "down": ("is down: its health check fails, or nothing answers at its address", "Look whether it runs, and at its log."),
    "silence": (
        "takes requests and says nothing, though its health check answers",
        "Its engine hangs: look at its log, and restart it.",
    ),
    "errors": (
        "gets no new requests: they fail, or no connection can be made",
        "Look at its log, and at the failed requests below.",
    ),
}


def _worker(pool: PoolView, worker: WorkerView, growth: Growth, now: float) -> Iterator[Finding]:
    name = f"worker {worker.worker}"
    state = worker.state
    if state.code in _STATES:
        what, advice = _STATES[state.code]
        since = state.since_unix_seconds
        yield _finding(Severity.WARNING, f"worker_{state.code}", _capital(f"{name} {what}"), advice, pool, worker, since=since)
    elif state.code in ("draining", "slow_start"):
        text = _capital(f"{name} {'is draining' if state.code == 'draining' else 'comes back'}: {state.reason}")
        yield _finding(Severity.NOTICE, f"worker_{state.code}", text, "", pool, worker, since=state.since_unix_seconds)
    if growth.of(("restarts", worker.worker), worker.restarts, now):
        text = _capital(f"{name} was restarted: its prefix cache began empty")
        yield _finding(Severity.NOTICE, "restarted", text, "Look at its log for why.", pool, worker)
    beaten = growth.of(("floor", worker.worker), worker.floor_beaten, now)
    if beaten >= max(_LEAST_BEATEN, _FAILED_RATIO * worker.lately.requests):
        words = cause_words("facts")
        yield _finding(
            Severity.WARNING, "facts", _capital(f"{name} is {words.what}"), words.advice, pool, worker, cause="facts"
        )
    lately = worker.lately
    if lately.failed >= max(_LEAST_FAILED, _FAILED_RATIO * lately.requests):
        outcome = max(worker.outcomes, key=worker.outcomes.__getitem__, default="worker_error")
        words = OUTCOMES[outcome]
        text = f"{lately.failed} of {count(lately.requests, 'request')} at {name} failed lately, most because {words.what}"
        yield _finding(Severity.WARNING, "failing", text, words.advice, pool, worker)
    yield from _full(pool, worker, name)


def _full(pool: PoolView, worker: WorkerView, name: str) -> Iterator[Finding]:
    usage, words = worker.kv_usage_ratio or 0.0, cause_words("kv_pressure")
    if usage >= _KV_FULL_RATIO:
        text = _capital(f"{name} has its KV cache full ({percent(usage)})")
        yield _finding(Severity.WARNING, "kv", text, words.advice, pool, worker, cause="kv_pressure")
    elif usage > 1.0 - thresholds.KV_RESERVE_RATIO:
        text = _capital(f"{name} has {percent(usage)} of its KV cache in use")
        yield _finding(Severity.NOTICE, "kv", text, words.advice, pool, worker, cause="kv_pressure")
    waiting, running = worker.waiting_requests or 0, worker.running_requests or 0
    if waiting:
        severity = Severity.WARNING if waiting > running else Severity.NOTICE
        text = _capital(f"{count(waiting, 'request waits', 'requests wait')} inside {name}, {running} run")
        yield _finding(severity, "waiting", text, cause_words("engine_queue").advice, pool, worker, cause="engine_queue")


def _slow(pool: PoolView, worker: WorkerView) -> Finding | None:
    lately = worker.lately
    ratios = {"TTFT": worker.attained_ttft_ratio, "TPOT": worker.attained_tpot_ratio}
    known = {figure: attained for figure, attained in ratios.items() if attained is not None and lately.requests}
    figure = min(known, key=known.__getitem__, default=None)
    cause = _main_cause(pool, worker, known)
    is_often = lately.deviating >= max(_LEAST_DEVIATING, _DEVIATING_RATIO * lately.requests)
    name = f"worker {worker.worker}"
    if figure is not None and known[figure] < thresholds.ATTAINED_RATIO and lately.deviating:
        text = f"{_capital(name)} is slow: {percent(known[figure])} of the expected {figure} is attained"
    elif is_often:
        text = f"{lately.deviating} of {count(lately.requests, 'request')} at {name} were far slower than expected lately"
    else:
        return None
    if cause is None:
        return _finding(Severity.WARNING, "slow", text, cause_words("unexplained").advice, pool, worker)
    words = cause_words(cause)
    return _finding(Severity.WARNING, "slow", f"{text}; mostly {words.what}", words.advice, pool, worker, cause=cause)


def _main_cause(pool: PoolView, worker: WorkerView, attained: Mapping[str, float]) -> str | None:
    """What most of a worker's slow requests suffer from; what explains nothing only where nothing else is known.

    The first slow requests of a worker come before its medians tell; then its peers do, who have the same work.
    """
    explained = {cause: times for cause, times in worker.causes.items() if cause != "unexplained"}
    if explained and sum(explained.values()) >= _EXPLAINED_RATIO * sum(worker.causes.values()):
        return max(explained, key=explained.__getitem__)
    for figure, own in attained.items():
        others = [
            theirs
            for each in pool.workers
            if each is not worker
            and (theirs := each.attained_ttft_ratio if figure == "TTFT" else each.attained_tpot_ratio) is not None
        ]
        if others and own < thresholds.ATTAINED_RATIO * median(others):
            return "slower_than_peers"
    peers = [each.lately for each in pool.workers if each is not worker and each.lately.requests >= _LEAST_DEVIATING]
    theirs = ratio(sum(each.deviating for each in peers), sum(each.requests for each in peers))
    if theirs is not None and worker.causes and theirs < _PEERS_RATIO * worker.lately.deviating / worker.lately.requests:
        return "slower_than_peers"
    return "unexplained" if worker.causes else None


def _slow_together(pool: PoolView) -> Finding | None:
    """One finding for a pool most of whose workers suffer from the same."""
    if len(pool.workers) < 2:
        return None
    slow = [found for worker in pool.workers if (found := _slow(pool, worker)) is not None and found.cause]
    causes = [found.cause for found in slow]
    cause = max(causes, key=causes.count, default=None)
    if cause is None or causes.count(cause) * 2 <= len(pool.workers) or causes.count(cause) < 2:
        return None
    words, lately = cause_words(cause), pool.lately
    text = (
        f"{lately.deviating} of {count(lately.requests, 'request')} in pool {pool.pool} of {pool.model} were far slower than "
        f"expected lately; mostly {words.what}"
    )
    return _finding(Severity.WARNING, "slow", text, words.advice, pool, cause=cause)


def _hit_drop(pool: PoolView, minutes: Sequence[Minute]) -> Finding | None:
    """The hit share now against that of the hour before, with enough traffic in both."""
    known = [each for each in minutes if each.hit_ratio is not None and each.hit_known_tokens >= _LEAST_HIT_TOKENS]
    if len(known) <= _BASELINE_MINUTES or pool.hit_ratio is None or pool.lately.hit_known_tokens < _LEAST_HIT_TOKENS:
        return None
    usual = median(each.hit_ratio or 0.0 for each in known)
    if usual < _HIT_WORTH_RATIO or pool.hit_ratio > _HIT_DROP_RATIO * usual:
        return None
    text = (
        f"Only {percent(pool.hit_ratio)} of the prompt tokens of pool {pool.pool} of {pool.model} come from the prefix cache, "
        f"where {percent(usual)} is usual"
    )
    return _finding(Severity.WARNING, "hit_drop", text, cause_words("missed_prefix").advice, pool, cause="missed_prefix")


def _drift(drift: Drift) -> Finding:
    key = max(drift.keys, key=drift.keys.__getitem__, default="")
    of = f" of key {key}" if key else ""
    text = (
        f"The system prompt{of} for {drift.model} was {drift.kind.value} near byte {drift.position_bytes:,}: "
        f"{count(drift.requests, 'request')} missed {count(drift.missed_tokens, 'cached token')}"
    )
    if drift.texts > 1 and drift.texts >= drift.requests / 2:
        text = text.replace("was ", "changes with each request, ", 1)
    return Finding(
        kind="drift",
        severity="warning",
        text=text,
        advice="Ask its owner what changed; put what varies (time, user, ids) behind what stays the same.",
        since_unix_seconds=drift.since,
        model=drift.model,
        key=key or None,
        cause="missed_prefix",
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
