"""Families of the catalogue about quotas of keys. Serving processes also go by them: they see each other's figures there."""

from __future__ import annotations

from dataclasses import replace
from math import nan

from telemetry.family import Family, Kind, Scope, Writer, counter, gauge

_FAMILIES = (
    gauge("key_in_flight_requests", Scope.KEY, "Requests under way of a key that has a quota."),
    counter("quota_requests_total", Scope.KEY, "Requests that were charged to the quota of their key."),
    counter(
        "quota_tokens_total",
        Scope.KEY,
        "Tokens that were charged to the quota of their key: estimated when a request is let in, corrected by its usage.",
        "change",
    ),
    counter("quota_refusals_total", Scope.KEY, "Requests refused because of the quota of their key, by the limit.", "limit"),
    gauge(
        "quota_limit",
        Scope.KEY,
        "Limits of a key: requests and tokens a minute, and requests at a time. Absent: unlimited.",
        "limit",
        writer=Writer.CONTROL,
        start=nan,
    ),
    gauge(
        "quota_remaining",
        Scope.KEY,
        "What is left of a limit per minute by this gateway's own count. Absent: unlimited.",
        "of",
        writer=Writer.CONTROL,
        start=nan,
    ),
    counter(
        "quota_leased_total",
        Scope.KEY,
        "Requests and tokens that were taken from the shared limit for this gateway's use.",
        "of",
        writer=Writer.CONTROL,
    ),
    gauge(
        "quota_store_up",
        Scope.PROCESS,
        "1 while the store of shared quotas answers, 0 while it does not. Absent: none is configured.",
        writer=Writer.CONTROL,
        start=nan,
    ),
    *(
        Family(
            name=f"ridgeline_quota_{name}",
            kind=Kind.GAUGE,
            scope=Scope.KEY,
            help=text,
            labels=("of",),
            writer=writer,
            is_exposed=False,
        )
        for name, writer, text in (
            ("wanted", Writer.SERVING, "Requests and tokens that wait for a lease."),
            ("denied_at_seconds", Writer.CONTROL, "When the store last had nothing to give, by the machine's monotonic clock."),
            ("denied_for_seconds", Writer.CONTROL, "Until it will have some, from then."),
        )
    ),
)

QUOTAS: tuple[Family, ...] = tuple(replace(family, is_of_quotas=True) for family in _FAMILIES)
