"""Quotas in the control process: leases of limits that several gateways share, and what is shown of every limit.

A lease is a part of a limit that is taken from the store for this gateway alone; its serving processes use it up without
asking anybody (`proxy.serving.quotas`). What is used was leased before, so all gateways together never use more than the limit,
but for leases of one minute that are used in the next: at most one lease a gateway. Where nobody
wants anything, nothing is leased.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, nan
from time import monotonic as clock
from typing import Protocol

from proxy.control.fleet import Fleet
from proxy.control.view import GatewayView
from routing.quota import WINDOW_SECONDS, Quota, Window
from routing.topology import Key, Topology
from telemetry.layout import Layout, offset, slot

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
SHOW_SECONDS = 1.0
STORE_SECONDS = 0.3
"""For an answer of the store; then it is away, and asked again every second."""
_RETRY_SECONDS = 1.0
_BUSY_SECONDS = 10.0  # a key that was used within is leased for ahead
_OF = ("requests", "tokens")

_REQUESTS = offset("ridgeline_quota_requests_total")
_CHARGED = slot("ridgeline_quota_tokens_total", change="charged")
_RETURNED = slot("ridgeline_quota_tokens_total", change="returned")
_STORE_UP = offset("ridgeline_quota_store_up")
_LIMITS = {of: slot("ridgeline_quota_limit", limit=of) for of in (*_OF, "concurrency")}
_WANTED, _LEASED, _DENIED_AT, _DENIED_FOR, _REMAINING = (
    {of: slot(f"ridgeline_quota_{name}", of=of) for of in _OF}
    for name in ("wanted", "leased_total", "denied_at_seconds", "denied_for_seconds", "remaining")
)


class StoreError(Exception):
    """The store did not answer, or not with an answer; the text says which, without its address."""


class LimitStore(Protocol):
    """Keeps limits per minute for several gateways."""

    async def take(self, key: str, of: str, limit: int, cost: int) -> bool:
        """Whether so much could be taken from a key's limit, and was. Raises `StoreError`."""

    async def remaining(self, key: str, of: str, limit: int) -> int:
        """What is left of it now. Raises `StoreError`."""

    async def close(self) -> None:
        """End connections."""


@dataclass(slots=True)
class _Account:
    """One limit of one key: how far its leases go, and when it was used."""

    used: float
    leased_at: float
    used_at: float = -_BUSY_SECONDS


class Leasing:
    """One per control process. Without a store it only shows what is left of each limit."""

    def __init__(self, store: LimitStore | None, lease_ratio: float) -> None:
        self._store = store
        self._ratio = lease_ratio
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._windows: dict[tuple[str, str], Window] = {}
        self._layouts: list[tuple[Topology, Layout]] = []
        self._is_up: bool | None = None
        self._ask_at = 0.0  # not before, while the store is away

    def __repr__(self) -> str:
        return f"<Leasing {'of a store' if self._store else 'nothing'}, {len(self._accounts)} accounts>"

    async def run(self, fleet: Fleet, view: GatewayView) -> None:
        """Lend and show until cancelled. A fault of ours in one look is logged and does not end it."""
        show_at = 0.0
        while True:
            now = clock()
            try:
                if self._store is not None:
                    await self.lend(fleet, view, self._store, now)
                if now >= show_at:
                    show_at = now + SHOW_SECONDS
                    self.show(fleet, view, now)
            except Exception:
                _log.exception("the quotas of keys could not be looked at")
            await asyncio.sleep(SHOW_SECONDS if self._store is None or not _has_quotas(fleet) else LOOK_SECONDS)

    async def close(self) -> None:
        """End the connection to the store."""
        if self._store is not None:
            await self._store.close()

    async def lend(self, fleet: Fleet, view: GatewayView, store: LimitStore, now: float) -> None:
        """Take from the store what is wanted, or soon will be, and say what there is. Called many times a second."""
        topology, values = fleet.topology, fleet.cells.values
        snapshot, layout = view.snapshot(), self._layout_of(topology)
        if self._layout_of(snapshot.topology).digest != layout.digest:
            return  # another one is coming into force
        if self._is_up is None:
            values[_STORE_UP] = nan
        if now < self._ask_at:
            values[_STORE_UP] = 0.0
            return
        arrays = [array for array in snapshot.arrays if array is not None]
        lends = [
            self._lend_one(store, values, arrays, layout.key_base(key.index), key, of, limit, now)
            for key in topology.keys
            if key.quota is not None
            for of, limit in _per_minute(key.quota)
        ]
        try:
            async with asyncio.timeout(STORE_SECONDS):
                asked = sum(await asyncio.gather(*lends))
            if asked or self._is_up is False:
                self._note(is_up=True)
        except (StoreError, TimeoutError) as error:
            self._ask_at = now + _RETRY_SECONDS
            self._note(is_up=False, why=str(error) or f"no answer within {STORE_SECONDS} s")
        if self._is_up is not None:
            values[_STORE_UP] = float(self._is_up)

    async def _lend_one(
        self,
        store: LimitStore,
        values: memoryview[float],
        arrays: Sequence[Sequence[float]],
        base: int,
        key: Key,
        of: str,
        limit: int,
        now: float,
    ) -> bool:
        """Lease more of one limit if that is wanted or soon will be; whether the store was asked."""
        used = _used(arrays, base, of)
        leased_cell = base + _LEASED[of]
        account = self._accounts.get((key.name, of))
        if account is None:
            account = self._accounts[key.name, of] = _Account(used, now)
            values[leased_cell] = max(values[leased_cell], used)
        if used != account.used:
            account.used, account.used_at = used, now
        if values[leased_cell] < used:  # let in while the store was away
            values[leased_cell] = used
        elif values[leased_cell] > used and now - account.leased_at > WINDOW_SECONDS:
            values[leased_cell] = used  # the store has forgotten that it was taken
        wanted = sum(array[base + _WANTED[of]] for array in arrays)
        left = values[leased_cell] - used
        lease = max(1, ceil(limit * self._ratio))
        is_busy = now - account.used_at < _BUSY_SECONDS
        if self._is_up is False and not wanted:
            await store.remaining(key.name, of, limit)  # is it back?
            return True
        if left >= wanted and not (is_busy and left < lease / 2):
            return False
        cost = ceil(max(wanted - left, lease if is_busy or wanted else 0))
        if not await store.take(key.name, of, limit, cost):
            remaining = await store.remaining(key.name, of, limit)
            cost = min(cost, remaining)
            # Of several that wait, some may be let in; for one alone a part is of no use, and others may want it.
            waiting = sum(array[base + _WANTED["requests"]] for array in arrays)
            is_enough = cost >= wanted - left
            if cost < 1 or not (is_enough or waiting > 1) or not await store.take(key.name, of, limit, cost):
                cost, is_enough = 0, False
            if not is_enough:
                needed = max(1, ceil(wanted - left)) - remaining
                values[base + _DENIED_FOR[of]] = min(WINDOW_SECONDS, max(1.0, WINDOW_SECONDS * needed / limit))
                values[leased_cell] += cost
                values[base + _DENIED_AT[of]] = clock()
                account.leased_at = now if cost else account.leased_at
                return True
        account.leased_at = now
        values[leased_cell] += cost
        return True

    def _layout_of(self, topology: Topology) -> Layout:
        """Its layout, which takes milliseconds to make for a large fleet."""
        for known, layout in self._layouts:
            if known is topology:
                return layout
        self._layouts = [(topology, Layout.of(topology)), *self._layouts[:1]]
        return self._layouts[0][1]

    def _note(self, *, is_up: bool, why: str = "") -> None:
        if is_up and self._is_up is False:
            _log.info("the store of shared quotas answers again")
        elif not is_up and self._is_up is not False:
            _log.error("the store of shared quotas is away: %s", why)
        self._is_up = is_up

    def show(self, fleet: Fleet, view: GatewayView, now: float) -> None:
        """Write down limits, and what is left of them. Called every second."""
        topology, values = fleet.topology, fleet.cells.values
        snapshot, layout = view.snapshot(), self._layout_of(topology)
        if self._layout_of(snapshot.topology).digest != layout.digest:
            return
        arrays = [array for array in snapshot.arrays if array is not None]
        if self._store is None:
            values[_STORE_UP] = nan
        for key in topology.keys:
            base, quota = layout.key_base(key.index), key.quota or Quota()
            limits = dict(_per_minute(quota))
            values[base + _LIMITS["concurrency"]] = nan if quota.concurrent_requests is None else quota.concurrent_requests
            for of in _OF:
                limit = limits.get(of)
                values[base + _LIMITS[of]] = nan if limit is None else limit
                if limit is None:
                    self._windows.pop((key.name, of), None)
                    values[base + _REMAINING[of]] = nan
                    continue
                used = _used(arrays, base, of)
                window = self._windows.get((key.name, of))
                if window is None:
                    window = self._windows[key.name, of] = Window(limit, used, now)
                window.limit = limit
                window.note(used, now)
                values[base + _REMAINING[of]] = max(0.0, limit - window.used(used, now))


def _has_quotas(fleet: Fleet) -> bool:
    return any(key.quota is not None for key in fleet.topology.keys)


def _per_minute(quota: Quota) -> list[tuple[str, int]]:
    limits = zip(_OF, (quota.requests_per_minute, quota.tokens_per_minute), strict=True)
    return [(of, limit) for of, limit in limits if limit is not None]


def _used(arrays: Sequence[Sequence[float]], base: int, of: str) -> float:
    if of == "requests":
        return sum(array[base + _REQUESTS] for array in arrays)
    return sum(array[base + _CHARGED] - array[base + _RETURNED] for array in arrays)
