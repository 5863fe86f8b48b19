"""What `/api/fleet` gives, as far as all of its readers want it; the page gets more."""

from __future__ import annotations

import msgspec

from dashboards.live.finding import Finding
from dashboards.live.findings import Headline
from dashboards.live.views import GatewayFacts, KeyView, PoolView


class Fleet(msgspec.Struct, kw_only=True):
    """The fleet at one moment. A reader ignores fields beyond these."""

    now_unix_seconds: float
    headline: Headline
    findings: list[Finding]
    gateway: GatewayFacts
    pools: list[PoolView]
    keys: list[KeyView]
