"""Synthetic traffic: what it holds, who shares what with whom, and that a seed says it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from itertools import pairwise
from statistics import median

import pytest

from simulator import traces
from simulator.arrivals import Arrival, AtOnce, Bursty, Closed, Pace, Poisson
from simulator.draws import Length
from simulator.traces import Agents, Chat, Mixed, Rag

Trace = Callable[..., list[Arrival]]
ALL: list[tuple[Trace, Pace, str]] = [
    (traces.chat, Poisson(per_second=2.0), "fbccaccfd0f79189"),
    (traces.rag, Bursty(per_second=5.0), "0cecc293a772f8c3"),
    (traces.agents, Closed(users=5), "edc1e73d2e88d47c"),
    (traces.batch, AtOnce(), "b350e92892ccb33e"),
    (traces.mixed, Poisson(per_second=1.0), "f9eee6773bd28047"),
]


def requests_of(arrivals: list[Arrival]) -> list[Arrival]:
    return [request for head in arrivals for request in head.chain()]


def shared_blocks(one: Arrival, other: Arrival) -> int:
    """Blocks of their common beginning."""
    blocks = zip(one.prompt.blocks, other.prompt.blocks, strict=False)
    return next(
        (place for place, (mine, its) in enumerate(blocks) if mine != its),
        min(len(one.prompt.blocks), len(other.prompt.blocks)),
    )


@pytest.mark.parametrize(("trace", "pace", "digest"), ALL)
def test_a_seed_says_it_all(trace, pace, digest):
    """The traffic of a seed is this one under every Python version, and another seed's is another."""
    digests = []
    for seed in (4, 5):
        found = blake2b(digest_size=8)
        for one in requests_of(trace(200, pace, seed=seed)):
            shape = (one.at_seconds, one.prompt.tokens, one.prompt.pieces, one.output_tokens, one.session, one.kind)
            found.update(repr(shape).encode())
        digests.append(found.hexdigest())

    assert digests[0] == digest != digests[1]


@pytest.mark.parametrize(("trace", "pace", "_digest"), ALL)
@pytest.mark.parametrize("block_tokens", [16, 32])
def test_prompts_and_answers_have_their_blocks(trace, pace, _digest, block_tokens):
    """There are as many requests as asked for; blocks cover prompt and answer; no answer is longer than declared."""
    requests = requests_of(trace(300, pace, block_tokens=block_tokens))

    assert len(requests) == 300
    for one in requests:
        assert len(one.prompt.blocks) == (one.prompt.tokens + one.output_tokens) // block_tokens
        assert len(set(one.prompt.blocks)) == len(one.prompt.blocks)
        assert one.prompt.block_tokens == block_tokens
        assert one.max_tokens is None or 1 <= one.output_tokens <= one.max_tokens
        assert one.at_seconds >= 0.0


@pytest.mark.parametrize("trace", [traces.chat, traces.agents])
def test_a_conversation_holds_all_that_was_said(trace):
    """Each prompt of a session begins with the prompt and the answer before it, and its full blocks are the same."""
    heads = trace(500, Poisson(per_second=1.0))

    for head in heads:
        for earlier, later in pairwise(head.chain()):
            said = earlier.prompt.tokens + earlier.output_tokens
            assert later.prompt.tokens > said
            assert shared_blocks(earlier, later) == said // 16
            assert later.session == earlier.session
    assert max(len(list(head.chain())) for head in heads) > 3


def test_conversations_share_a_system_prompt():
    """Sessions of one assistant share exactly its full blocks, and those of different ones nothing."""
    shape = Chat(assistants=2, system=Length(median=1000, sigma=0.0))
    heads = traces.chat(200, Poisson(per_second=1.0), shape=shape)

    assert Counter(shared_blocks(heads[0], other) for other in heads[1:]).keys() == {0, 1000 // 16}


def test_conversations_end():
    """The mean number of turns is about the one asked for, and none goes on when its context is too long."""
    heads = traces.chat(4000, Poisson(per_second=1.0), shape=Chat(mean_turns=3.0, most_tokens=3000))

    assert 2.4 < 4000 / len(heads) < 3.1
    assert max(request.prompt.tokens for request in requests_of(heads)) < 3000 + 4008


def test_documents_found_first_are_shared():
    """Two questions share blocks as far as their first documents are the same, and popular documents come often."""
    shape = Rag(documents=50, document=Length(median=600, sigma=0.0), found=2, system_tokens=300)
    requests = traces.rag(500, AtOnce(), shape=shape)
    shared = Counter(shared_blocks(requests[0], other) for other in requests[1:])

    assert set(shared) <= {300 // 16, 900 // 16, 1500 // 16}
    assert shared[300 // 16] > shared[900 // 16] > 0
    by_first = Counter(one.prompt.pieces[1][0] for one in requests)
    assert by_first.most_common(1)[0][1] > 5 * 500 / 50


def test_agents_send_long_shared_beginnings():
    """Steps of all tasks of one agent begin with its instructions, and they follow each other within seconds."""
    requests = requests_of(traces.agents(500, Poisson(per_second=1.0), shape=Agents(agents=1)))
    follow_ups = [one.follow_up.at_seconds for one in requests if one.follow_up is not None]

    assert min(shared_blocks(requests[0], other) for other in requests) > 100
    assert 1.0 < median(follow_ups) < 2.2


def test_long_prompts_are_as_many_as_asked_for():
    """A tenth of the mixed traffic is between 30,000 and 100,000 tokens long, the rest is short, and nothing is shared."""
    requests = traces.mixed(3000, Poisson(per_second=1.0))
    long = [one for one in requests if one.kind == "long"]

    assert 240 < len(long) < 360
    assert all(30_000 <= one.prompt.tokens <= 100_000 for one in long)
    assert median(one.prompt.tokens for one in long) == pytest.approx((30_000 * 100_000) ** 0.5, rel=0.1)
    assert max(one.prompt.tokens for one in requests if one.kind == "short") <= 4_000
    assert shared_blocks(long[0], long[1]) == 0
    assert {one.kind for one in traces.mixed(50, AtOnce(), shape=Mixed(long_ratio=0.0))} == {"short"}


def test_a_batch_shares_its_instructions():
    """All documents of a job come behind the same instructions."""
    requests = traces.batch(50, AtOnce())

    assert {shared_blocks(requests[0], other) for other in requests[1:]} == {500 // 16}
