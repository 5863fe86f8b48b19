"""The engine of a simulated worker: continuous batching with chunked prefill and a prefix cache, as a pure step loop.

Its driver alternates two calls: `schedule` says what the next step computes and how long it takes; `complete`, made when that
time is over, says which sequences got tokens. Requests may be added and aborted at any moment in between. There is no clock
in here; the driver's may be real or virtual. With several data-parallel ranks each has a step of its own in flight; with
``steps_together`` these begin and end together.
"""

from __future__ import annotations

from dataclasses import fields

from simulator.engine.prefix import Prompt
from simulator.engine.rank import Rank
from simulator.engine.timing import Noise
from simulator.engine.values import Controls, EngineSettings, Progress, QueuePolicy, Request, Speculation, Step, Totals

__all__ = [
    "Engine",
    "EngineSettings",
    "Noise",
    "Progress",
    "QueuePolicy",
    "Rank",
    "Request",
    "Speculation",
    "Step",
    "Totals",
]

_CROWDED_RATIO = 0.5  # use of the KV cache above which waiting counts double


class Engine:
    """The ranks of one worker (one, unless it is data-parallel), and how requests spread over them."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._controls = Controls(caches_prefixes=settings.caches_prefixes)
        self.ranks = tuple(Rank(settings, number, self._controls) for number in range(settings.ranks))
        self._turn = 0
        self._arrivals = 0

    def __repr__(self) -> str:
        return f"<Engine {self.running} running, {self.waiting} waiting, {list(self.ranks)!r}>"

    @property
    def running(self) -> int:
        """Sequences in the batches of all ranks."""
        return sum(rank.running for rank in self.ranks)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place or for room in the KV cache."""
        return sum(rank.waiting for rank in self.ranks)

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the KV cache that running sequences hold, the mean over the ranks; unused cached blocks do not count."""
        return sum(rank.kv_usage_ratio for rank in self.ranks) / len(self.ranks)

    @property
    def totals(self) -> Totals:
        """What all ranks together have done; with one rank its own, which go on growing."""
        if len(self.ranks) == 1:
            return self.ranks[0].totals
        sums = {
            field.name: sum(getattr(rank.totals, field.name) for rank in self.ranks)
            for field in fields(Totals)
            if field.name != "accepted_by_position"
        }
        by_position = [sum(counts) for counts in zip(*(rank.totals.accepted_by_position for rank in self.ranks), strict=True)]
        return Totals(**sums, accepted_by_position=by_position)

    @property
    def slow_factor(self) -> float:
        """Steps planned from now on take so many times as long; above 0."""
        return self._controls.slow_factor

    @slow_factor.setter
    def slow_factor(self, factor: float) -> None:
        if not factor > 0:
            raise ValueError(f"slow_factor must be above 0, got {factor}")
        self._controls.slow_factor = factor

    @property
    def is_paused(self) -> bool:
        """While true no step begins; what is in flight can be completed, and requests can be added."""
        return self._controls.is_paused

    @is_paused.setter
    def is_paused(self, paused: bool) -> None:
        self._controls.is_paused = paused

    @property
    def caches_prefixes(self) -> bool:
        """While false nothing is found in the prefix cache, and nothing is added to it."""
        return self._controls.caches_prefixes

    @caches_prefixes.setter
    def caches_prefixes(self, caches: bool) -> None:
        self._controls.caches_prefixes = caches

    def add(
        self,
        identifier: str,
        prompt: Prompt,
        output_tokens: int,
        *,
        priority: int = 0,
        rank: int | None = None,
        fetched_tokens: int = 0,
    ) -> int:
        """Queue a request that will generate ``output_tokens`` (at least 1), and say on which rank.

        ``rank`` ``None``: the one with the fewest sequences, where waiting ones count double while the KV cache is more than
        half in use; equals take turns. ``priority``: lower is earlier, if the settings say so. ``fetched_tokens`` of the prompt
        come from another worker's KV cache: they take blocks and are not computed, unless a preemption loses them.
        ``ValueError`` if the request could never run; see `check`.
        """
        self.check(identifier, prompt, output_tokens, rank=rank, fetched_tokens=fetched_tokens)
        chosen = self.least_loaded_rank() if rank is None else rank
        request = Request(
            identifier=identifier,
            prompt=prompt,
            output_tokens=output_tokens,
            priority=priority,
            number=self._arrivals,
            fetched_tokens=fetched_tokens,
        )
        self._arrivals += 1
        self.ranks[chosen].add(request)
        return chosen

    def check(
        self, identifier: str, prompt: Prompt, output_tokens: int, *, rank: int | None = None, fetched_tokens: int = 0
    ) -> None:
        """``ValueError`` if a request could never run.

        No output, an identifier in use, no such rank, more tokens than the KV cache holds, or more fetched than the prompt has.
        """
        settings = self.settings
        if output_tokens < 1:
            raise ValueError(f"output_tokens must be at least 1, got {output_tokens}")
        if any(identifier in one for one in self.ranks):
            raise ValueError(f"request {identifier!r} is there already")
        if prompt.block_tokens != settings.block_tokens:
            raise ValueError(f"the prompt is cut in blocks of {prompt.block_tokens} tokens, not of {settings.block_tokens}")
        if prompt.tokens + output_tokens > settings.kv_blocks * settings.block_tokens:
            raise ValueError(f"{prompt.tokens} + {output_tokens} tokens do not fit the KV cache")
        if rank is not None and not 0 <= rank < len(self.ranks):
            raise ValueError(f"rank must be in 0-{len(self.ranks) - 1}, got {rank}")
        if not 0 <= fetched_tokens <= prompt.tokens:
            raise ValueError(f"fetched_tokens must be in 0-{prompt.tokens}, got {fetched_tokens}")

    def abort(self, identifier: str) -> bool:
        """Drop a request at once, wherever it is. False if it is not there (any more)."""
        return any(rank.abort(identifier) for rank in self.ranks)

    def schedule(self, rank: int = 0) -> Step | None:
        """Plan a rank's next step, or ``None`` if there is nothing to do. Running sequences come first, then who waits longest.

        ``RuntimeError`` if the rank's step before has not been completed.
        """
        return self.ranks[rank].schedule()

    def schedule_together(self) -> list[Step]:
        """Plan the next step of every rank that has something to do; all of them take as long as the longest.

        For ``steps_together``: ranks of a mixture of experts exchange tokens in every layer, so that whoever has nothing to do
        computes along for nobody, and nobody begins anything before the slowest is through.
        """
        steps = [step for rank in self.ranks if (step := rank.schedule()) is not None]
        longest = max((step.seconds for step in steps), default=0.0)
        return [self.ranks[step.rank].stretch(longest) for step in steps]

    def complete(self, step: Step, *, tells_all: bool = True) -> list[Progress]:
        """Book a step whose time is over, and say who got tokens; who was aborted meanwhile gets nothing.

        With ``tells_all`` false only first tokens, those after a preemption, and last ones are told, which is cheaper.
        ``RuntimeError`` if ``step`` is not in flight.
        """
        return self.ranks[step.rank].complete(step, tells_all=tells_all)

    def reset_prefix_cache(self, *, preempts_running: bool = False) -> bool:
        """Forget all cached blocks. False, and that rank's stay, where blocks are in use.

        With ``preempts_running`` running sequences lose theirs, wait and compute everything anew; a step in flight brings them
        nothing.
        """
        outcomes = [rank.reset_prefix_cache(preempts_running=preempts_running) for rank in self.ranks]
        return all(outcomes)

    def least_loaded_rank(self) -> int:
        """Where the next request goes if it names no rank; equals take turns, so asking counts as a turn."""
        count = len(self.ranks)
        if count == 1:
            return 0
        order = [(self._turn + place) % count for place in range(count)]
        chosen = min(order, key=lambda number: _load(self.ranks[number]))
        self._turn = (chosen + 1) % count
        return chosen


def _load(rank: Rank) -> int:
    waiting = rank.waiting
    return rank.running + waiting + (waiting if rank.kv_usage_ratio > _CROWDED_RATIO else 0)
