"""Tells serving processes when a prompt of some length is late: a quantile of how long those before it took to begin."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, inf, isfinite

import msgspec

from proxy.control.fleet import Fleet
from routing.guidance import Guidance, PoolGuidance, pool_key
from routing.hedging import LENGTH_BOUNDS, length_class
from telemetry.record import HedgeResult, Outcome, RequestRecord

NEEDED = 100
"""Requests of a class before anything is said of it."""
_REMEMBERED = 1000
_WON, _TOOK_OVER = HedgeResult.WON, HedgeResult.TOOK_OVER


class FirstTokens:
    """How long the first workers of requests of one class took lately until they said anything, in seconds."""

    __slots__ = ("_is_new", "_known", "_quantile", "_seconds")

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._is_new = False
        self._quantile = 0.0
        self._known: float | None = None

    def __repr__(self) -> str:
        return f"<FirstTokens of {len(self._seconds)}>"

    def add(self, seconds: float) -> None:
        """Take one in: infinite for a worker that was called off before it began, which was later than that."""
        self._seconds.append(seconds)
        self._is_new = True

    def quantile(self, share: float) -> float | None:
        """Two digits of it, so that it changes seldom; ``None`` while too few are known, or where it is among the late ones."""
        if self._is_new or share != self._quantile:
            self._is_new, self._quantile, self._known = False, share, None
            if len(self._seconds) >= NEEDED:
                found = sorted(self._seconds)[ceil(share * len(self._seconds)) - 1]
                self._known = float(f"{found:.2g}") if isfinite(found) else None
        return self._known


class HedgeAdviser:
    """Learns from the streams of pools that hedge by a quantile."""

    def __init__(self) -> None:
        self._pools: dict[str, tuple[FirstTokens, ...]] = {}  # by `pool_key`, by class of length

    def __repr__(self) -> str:
        return f"<HedgeAdviser of {len(self._pools)} pools>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn from finished requests. A first worker that was outrun counts as later than all: its time was cut off.

        Without that the late ones would vanish from what is measured, and ever more would seem to be late.
        """
        for record in records:
            classes = self._pools.get(pool_key(record.model, record.pool))
            tokens, seconds = record.estimated_prompt_tokens, record.upstream_ttft_seconds
            if classes is None or tokens is None or seconds is None or record.outcome is not Outcome.OK:
                continue
            if record.hedge is not _TOOK_OVER and record.is_batch is False:
                classes[length_class(tokens)].add(inf if record.hedge is _WON else seconds)

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Add what is known of each pool that hedges by a quantile; others are forgotten."""
        hedged = {
            pool_key(pool.model, pool.name): pool.hedging.after_quantile
            for pool in fleet.topology.pools
            if pool.hedging.after_quantile is not None
        }
        self._pools = {key: self._pools.get(key) or tuple(FirstTokens() for _ in LENGTH_BOUNDS) for key in hedged}
        if not hedged:
            return guidance
        pools = dict(guidance.pools)
        for key, share in hedged.items():
            seconds = tuple(each.quantile(share) for each in self._pools[key])
            if any(each is not None for each in seconds):
                pools[key] = msgspec.structs.replace(pools.get(key, PoolGuidance()), hedge_seconds=seconds)
        return msgspec.structs.replace(guidance, pools=pools)
