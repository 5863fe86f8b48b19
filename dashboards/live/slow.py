"""Which workers are slower than they should be, and why: by their medians, their requests' causes, and their peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high

from dashboards import thresholds
from dashboards.live.finding import Finding, Severity, capital, finding_of
from dashboards.live.views import PoolView, WorkerView
from dashboards.live.window import Sums
from dashboards.live.words import cause_words, count, percent

_LEAST_DEVIATING = 3
_EXPLAINED_RATIO = 0.2
_PEERS_RATIO = 0.25  # less often slow than so much of a worker's share: they are no fellow sufferers
_AS_MUCH_RATIO = 1.3
_OF_LOAD = frozenset({"others_prefill", "batch", "engine_queue"})  # what peers with as much to do would suffer from, too
_SLICE = 50  # workers, after which others may run
_DEVIATING_RATIO = 0.2


class _Pool:
    """What the workers of a pool are held against, computed once."""

    __slots__ = ("attained", "name", "pool", "requests", "slow", "tokens", "workers")

    def __init__(self, pool: PoolView) -> None:
        self.pool = pool
        self.name = f"pool {pool.pool} of {pool.model}"
        busy = [worker for worker in pool.workers if worker.lately.requests >= _LEAST_DEVIATING]
        self.workers = len(busy)
        self.requests = sum(worker.lately.requests for worker in busy)
        self.slow = sum(worker.lately.deviating for worker in busy)
        self.tokens = sum(_tokens(worker.lately) for worker in busy)
        self.attained: dict[str, float | None] = {}
        for figure in ("TTFT", "TPOT"):
            known = [ratio for worker in pool.workers if (ratio := _attained(worker, figure)) is not None]
            self.attained[figure] = median_high(known) if len(known) > 1 else None

    def is_odd_one_out(self, worker: WorkerView) -> bool:
        """Whether a worker's requests are far slower than expected and its peers' are not, who have as much to do."""
        own = worker.lately
        peers = self.workers - 1
        if peers < 1 or own.requests < _LEAST_DEVIATING or self.requests == own.requests:
            return False
        theirs = (self.slow - own.deviating) / (self.requests - own.requests)
        if theirs >= _PEERS_RATIO * own.deviating / own.requests:
            return False
        return _tokens(own) <= _AS_MUCH_RATIO * (self.tokens - _tokens(own)) / peers


def slow_findings(pool: PoolView) -> Iterator[Finding | None]:
    """Workers that attain too little at their own work, or many of whose requests are far slower than expected.

    One finding for a pool most of whose workers suffer from the same. ``None`` now and then, when others may run.
    """
    whole = _Pool(pool)
    slow: list[Finding] = []
    for number, worker in enumerate(sorted(pool.workers, key=lambda each: -each.lately.deviating)):
        if (found := _slow(whole, worker)) is not None:
            slow.append(found)
        if number % _SLICE == _SLICE - 1:
            yield None
    together = _together(whole, slow)
    yield from slow if together is None else [together]


def _attained(worker: WorkerView, figure: str) -> float | None:
    return worker.attained_ttft_ratio if figure == "TTFT" else worker.attained_tpot_ratio


def _tokens(sums: Sums) -> int:
    """What had to be computed."""
    return sums.prompt_tokens - sums.cached_tokens + sums.completion_tokens


def _slow(whole: _Pool, worker: WorkerView) -> Finding | None:
    lately, pool = worker.lately, whole.pool
    ratios = {figure: _attained(worker, figure) for figure in ("TTFT", "TPOT")}
    known = {figure: attained for figure, attained in ratios.items() if attained is not None and lately.requests}
    figure = min(known, key=known.__getitem__, default=None)
    is_often = lately.deviating >= max(_LEAST_DEVIATING, _DEVIATING_RATIO * lately.requests)
    name = f"worker {worker.worker}"
    if figure is not None and known[figure] < thresholds.ATTAINED_RATIO and lately.deviating:
        text = f"{capital(name)} is slow: {percent(known[figure])} of the expected {figure} is attained"
    elif is_often:
        text = f"{lately.deviating} of {count(lately.requests, 'request')} at {name} were far slower than expected lately"
    else:
        return None
    cause = _main_cause(whole, worker, known)
    if cause is None:
        return finding_of(Severity.WARNING, "slow", text, cause_words("unexplained").advice, pool, worker)
    words = cause_words(cause)
    return finding_of(Severity.WARNING, "slow", f"{text}; main cause: {words.what}", words.advice, pool, worker, cause=cause)


def _main_cause(whole: _Pool, worker: WorkerView, attained: Mapping[str, float]) -> str | None:
    """What most of a worker's slow requests suffer from; what explains nothing only where nothing else is known.

    The first slow requests of a worker come before its medians tell; then its peers do, who have the same work.
    """
    explained = {cause: times for cause, times in worker.causes.items() if cause != "unexplained"}
    if explained and sum(explained.values()) >= _EXPLAINED_RATIO * sum(worker.causes.values()):
        cause = max(explained, key=explained.__getitem__)
        return "slower_than_peers" if cause in _OF_LOAD and whole.is_odd_one_out(worker) else cause
    for figure, own in attained.items():
        usual = whole.attained[figure]
        if usual is not None and own < thresholds.ATTAINED_RATIO * usual:
            return "slower_than_peers"
    if not worker.causes:
        return None
    return "slower_than_peers" if whole.is_odd_one_out(worker) else "unexplained"


def _together(whole: _Pool, slow: Sequence[Finding]) -> Finding | None:
    pool = whole.pool
    causes = Counter(found.cause for found in slow if found.cause)
    if len(pool.workers) < 2 or not causes:
        return None
    cause, times = causes.most_common(1)[0]
    if times * 2 <= len(pool.workers) or times < 2:
        return None
    words, lately = cause_words(cause), pool.lately
    text = f"{lately.deviating} of {count(lately.requests, 'request')} in {whole.name} were far slower than expected lately"
    return finding_of(Severity.WARNING, "slow", f"{text}; main cause: {words.what}", words.advice, pool, cause=cause)
