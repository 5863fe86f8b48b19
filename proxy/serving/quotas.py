"""Quotas of keys in a serving process: who is let in, what it is charged, and what is given back when its usage is known.

Figures are in the shared arrays, where all serving processes see each other's: a limit holds for all of them together. Where
several gateways share limits, control takes leases from the store and says here how much it has got (`proxy.control.leasing`).
A request that finds too little waits for the next lease, a few hundredths of a second; nothing else waits here.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from proxy.wire.errors import ProxyError, quota_exceeded, quota_store_away, too_large_for_quota
from routing.quota import WINDOW_SECONDS, Quota, QuotaSharing, Window
from telemetry.layout import Layout, offset, slot

if TYPE_CHECKING:
    from proxy.serving.progress import Progress
    from proxy.upstream.load import WorkerLoads
    from routing.topology import Key, Topology

LOOK_SECONDS = 0.005
"""How often a request that waits for a lease looks for it."""
LEASE_SECONDS = 0.5
"""How long it waits at most: then the store, or control, is taken to be away."""
_AWAY_SECONDS = 2.0
_DENIED_SECONDS = 0.25  # a denial is believed for so long; then control has asked again if somebody wants more

_IN_FLIGHT = offset("ridgeline_key_in_flight_requests")
_REQUESTS = offset("ridgeline_quota_requests_total")
_CHARGED = slot("ridgeline_quota_tokens_total", change="charged")
_RETURNED = slot("ridgeline_quota_tokens_total", change="returned")
_REFUSALS = {
    name: slot("ridgeline_quota_refusals_total", limit=name) for name in ("requests", "tokens", "concurrency", "store")
}
_STORE_UP = offset("ridgeline_quota_store_up")
_WANTED, _LEASED, _DENIED_AT, _DENIED_FOR = (
    (slot(f"ridgeline_quota_{name}", of="requests"), slot(f"ridgeline_quota_{name}", of="tokens"))
    for name in ("wanted", "leased_total", "denied_at_seconds", "denied_for_seconds")
)


_FORMS = {
    name: b"x-ratelimit-limit-%b: %%d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%ds\r\n" % (name, name, name)
    for name in (b"requests", b"tokens")
}


class Charge:
    """What one request has been charged, or waits to be. Given back to `Quotas.end` when it is over."""

    __slots__ = ("at", "is_waiting", "key", "requests_left", "since", "state", "tokens", "tokens_left")

    def __init__(self, key: str, state: _KeyQuota | None, tokens: int, now: float) -> None:
        self.key = key
        self.state = state  # None: its key has no quota any more
        self.tokens = tokens
        self.since = self.at = now
        self.is_waiting = False
        self.requests_left: float | None = None  # of the limit, once it was charged
        self.tokens_left: float | None = None


class _KeyQuota:
    """One key: where its figures are, and its windows."""

    __slots__ = ("base", "quota", "requests", "seen", "tokens")

    def __init__(self, base: int, quota: Quota) -> None:
        self.base = base
        self.quota = quota
        self.requests: Window | None = None
        self.tokens: Window | None = None
        # Requests, tokens charged and tokens returned, as last seen: they never go back, also while a peer's array is away.
        self.seen = (0.0, 0.0, 0.0)


class Quotas:
    """One per serving process; it costs nothing for keys without a quota."""

    def __init__(self, values: memoryview[float], layout: Layout, topology: Topology, loads: WorkerLoads, now: float) -> None:
        self._of: dict[str, _KeyQuota] = {}
        self._away_until = now  # control or the store has not answered in time
        self.adopt(values, layout, topology, loads, now)

    def adopt(self, values: memoryview[float], layout: Layout, topology: Topology, loads: WorkerLoads, now: float) -> None:
        """Go on with another topology: what a key has used stays used, also under another limit."""
        self._values = values
        self._loads = loads
        self._sharing: QuotaSharing | None = topology.quota_sharing
        before, self._of = self._of, {}
        for key in topology.keys:
            if key.quota is None:
                continue
            state = _KeyQuota(layout.key_base(key.index), key.quota)
            old = before.get(key.name)
            if old is not None:
                state.seen = old.seen
            requests, tokens = self._totals(state)
            state.requests = _window(key.quota.requests_per_minute, None if old is None else old.requests, requests, now)
            state.tokens = _window(key.quota.tokens_per_minute, None if old is None else old.tokens, tokens, now)
            self._of[key.name] = state

    def check(self, key: Key, now: float) -> None:
        """Judge before the body is read: raises `ProxyError` where no request of this key can be let in now."""
        state = self._of.get(key.name)
        if state is not None:
            self._check(state, 0, now)

    def begin(self, key: Key, tokens: int, now: float) -> Charge:
        """Charge a request that is estimated at so many tokens. It may have to wait for a lease. Raises `ProxyError`."""
        state = self._of.get(key.name)
        charge = Charge(key.name, state, tokens, now)
        if state is not None and not self._charge(charge, state, now):
            charge.is_waiting = True
            self._want(state, tokens, 1)
        return charge

    def again(self, charge: Charge, now: float) -> bool:
        """Whether a request that waited has got its lease. Raises `ProxyError`; then, too, it waits no longer."""
        state = self._of.get(charge.key)
        try:
            has_come = state is None or self._charge(charge, state, now)
        except ProxyError:
            self._wait_no_longer(charge)
            raise
        if has_come:
            self._wait_no_longer(charge)
        return has_come

    def end(self, charge: Charge, used_tokens: int | None, now: float) -> None:
        """The request is over, and has really used so many tokens; None: not known, and the estimate stands."""
        if charge.is_waiting:
            self._wait_no_longer(charge)
            return
        state = self._of.get(charge.key)
        if state is None or charge.state is None or charge.requests_left is None:
            return
        values, base = self._values, state.base
        values[base + _IN_FLIGHT] = max(0.0, values[base + _IN_FLIGHT] - 1)
        if used_tokens is None or not charge.tokens:
            return
        if used_tokens > charge.tokens:
            values[base + _CHARGED] += used_tokens - charge.tokens
        elif now - charge.at < WINDOW_SECONDS:  # or it would be given back to a minute that it was not taken from
            values[base + _RETURNED] += charge.tokens - used_tokens

    def look(self, now: float) -> None:
        """Called about twice a second: windows follow what the other processes have let in."""
        for state in self._of.values():
            requests, tokens = self._totals(state)
            if state.requests is not None:
                state.requests.note(requests, now)
            if state.tokens is not None:
                state.tokens.note(tokens, now)

    def lines(self, charge: Charge, now: float) -> bytes:
        """Header lines that tell the client its limits and what is left of them."""
        charged, state = charge.state, self._of.get(charge.key)  # the figures may have moved since it was charged
        if charged is None or state is None:
            return b""
        requests, tokens = self._totals(state)
        lines = b""
        if state.requests is not None and charged.requests is not None:
            lines = _lines(b"requests", state.requests, charge.requests_left or 0.0, requests, now)
        if state.tokens is not None and charged.tokens is not None:
            lines += _lines(b"tokens", state.tokens, charge.tokens_left or 0.0, tokens, now)
        return lines

    def _totals(self, state: _KeyQuota) -> tuple[float, float]:
        """Requests and tokens charged so far, by all processes."""
        values, base, seen = self._values, state.base, state.seen
        requests, charged, returned = values[base + _REQUESTS], values[base + _CHARGED], values[base + _RETURNED]
        for peer in self._loads.peer_values:
            requests += peer[base + _REQUESTS]
            charged += peer[base + _CHARGED]
            returned += peer[base + _RETURNED]
        if requests < seen[0] or charged < seen[1] or returned < seen[2]:
            requests, charged, returned = max(requests, seen[0]), max(charged, seen[1]), max(returned, seen[2])
        state.seen = (requests, charged, returned)
        return requests, charged - returned

    def _check(self, state: _KeyQuota, tokens: int, now: float) -> tuple[float, float, float, float]:
        """Totals so far, and what is left of both limits. Raises `ProxyError`."""
        base, quota = state.base, state.quota
        requests, charged = self._totals(state)
        if quota.concurrent_requests is not None:
            running = self._values[base + _IN_FLIGHT] + sum([peer[base + _IN_FLIGHT] for peer in self._loads.peer_values])
            if running >= quota.concurrent_requests:
                raise self._refusal(state, "concurrency", quota.concurrent_requests, 1.0, requests, charged, now)
        requests_left = tokens_left = 0.0
        window = state.requests
        if window is not None:
            requests_left = window.limit - window.used(requests, now)
            if requests_left < 1:
                seconds = window.seconds_until(1, requests, now)
                raise self._refusal(state, "requests", window.limit, seconds, requests, charged, now)
        window = state.tokens
        if window is not None:
            tokens_left = window.limit - window.used(charged, now)
            if tokens > tokens_left or tokens_left <= 0:
                seconds = window.seconds_until(max(1, tokens), charged, now)
                raise self._refusal(state, "tokens", window.limit, seconds, requests, charged, now)
        return requests, charged, requests_left, tokens_left

    def _charge(self, charge: Charge, state: _KeyQuota, now: float) -> bool:
        """Charge it if it can be; False if it has to wait for a lease."""
        tokens = charge.tokens
        requests, charged, requests_left, tokens_left = self._check(state, tokens, now)
        if self._sharing is not None and not self._has_lease(self._sharing, charge, state, requests, charged, now):
            return False
        values, base = self._values, state.base
        values[base + _REQUESTS] += 1
        values[base + _CHARGED] += tokens
        values[base + _IN_FLIGHT] += 1
        charge.at = now
        charge.requests_left = requests_left - 1
        charge.tokens_left = tokens_left - tokens
        return True

    def _has_lease(
        self, sharing: QuotaSharing, charge: Charge, state: _KeyQuota, requests: float, charged: float, now: float
    ) -> bool:
        control, base = self._loads.control_values, state.base
        is_away = control is None or not control[_STORE_UP]
        if control is not None:
            lacks = [
                (at, name, window)
                for at, name, window, need in (
                    (0, "requests", state.requests, requests + 1),
                    (1, "tokens", state.tokens, charged + charge.tokens),
                )
                if window is not None and need > control[base + _LEASED[at]]
            ]
            if not lacks:
                return True
            for at, name, window in lacks if not is_away else ():
                denied_at = control[base + _DENIED_AT[at]]
                if denied_at > charge.since or now - denied_at < _DENIED_SECONDS:
                    seconds = max(1.0, denied_at + control[base + _DENIED_FOR[at]] - now)
                    raise self._refusal(state, name, window.limit, seconds, requests, charged, now, nothing_left=True)
        if not is_away and now - charge.since >= LEASE_SECONDS:
            self._away_until = now + _AWAY_SECONDS
        if not is_away and now >= self._away_until:
            return False
        if sharing.is_open:
            return True
        self._values[base + _REFUSALS["store"]] += 1
        raise quota_store_away()

    def _refusal(
        self,
        state: _KeyQuota,
        which: str,
        limit: float,
        seconds: float | None,
        requests: float,
        tokens: float,
        now: float,
        *,
        nothing_left: bool = False,
    ) -> ProxyError:
        self._values[state.base + _REFUSALS[which]] += 1
        if seconds is None:
            return too_large_for_quota(int(limit))
        error = quota_exceeded(which, int(limit), max(1, ceil(seconds)))
        for name, window, total in ((b"requests", state.requests, requests), (b"tokens", state.tokens, tokens)):
            if window is not None:
                left = 0.0 if nothing_left and name.decode() == which else window.limit - window.used(total, now)
                error.lines += _lines(name, window, left, total, now)
        return error

    def _want(self, state: _KeyQuota, tokens: int, sign: int) -> None:
        values, base = self._values, state.base
        values[base + _WANTED[0]] = max(0.0, values[base + _WANTED[0]] + sign)
        values[base + _WANTED[1]] = max(0.0, values[base + _WANTED[1]] + sign * tokens)

    def _wait_no_longer(self, charge: Charge) -> None:
        charge.is_waiting = False
        state = self._of.get(charge.key)
        if state is not None:
            self._want(state, charge.tokens, -1)


def tokens_used(exchange: Progress) -> int | None:
    """What a request that is over has used, as far as it was seen; None if nothing is known."""
    found, prepared = exchange.found, exchange.prepared
    if exchange.sent_at is None or prepared is None:
        return 0
    usage = None if found is None else found.usage
    if usage is not None and usage.prompt_tokens is not None:
        return usage.prompt_tokens + (usage.completion_tokens or 0)
    answer = exchange.answer
    if answer is None or answer.status >= 300:
        return 0 if answer is not None else None
    if usage is not None and usage.completion_tokens is not None:
        return prepared.demand.prompt_tokens + usage.completion_tokens
    if not answer.is_event_stream and not exchange.endpoint.is_form:
        return None  # its usage stands at its end, and was not read: too long, compressed, or the client left before
    return prepared.demand.prompt_tokens + (0 if found is None else found.token_events)


def _window(limit: int | None, old: Window | None, total: float, now: float) -> Window | None:
    if limit is None:
        return None
    if old is None:
        return Window(limit, total, now)
    old.limit = limit
    return old


def _lines(name: bytes, window: Window, left: float, total: float, now: float) -> bytes:
    return _FORMS[name] % (window.limit, max(0, left), ceil(window.seconds_until_free(total, now)))
