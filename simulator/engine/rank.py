"""One engine: a batch, the step in flight, and how long it takes. `Engine` has one for each data-parallel rank."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from operator import eq

from simulator.draws import Draws
from simulator.engine.batch import Batch, Plan
from simulator.engine.drafts import Acceptance
from simulator.engine.prefix import Prompt
from simulator.engine.sequence import Sequence
from simulator.engine.timing import NoiseAhead, Part, StepWork
from simulator.engine.values import Controls, EngineSettings, Progress, Request, Step, Totals

_STRETCH = 128  # steps that are planned ahead at most


class Rank:
    """A single engine. Its driver alternates `schedule` and `complete`; see `Engine`."""

    def __init__(self, settings: EngineSettings, number: int, controls: Controls) -> None:
        self.number = number
        self.totals = Totals()
        self._settings = settings
        self._controls = controls
        self._timer = settings.timer
        self._batch = Batch(settings, controls, self.totals)
        self._plan = Plan()  # of the step in flight
        self._step: Step | None = None
        self._ends_at = 0.0  # of a step that `_coast_verifying` left in flight
        self._ends: list[float] = []  # of the step in flight and of those planned behind it ...
        self._durations: list[float] = []  # ... and how long they take
        self._noise = NoiseAhead(settings.noise, Draws(settings.seed, f"steps of rank {number}"))
        self._acceptance = Acceptance(settings.speculation, Draws(settings.seed, f"drafts of rank {number}"), self.totals)

    def __repr__(self) -> str:
        return f"<Rank {self.number}: {self.running} running, {self.waiting} waiting, {self._batch.pool!r}>"

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._batch.running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place or for room in the KV cache."""
        return len(self._batch.waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the KV cache that running sequences hold; cached but unused blocks do not count."""
        return self._batch.pool.used / self._batch.pool.capacity

    def cached_tokens(self, prompt: Prompt) -> int:
        """How many tokens of a prompt are in the prefix cache now, in whole blocks. Asking changes nothing."""
        return self._batch.pool.find(prompt.pieces, prompt.tokens // prompt.block_tokens) * prompt.block_tokens

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._batch

    def is_running(self, identifier: str) -> bool:
        """Whether it is in the batch; not while it waits, for the first time or again."""
        return identifier in self._batch.running

    def add(self, request: Request) -> None:
        """Queue a request, which has been checked."""
        self._batch.add(request)

    def abort(self, identifier: str) -> bool:
        """Drop a request at once, wherever it is. False if it is not there (any more)."""
        return self._batch.abort(identifier)

    def reset_prefix_cache(self, *, preempts_running: bool) -> bool:
        """Forget all cached blocks; see `Engine.reset_prefix_cache`."""
        if preempts_running:
            self._batch.preempt_all()
        return self._batch.pool.forget()

    def schedule(self) -> Step | None:
        """Plan the next step, or ``None`` if there is nothing to do; see `Engine.schedule`."""
        if self._step is not None:
            raise RuntimeError("the step in flight must be completed first")
        if self._controls.is_paused or not (self._batch.running or self._batch.waiting):
            return None
        self._plan = self._batch.plan()
        self._step = self._timed(self._plan)
        return self._step

    def stretch(self, seconds: float) -> Step:
        """The step in flight takes so long: it waits for steps of other ranks."""
        if self._step is None:
            raise RuntimeError("no step is in flight")
        self._step = self._step._replace(seconds=seconds)
        return self._step

    @property
    def step_in_flight(self) -> Step | None:
        """What `schedule` or `run` returned last, unless it has been completed or `cut`; ``None`` if there is nothing to do."""
        return self._step

    def run(self, now: float, until: float, passed: list[float] | None = None) -> tuple[Step | None, float]:
        """Plan a step that begins at ``now``, and those after it, as long as they bring nothing but decode tokens that are not
        the last of anybody. Where these verify drafts, only as long as they end by ``until``, before which nothing else may
        happen to the rank.

        Returns a step and when the last of them ends, which is when to call `catch_up` and then `complete`; ``None`` if there
        is nothing to do. Should anything happen to the rank before, call `catch_up` and `cut`. Ends of steps that were booked
        are added to ``passed``; none of them began with a preemption. What comes of it is bit for bit what comes of `schedule`
        and `complete` in turn.
        """
        while True:
            step = self.schedule()
            if step is None:
                return None, now
            end = now + step.seconds
            if step.preempted:
                return step, end
            if not self._plan.parts:
                return step, self._look_ahead(step, end)
            if end > until or not self._verifies_alone(step):
                return step, end
            now = self._coast_verifying(step, end, until, passed)
            if self._step is not None:
                return self._step, self._ends_at

    def _look_ahead(self, step: Step, end: float) -> float:
        """Plan what follows the step in flight, which ends at ``end``, as long as it is the same. Returns when that is over."""
        batch, decoding = self._batch, self._batch.decoding
        count, tick = len(decoding.members), decoding.tick + 1
        steps = 0 if batch.waiting and batch.may_admit() else min(_STRETCH, decoding.ends_at - tick)
        if steps > 0:
            steps = decoding.steps_within(batch.pool.free, steps, tick)
        if steps <= 0:
            return end
        context = decoding.context_tokens + count
        contexts = range(context, context + steps * count, count)
        windows = decoding.windowed_ahead(steps) if self._timer.windows else ()
        durations, factor = self._timer.decoding(count)(contexts, windows), self._controls.slow_factor
        if factor != 1.0:
            durations = [seconds * factor for seconds in durations]
        durations = self._noise.ahead(durations)
        self._durations = [step.seconds, *durations]
        self._ends = list(accumulate(durations, initial=end))
        return self._ends[-1]

    def catch_up(self, now: float, passed: list[float] | None = None) -> None:
        """Book the steps that have ended by ``now``, but for the last of those that were planned by `run`."""
        steps = min(bisect_right(self._ends, now), len(self._ends) - 1)
        if steps <= 0:
            return
        decoding = self._batch.decoding
        self.totals.steps += steps
        self.totals.generation_tokens += steps * len(decoding.members)
        decoding.pass_steps(steps)
        self._batch.pool.take(decoding.grow(steps, decoding.tick - steps + 1))  # there were enough when they were planned
        self._noise.skip(steps)
        if passed is not None:
            passed += self._ends[:steps]
        del self._ends[:steps], self._durations[:steps]

    def cut(self) -> tuple[Step, float] | None:
        """Forget what was planned behind the step in flight, of which `catch_up` has been told. Returns a step that takes its
        place, and when it ends; ``None`` if nothing was planned behind it.
        """
        if len(self._ends) < 2:
            return None
        end, decoding = self._ends[0], self._batch.decoding
        count = len(decoding.members)
        self._step = Step(self.number, self._durations[0], count, 0, decoding.context_tokens, (), ())
        self._ends, self._durations = [], []
        return self._step, end

    def _verifies_alone(self, step: Step) -> bool:
        """Whether the step in flight does nothing but verify drafts, for everybody who runs, and others like it would too."""
        most = len(self._batch.running) * (1 + self._acceptance.drafts)
        alone = len(self._plan.parts) == len(self._batch.running) and not step.prefill_tokens
        return bool(self._acceptance.drafts) and alone and most <= self._settings.step_tokens

    def _coast_verifying(self, step: Step, end: float, until: float, passed: list[float] | None) -> float:
        """Book the step in flight, which ends at ``end``, and others like it, as long as they end by ``until`` and are nobody's
        last. Returns the instant reached. The step in flight then, if there is one, is past ``until`` or somebody's last.
        """
        batch, acceptance, timer = self._batch, self._acceptance, self._timer
        pool, size, drafts = batch.pool, self._settings.block_tokens, acceptance.drafts
        sequences = list(batch.single.values())
        lefts = [sequence.request.output_tokens - sequence.generated for sequence in sequences]
        pasts = [sequence.computed for sequence in sequences]
        rooms = [sequence.blocks * size for sequence in sequences]
        by_kept = [0] * (drafts + 2)
        windowed, places = batch.decoding.windowed_tokens, range(len(sequences))
        drafted = steps = 0
        now, self._step = end, None
        while True:
            kept = acceptance.drawn(lefts)
            if any(map(eq, kept, lefts)):  # somebody's last
                acceptance.foresee(kept)
                self._step, self._ends_at = step, end
                break
            now = end
            if passed is not None:
                passed.append(end)
            steps += 1
            has_room, tokens, parts = True, 0, []
            for at in places:
                new = kept[at]
                by_kept[new] += 1
                left, past = lefts[at], pasts[at] + new
                drafted += drafts if left > drafts else left - 1
                lefts[at] = left = left - new
                pasts[at] = past
                new = 1 + drafts if left > drafts else left
                tokens += new
                if past + new > rooms[at] and has_room:
                    lacking = (past + new - rooms[at] - 1) // size + 1
                    has_room = pool.take(lacking)
                    rooms[at] += lacking * size if has_room else 0
                parts.append(Part(past, new, new))
            if not has_room or (batch.waiting and batch.may_admit()):
                break
            work = StepWork(0, 0, windowed, tuple(parts))
            seconds = self._noise.take(timer.seconds(work) * self._controls.slow_factor)
            end = now + seconds
            step = Step(self.number, seconds, tokens, 0, sum(pasts), (), ())
            if end > until:
                self._step, self._ends_at = step, end
                break
        for sequence, left, past, room in zip(sequences, lefts, pasts, rooms, strict=True):
            sequence.generated = sequence.request.output_tokens - left
            sequence.computed = past
            sequence.blocks = room // size
        self._plan = Plan([(sequence, acceptance.tokens(left)) for sequence, left in zip(sequences, lefts, strict=True)])
        self.totals.steps += steps
        self.totals.generation_tokens += sum(tokens * count for tokens, count in enumerate(by_kept))
        acceptance.count(sum(by_kept), drafted, by_kept[1:])
        return now

    def complete(self, step: Step, *, tells_all: bool = True) -> list[Progress]:
        """Book a step whose time is over; see `Engine.complete`."""
        if step is not self._step:
            raise RuntimeError("this step is not in flight")
        self._step = None
        self._ends, self._durations = [], []
        decoding = self._batch.decoding
        self.totals.steps += 1
        self.totals.generation_tokens += len(decoding.members)
        ended = decoding.advance()
        told = list(decoding.members.values()) if tells_all else ended
        progress = [self._report(sequence, decoding.generated(sequence), 1) for sequence in told]
        for sequence in ended:
            self._batch.leave(sequence)
        for sequence, tokens in self._plan.parts:
            if sequence.request.identifier in self._batch.running:  # not aborted meanwhile
                prefills = sequence.computed < sequence.target
                if prefills:
                    new = self._advance(sequence, tokens)
                else:
                    new = self._acceptance.kept(tokens)
                    self.totals.generation_tokens += new
                    sequence.computed += new
                    sequence.generated += new
                    if sequence.generated == sequence.request.output_tokens:
                        self._batch.leave(sequence)
                if new and (tells_all or prefills or sequence.is_finished):
                    progress.append(self._report(sequence, sequence.generated, new))
        return progress

    def _timed(self, plan: Plan) -> Step:
        decoding = self._batch.decoding
        prefill = verified = 0
        context = decoding.context_tokens
        parts = []
        for sequence, tokens in plan.parts:
            past = sequence.computed
            context += past
            if past < sequence.target:
                prefill += tokens
                parts.append(Part(past, tokens, 1 if past + tokens == sequence.target else 0))
            else:
                verified += tokens
                parts.append(Part(past, tokens, tokens))
        work = StepWork(len(decoding.members), decoding.context_tokens, decoding.windowed_tokens, tuple(parts))
        seconds = self._noise.take(self._timer.seconds(work) * self._controls.slow_factor)
        return Step(
            self.number, seconds, work.decoding + verified, prefill, context, tuple(plan.admitted), tuple(plan.preempted)
        )

    def _advance(self, sequence: Sequence, tokens: int) -> int:
        """Book what was computed of a prefill. Returns how many tokens its sequence got: one with the last chunk."""
        sequence.computed += tokens
        if sequence.computed < sequence.target:
            return 0
        if not sequence.generated:
            self.totals.prompt_tokens += sequence.request.prompt.tokens
        sequence.generated += 1
        self.totals.generation_tokens += 1
        if sequence.is_finished:
            self._batch.leave(sequence)
        elif self._settings.speculation is None:
            del self._batch.single[sequence.request.identifier]
            self._batch.decoding.join(sequence)
        return 1

    def _report(self, sequence: Sequence, generated: int, new: int) -> Progress:
        request, size = sequence.request, self._settings.block_tokens
        cached = sequence.cached_tokens or 0
        return Progress(
            identifier=request.identifier,
            generated_tokens=generated,
            new_tokens=new,
            cached_tokens=cached,
            # What was forgotten and computed anew counts once.
            created_cache_tokens=min(sequence.created_blocks * size, request.prompt.tokens // size * size - cached),
            is_finished=generated == request.output_tokens,
            preempted=sequence.preemptions,
            fetched_tokens=sequence.fetched_tokens,
        )
