"""The pool of KV blocks: use, names, LRU by block; and a plain pool of single blocks that it has to agree with."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.blocks import BlockPool, Holding
from simulator.engine.prefix import Piece


def admitted(pool: BlockPool, pieces: list[Piece], blocks: int) -> tuple[Holding, int]:
    """A sequence that has found what is there and computed and named all of its blocks. Returns how many it found."""
    holding = Holding(list(pieces))
    found = pool.find(holding.pieces, blocks)
    assert not pool.missing(holding.pieces, found, blocks - found)
    pool.hold(holding, found)
    assert pool.take(blocks - found)
    pool.name(holding, blocks - found)
    return holding, found


def test_what_was_named_is_found_again():
    """Blocks named by one sequence are found by the next with the same beginning, as far as it is the same."""
    pool = BlockPool(100)
    admitted(pool, [(1, 3), (2, 4)], 7)

    assert pool.find([(1, 3), (2, 9)], 12) == 7
    assert pool.find([(1, 3), (5, 9)], 12) == 3
    assert pool.find([(1, 3), (2, 4)], 5) == 5
    assert pool.find([(7, 3), (2, 4)], 7) == 0


def test_idle_blocks_are_found_and_free():
    """Blocks nobody uses any more count as free, and are in use again when they are held."""
    pool = BlockPool(10)
    holding, _ = admitted(pool, [(1, 4)], 4)
    pool.give_back(holding, 0)
    assert (pool.used, pool.idle, pool.free) == (0, 4, 10)

    _, found = admitted(pool, [(1, 4)], 4)
    assert (found, pool.used, pool.idle, pool.free) == (4, 4, 0, 6)


def test_the_least_recently_used_is_forgotten_first():
    """When room is needed, blocks go in the order in which their last users left."""
    pool = BlockPool(6)
    for name in (1, 2):
        pool.give_back(admitted(pool, [(name, 2)], 2)[0], 0)
    assert pool.take(4)

    assert [pool.find([(name, 2)], 2) for name in (1, 2)] == [0, 2]


def test_an_end_is_forgotten_before_its_beginning():
    """Of blocks that became idle together, the last of the prompt go first, text by text."""
    pool = BlockPool(6)
    pool.give_back(admitted(pool, [(1, 3), (2, 3)], 6)[0], 0)
    found = []
    for _ in range(6):
        assert pool.take(1)
        found.append(pool.find([(1, 3), (2, 3)], 6))

    assert found == [5, 4, 3, 2, 1, 0]
    assert not pool.take(1)


def test_a_shared_beginning_stays_as_long_as_anybody_uses_it():
    """A block is idle only when its last user has left, and then it is the newest of the idle."""
    pool = BlockPool(20)
    longer, _ = admitted(pool, [(1, 3), (2, 3)], 6)
    shorter, _ = admitted(pool, [(1, 3), (3, 2)], 5)
    pool.give_back(longer, 0)
    assert (pool.used, pool.idle) == (5, 3)
    pool.give_back(shorter, 0)
    assert (pool.used, pool.idle) == (0, 8)

    assert pool.take(16)  # 4 of the 8 have to go: what only the longer one used, and then an end of the shorter one
    assert (pool.find([(1, 3), (2, 3)], 6), pool.find([(1, 3), (3, 2)], 5)) == (3, 4)


def test_users_may_reach_differently_far():
    """When the farthest user has left, what nobody else reaches is idle; up to where the next one reaches it stays in use."""
    pool = BlockPool(20)
    far, near, nearest = (admitted(pool, [(1, blocks)], blocks)[0] for blocks in (6, 4, 2))
    used = []
    for holding in (far, nearest, near):
        pool.give_back(holding, 0)
        used.append((pool.used, pool.idle))

    assert used == [(4, 2), (4, 2), (0, 6)]


def test_who_computes_what_is_there_already_uses_that():
    """A block that gets a name which another block has is given up for that one."""
    pool = BlockPool(20)
    first, second = Holding([(1, 4)]), Holding([(1, 4)])
    assert pool.take(8)
    assert pool.name(first, 4) == 4
    assert pool.used == 8
    assert pool.name(second, 3) == 0
    assert pool.used == 5

    pool.give_back(first, 0)
    assert (pool.used, pool.idle) == (4, 1)  # the second uses three, and has one without a name
    pool.give_back(second, 1)
    assert (pool.used, pool.idle) == (0, 4)


def test_text_without_names_is_cached_for_nobody():
    """Blocks beyond the names that are known get some that only their own sequence has, which finds them again."""
    pool = BlockPool(20)
    holding = Holding([(1, 2)])
    assert pool.take(5)
    pool.name(holding, 5)
    pool.give_back(holding, 0)

    assert pool.idle == 5
    assert pool.find([(1, 9)], 9) == 2
    assert pool.find(holding.pieces, 9) == 5


def test_what_is_lacking_is_counted():
    """Idle blocks that would be used again are no longer there for new ones."""
    pool = BlockPool(10)
    idle, _ = admitted(pool, [(1, 4)], 4)
    pool.give_back(idle, 0)
    admitted(pool, [(2, 5)], 5)

    assert [pool.missing([(1, 4)], 4, fresh) for fresh in (0, 1, 2, 3)] == [0, 0, 1, 2]
    assert pool.missing([(2, 5)], 5, 5) == 0


def test_nothing_is_forgotten_while_blocks_are_in_use():
    """Forgetting everything is refused while anybody uses a block, and complete otherwise."""
    pool = BlockPool(10)
    holding, _ = admitted(pool, [(1, 4)], 4)
    assert not pool.forget()
    pool.give_back(holding, 0)

    assert pool.forget()
    assert (pool.find([(1, 4)], 4), pool.idle, pool.free) == (0, 0, 10)


def test_an_empty_cache_is_a_mistake():
    """A pool without a block is refused."""
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_repr_tells_the_condition():
    """The reprs show used, idle and all blocks, and how much is held."""
    pool = BlockPool(8)
    holding, _ = admitted(pool, [(1, 2)], 2)
    pool.give_back(holding, 0)
    other, _ = admitted(pool, [(2, 3)], 1)

    assert repr(pool) == "<BlockPool 1 used, 2 idle, of 8>"
    assert repr(other) == "<Holding 1 of 3 blocks>"


@dataclass
class PlainPool:
    """The same rules, block by block: users of every named block, and a queue of those without users."""

    capacity: int
    users: dict[object, int] = field(default_factory=dict)
    idle: OrderedDict[object, None] = field(default_factory=OrderedDict)
    unnamed: int = 0

    def take(self, count: int) -> bool:
        excess = len(self.users) + self.unnamed + count - self.capacity
        if excess > len(self.idle):
            return False
        for _ in range(excess):
            del self.users[self.idle.popitem(last=False)[0]]
        self.unnamed += count
        return True

    def hold(self, keys: list[object]) -> None:
        for key in keys:
            self.idle.pop(key, None)
            self.users[key] = self.users.get(key, 0) + 1

    def name(self, keys: list[object]) -> None:
        self.hold(keys)
        self.unnamed -= len(keys)

    def give_back(self, keys: list[object], unnamed: int) -> None:
        self.unnamed -= unnamed
        for key in reversed(keys):
            self.users[key] -= 1
            if not self.users[key]:
                self.idle[key] = None

    def find(self, keys: list[object]) -> int:
        return next((place for place, key in enumerate(keys) if key not in self.users), len(keys))


PROMPTS: list[list[Piece]] = [
    [(1, 3), (2, 4)],
    [(1, 3), (2, 9)],
    [(1, 3), (3, 1), (4, 5)],
    [(1, 3), (3, 1), (5, 2)],
    [(6, 8)],
]


def keys_of(pieces: list[Piece]) -> list[object]:
    return [(name, place) for name, length in pieces for place in range(length)]


@settings(max_examples=300)
@given(
    capacity=st.integers(8, 30),
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 9)), max_size=60),
)
def test_stretches_do_what_single_blocks_do(capacity, moves):
    """After any course of events the pool finds, uses and has free what a pool of single blocks does, in every prompt."""
    pool, plain = BlockPool(capacity), PlainPool(capacity)
    sequences: list[tuple[Holding, list[object], int]] = []  # pieces held, keys of the prompt, blocks in all
    for prompt, action, amount in moves:
        pieces, keys = PROMPTS[prompt], keys_of(PROMPTS[prompt])
        if action == 0:  # somebody is admitted, with some new blocks
            found = pool.find(pieces, amount)
            assert found == min(amount, plain.find(keys))
            if not pool.missing(pieces, found, 2):
                holding = Holding(list(pieces))
                pool.hold(holding, found)
                plain.hold(keys[:found])
                assert pool.take(2)
                assert plain.take(2)
                sequences.append((holding, keys, found + 2))
        elif sequences:
            holding, keys, blocks = sequences.pop(amount % len(sequences))
            unnamed = blocks - holding.blocks
            if action == 1:  # somebody leaves
                plain.give_back(keys[: holding.blocks], unnamed)
                pool.give_back(holding, unnamed)
                continue
            if action == 2 and pool.take(1):  # somebody grows
                assert plain.take(1)
                blocks += 1
            elif action == 3:  # somebody's blocks get their names
                count = min(unnamed, len(keys) - holding.blocks)
                plain.name(keys[holding.blocks : holding.blocks + count])
                pool.name(holding, count)
            sequences.append((holding, keys, blocks))
        assert (pool.used, pool.idle) == (len(plain.users) - len(plain.idle) + plain.unnamed, len(plain.idle))
        assert [pool.find(pieces, 99) for pieces in PROMPTS] == [plain.find(keys_of(pieces)) for pieces in PROMPTS]
        assert 0 <= pool.free <= capacity
