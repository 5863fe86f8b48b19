"""How many requests a worker serves at once, from how many come: Little's law, solved for itself.

    concurrency L = rate x E2E(L),   E2E(L) = TTFT(L) + (n - 1) x TPOT(L)

A service time that is taken as fixed gives too small a number, since every further sequence slows all others: it is read from
the cache in each step, and it brings a prefill that the others wait for. While one request makes its n completion tokens, each
of the L - 1 others comes and goes once, so

    TPOT(L) = step(L) + (L - 1) / (n - 1) x prefill

With r data-parallel ranks each has L / r of the requests, and prefills of one rank hold up only its own.
Means over requests alike. A prefill is counted in full, though part of it may overlap with the decoding of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from roofline.capacity.bisection import crossing
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment
from roofline.expected import Losses, expected
from roofline.limits import Surroundings, decode_limit, e2e_seconds, prefill_limit, prefill_spans

_MOST_CONCURRENCY = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A worker that serves ``concurrency`` requests at once, all the time. Means over requests."""

    workload: Workload
    concurrency: float
    rate_per_second: float  # requests that come and leave
    ttft_seconds: float  # from the first step of the request; without waiting for other prefills
    tpot_seconds: float | None  # None: completions of one token
    e2e_seconds: float
    step_seconds: float | None  # part of TPOT: decoding
    interference_seconds: float | None  # part of TPOT: prefills of others
    prefill_seconds: float  # time that one prefill takes its rank, while the other ranks do one each
    ranks: int  # data-parallel ranks, each with requests of its own

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens of all requests."""
        return self.rate_per_second * self.workload.completion_tokens

    @property
    def prefill_busy_ratio(self) -> float:
        """Share of the time of a rank that goes to prefills."""
        return self.rate_per_second / self.ranks * self.prefill_seconds

    @property
    def prefill_wait_seconds(self) -> float | None:
        """What TTFT is longer on average if prefills come one by one at random: M/D/1, ratio / (2 (1 - ratio)) of a prefill.

        ``None`` if prefills alone take all the time: the queue grows without end.
        """
        busy = self.prefill_busy_ratio
        return busy / (2.0 * (1.0 - busy)) * self.prefill_seconds if busy < 1.0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Equilibrium:
    """What a rate of requests leads to, and the highest rate that leads to anything."""

    rate_per_second: float
    steady: Steady | None  # None: more come than can be served, the queue grows without end
    saturation: Steady  # where the most are served

    @property
    def load_ratio(self) -> float:
        """The rate as a share of the highest one; above 1 there is no steady state."""
        return self.rate_per_second / self.saturation.rate_per_second


def rank_prefill_seconds(deployment: Deployment, losses: Losses, workload: Workload, chunk_tokens: int | None = None) -> float:
    """Time that one prefill takes its data-parallel rank while the others do one each: they compete for routed experts."""
    spans = prefill_spans(workload.prompt_tokens, workload.cached_tokens, Surroundings(chunk_tokens=chunk_tokens))
    return expected(deployment, [span._replace(count=deployment.parallelism.data) for span in spans], losses).seconds


@dataclass(frozen=True, kw_only=True)
class Service:
    """A worker with an engine's losses that serves requests alike.

    ``chunk_tokens``: what the engine computes in one step at most (vLLM: --max-num-batched-tokens); ``None``: no limit.
    ``prefills_elsewhere``: other workers do the prefills, and a request is here from its second token on.
    """

    deployment: Deployment
    losses: Losses
    workload: Workload
    chunk_tokens: int | None = None
    prefills_elsewhere: bool = False

    def at_concurrency(self, concurrency: float) -> Steady:
        """What serving so many requests at once comes to. ``ValueError`` unless above 0."""
        if not concurrency > 0:
            raise ValueError(f"concurrency is above 0, not {concurrency}")
        around = self._around(concurrency)
        completion = self.workload.completion_tokens
        step: float | None = None
        interference: float | None = None
        tpot: float | None = None
        if completion > 1:
            step = self._step_seconds(around)
            others = max(0.0, concurrency / self._ranks - 1.0)  # on the same rank
            interference = others / (completion - 1) * self.prefill_seconds
            tpot = step + interference
        ttft = self._ttft_seconds(concurrency, around)
        e2e = e2e_seconds(ttft, tpot, completion)
        return Steady(
            workload=self.workload,
            concurrency=concurrency,
            rate_per_second=concurrency / e2e,
            ttft_seconds=ttft,
            tpot_seconds=tpot,
            e2e_seconds=e2e,
            step_seconds=step,
            interference_seconds=interference,
            prefill_seconds=self.prefill_seconds,
            ranks=self._ranks,
        )

    def at_rate(self, rate_per_second: float, *, most_concurrency: float | None = None) -> Equilibrium:
        """What so many requests a second lead to, ``most_concurrency`` of them at once (``None``: no limit).

        The least concurrency at which requests leave as fast as they come. ``ValueError`` unless the rate is above 0.
        """
        if not rate_per_second > 0:
            raise ValueError(f"a rate is above 0, not {rate_per_second}")
        tried = [self.at_concurrency(concurrency) for concurrency in self._grid(most_concurrency)]
        saturation = max(tried, key=lambda steady: steady.rate_per_second)
        below = 0.0
        for steady in tried:
            if steady.rate_per_second >= rate_per_second:
                found = crossing(
                    lambda concurrency: self.at_concurrency(concurrency).rate_per_second >= rate_per_second,
                    below,
                    steady.concurrency,
                )
                return Equilibrium(rate_per_second=rate_per_second, steady=self.at_concurrency(found), saturation=saturation)
            below = steady.concurrency
        return Equilibrium(rate_per_second=rate_per_second, steady=None, saturation=saturation)

    @cached_property
    def prefill_seconds(self) -> float:
        """Time that one prefill takes its rank, while the other ranks do one each; 0 if it is done elsewhere."""
        if self.prefills_elsewhere:
            return 0.0
        return rank_prefill_seconds(self.deployment, self.losses, self.workload, self.chunk_tokens)

    def largest_concurrency(self, tpot_seconds: float, *, most_concurrency: float = _MOST_CONCURRENCY) -> float:
        """How many may be served at once before TPOT passes ``tpot_seconds``; 0 if it does for a lone one."""
        if self.workload.completion_tokens < 2:
            return most_concurrency
        most = self._most(most_concurrency)
        if self._tpot(most) <= tpot_seconds:
            return most
        first_above = crossing(lambda concurrency: self._tpot(concurrency) > tpot_seconds, 0.0, most)
        return first_above if first_above >= 1.0 else 0.0

    @property
    def _ranks(self) -> int:
        return self.deployment.parallelism.data

    def _tpot(self, concurrency: float) -> float:
        return self.at_concurrency(concurrency).tpot_seconds or 0.0

    def _around(self, concurrency: float) -> Surroundings:
        return Surroundings(
            running=max(0.0, concurrency - 1.0),
            context_tokens=self.workload.mean_context_tokens,
            chunk_tokens=self.chunk_tokens,
        )

    def _step_seconds(self, around: Surroundings) -> float:
        limit = decode_limit(
            self.deployment,
            self.losses,
            context_tokens=self.workload.prompt_tokens,
            completion_tokens=self.workload.completion_tokens,
            around=around,
        )
        return limit.expected_seconds

    def _ttft_seconds(self, concurrency: float, around: Surroundings) -> float:
        if self.prefills_elsewhere:
            return 0.0
        if self.workload.completion_tokens == 1:  # nothing but prefills, one after the other
            return self.losses.request_overhead_seconds + max(1.0, concurrency / self._ranks) * self.prefill_seconds
        return self._prefill_seconds(around)

    def _prefill_seconds(self, around: Surroundings) -> float:
        limit = prefill_limit(
            self.deployment,
            self.losses,
            prompt_tokens=self.workload.prompt_tokens,
            cached_tokens=self.workload.cached_tokens,
            around=around,
        )
        return limit.expected_seconds

    def _most(self, most_concurrency: float | None) -> float:
        most = _MOST_CONCURRENCY if most_concurrency is None else most_concurrency
        # A step has room for a token of each running sequence, and for one of a prefill.
        return most if self.chunk_tokens is None else max(1.0, min(most, self._ranks * (self.chunk_tokens - 1.0)))

    def _grid(self, most_concurrency: float | None) -> list[float]:
        most = self._most(most_concurrency)
        doubled = [2.0**power for power in range(20) if 2.0**power < most]
        return [*doubled, most]
