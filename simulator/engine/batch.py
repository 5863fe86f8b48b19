"""The queues and the KV cache of one engine, and what a step of it serves.

Each step serves the running sequences first, in the order in which they were admitted, and admits waiting ones while tokens,
places and KV blocks are left. KV blocks are taken as sequences grow. When there is none left, whoever came last loses its
blocks and waits again, to compute anew what is then no longer found in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.engine.blocks import BlockPool
from simulator.engine.decoding import DecodeGroup
from simulator.engine.queue import queue_of
from simulator.engine.sequence import Sequence
from simulator.engine.values import Controls, EngineSettings, QueuePolicy, Request, Totals


@dataclass(slots=True)
class Plan:
    """What a step serves beside the decode group, which it always serves."""

    parts: list[tuple[Sequence, int]] = field(default_factory=list)  # who is planned one by one, and tokens computed for it
    admitted: list[str] = field(default_factory=list)  # for the first time
    preempted: list[str] = field(default_factory=list)


class Batch:
    """Who waits and who runs, with the blocks they hold."""

    def __init__(self, settings: EngineSettings, controls: Controls, totals: Totals) -> None:
        self.pool = BlockPool(settings.kv_blocks)
        self.waiting = queue_of(settings.queue_policy)
        self.running: dict[str, Sequence] = {}  # in the order in which they were admitted
        self.single: dict[str, Sequence] = {}  # those of them that are planned one by one: prefills, and who verifies drafts
        self.decoding = DecodeGroup(settings.block_tokens, settings.timer.windows)  # the others
        self._settings = settings
        self._controls = controls
        self._totals = totals
        self._block_tokens = settings.block_tokens
        self._longest_chunk = min(settings.long_prefill_tokens or settings.step_tokens, settings.step_tokens)
        self._refused: Sequence | None = None  # who was first in the queue and found no room ...
        self._room_wanted = 0  # ... which it cannot find before `BlockPool.free` and names given since exceed this

    def __repr__(self) -> str:
        return f"<Batch of {len(self.running)}, {len(self.waiting)} waiting, {self.pool!r}>"

    def __contains__(self, identifier: str) -> bool:
        return identifier in self.waiting or identifier in self.running

    def add(self, request: Request) -> None:
        """Queue a request, which has been checked."""
        self.waiting.put(Sequence(request))

    def abort(self, identifier: str) -> bool:
        """Drop a request at once, wherever it is. False if it is not there (any more)."""
        if self.waiting.remove(identifier) is not None:
            return True
        sequence = self.running.get(identifier)
        if sequence is None:
            return False
        self.leave(sequence)
        return True

    def preempt_all(self) -> None:
        """Everybody loses its place and its blocks."""
        for sequence in reversed(list(self.running.values())):
            self._preempt(sequence)

    def plan(self) -> Plan:
        """Serve who runs, then who waits; blocks are taken, and computing is yet to be done."""
        plan = Plan()
        self._grow_decoding(plan)
        budget = self._settings.step_tokens - len(self.decoding.members)
        if self.single:
            budget = self._plan_single(plan, budget)
            self._settle_planned(plan)
        if self.waiting and not plan.preempted:
            self._admit(plan, budget)
        return plan

    def leave(self, sequence: Sequence) -> None:
        """Out of the batch, and everything it held given back; its full blocks stay remembered."""
        identifier = sequence.request.identifier
        del self.running[identifier]
        if identifier in self.single:
            del self.single[identifier]
        else:
            self.decoding.leave(sequence)
        if self._controls.caches_prefixes:
            sequence.settle(self.pool, sequence.computed)
        sequence.lost_tokens = sequence.computed
        sequence.give_back(self.pool)

    def _grow_decoding(self, plan: Plan) -> None:
        """A block for every decoding sequence whose blocks are full."""
        decoding = self.decoding
        if decoding.steps_within(self.pool.free, 1, decoding.tick):
            self.pool.take(decoding.grow(1, decoding.tick))
            return
        for sequence in list(decoding.due):
            if sequence.request.identifier not in decoding.members:
                continue  # preempted for one of the others
            if self.pool.take(1) or self._make_room(1, sequence, plan):
                sequence.blocks += 1

    def _plan_single(self, plan: Plan, budget: int) -> int:
        """Chunks of running prefills, and drafts to verify. Returns what is left of the step's tokens."""
        drafts = self._settings.speculation.drafts if self._settings.speculation else 0
        for sequence in list(self.single.values()):
            if budget <= 0:
                break
            if sequence.request.identifier not in self.single:
                continue  # preempted for one before it
            missing = sequence.target - sequence.computed
            if missing > 0:
                tokens = min(missing, self._longest_chunk, budget)
            else:
                tokens = min(1 + drafts, sequence.request.output_tokens - sequence.generated, budget)
            lacking = -(-(sequence.computed + tokens) // self._block_tokens) - sequence.blocks
            if lacking > 0:
                if not self.pool.take(lacking) and not self._make_room(lacking, sequence, plan):
                    continue
                sequence.blocks += lacking
            plan.parts.append((sequence, tokens))
            budget -= tokens
        return budget

    def _settle_planned(self, plan: Plan) -> None:
        """What prefills compute in this step can be found by who is admitted in it, as in vLLM."""
        if self._controls.caches_prefixes:
            for sequence, tokens in plan.parts:
                if sequence.computed < sequence.target:
                    sequence.settle(self.pool, sequence.computed + tokens)

    def _admit(self, plan: Plan, budget: int) -> None:
        """Let waiting sequences in, the first one first, until one finds no room."""
        while budget > 0 and self.waiting and self.may_admit():
            sequence = self.waiting.first()
            tokens = self._admit_one(plan, sequence, budget)
            if not tokens:
                return
            if not sequence.preemptions:
                plan.admitted.append(sequence.request.identifier)
            budget -= tokens

    def may_admit(self) -> bool:
        """Whether there is a place, and not surely too little room for the first of the waiting."""
        if len(self.running) >= self._settings.max_num_seqs:
            return False
        return self.waiting.first() is not self._refused or self.pool.free + self.pool.named > self._room_wanted

    def _admit_one(self, plan: Plan, sequence: Sequence, budget: int) -> int:
        """Give a sequence its first blocks and a chunk of its prefill; 0 if there is no room."""
        pool, size, request = self.pool, self._block_tokens, sequence.request
        target = request.prompt.tokens + sequence.generated
        caches, holding = self._controls.caches_prefixes, sequence.holding
        # The last token is always computed: the next one comes from it.
        hits = pool.find(holding.pieces, (target - 1) // size) if caches else 0
        there = hits * size
        if request.fetched_tokens > there and not sequence.preemptions:
            there = min(request.fetched_tokens, target - 1)
        tokens = min(target - there, self._longest_chunk, budget)
        fresh = -(-(there + tokens) // size) - hits
        whole = -(-target // size) - hits
        missing = pool.missing(holding.pieces, hits, whole if self._settings.admits_whole_prompts else fresh)
        if missing:
            if self._settings.admits_whole_prompts:  # otherwise it depends on the budget, too
                self._refused, self._room_wanted = sequence, pool.free + pool.named + missing - 1
            return 0
        self._refused = None
        self.waiting.remove(request.identifier)
        pool.hold(holding, hits)
        pool.take(fresh)
        sequence.blocks = hits + fresh
        sequence.computed = there
        sequence.target = target
        if sequence.cached_tokens is None:
            sequence.cached_tokens = there
            sequence.fetched_tokens = there - hits * size
            self._totals.fetched_tokens += there - hits * size
            self._totals.prefix_queried_tokens += request.prompt.tokens if caches else 0
            self._totals.prefix_hit_tokens += hits * size
        self._totals.recomputed_tokens += max(0, sequence.lost_tokens - hits * size)
        sequence.lost_tokens = 0
        self.running[request.identifier] = self.single[request.identifier] = sequence
        plan.parts.append((sequence, tokens))
        if caches:
            sequence.settle(pool, sequence.computed + tokens)
        return tokens

    def _make_room(self, blocks: int, wanting: Sequence, plan: Plan) -> bool:
        """Preempt until so many blocks can be taken, and take them. False if the one who wants them had to go itself."""
        while not self.pool.take(blocks):
            victim = self._victim()
            plan.preempted.append(victim.request.identifier)
            self._preempt(victim)
            plan.parts = [(sequence, tokens) for sequence, tokens in plan.parts if sequence is not victim]
            if victim is wanting:
                return False
        return True

    def _victim(self) -> Sequence:
        if self._settings.queue_policy is QueuePolicy.PRIORITY:
            return max(self.running.values(), key=lambda sequence: (sequence.request.priority, sequence.request.number))
        return next(reversed(self.running.values()))

    def _preempt(self, sequence: Sequence) -> None:
        self.leave(sequence)
        sequence.preemptions += 1
        self._totals.preemptions += 1
        self.waiting.put_back(sequence)
