"""Recorded requests without their content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.arrivals import Arrival
from simulator.engine.engine import Engine, EngineSettings
from simulator.engine.prefix import BlockRuns
from simulator.engine.timing import ConstantTimer
from simulator.replay.shapes import Shape, arrivals_of, in_order, output_budget, total_tokens, window
from simulator.virtual.fleet import simulate
from simulator.virtual.routing import demand_of

ONE = Shape(at_seconds=0.0, prompt_tokens=1000, output_tokens=10)
TIMER = ConstantTimer(step_seconds=0.01, prefill_seconds_per_token=1e-5, context_seconds_per_token=0.0)


def cached(arrivals: list[Arrival]) -> list[int]:
    engine = Engine(EngineSettings(timer=TIMER, kv_tokens=1_000_000))
    return [one.cached_tokens for one in simulate([engine], arrivals, lambda arrival, fleet: 0)]


def test_requests_are_in_order_from_the_first_one_on() -> None:
    """Whatever clock they were recorded by, and as fast as wanted."""
    shapes = [replace(ONE, at_seconds=at) for at in (1e9 + 4, 1e9, 1e9 + 2)]

    assert [shape.at_seconds for shape in in_order(shapes)] == [0, 2, 4]
    assert [shape.at_seconds for shape in in_order(shapes, faster=2)] == [0, 1, 2]
    assert in_order([]) == []


def test_a_window_is_from_the_middle() -> None:
    """Neither the start nor the end, where traffic begins and ends."""
    shapes = [replace(ONE, at_seconds=float(at)) for at in range(10)]

    assert [shape.at_seconds for shape in window(shapes, 4)] == [0, 1, 2, 3]
    assert [shape.at_seconds for shape in window(shapes, 99)] == [shape.at_seconds for shape in shapes]


def test_the_budget_is_what_the_gateway_would_learn() -> None:
    """Agents that declare 32,000 and use ten go by what is used; who declares less goes by that."""
    shapes = [replace(ONE, output_tokens=10)] * 99 + [replace(ONE, output_tokens=500)]
    budget = output_budget(shapes)

    assert budget == 500
    assert total_tokens(replace(ONE, max_tokens=32_000), budget) == 1500
    assert total_tokens(replace(ONE, max_tokens=100), budget) == 1100
    assert total_tokens(ONE, budget) == 1500
    assert output_budget([]) == 1


def test_hits_of_a_family_come_back() -> None:
    """The first one leaves the beginning that the others found; strangers find nothing."""
    shapes = [
        replace(ONE, at_seconds=0.0, family="a"),
        replace(ONE, at_seconds=9.0, family="a", cached_tokens=640),
        replace(ONE, at_seconds=18.0, family="b", cached_tokens=640),
        replace(ONE, at_seconds=27.0),
    ]

    assert cached(arrivals_of(shapes, 100)) == [0, 640, 0, 0]


def test_named_blocks_are_shared_as_far_as_they_are_equal() -> None:
    """Mooncake's hashes name 512 tokens each, the last one less."""
    shapes = [
        replace(ONE, at_seconds=0.0, prompt_tokens=1200, blocks=(1, 2, 3)),
        replace(ONE, at_seconds=9.0, prompt_tokens=1200, blocks=(1, 2, 4)),
        replace(ONE, at_seconds=18.0, prompt_tokens=1200, blocks=(5, 2, 3)),
    ]
    arrivals = arrivals_of(shapes, 100)

    assert cached(arrivals) == [0, 1024, 0]
    assert all(len(arrival.prompt.blocks) == 75 for arrival in arrivals)


def test_prompts_of_nobody_share_nothing() -> None:
    """Every one has blocks of its own, as many as prompt and output fill."""
    first, second = arrivals_of([ONE, ONE], 100)

    assert isinstance(first.prompt.blocks, BlockRuns)
    assert not set(first.prompt.blocks) & set(second.prompt.blocks)
    assert len(first.prompt.blocks) == 1010 // 16
    assert first.output_tokens == 10
    assert first.max_tokens == 100


@pytest.mark.parametrize("tokens", [1, 15, 16, 17])
def test_the_shortest_prompts_are_served(tokens: int) -> None:
    """Even if all of it is said to have been cached."""
    shape = replace(ONE, prompt_tokens=tokens, family="a", cached_tokens=tokens)

    assert len(cached(arrivals_of([shape, shape], 100))) == 2


@pytest.mark.parametrize("blocks", [(), (7,)])
def test_prompts_that_fill_no_block_are_routed(blocks: tuple[int, ...]) -> None:
    """Mooncake names the block that a short prompt begins, too; it is nobody's beginning, and has one for the router."""
    arrivals = arrivals_of([replace(ONE, prompt_tokens=10, blocks=blocks)] * 2, 100)

    assert cached(arrivals) == [0, 0]
    assert len({demand_of(arrival).affinity for arrival in arrivals}) == 2
