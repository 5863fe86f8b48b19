"""What is wrong in the fleet, in sentences, worst first: what the page says at its top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from dashboards.live.finding import Finding, Growth, order_of
from dashboards.live.fleet import Since
from dashboards.live.hour import Hour
from dashboards.live.rules import drift_finding, gateway_findings, hit_drop, pool_findings, worker_findings
from dashboards.live.slow import slow_findings
from dashboards.live.views import FleetView
from dashboards.live.words import count, how_long
from telemetry.prefix_drift import Drift

_DRIFT_SECONDS = 300.0  # a drift is news while requests of the changed text still come


MOST_FINDINGS = 50
"""More are not told: the first say what is wrong."""
_SLICE = 50  # workers, after which others may run


class Headline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The one sentence."""

    severity: str  # also ok
    text: str
    more: int = 0  # further findings that are more than notices


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
        return next(found for found in self.steps(view, drifts, hour) if found is not None)

    def steps(self, view: FleetView, drifts: Sequence[Drift], hour: Hour) -> Iterator[list[Finding] | None]:
        """The same; ``None`` now and then, when others may run, and the findings last."""
        now = view.now_unix_seconds
        found: list[Finding] = []
        standing: set[tuple[str, ...]] = set()
        all_of_it: list[Finding] = []
        for one in self._all(view, drifts, hour):
            if one is None:
                yield None
            else:
                all_of_it.append(one)
        self._growth.end_look()
        for finding in sorted(all_of_it, key=order_of)[:MOST_FINDINGS]:
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
        yield found

    def _all(self, view: FleetView, drifts: Sequence[Drift], hour: Hour) -> Iterator[Finding | None]:
        now, growth = view.now_unix_seconds, self._growth
        yield from gateway_findings(view.gateway, growth, now)
        for pool in view.pools:
            yield from pool_findings(pool, growth, now)
            if (dropped := hit_drop(pool, hour.of(pool.model, pool.pool))) is not None:
                yield dropped
            for number, worker in enumerate(pool.workers):
                yield from worker_findings(pool, worker, growth, now)
                if number % _SLICE == _SLICE - 1:
                    yield None
            yield from slow_findings(pool)
        for drift in drifts:
            if now - drift.until <= _DRIFT_SECONDS:
                yield drift_finding(drift)


def headline(view: FleetView, findings: Sequence[Finding]) -> Headline:
    """What to say first: the worst finding with how long it has been so, or that all is well."""
    serious = [finding for finding in findings if finding.severity != "notice"]
    if serious:
        first = serious[0]
        since = first.since_unix_seconds
        text = first.text if since is None else f"{first.text} (for {how_long(view.now_unix_seconds - since)})"
        return Headline(severity=first.severity, text=text, more=len(serious) - 1)
    workers = sum(len(pool.workers) for pool in view.pools)
    requests = sum(pool.lately.requests for pool in view.pools)
    text = f"All healthy: {count(workers, 'worker')}"
    text += f", {count(requests, 'request')} in the last two minutes" if requests else ", no request in the last two minutes"
    return Headline(severity="ok", text=text)
