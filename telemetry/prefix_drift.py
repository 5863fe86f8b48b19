"""Why a prompt's beginning is not in the cache any more: whether it changed, where, since when and for whom, or what lost it.

A *family* are the requests of one model whose leading text is the same. One that was hot and is followed by others that share
most of it has drifted: where they diverge is found from their sketches. Where the text is the same and the hit is lost all the
same, the worker forgot it, was started anew, or never had it, or the request was salted.

Everything is bounded; nothing of a text is kept but hashes and lengths.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from routing.sketch import BLOCK_BYTES, MOST_BYTES, Sketch

MOST_FAMILIES = 2000  # of one model; the one seen last longest ago is forgotten
_HOT_REQUESTS = 20  # so many of a family make it hot ...
_HOT_HIT_RATIO = 0.3  # ... if so much of its prompts was cached
_LEAST_SHARED_RATIO = 0.5  # of the longer text, for one to have come from the other
_EDGES_BYTES = 2 * BLOCK_BYTES  # what stayed the same is known to a block at either end
LEAST_FOLLOWERS = 5  # requests of changed texts, before anything is said
_WARM_SECONDS = 600.0  # a worker that has not seen a family for so long owes it nothing
_REMEMBERED_HITS = 32
_LEAST_LEADING_BYTES = 256  # shorter texts are worth no cache
_MOST_HOT = 64  # hot families that a new one is compared with, the latest first
_MOST_DRIFTS = 200
MOST_RESTARTS = 4096  # workers whose last restart is remembered, the latest; those that are gone may come back


PrefillSeconds = Callable[[int, int], float]


class DriftKind(StrEnum):
    """What became of the text."""

    __hash__ = str.__hash__

    INSERTED = "inserted"
    REMOVED = "removed"
    CHANGED = "changed"


class Lost(StrEnum):
    """Why a hit was not delivered although the text is the same."""

    __hash__ = str.__hash__

    SALTED = "salted"  # the request asked for a cache of its own
    RESTARTED = "restarted"  # the worker is another process than the one that had it
    ELSEWHERE = "elsewhere"  # this worker never had it, others have
    EVICTED = "evicted"  # it had it, and made room for something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One finished request, as far as its beginning goes."""

    at: float  # unix seconds
    model: str
    key: str | None
    worker: str
    family: int
    length_bytes: int  # of the leading text
    sketch: Sketch | None  # None: this process has seen the family before
    prompt_tokens: int
    cached_tokens: int | None
    is_salted: bool = False


class Drift(msgspec.Struct, kw_only=True):
    """A family that was hot and whose text has changed. Grows while requests of changed texts come."""

    model: str
    kind: DriftKind
    position_bytes: int  # from the start of the leading text; the change begins within 64 bytes behind it
    change_bytes: int  # how much longer the text has become; negative: shorter
    since: float  # unix seconds of the first changed request
    until: float  # of the last one
    keys: dict[str, int]  # requests by name of the API key; "" where there is none
    requests: int = 0
    texts: int = 0  # different texts that followed; as many as requests: it changes each time
    missed_tokens: int = 0  # that would have been cached
    missed_seconds: float = 0.0  # expected prefill of those, where GPU and shape are known


@dataclass(slots=True)
class _Family:
    length_bytes: int
    sketch: Sketch | None = None
    requests: int = 0
    last_at: float = 0.0
    prompt_tokens: int = 0  # of requests whose hit is known
    cached_tokens: int = 0
    hits: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_HITS))  # of warm requests
    workers: dict[str, float] = field(default_factory=dict)  # by name, when last seen there
    drift: Drift | None = None  # that made it
    parent_hit: int = 0  # what its parent's requests had cached

    @property
    def is_hot(self) -> bool:
        return self.requests >= _HOT_REQUESTS and self.cached_tokens >= _HOT_HIT_RATIO * self.prompt_tokens > 0

    def usual_hit(self) -> int:
        """Tokens that a warm request had cached: a low quartile, since what follows the shared text differs."""
        hits = sorted(self.hits)
        return hits[len(hits) // 4] if hits else 0


class _OfModel:
    """The families of one model."""

    __slots__ = ("drifts", "families", "hot")

    def __init__(self) -> None:
        self.families: OrderedDict[int, _Family] = OrderedDict()
        self.hot: OrderedDict[int, _Family] = OrderedDict()
        self.drifts: deque[Drift] = deque(maxlen=_MOST_DRIFTS)


class PrefixDrifts:
    """One per control process; `observe` each request that named its family."""

    def __init__(self) -> None:
        self._models: dict[str, _OfModel] = {}
        self._restarted: dict[str, float] = {}  # unix seconds, by worker
        self.missed_seconds = 0.0  # of all drifts that are told, ever; `Drift.missed_seconds` has those of one

    def __repr__(self) -> str:
        families = sum(len(model.families) for model in self._models.values())
        return f"<PrefixDrifts of {families} families, {len(self.drifts())} drifts>"

    def note_restart(self, worker: str, at: float) -> None:
        """The worker is another process from now on: what it had cached is gone."""
        self._restarted.pop(worker, None)
        self._restarted[worker] = at
        if len(self._restarted) > MOST_RESTARTS:
            del self._restarted[next(iter(self._restarted))]

    def expected_cached_tokens(self, observation: Observation) -> int | None:
        """What the request can have expected to be cached at its worker; ``None`` if nothing is known of its family."""
        model = self._models.get(observation.model)
        family = None if model is None else model.families.get(observation.family)
        if family is None or not family.hits:
            return None
        seen = family.workers.get(observation.worker)
        is_warm = (
            seen is not None
            and observation.at - seen <= _WARM_SECONDS
            and self._restarted.get(observation.worker, -1.0) <= seen
        )
        return min(family.usual_hit(), observation.prompt_tokens) if is_warm else 0

    def lost(self, observation: Observation) -> Lost | None:
        """Why a family's usual hit was not delivered; ``None`` if it was, or if there is none. Ask before `observe`."""
        model = self._models.get(observation.model)
        family = None if model is None else model.families.get(observation.family)
        cached = observation.cached_tokens
        if family is None or cached is None or not family.is_hot or cached >= family.usual_hit() / 2:
            return None
        if observation.is_salted:
            return Lost.SALTED
        seen = family.workers.get(observation.worker)
        if seen is None:
            return Lost.ELSEWHERE
        return Lost.RESTARTED if self._restarted.get(observation.worker, -1.0) > seen else Lost.EVICTED

    def observe(self, observation: Observation, prefill: PrefillSeconds | None = None) -> Drift | None:
        """Take a request in. Gives back the drift that it belongs to, once that is sure enough to be told.

        ``prefill`` tells the expected seconds of a prompt of so many tokens, so many of them cached.
        """
        if observation.length_bytes < _LEAST_LEADING_BYTES:
            return None
        model = self._models.setdefault(observation.model, _OfModel())
        families = model.families
        family = families.get(observation.family)
        if family is None:
            family = families[observation.family] = _Family(observation.length_bytes, observation.sketch)
            if len(families) > MOST_FAMILIES:
                gone, _ = families.popitem(last=False)
                model.hot.pop(gone, None)
            if observation.sketch is not None:
                self._relate(model, family, observation)
        else:
            families.move_to_end(observation.family)
            if family.sketch is None:
                family.sketch = observation.sketch
        self._count(family, observation)
        if family.drift is None and family.is_hot and family.sketch is not None:
            model.hot[observation.family] = family
            model.hot.move_to_end(observation.family)
            if len(model.hot) > _MOST_HOT:
                model.hot.popitem(last=False)
        drift = family.drift
        if drift is None:
            return None
        missed_before = drift.missed_seconds if drift.requests >= LEAST_FOLLOWERS else 0.0
        _grow(drift, family, observation, prefill)
        if drift.requests >= LEAST_FOLLOWERS:
            self.missed_seconds += drift.missed_seconds - missed_before
        return drift if drift.requests >= LEAST_FOLLOWERS else None

    def drifts(self) -> list[Drift]:
        """All that are told, the latest last."""
        found = [drift for model in self._models.values() for drift in model.drifts if drift.requests >= LEAST_FOLLOWERS]
        return sorted(found, key=lambda drift: drift.until)

    def _count(self, family: _Family, observation: Observation) -> None:
        cached = observation.cached_tokens
        family.requests += 1
        if cached is not None and not observation.is_salted:
            family.prompt_tokens += observation.prompt_tokens
            family.cached_tokens += cached
            if cached > 0:
                family.hits.append(cached)
        family.last_at = observation.at
        if not observation.is_salted:
            family.workers[observation.worker] = observation.at

    def _relate(self, model: _OfModel, family: _Family, observation: Observation) -> None:
        """Find the hot family that a new one came from."""
        sketch = observation.sketch
        if sketch is None:
            return
        for parent in reversed(model.hot.values()):
            if parent is family or parent.sketch is None:
                continue
            change = compare(parent.sketch, sketch)
            if change is None:
                continue
            kind, position, added = change
            drift = _same(model.drifts, kind, position)
            if drift is None:
                drift = Drift(
                    model=observation.model,
                    kind=kind,
                    position_bytes=position,
                    change_bytes=added,
                    since=observation.at,
                    until=observation.at,
                    keys={},
                )
                model.drifts.append(drift)
            drift.texts += 1
            family.drift = drift
            family.parent_hit = parent.usual_hit()
            return


def _same(drifts: deque[Drift], kind: DriftKind, position: int) -> Drift | None:
    """A drift at the same place: a text that changes each time makes a new family each time, and is one finding."""
    for drift in reversed(drifts):
        if drift.kind is kind and abs(drift.position_bytes - position) < BLOCK_BYTES:
            return drift
    return None


def _grow(drift: Drift, family: _Family, observation: Observation, prefill: PrefillSeconds | None) -> None:
    name = observation.key or ""
    drift.keys[name] = drift.keys.get(name, 0) + 1
    drift.requests += 1
    drift.until = observation.at
    prompt, cached = observation.prompt_tokens, observation.cached_tokens
    due = min(family.parent_hit, prompt)
    if cached is not None and cached < due:
        drift.missed_tokens += due - cached
        if prefill is not None:
            drift.missed_seconds += prefill(prompt, cached) - prefill(prompt, due)


def compare(before: Sketch, after: Sketch) -> tuple[DriftKind, int, int] | None:
    """What became of a text, at which byte (the change begins within 64 behind it), and how much longer it is.

    ``None`` if they share less than half: then one did not come from the other.
    """
    # A last block that is shorter is the same only as a whole, so this never reaches behind the end of either.
    position = min(_alike(before.blocks, after.blocks) * BLOCK_BYTES, before.length_bytes, after.length_bytes)
    tail = _alike(before.ends, after.ends) * BLOCK_BYTES
    shortest, longest = sorted(min(sketch.length_bytes, MOST_BYTES) for sketch in (before, after))  # as far as was looked
    kept = min(position + tail, shortest)
    if kept < _LEAST_SHARED_RATIO * longest or (kept == longest and position == longest):
        return None
    added = after.length_bytes - before.length_bytes
    old, new = (min(sketch.length_bytes, MOST_BYTES) - kept for sketch in (before, after))
    if added > 0 and old <= _EDGES_BYTES:
        return DriftKind.INSERTED, position, added
    if added < 0 and new <= _EDGES_BYTES:
        return DriftKind.REMOVED, position, added
    return DriftKind.CHANGED, position, added


def _alike(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """How many of these are the same until the first that is not."""
    for number, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            return number
    return min(len(before), len(after))
