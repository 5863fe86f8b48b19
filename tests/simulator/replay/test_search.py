"""Which boundary and division recorded requests suggest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from simulator import traces
from simulator.arrivals import Poisson
from simulator.hardware import Hardware, Placement, place
from simulator.replay.layouts import one_pool, recorded_layout, two_pools
from simulator.replay.search import Answer, Question, boundary_groups, search, splits
from simulator.replay.shapes import Shape, in_order


@cache
def placement() -> Placement:
    return place("llama-3.1-8b", None, "h100-sxm", Hardware())


def recorded(count: int, per_second: float, long_ratio: float = 0.1) -> list[Shape]:
    made = traces.mixed(count, Poisson(per_second=per_second), seed=1, shape=traces.Mixed(long_ratio=long_ratio))
    return in_order(
        [
            Shape(
                at_seconds=one.at_seconds,
                prompt_tokens=one.prompt.tokens,
                output_tokens=one.output_tokens,
                max_tokens=one.max_tokens,
            )
            for one in made
        ]
    )


def a_question(shapes: list[Shape], **more: object) -> Question:
    asked = Question(shapes=shapes, placement=placement(), workers=8, policies=("prefix-affinity",), short_workers=2)
    return replace(asked, **more)  # type: ignore[arg-type]


@cache
def mixed_answer() -> Answer:
    return search(a_question(recorded(3000, 4.0), search_requests=1500))


def test_long_prompts_among_short_ones_are_kept_apart() -> None:
    """TPOT P99 over P50 of the short ones falls from far above 3 to below 1.5, and more requests get what they should."""
    answer = mixed_answer()

    assert answer.after is not None
    assert answer.before.short.stall_ratio is not None
    assert answer.after.short.stall_ratio is not None
    assert answer.before.short.stall_ratio > 3
    assert answer.after.short.stall_ratio <= 1.5
    assert answer.after.met_ratio > answer.before.met_ratio + 0.03
    assert 4096 <= (answer.after.layout.boundary_tokens or 0) <= 32_768


def test_a_suggestion_tells_what_it_depends_on() -> None:
    """Boundaries that do as well, and what becomes of it under less and more load."""
    answer = mixed_answer()

    assert answer.after is not None
    assert answer.after.layout.boundary_tokens in answer.near_boundaries
    assert {check.load_ratio for check in answer.loads} == {0.8, 1.2}
    assert all(check.after_met_ratio > check.before_met_ratio for check in answer.loads)
    assert answer.search_requests == 1500
    assert answer.after.short.requests + answer.after.long.requests == 3000


def test_where_nothing_is_gained_it_stays() -> None:
    """Short requests only, and workers that are not busy: no division serves more of them well."""
    answer = search(a_question(recorded(400, 2.0, long_ratio=0.0), boundaries=(1600,)))

    assert answer.after is None
    assert answer.before.met_ratio > 0.98
    assert len(answer.tried) == 1


def test_the_same_question_has_the_same_answer() -> None:
    """Virtual time depends on nothing else."""
    question = a_question(recorded(400, 4.0), boundaries=(8192,))

    assert search(question) == search(question)


def test_targets_can_be_given() -> None:
    """Then these are what counts."""
    question = a_question(recorded(300, 4.0), boundaries=(8192,), tpot_target_seconds=1.0, ttft_target_seconds=60.0)

    assert search(question).before.met_ratio == 1.0


def test_boundaries_that_divide_alike_are_tried_once() -> None:
    """Nothing lies between 8,192 and 16,384 here, and hardly anything above 65,536."""
    totals = [500] * 700 + [6_000] * 200 + [40_000] * 99 + [200_000]

    groups = list(boundary_groups((1024, 4096, 8192, 16_384, 65_536), totals, chosen=False))

    assert groups == [(1024, 4096), (8192, 16_384)]
    assert list(boundary_groups((16_384, 8192), totals, chosen=True)) == [(8192,), (16_384,)]
    assert list(boundary_groups((100, 1_000_000), totals, chosen=True)) == []


def test_divisions_are_near_that_of_the_work() -> None:
    """Half of the work is long: about half of the workers. Few workers are divided in every way."""
    shapes = recorded(400, 4.0)
    totals = [shape.prompt_tokens + 500 for shape in shapes]
    asked = a_question(shapes, workers=20, short_workers=None)

    found = splits(asked, shapes, totals, 16_384)

    assert len(found) == 3
    assert 4 <= found[0] < found[-1] <= 14
    assert splits(replace(asked, workers=3), shapes, totals, 16_384) == [1, 2]
    assert splits(replace(asked, short_workers=7), shapes, totals, 16_384) == [7]


def in_pools(shapes: list[Shape], *, short_long: tuple[int, int], boundary: int) -> list[Shape]:
    """As if two pools had served them, which took turns with so many workers."""
    found = []
    for number, shape in enumerate(shapes):
        is_long = shape.prompt_tokens > boundary
        worker = f"{'long' if is_long else 'short'}-{number % short_long[is_long]}"
        found.append(replace(shape, pool=worker.partition("-")[0], worker=worker))
    return found


def test_recorded_pools_are_what_is_there_now() -> None:
    """Their row is that of the same division with the same boundary, and the division that is as good is no suggestion."""
    question = a_question(in_pools(recorded(600, 4.0), short_long=(2, 6), boundary=15_000), boundaries=(16_384,))
    answer = search(question)

    assert answer.recorded is not None
    assert (answer.after, answer.before) == (None, answer.recorded)
    (same,) = answer.tried
    assert answer.before.met_ratio == same.met_ratio
    assert answer.before.busy_ratios == same.busy_ratios
    assert answer.before.layout.name == "as it is: 2 in short + 6 in long, prefix-affinity"


def test_one_pool_may_be_better_than_those_recorded() -> None:
    """Where a division leaves too little for short requests, everything together is suggested."""
    divided = in_pools(recorded(600, 60.0, long_ratio=0.01), short_long=(1, 3), boundary=15_000)
    answer = search(a_question(divided, workers=4, short_workers=1, boundaries=(16_384,), tpot_target_seconds=0.015))

    assert answer.after is not None
    assert answer.after.layout == one_pool(4, "prefix-affinity")
    assert answer.after.met_ratio > answer.before.met_ratio
    assert {check.load_ratio for check in answer.loads} == {0.8, 1.2}


@pytest.mark.parametrize("change", [{"pool": "only"}, {"worker": None}, {"model": "other"}])
def test_pools_that_are_not_told_whole_are_not_made_up(change: dict[str, str | None]) -> None:
    """A single pool, one whose workers are not told, or several models: there is nothing to be as it is."""
    shapes = in_pools(recorded(100, 4.0), short_long=(1, 2), boundary=15_000)
    changed = [replace(shape, **change) if shape.pool == "short" else shape for shape in shapes]  # type: ignore[arg-type]

    assert recorded_layout(shapes, "fastest") is not None
    assert recorded_layout([one for one in changed if one.pool != "long"] if "pool" in change else changed, "fastest") is None


def test_workers_may_have_names_of_their_own() -> None:
    """Affinity goes by names, so others are another draw of who meets whom."""
    (pool,) = replace(one_pool(2, "prefix-affinity"), names=("http://a:1", "http://b:1")).model().pools

    assert [worker.name for worker in pool.workers] == ["http://a:1", "http://b:1"]
    assert [worker.name for worker in one_pool(2, "fastest").model().pools[0].workers] == ["worker-0", "worker-1"]


def test_layouts_have_names() -> None:
    """As they stand in the table."""
    assert one_pool(4, "least-load").name == "one pool of 4, least-load"
    assert two_pools(4, 1, 8192, "fastest").name == "1 up to 8,192 + 3 above, fastest"
