"""The sequences that get one token in every step, kept so that a step costs no more for many of them than for few.

All of them advance by the same count, so one number, the tick, stands for all: a sequence that has computed c tokens when it
joins at tick t has computed c + n at tick t + n. What happens to a sequence on the way happens at ticks known when it joins:
it needs another block at every multiple of the block's size, attention windows fill up, and it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from simulator.engine.sequence import Sequence
from simulator.engine.timing import Window


class DecodeGroup:
    """Sequences that compute one token a step, each in a batch of its own right: nobody is left out of a step."""

    __slots__ = ("_block_tokens", "_windows", "context_tokens", "due_by_tick", "ends_by_tick", "members", "tick")

    def __init__(self, block_tokens: int, windows: tuple[Window, ...]) -> None:
        self.tick = 0
        self.members: dict[str, Sequence] = {}  # by identifier, in the order in which they joined
        self.context_tokens = 0  # computed tokens of all members
        self._block_tokens = block_tokens
        self.due_by_tick: tuple[dict[Sequence, None], ...] = tuple({} for _ in range(block_tokens))  # modulo; a block is full
        self.ends_by_tick: dict[int, list[Sequence]] = {}  # the last token has come
        self._windows = tuple(_WindowSum(window) for window in windows)

    def __repr__(self) -> str:
        return f"<DecodeGroup {len(self.members)} sequences of {self.context_tokens} tokens at tick {self.tick}>"

    @property
    def windowed_tokens(self) -> tuple[int, ...]:
        """For each window, what the members' next tokens read of the tokens before them."""
        return tuple([window.tokens for window in self._windows]) if self._windows else ()

    @property
    def due(self) -> Collection[Sequence]:
        """Members whose blocks are all full, so that the next step needs another one for each."""
        return self.due_by_tick[self.tick % self._block_tokens]

    @property
    def ends_next(self) -> bool:
        """Whether the next step brings somebody's last token."""
        return self.tick + 1 in self.ends_by_tick

    @property
    def ends_at(self) -> int:
        """The tick of the next last token of anybody; there must be a member."""
        return min(self.ends_by_tick)

    def steps_within(self, blocks: int, most: int, tick: int) -> int:
        """How many of ``most`` steps, the first of which begins at ``tick``, can grow with so many blocks."""
        size = self._block_tokens
        if len(self.members) * (most // size + 1) <= blocks:
            return most
        for steps in range(most):
            blocks -= len(self.due_by_tick[(tick + steps) % size])
            if blocks < 0:
                return steps
        return most

    def grow(self, steps: int, tick: int) -> int:
        """Note the blocks that so many steps need, the first of which begins at ``tick``. Returns how many these are."""
        size = self._block_tokens
        rounds, rest = divmod(steps, size)
        taken = 0
        for place in range(size if rounds else rest):
            due = self.due_by_tick[(tick + place) % size]
            if due:
                each = rounds + (place < rest)
                taken += each * len(due)
                for sequence in due:
                    sequence.blocks += each
        return taken

    def pass_steps(self, steps: int) -> None:
        """Everybody has computed so many tokens, none of which is the last of anybody."""
        self.context_tokens += steps * len(self.members)
        for window in self._windows:
            for tick in range(self.tick + 1, self.tick + steps + 1):
                window.advance(tick)
        self.tick += steps

    def windowed_ahead(self, steps: int) -> Iterable[tuple[int, ...]]:
        """What `windowed_tokens` will be after each of so many steps."""
        return zip(*(window.ahead(self.tick, steps) for window in self._windows), strict=True)

    def computed(self, sequence: Sequence) -> int:
        """Tokens of a member whose KV cache exists."""
        return self.tick + sequence.offset

    def generated(self, sequence: Sequence) -> int:
        """Tokens a member has generated."""
        return self.tick + sequence.offset - sequence.request.prompt.tokens + 1

    def join(self, sequence: Sequence) -> None:
        """Take in a sequence that has generated at least one token and not all of them."""
        offset = sequence.computed - self.tick
        sequence.offset = offset
        sequence.ends_at = sequence.request.prompt.tokens + sequence.request.output_tokens - 1 - offset
        self.members[sequence.request.identifier] = sequence
        self.context_tokens += sequence.computed
        self.due_by_tick[-offset % self._block_tokens][sequence] = None
        self.ends_by_tick.setdefault(sequence.ends_at, []).append(sequence)
        for window in self._windows:
            window.join(sequence, self.tick)

    def leave(self, sequence: Sequence) -> None:
        """Let a member go; it knows by itself again how far it has come."""
        del self.members[sequence.request.identifier]
        sequence.computed = self.computed(sequence)
        sequence.generated = self.generated(sequence)
        self.context_tokens -= sequence.computed
        del self.due_by_tick[-sequence.offset % self._block_tokens][sequence]
        ends = self.ends_by_tick.get(sequence.ends_at)
        if ends is not None:  # None: it leaves because it has ended
            ends.remove(sequence)
            if not ends:
                del self.ends_by_tick[sequence.ends_at]
        for window in self._windows:
            window.leave(sequence, self.tick)

    def advance(self) -> list[Sequence]:
        """Everybody has computed a token. Returns whose output is complete; they are still members."""
        self.pass_steps(1)
        return self.ends_by_tick.pop(self.tick, [])


class _WindowSum:
    """What all members read within one window, kept up to date."""

    __slots__ = ("_growing", "_turns", "tokens", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.tokens = 0
        self._growing = 0  # members that read one more token at every tick
        self._turns: dict[int, dict[Sequence, None]] = {}  # by the tick at which a window is full

    def join(self, sequence: Sequence, tick: int) -> None:
        self.tokens += self.window.reads(tick + sequence.offset)
        turn = self._turn(sequence, tick)
        if turn is not None:
            self._growing += 1
            self._turns.setdefault(turn, {})[sequence] = None

    def leave(self, sequence: Sequence, tick: int) -> None:
        self.tokens -= self.window.reads(tick + sequence.offset)
        turn = self._turn(sequence, tick)
        if turn is not None:
            self._growing -= 1
            del self._turns[turn][sequence]
            if not self._turns[turn]:
                del self._turns[turn]

    def advance(self, tick: int) -> None:
        self.tokens += self._growing
        turned = self._turns.pop(tick, None)
        if turned is None:
            return
        if self.window.is_chunked:
            self.tokens -= len(turned) * self.window.tokens
            self._turns.setdefault(tick + self.window.tokens, {}).update(turned)
        else:
            self._growing -= len(turned)

    def ahead(self, tick: int, steps: int) -> list[int]:
        """What ``tokens`` will be after each of so many steps that follow ``tick``."""
        tokens, growing, found = self.tokens, self._growing, []
        again: dict[int, int] = {}  # members whose windows turn once more, by tick
        for at in range(tick + 1, tick + steps + 1):
            tokens += growing
            turned = len(self._turns.get(at, ())) + again.get(at, 0)
            if turned and self.window.is_chunked:
                tokens -= turned * self.window.tokens
                again[at + self.window.tokens] = turned
            else:
                growing -= turned
            found.append(tokens)
        return found

    def _turn(self, sequence: Sequence, tick: int) -> int | None:
        """The tick at which the sequence's reads begin anew or stop growing; ``None``: they have stopped."""
        computed, size = tick + sequence.offset, self.window.tokens
        if self.window.is_chunked:
            return tick + size - computed % size
        return tick + size - 1 - computed if computed < size - 1 else None
