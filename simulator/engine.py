"""The engine of a simulated worker: continuous batching with chunked prefill and a prefix cache, as a pure step loop.

Its driver alternates two calls: `schedule` says what the next step computes and how long it takes; `complete`, made when that
time is over, says which sequences got a token. Requests may be added and aborted at any moment in between. There is no clock
in here; the driver's may be real or virtual.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from simulator.gpus import DemoGpu
from simulator.prefix import BLOCK_TOKENS, BlockPool, Lease, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What bounds a step, and what it costs."""

    gpu: DemoGpu
    max_num_seqs: int = 64  # sequences that run at once
    step_tokens: int = 2048  # tokens computed in one step, prefill and decode together

    @property
    def kv_blocks(self) -> int:
        """Capacity of the KV cache in blocks."""
        return self.gpu.kv_tokens // BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it waits."""

    identifier: str
    prompt: Prompt
    output_tokens: int  # how many it will generate


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request as it runs."""

    request: Request
    lease: Lease
    computed_tokens: int  # prompt tokens in the KV cache, cached ones included
    generated_tokens: int = 0
    created_blocks: int = 0  # prompt blocks that the cache learned from it

    @property
    def is_finished(self) -> bool:
        """Whether it has generated all of its output."""
        return self.generated_tokens == self.request.output_tokens

    @property
    def missing_tokens(self) -> int:
        """Prompt tokens still to be computed; 0 means it decodes."""
        return self.request.prompt.tokens - self.computed_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step computes. Hand it back to `Engine.complete` after ``seconds``."""

    parts: tuple[tuple[Sequence, int], ...]  # sequence, tokens computed for it
    prefill_tokens: int
    context_tokens: int  # KV tokens read, summed over the sequences
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One sequence got one token."""

    identifier: str
    generated_tokens: int  # so far, this one included
    cached_tokens: int  # prompt tokens taken from the prefix cache
    created_cache_tokens: int  # prompt tokens the prefix cache learned
    is_finished: bool


@dataclass(slots=True, kw_only=True)
class Totals:
    """What the engine has done since it was made; only ever grows."""

    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0  # of finished prefills, cached ones included
    generation_tokens: int = 0


class Engine:
    """Two queues, a KV cache and the step in flight."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.totals = Totals()
        self._pool = BlockPool(settings.kv_blocks)
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._running: dict[str, Sequence] = {}
        self._step: Step | None = None

    def __repr__(self) -> str:
        return f"<Engine {self.running} running, {self.waiting} waiting, {self._pool!r}>"

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place or for room in the KV cache."""
        return len(self._waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the KV cache that running sequences hold; cached but unused blocks do not count."""
        return self._pool.used / self._pool.capacity

    def add(self, identifier: str, prompt: Prompt, output_tokens: int) -> None:
        """Queue a request that will generate ``output_tokens`` (at least 1).

        ``ValueError`` if it could never run: no output, an identifier in use, or more tokens than the KV cache holds.
        """
        if output_tokens < 1:
            raise ValueError(f"output_tokens must be at least 1, got {output_tokens}")
        if identifier in self._waiting or identifier in self._running:
            raise ValueError(f"request {identifier!r} is there already")
        if prompt.tokens + output_tokens > self.settings.kv_blocks * BLOCK_TOKENS:
            raise ValueError(f"{prompt.tokens} + {output_tokens} tokens do not fit the KV cache")
        self._waiting[identifier] = Request(identifier=identifier, prompt=prompt, output_tokens=output_tokens)

    def abort(self, identifier: str) -> bool:
        """Drop a request at once, wherever it is. False if it is not there (any more)."""
        if self._waiting.pop(identifier, None) is not None:
            return True
        sequence = self._running.get(identifier)
        if sequence is None:
            return False
        self._leave(sequence)
        return True

    def schedule(self) -> Step | None:
        """Plan the next step, or ``None`` if there is nothing to do. Running sequences come first, then who waits longest.

        ``RuntimeError`` if the step before has not been completed.
        """
        if self._step is not None:
            raise RuntimeError("the step in flight must be completed first")
        budget = self.settings.step_tokens
        parts: list[tuple[Sequence, int]] = []
        for sequence in self._running.values():
            if budget == 0:
                break
            tokens = min(sequence.missing_tokens or 1, budget)
            parts.append((sequence, tokens))
            budget -= tokens
        while budget and self._waiting and len(self._running) < self.settings.max_num_seqs:
            admitted = self._admit_next()
            if admitted is None:
                break
            tokens = min(admitted.missing_tokens, budget)
            parts.append((admitted, tokens))
            budget -= tokens
        if parts:
            self._step = self._time(parts)
        return self._step

    def complete(self, step: Step) -> list[Progress]:
        """Book a step whose time is over. Who was aborted meanwhile gets nothing.

        ``RuntimeError`` if ``step`` is not the one in flight.
        """
        if step is not self._step:
            raise RuntimeError("this step is not in flight")
        self._step = None
        progress = []
        for sequence, tokens in step.parts:
            if self._running.get(sequence.request.identifier) is sequence and self._advance(sequence, tokens):
                progress.append(self._report(sequence))
        return progress

    def _admit_next(self) -> Sequence | None:
        """Move the first waiting request to the batch; ``None`` if the KV cache has no room for it."""
        request = next(iter(self._waiting.values()))
        lease = self._pool.admit(request.prompt, request.output_tokens)
        if lease is None:
            return None
        del self._waiting[request.identifier]
        sequence = Sequence(request=request, lease=lease, computed_tokens=lease.hit_blocks * BLOCK_TOKENS)
        self._running[request.identifier] = sequence
        self.totals.prefix_queried_tokens += request.prompt.tokens
        self.totals.prefix_hit_tokens += sequence.computed_tokens
        return sequence

    def _time(self, parts: list[tuple[Sequence, int]]) -> Step:
        prefill = sum(tokens for sequence, tokens in parts if sequence.missing_tokens)
        context = sum(sequence.computed_tokens + sequence.generated_tokens for sequence, _ in parts)
        return Step(
            parts=tuple(parts),
            prefill_tokens=prefill,
            context_tokens=context,
            seconds=self.settings.gpu.seconds(prefill, context),
        )

    def _advance(self, sequence: Sequence, tokens: int) -> bool:
        """Book what was computed; True if the sequence got a token, which the last chunk of a prefill brings too."""
        if sequence.missing_tokens:
            sequence.computed_tokens += tokens
            if sequence.missing_tokens:
                return False
            sequence.created_blocks = self._pool.publish(sequence.lease)
            self.totals.prompt_tokens += sequence.request.prompt.tokens
        sequence.generated_tokens += 1
        self.totals.generation_tokens += 1
        if sequence.is_finished:
            self._leave(sequence)
        return True

    def _report(self, sequence: Sequence) -> Progress:
        return Progress(
            identifier=sequence.request.identifier,
            generated_tokens=sequence.generated_tokens,
            cached_tokens=sequence.lease.hit_blocks * BLOCK_TOKENS,
            created_cache_tokens=sequence.created_blocks * BLOCK_TOKENS,
            is_finished=sequence.is_finished,
        )

    def _leave(self, sequence: Sequence) -> None:
        del self._running[sequence.request.identifier]
        self._pool.release(sequence.lease)
