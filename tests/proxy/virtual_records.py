"""Records of requests that were served in virtual time, with what a serving process would have seen beside them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from simulator.virtual.served import Served
from telemetry.record import Outcome, RequestRecord


class _Steps:
    """A quantity that goes up and down at instants, and its integral over time."""

    def __init__(self, changes: Sequence[tuple[float, float]]) -> None:
        changes = sorted(changes)
        self._at = [at for at, _ in changes]
        self._values = list(accumulate(change for _, change in changes))
        areas = [value * (later - at) for value, at, later in zip(self._values, self._at, self._at[1:], strict=False)]
        self._areas = list(accumulate(areas, initial=0.0))

    def value(self, at: float) -> float:
        """Just before this instant."""
        index = bisect_right(self._at, at - 1e-12) - 1
        return self._values[index] if index >= 0 else 0.0

    def mean(self, start: float, end: float) -> float:
        """Over this time."""
        return (self._area(end) - self._area(start)) / (end - start) if end > start else 0.0

    def _area(self, at: float) -> float:
        index = bisect_right(self._at, at) - 1
        return self._areas[index] + self._values[index] * (at - self._at[index]) if index >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Ledger:
    requests: _Steps
    prompts: _Steps
    pending: _Steps
    sent: _Steps


def _ledger(served: Sequence[Served]) -> _Ledger:
    begun = [(one.arrived_at, one) for one in served]
    ended = [(one.ended_at, one) for one in served if one.ended_at is not None]
    answered = [(one.first_token_at, one) for one in served if one.first_token_at is not None]
    size = _size
    return _Ledger(
        _Steps([*((at, 1.0) for at, _ in begun), *((at, -1.0) for at, _ in ended)]),
        _Steps([*((at, size(one)) for at, one in begun), *((at, -size(one)) for at, one in ended)]),
        _Steps([*((at, size(one)) for at, one in begun), *((at, -size(one)) for at, one in answered)]),
        _Steps([(at, size(one)) for at, one in begun]),
    )


def _size(one: Served) -> float:
    return float(one.prompt_tokens)


def records_of(
    served: Sequence[Served], *, model: str, pool: str, name: Callable[[int], str], tells_cached: bool = True
) -> list[tuple[float, RequestRecord]]:
    """A record for each request that ended, with the instant of its end, in the order in which they ended."""
    by_worker: dict[int, list[Served]] = {}
    for one in served:
        if one.worker is not None:
            by_worker.setdefault(one.worker, []).append(one)
    found = []
    for worker, own in by_worker.items():
        ledger = _ledger(own)
        for one in own:
            if one.first_token_at is None or one.ended_at is None:
                continue
            found.append((one.ended_at, _record(one, ledger, model, pool, name(worker), tells_cached)))
    return sorted(found, key=lambda item: item[0])


def _record(one: Served, ledger: _Ledger, model: str, pool: str, worker: str, tells_cached: bool) -> RequestRecord:
    assert one.first_token_at is not None
    assert one.ended_at is not None

    def beside(start: float, end: float) -> tuple[float, float]:
        requests = max(0.0, ledger.requests.mean(start, end) - 1.0)
        tokens = max(0.0, ledger.prompts.mean(start, end) - one.prompt_tokens)
        return requests, tokens / requests if requests > 0.01 else 0.0

    before, after = beside(one.arrived_at, one.first_token_at), beside(one.first_token_at, one.ended_at)
    ttft = one.first_token_at - one.arrived_at
    return RequestRecord(
        request_id=f"{one.session}-{one.arrived_at}",
        ended_unix_seconds=one.ended_at,
        model=model,
        pool=pool,
        worker=worker,
        endpoint="chat",
        stream=True,
        status=200,
        outcome=Outcome.OK,
        ttft_seconds=ttft,
        upstream_ttft_seconds=ttft,
        tpot_seconds=one.tpot_seconds,
        e2e_seconds=one.e2e_seconds,
        queue_seconds=0.0,
        connect_seconds=0.0,
        overhead_seconds=0.0001,
        prompt_tokens=one.prompt_tokens,
        completion_tokens=one.completion_tokens,
        cached_tokens=one.cached_tokens if tells_cached else None,
        ahead_tokens=int(ledger.pending.value(one.arrived_at)),
        beside_prefill_requests=before[0],
        beside_prefill_prompt_tokens=before[1],
        joined_tokens=int(ledger.sent.value(one.first_token_at) - ledger.sent.value(one.arrived_at) - one.prompt_tokens),
        beside_decode_requests=after[0],
        beside_decode_prompt_tokens=after[1],
        arrived_tokens=int(ledger.sent.value(one.ended_at) - ledger.sent.value(one.first_token_at)),
    )
