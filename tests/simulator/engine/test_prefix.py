"""Prompts as chains of blocks."""

from __future__ import annotations

import pytest

from simulator.engine.prefix import BlockRuns, Prompt, count_tokens, prompt_of_ids, prompt_of_text


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


def test_blocks_can_have_another_size():
    """A prompt cut in larger blocks has fewer of them, says so, and shares none with one cut in smaller ones."""
    text = "x" * 4 * 100
    small, large = prompt_of_text(text), prompt_of_text(text, block_tokens=32)

    assert [(prompt.tokens, prompt.block_tokens, len(prompt.blocks)) for prompt in (small, large)] == [
        (100, 16, 6),
        (100, 32, 3),
    ]
    assert not set(small.blocks) & set(large.blocks)
    assert len(prompt_of_ids(list(range(100)), block_tokens=32).blocks) == 3


def test_ranges_of_keys_are_a_sequence_of_blocks():
    """Keys told as ranges count and follow each other as if they stood there one by one."""
    runs = BlockRuns((range(5, 8), range(40, 40), range(100, 102)))

    assert (len(runs), list(runs)) == (5, [5, 6, 7, 100, 101])


def test_blocks_come_in_pieces():
    """A range is one piece named by its first key, an empty one none; blocks of a text are pieces of their own."""
    runs = Prompt(tokens=90, blocks=BlockRuns((range(5, 8), range(40, 40), range(100, 102))), digest=b"")
    text = prompt_of_text("x" * 64 * 2)

    assert runs.pieces == [(5, 3), (100, 2)]
    assert text.pieces == [(text.blocks[0], 1), (text.blocks[1], 1)]
