"""One engine: a batch, the step in flight, and how long it takes. `Engine` has one for each data-parallel rank."""

from __future__ import annotations

from operator import eq

from simulator.draws import Draws
from simulator.engine.batch import Batch, Plan
from simulator.engine.drafts import Acceptance
from simulator.engine.sequence import Sequence
from simulator.engine.timing import Part, StepWork
from simulator.engine.values import Controls, EngineSettings, Progress, Request, Step, Totals


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
        self._ends_at = 0.0  # of a step that `run` left in flight
        self._step_draws = Draws(settings.seed, f"steps of rank {number}")
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

    def run(self, now: float, until: float, passed: list[float] | None = None) -> tuple[Step | None, float]:
        """Plan a step that begins at ``now``; while steps bring nothing but decode tokens that are not the last of anybody, and
        end by ``until``, book them and plan the next. Nothing else may happen to the rank by ``until``.

        Returns the step in flight and when it ends; ``None`` if there is nothing to do. Ends of steps that were booked are
        added to ``passed``; none of them began with a preemption. What comes of it is bit for bit what comes of `schedule` and
        `complete` in turn.
        """
        decoding = self._batch.decoding
        while True:
            step = self.schedule()
            if step is None:
                return None, now
            end = now + step.seconds
            if end > until or step.preempted:
                return step, end
            if self._plan.parts:
                if not self._verifies_alone(step):
                    return step, end
                now = self._coast_verifying(step, end, until, passed)
            elif decoding.ends_next:
                return step, end
            else:
                now = self._coast(end, until, passed)
            if self._step is not None:
                return self._step, self._ends_at

    def _coast(self, end: float, until: float, passed: list[float] | None) -> float:
        """Book the step in flight, which ends at ``end``, and others like it, until there is more to do than decoding.

        Returns the instant reached. The step in flight then, if there is one, is past ``until`` or somebody's last.
        """
        batch, noise, slow_factor = self._batch, self._settings.noise, self._controls.slow_factor
        decoding = batch.decoding
        due_by_tick, ends_by_tick, size = decoding.due_by_tick, decoding.ends_by_tick, self._settings.block_tokens
        count, waiting = len(decoding.members), len(batch.waiting)
        is_noisy, has_windows = not noise.is_none, bool(self._timer.windows)
        duration = self._timer.decoding(count)
        first_tick = tick = decoding.tick
        context, windowed = decoding.context_tokens, decoding.windowed_tokens
        self._step = None
        while True:
            tick += 1
            context += count
            if has_windows:
                windowed = decoding.pass_windows(tick)
            now = end
            if passed is not None:
                passed.append(end)
            due = due_by_tick[tick % size]
            if (waiting and batch.may_admit()) or (due and not batch.grow(due)):
                break
            seconds = duration(context, windowed) * slow_factor
            if is_noisy:
                seconds = noise.applied(seconds, self._step_draws)
            end = now + seconds
            if end > until or tick + 1 in ends_by_tick:
                self._step = Step(self.number, seconds, count, 0, context, (), ())
                self._ends_at = end
                break
        decoding.tick, decoding.context_tokens = tick, context
        self.totals.steps += tick - first_tick
        self.totals.generation_tokens += (tick - first_tick) * count
        return now

    def _verifies_alone(self, step: Step) -> bool:
        """Whether the step in flight does nothing but verify drafts, for everybody who runs, and others like it would too."""
        most = len(self._batch.running) * (1 + self._acceptance.drafts)
        alone = len(self._plan.parts) == len(self._batch.running) and not step.prefill_tokens
        return bool(self._acceptance.drafts) and alone and most <= self._settings.step_tokens

    def _coast_verifying(self, step: Step, end: float, until: float, passed: list[float] | None) -> float:
        """The same as `_coast` for steps that verify drafts."""
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
            seconds = self._settings.noise.applied(timer.seconds(work) * self._controls.slow_factor, self._step_draws)
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
        seconds = self._settings.noise.applied(self._timer.seconds(work) * self._controls.slow_factor, self._step_draws)
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
