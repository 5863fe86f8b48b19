"""The decoding sequences kept as sums: always what adding up one by one gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.decoding import DecodeGroup
from simulator.engine.sequence import Sequence
from simulator.engine.timing import Window
from simulator.engine.values import Request
from tests.simulator.engine_runs import a_prompt

WINDOWS = (Window(8), Window(20), Window(6, is_chunked=True), Window(1))


def a_sequence(name: str, prompt_tokens: int, output_tokens: int) -> Sequence:
    """One whose prefill has just brought its first token."""
    sequence = Sequence(Request(identifier=name, prompt=a_prompt(prompt_tokens), output_tokens=output_tokens))
    sequence.computed, sequence.generated = prompt_tokens, 1
    return sequence


def test_everybody_advances_by_a_token():
    """A member has computed and generated one token more after each step, and knows it by itself when it leaves."""
    group = DecodeGroup(16, ())
    sequence = a_sequence("r", 30, 10)
    group.join(sequence)
    for _ in range(4):
        assert group.advance() == []

    assert (group.computed(sequence), group.generated(sequence), group.context_tokens) == (34, 5, 34)
    group.leave(sequence)
    assert (sequence.computed, sequence.generated, group.context_tokens) == (34, 5, 0)


def test_the_last_token_is_foreseen():
    """The group knows a step ahead that somebody's output will be complete, and says whose."""
    group = DecodeGroup(16, ())
    long, short = a_sequence("long", 30, 10), a_sequence("short", 99, 4)
    group.join(long)
    group.advance()
    group.join(short)
    foreseen = []
    for _ in range(3):
        foreseen.append(group.ends_next)
        ended = group.advance()

    assert foreseen == [False, False, True]
    assert ended == [short]
    assert group.generated(short) == 4


@given(
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(2, 40)), max_size=80),
    block_tokens=st.sampled_from([1, 4, 16]),
)
def test_sums_are_what_one_by_one_gives(moves, block_tokens):
    """After any joining, leaving and advancing: contexts, reads within each window, full blocks and ends are as counted."""
    group = DecodeGroup(block_tokens, WINDOWS)
    computed: dict[Sequence, int] = {}
    for number, (move, tokens, output) in enumerate(moves):
        if move == 0:
            sequence = a_sequence(f"r{number}", tokens, output)
            group.join(sequence)
            computed[sequence] = tokens
        elif move == 1 and computed:
            sequence = list(computed)[tokens % len(computed)]
            group.leave(sequence)
            assert sequence.computed == computed.pop(sequence)
        else:
            last = {one for one in computed if computed[one] + 2 == one.request.prompt.tokens + one.request.output_tokens}
            assert group.ends_next == bool(last)
            assert set(group.advance()) == last
            computed = {one: tokens + 1 for one, tokens in computed.items()}
            for one in last:
                group.leave(one)
                del computed[one]
        assert list(group.members.values()) == list(computed)
        assert group.context_tokens == sum(computed.values())
        assert group.windowed_tokens == tuple(sum(map(window.reads, computed.values())) for window in WINDOWS)
        assert set(group.due) == {one for one, tokens in computed.items() if tokens % block_tokens == 0}


def test_repr_tells_the_condition():
    """The reprs show how many tokens there are, and how far a sequence has come."""
    group = DecodeGroup(16, ())
    sequence = a_sequence("r", 30, 10)
    group.join(sequence)

    assert repr(group) == "<DecodeGroup 1 sequences of 30 tokens at tick 0>"
    assert repr(sequence) == "<Sequence r: 30 computed of 30, 1 of 10 generated, 0 blocks>"


@given(
    members=st.lists(st.tuples(st.integers(1, 60), st.integers(30, 60)), min_size=1, max_size=6),
    before=st.integers(0, 5),
    steps=st.integers(1, 20),
    block_tokens=st.sampled_from([1, 4, 16]),
)
def test_what_comes_is_known_ahead(members, before, steps, block_tokens):
    """Reads within windows, and the blocks of steps to come, are what taking the steps one by one gives."""
    one_by_one, at_once = (DecodeGroup(block_tokens, WINDOWS) for _ in range(2))
    for group in (one_by_one, at_once):
        for number, (tokens, output) in enumerate(members):
            group.join(a_sequence(f"r{number}", tokens, output))
        group.pass_steps(before)
    ahead = list(at_once.windowed_ahead(steps))
    blocks = at_once.grow(steps, at_once.tick)
    at_once.pass_steps(steps)
    seen, due = [], []
    for _ in range(steps):
        due.append(len(one_by_one.due))
        one_by_one.grow(1, one_by_one.tick)
        one_by_one.advance()
        seen.append(one_by_one.windowed_tokens)

    assert ahead == seen
    assert blocks == sum(due)
    assert [one.blocks for one in at_once.members.values()] == [one.blocks for one in one_by_one.members.values()]
    assert (at_once.tick, at_once.context_tokens) == (one_by_one.tick, one_by_one.context_tokens)
    for room in {0, blocks - 1, blocks, blocks + 1, 1000} - {-1}:
        possible = next((number for number in range(steps) if sum(due[: number + 1]) > room), steps)
        assert one_by_one.steps_within(room, steps, one_by_one.tick - steps) == possible
