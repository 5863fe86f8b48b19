"""Prompts as block chains, and the pool of KV blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.prefix import BlockPool, Lease, count_tokens, prompt_of_ids, prompt_of_text


def test_a_token_is_four_bytes_of_utf8_begun():
    """Tokens are counted on the UTF-8 bytes, rounded up, and there is at least one."""
    assert [count_tokens(text) for text in ("", "a", "abcd", "abcde", "水水水")] == [1, 1, 1, 2, 3]


def test_prompts_share_the_blocks_of_their_common_start():
    """Two texts agree in exactly the full blocks that lie within their common start."""
    start = "x" * 64 * 3
    one, other = prompt_of_text(start + "a" * 64), prompt_of_text(start + "b" * 64)

    assert len(one.blocks) == 4
    assert one.blocks[:3] == other.blocks[:3]
    assert one.blocks[3] != other.blocks[3]


def test_a_block_is_not_shared_when_something_before_it_differs():
    """The hash of a block covers everything before it."""
    assert not set(prompt_of_text("a" + "x" * 255).blocks) & set(prompt_of_text("b" + "x" * 255).blocks)


def test_salt_separates_prompts():
    """Equal prompts of different salt share no block."""
    assert not set(prompt_of_text("x" * 256, "one").blocks) & set(prompt_of_text("x" * 256, "two").blocks)


def test_token_ids_are_counted_exactly():
    """A prompt of token ids has as many tokens as ids, and only its full blocks are hashed."""
    prompt = prompt_of_ids(list(range(35)))

    assert (prompt.tokens, len(prompt.blocks)) == (35, 2)


def test_no_token_ids_are_no_prompt():
    """An empty list of token ids is refused."""
    with pytest.raises(ValueError, match="at least one token"):
        prompt_of_ids([])


def test_the_last_prompt_token_is_never_a_hit():
    """A repeat of a prompt of whole blocks computes its last block again, and the cache learns nothing new from it."""
    pool = BlockPool(100)
    prompt = prompt_of_text("x" * 64 * 4)
    _run(pool, pool.admit(prompt, 1))

    lease = pool.admit(prompt, 1)

    assert lease is not None
    assert lease.hit_blocks == 3
    assert pool.publish(lease) == 0


def test_the_least_recently_used_prompt_is_forgotten_first():
    """When room is needed, blocks go in the order in which they were last used."""
    pool = BlockPool(6)
    old, recent = prompt_of_text("a" * 128 + "?"), prompt_of_text("b" * 128 + "?")
    _run(pool, pool.admit(old, 1))
    _run(pool, pool.admit(recent, 1))
    _run(pool, pool.admit(prompt_of_text("c" * 64 * 3), 1))  # 4 blocks: 2 of the 4 idle ones must go

    assert [_hits(pool, recent), _hits(pool, old)] == [2, 0]


def test_what_does_not_fit_is_not_admitted_and_changes_nothing():
    """A sequence that finds no room leaves the pool, its cached blocks included, as it was."""
    pool = BlockPool(4)
    cached = prompt_of_text("a" * 64 + "?")
    _run(pool, pool.admit(cached, 1))
    running = pool.admit(prompt_of_text("b" * 64 + "?"), 1)

    assert pool.admit(prompt_of_text("c" * 64 * 3), 1) is None
    assert running is not None
    assert (pool.used, _hits(pool, cached)) == (2, 1)


def test_an_unpublished_prompt_is_not_remembered():
    """A sequence that leaves before its prefill is over gives its blocks back unnamed."""
    pool = BlockPool(10)
    prompt = prompt_of_text("a" * 640)
    lease = pool.admit(prompt, 1)
    assert lease is None  # 11 blocks with the output: one too many

    shorter = prompt_of_text("a" * 512)
    lease = pool.admit(shorter, 1)
    assert lease is not None
    pool.release(lease)

    assert (pool.used, _hits(pool, shorter)) == (0, 0)


@given(
    texts=st.lists(st.text(alphabet="ab", max_size=8), max_size=30),
    publishes=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_every_block_comes_back(texts, publishes):
    """Whatever ran, published or not, nothing is in use once all have left, and the capacity was never exceeded."""
    pool = BlockPool(40)
    leases = []
    for text, publish in zip(texts, publishes, strict=False):
        lease = pool.admit(prompt_of_text(text.replace("a", "a" * 64).replace("b", "b" * 64)), 3)
        if lease is not None:
            if publish:
                pool.publish(lease)
            leases.append(lease)
        assert 0 <= pool.used <= pool.capacity
    for lease in leases:
        pool.release(lease)

    assert pool.used == 0


def test_an_empty_cache_is_a_mistake():
    """A pool without a block is refused."""
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_repr_tells_the_condition():
    """The repr shows used, idle and all blocks."""
    pool = BlockPool(8)
    _run(pool, pool.admit(prompt_of_text("a" * 128), 1))
    pool.admit(prompt_of_text("b" * 64), 1)

    assert repr(pool) == "<BlockPool 2 used, 2 idle, of 8>"


def _run(pool: BlockPool, lease: Lease | None) -> None:
    assert lease is not None
    pool.publish(lease)
    pool.release(lease)


def _hits(pool: BlockPool, prompt) -> int:
    """Leading blocks the pool would find; asks with a sequence that leaves at once."""
    lease = pool.admit(prompt, 1)
    assert lease is not None
    pool.release(lease)
    return lease.hit_blocks
