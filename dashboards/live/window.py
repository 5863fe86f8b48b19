"""What the last requests were like: the newest records themselves, and of each worker how its figures were spread lately.

Bounded whatever the traffic: records by number, spreads by buckets. A spread covers the last one to two minutes: two halves of
a minute each take turns, so that taking a record costs no look at a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import add

import msgspec

from telemetry.record import Outcome, RequestRecord

KEPT_RECORDS = 500
KEPT_ODD = 200
"""Of those that failed or deviated so many are kept, also when more others have come since."""
HALF_SECONDS = 60.0
_RATIO = 1.25
_LEAST_SECONDS = 0.00025
BOUNDS = tuple(_LEAST_SECONDS * _RATIO**step for step in range(69))
"""Upper ends of the buckets in seconds, from a quarter of a millisecond to 16 minutes; what is longer is in one more."""
_SHARE_RATIO = 1.08
SHARE_BOUNDS = tuple(0.02 * _SHARE_RATIO**step for step in range(69))
"""The same for what was attained: from a fiftieth to 3.7 times what was expected."""
_BUCKETS = len(BOUNDS) + 1

# What says nothing about the worker that had the request.
_NOT_FAILED = frozenset({Outcome.OK, Outcome.CLIENT_GONE, Outcome.CLIENT_ERROR, Outcome.REJECTED, Outcome.SHUTDOWN})
_TTFT, _TTFT_EXPECTED, _TTFT_FLOOR, _TTFT_ATTAINED = range(4)
_TPOT, _TPOT_EXPECTED, _TPOT_FLOOR, _TPOT_ATTAINED = range(4, 8)
_TTFT_COLD, _TTFT_WARM = 8, 9
_KINDS = 10


class Spread(msgspec.Struct, frozen=True, gc=False):
    """How one figure was spread: counts of neighbouring buckets, the first of them by its place among the bounds."""

    first: int
    counts: list[int]


class Figure(msgspec.Struct, frozen=True, gc=False):
    """TTFT or TPOT of one worker or pool lately, in seconds, beside its limits where they are known.

    TTFT is what the worker took, as it is held against the limits. Quantiles are read off buckets and right to a tenth.
    """

    requests: int
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    expected_p50_seconds: float | None
    floor_p50_seconds: float | None
    attained_p50_ratio: float | None  # expected over measured, request by request, whatever was in their way; TTFT: cold ones
    measured: Spread
    expected: Spread | None
    cold_p50_seconds: float | None = None  # of TTFT, where less than half of the prompt was cached; None: no such request
    warm_p50_seconds: float | None = None  # where half of it or more was


class Sums(msgspec.Struct, gc=False):
    """What adds up, of one worker or pool lately."""

    requests: int = 0
    failed: int = 0  # by the worker's fault, or the gateway's
    deviating: int = 0  # far from what was expected
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    hit_known_tokens: int = 0  # prompt tokens of requests whose cached tokens are known
    hit_unknown: int = 0  # requests whose cached tokens are not

    def add(self, other: Sums) -> None:
        """Add another's."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_NOTHING: list[list[int]] = [[0] * _BUCKETS for _ in range(_KINDS)]


class _Half:
    """One worker over one minute."""

    __slots__ = ("causes", "counts", "outcomes", "sums")

    def __init__(self) -> None:
        self.counts: list[list[int]] = [[0] * _BUCKETS for _ in range(_KINDS)]
        self.sums = Sums()
        self.causes: dict[str, int] = {}  # the first of each deviating request
        self.outcomes: dict[str, int] = {}  # of failed ones


class _Lately:
    __slots__ = ("before", "now")

    def __init__(self) -> None:
        self.now = _Half()
        self.before: _Half | None = None

    @property
    def halves(self) -> tuple[_Half, ...]:
        return (self.now,) if self.before is None else (self.now, self.before)

    def recount(self, record: RequestRecord, revised: RequestRecord) -> None:
        """A request that deviated has another first cause than was counted."""
        before, after = record.causes[0].name, revised.causes[0].name
        for half in self.halves:
            if half.causes.get(before):
                half.causes[before] -= 1
                half.causes[after] = half.causes.get(after, 0) + 1
                return


class Glimpse:
    """One worker's, or several workers', last one to two minutes."""

    __slots__ = ("_counts", "causes", "outcomes", "sums")

    def __init__(self) -> None:
        self._counts: list[list[int]] = _NOTHING
        self.sums = Sums()
        self.causes: dict[str, int] = {}
        self.outcomes: dict[str, int] = {}

    def add(self, other: _Half | Glimpse) -> None:
        """Add what another has."""
        if other.sums.requests == 0:
            return
        theirs = other.counts if isinstance(other, _Half) else other._counts
        if self.sums.requests == 0:
            self._counts = theirs  # replaced below before it is ever changed
        else:
            self._counts = [list(map(add, mine, more)) for mine, more in zip(self._counts, theirs, strict=True)]
        self.sums.add(other.sums)
        for own, more in ((self.causes, other.causes), (self.outcomes, other.outcomes)):
            for name, count in more.items():
                own[name] = own.get(name, 0) + count

    @property
    def ttft(self) -> Figure | None:
        """``None`` without any."""
        found = _figure(*self._counts[:4])
        if found is None:
            return None
        cold, warm = self._counts[_TTFT_COLD], self._counts[_TTFT_WARM]
        return msgspec.structs.replace(found, cold_p50_seconds=_median(cold), warm_p50_seconds=_median(warm))

    @property
    def tpot(self) -> Figure | None:
        """``None`` without any."""
        return _figure(*self._counts[4:8])


class Window:
    """One per control process. `take` every record, `turn` about once a second, `keep_only` when workers have gone."""

    def __init__(self) -> None:
        self.taken = 0  # records so far
        self._recent: deque[RequestRecord] = deque(maxlen=KEPT_RECORDS)
        self._odd: deque[tuple[int, RequestRecord]] = deque(maxlen=KEPT_ODD)  # with how many had come by then
        self._workers: dict[str, _Lately] = {}
        self._turned_at: float | None = None

    def __repr__(self) -> str:
        return f"<Window {len(self._recent)} of {self.taken} records, {len(self._workers)} workers>"

    def take(self, records: Iterable[RequestRecord]) -> None:
        """Remember finished requests."""
        for record in records:
            self.taken += 1
            self._recent.append(record)
            if record.deviations or record.outcome not in _NOT_FAILED:
                self._odd.append((self.taken, record))
            if record.worker is None:
                continue
            lately = self._workers.get(record.worker)
            if lately is None:
                lately = self._workers[record.worker] = _Lately()
            _count(lately.now, record)

    def revise(self, records: Sequence[RequestRecord]) -> None:
        """Put these in the place of what was remembered of the same requests, whose causes are known better now."""
        fresh = {(record.request_id, record.ended_unix_seconds): record for record in records}

        def now(record: RequestRecord) -> RequestRecord:
            return fresh.get((record.request_id, record.ended_unix_seconds), record)

        for record in self._recent:
            if (revised := now(record)) is not record and record.worker in self._workers:
                self._workers[record.worker].recount(record, revised)
        self._recent = deque(map(now, self._recent), maxlen=KEPT_RECORDS)
        self._odd = deque(((number, now(record)) for number, record in self._odd), maxlen=KEPT_ODD)

    def turn(self, now: float) -> None:
        """Let a half begin when it is time; ``now`` is of a monotonic clock."""
        if self._turned_at is None:
            self._turned_at = now
        elif now - self._turned_at >= HALF_SECONDS:
            is_long_ago = now - self._turned_at >= 2 * HALF_SECONDS
            self._turned_at = now
            for lately in self._workers.values():
                lately.before = None if is_long_ago else lately.now
                lately.now = _Half()

    def keep_only(self, workers: Iterable[str]) -> None:
        """Forget the spreads of all others."""
        kept = set(workers)
        self._workers = {name: lately for name, lately in self._workers.items() if name in kept}

    def glimpse(self, worker: str) -> Glimpse:
        """A worker's last one to two minutes; empty if it had no request."""
        found = Glimpse()
        lately = self._workers.get(worker)
        if lately is not None:
            for half in lately.halves:
                found.add(half)
        return found

    def newest(self, most: int, after: int = 0, until: int | None = None) -> Iterator[RequestRecord]:
        """The newest of the records that came after the first so many, newest first; ``until`` so many had come."""
        skipped = 0 if until is None else self.taken - until
        last = min(skipped + most, self.taken - after, len(self._recent))
        for index in range(skipped + 1, last + 1):
            yield self._recent[-index]

    def odd(self, until: int) -> Iterator[RequestRecord]:
        """Those that failed or deviated among the first so many records, newest first, as far as they are kept."""
        return (record for number, record in reversed(self._odd) if number <= until)

    def find(self, request_id: str) -> RequestRecord | None:
        """The newest record of this request, if it is still kept."""
        kept = chain(reversed(self._recent), self.odd(self.taken))
        return next((record for record in kept if record.request_id == request_id), None)


def _count(half: _Half, record: RequestRecord) -> None:
    sums, counts = half.sums, half.counts
    sums.requests += 1
    if (seconds := record.upstream_ttft_seconds) is not None:
        bucket, is_cold = bisect_left(BOUNDS, seconds), record.is_cold
        counts[_TTFT][bucket] += 1
        if is_cold:
            counts[_TTFT_COLD][bucket] += 1
        elif record.hit_ratio is not None:
            counts[_TTFT_WARM][bucket] += 1
        if (limit := record.ttft_expected_seconds) is not None:
            counts[_TTFT_EXPECTED][bisect_left(BOUNDS, limit)] += 1
            counts[_TTFT_FLOOR][bisect_left(BOUNDS, record.ttft_floor_seconds or 0.0)] += 1
            if is_cold and seconds > 0.0:
                counts[_TTFT_ATTAINED][bisect_left(SHARE_BOUNDS, limit / seconds)] += 1
    if (seconds := record.tpot_seconds) is not None:
        counts[_TPOT][bisect_left(BOUNDS, seconds)] += 1
        if (limit := record.tpot_expected_seconds) is not None:
            counts[_TPOT_EXPECTED][bisect_left(BOUNDS, limit)] += 1
            counts[_TPOT_FLOOR][bisect_left(BOUNDS, record.tpot_floor_seconds or 0.0)] += 1
            if seconds > 0.0:
                counts[_TPOT_ATTAINED][bisect_left(SHARE_BOUNDS, limit / seconds)] += 1
    sums.completion_tokens += record.completion_tokens or 0
    if (prompt := record.prompt_tokens) is not None:
        sums.prompt_tokens += prompt
        if record.cached_tokens is not None:
            sums.hit_known_tokens += prompt
            sums.cached_tokens += record.cached_tokens
        elif not record.prompt_is_estimate:
            sums.hit_unknown += 1
    if record.outcome not in _NOT_FAILED:
        sums.failed += 1
        half.outcomes[record.outcome] = half.outcomes.get(record.outcome, 0) + 1
    if record.deviations:
        sums.deviating += 1
        if record.causes:
            name = record.causes[0].name
            half.causes[name] = half.causes.get(name, 0) + 1


def _median(counts: list[int]) -> float | None:
    total = sum(counts)
    return quantile(counts, total, 0.5) if total else None


def _figure(measured: list[int], expected: list[int], floor: list[int], attained: list[int]) -> Figure | None:
    total = sum(measured)
    if not total:
        return None
    p50, p90, p99 = (quantile(measured, total, share) for share in (0.5, 0.9, 0.99))
    judged, compared = sum(expected), sum(attained)
    return Figure(
        total,
        p50,
        p90,
        p99,
        quantile(expected, judged, 0.5) if judged else None,
        quantile(floor, judged, 0.5) if judged else None,
        quantile(attained, compared, 0.5, SHARE_BOUNDS) if compared else None,
        _spread(measured),
        _spread(expected) if judged else None,
    )


def quantile(counts: Sequence[int], total: int, share: float, bounds: Sequence[float] = BOUNDS) -> float:
    """Where so large a share of what was counted in these buckets lies below; within a bucket by its logarithm."""
    wanted = total * share
    below = 0
    for index, count in enumerate(counts):
        if below + count >= wanted and count:
            upper = bounds[min(index, len(bounds) - 1)]
            return upper * float((bounds[1] / bounds[0]) ** ((wanted - below) / count - 1.0))
        below += count
    return bounds[-1]


def _spread(counts: list[int]) -> Spread:
    first = next(index for index, count in enumerate(counts) if count)
    last = next(index for index in range(len(counts) - 1, -1, -1) if counts[index])
    return Spread(first, counts[first : last + 1])
