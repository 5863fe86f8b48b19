"""One engine: a batch, the step in flight, and how long it takes. `Engine` has one for each data-parallel rank."""

from __future__ import annotations

from simulator.draws import Draws
from simulator.engine_batch import Batch, Plan
from simulator.engine_sequence import Sequence
from simulator.engine_values import Controls, EngineSettings, Progress, Request, Step, Totals
from simulator.timing import Part, StepWork


class Rank:
    """A single engine. Its driver alternates `schedule` and `complete`; see `Engine`."""

    def __init__(self, settings: EngineSettings, number: int, controls: Controls) -> None:
        self.number = number
        self.totals = Totals()
        if settings.speculation is not None:
            self.totals.accepted_by_position = [0] * settings.speculation.drafts
        self._settings = settings
        self._controls = controls
        self._timer = settings.timer
        self._batch = Batch(settings, controls, self.totals)
        self._plan = Plan()  # of the step in flight
        self._step: Step | None = None
        self._ends_at = 0.0  # of a step that `run` left in flight
        self._step_draws = Draws(settings.seed, f"steps of rank {number}")
        self._draft_draws = Draws(settings.seed, f"drafts of rank {number}")

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

    def run(self, now: float, until: float) -> tuple[Step | None, float]:
        """Plan a step that begins at ``now``; while steps bring nothing but decode tokens that are not the last of anybody, and
        end by ``until``, book them and plan the next.

        Returns the step in flight and when it ends; ``None`` if there is nothing to do. What comes of it is bit for bit what
        comes of `schedule` and `complete` in turn.
        """
        decoding = self._batch.decoding
        while True:
            step = self.schedule()
            if step is None:
                return None, now
            end = now + step.seconds
            if self._plan.parts or decoding.ends_next or end > until:
                return step, end
            now = self._coast(end, until)
            if self._step is not None:
                return self._step, self._ends_at

    def _coast(self, end: float, until: float) -> float:
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
                new = self._advance(sequence, tokens)
                if new and (tells_all or sequence.generated == new or sequence.is_finished):
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
        """Book what was computed for a sequence that was planned by itself. Returns how many tokens it got."""
        if sequence.computed < sequence.target:
            sequence.computed += tokens
            if sequence.computed < sequence.target:
                return 0
            if not sequence.generated:
                self.totals.prompt_tokens += sequence.request.prompt.tokens
            new = 1
        else:
            new = self._verified(tokens - 1)
            sequence.computed += new
        sequence.generated += new
        self.totals.generation_tokens += new
        if sequence.is_finished:
            self._batch.leave(sequence)
        elif self._settings.speculation is None:
            del self._batch.single[sequence.request.identifier]
            self._batch.decoding.join(sequence)
        return new

    def _verified(self, drafts: int) -> int:
        """Tokens that a step keeps: drafts up to the first that is refused, and one more."""
        speculation, totals = self._settings.speculation, self.totals
        if speculation is None or not drafts:
            return 1
        accepted = 0
        while accepted < drafts and self._draft_draws.happens(speculation.acceptance_ratio):
            totals.accepted_by_position[accepted] += 1
            accepted += 1
        totals.drafts += 1
        totals.drafted_tokens += drafts
        totals.accepted_tokens += accepted
        return 1 + accepted

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
