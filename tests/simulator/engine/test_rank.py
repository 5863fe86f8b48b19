"""What a step serves: chunks, KV blocks as they are needed, preemption, priorities and drafts, worked out by hand."""

from __future__ import annotations

from math import inf

import pytest

from simulator.engine.engine import Engine, EngineSettings, QueuePolicy, Speculation
from simulator.engine.prefix import BlockRuns, Prompt
from simulator.engine.timing import ConstantTimer
from tests.simulator.engine_runs import Run, a_prompt, a_run

ONE_SECOND = ConstantTimer(step_seconds=1.0, prefill_seconds_per_token=0.0, context_seconds_per_token=0.0)


def a_small_run(blocks: int = 10, **settings: object) -> Run:
    """Few blocks of 16 tokens, and steps of a second."""
    return Run(Engine(EngineSettings(timer=ONE_SECOND, kv_tokens=blocks * 16, **settings)))  # type: ignore[arg-type]


def a_numbered_prompt(tokens: int, *runs: range) -> Prompt:
    return Prompt(tokens=tokens, blocks=BlockRuns(runs), digest=b"")


def used_blocks(run: Run) -> int:
    return round(run.engine.kv_usage_ratio * run.engine.settings.kv_blocks)


def test_blocks_are_taken_as_a_sequence_grows():
    """A decoding sequence takes another block when the last one is full, and gives all back at its end."""
    run = a_small_run()
    run.engine.add("r", a_prompt(31), 20)
    used = []
    while run.step():
        used.append(used_blocks(run))

    # 31 tokens are computed with the first of 20 tokens, so the step with the second one fills two blocks.
    assert used == [2] * 2 + [3] * 16 + [4] + [0]


def test_who_came_last_is_preempted_and_computes_again_what_is_lost():
    """Without a free block the last of the running goes back to the queue; what is still cached it does not compute again."""
    run = a_small_run()
    run.engine.add("first", a_prompt(64), 40)
    run.engine.add("last", a_prompt(64, "b"), 40)
    while not run.steps or not run.steps[-1].preempted:
        run.step()

    # Step 1 gives both 4 blocks and step 2 a fifth; for the sixth, 16 steps later, there is none.
    assert len(run.steps) == 18
    assert run.steps[-1].preempted == ("last",)
    assert (run.engine.running, run.engine.waiting) == (1, 1)
    assert (len(run.tokens_at["first"]), len(run.tokens_at["last"])) == (18, 17)

    run.to_the_end()
    # Of its 80 tokens the fifth block made room for "first" at once and the fourth one later, 16 steps on: 48 are found.
    resumed = next(step for step in run.steps[18:] if step.prefill_tokens)
    assert resumed.prefill_tokens == 64 + 17 - 48
    assert resumed.admitted == ()
    assert run.tokens_at["last"][17] == run.tokens_at["first"][-1] + 1.0
    assert (run.last["last"].preempted, run.last["last"].cached_tokens, run.last["first"].preempted) == (1, 0, 0)
    assert len(run.tokens_at["last"]) == 40
    totals = run.engine.totals
    assert (totals.preemptions, totals.recomputed_tokens, totals.prompt_tokens, totals.generation_tokens) == (1, 32, 128, 80)
    assert (totals.prefix_queried_tokens, totals.prefix_hit_tokens) == (128, 0)


def test_the_preempted_are_first_in_the_queue():
    """Who lost its place and finds no room yet holds up those that came after it, though they would have room."""
    run = a_small_run(max_num_seqs=2)
    for name, tokens in (("first", 64), ("second", 64), ("third", 16)):
        run.engine.add(name, a_prompt(tokens, name[0]), 40 if tokens > 16 else 10)
    run.to_the_end()

    assert [step.preempted for step in run.steps if step.preempted] == [("second",)]
    assert run.tokens_at["second"][17] == run.ttft("third") == max(run.tokens_at["first"]) + 1.0
    assert [step.admitted for step in run.steps if step.admitted] == [("first", "second"), ("third",)]


def test_nobody_is_admitted_in_a_step_that_preempts():
    """A step that took somebody's blocks away hands none to the waiting, though they come first and have room."""
    run = a_small_run(queue_policy=QueuePolicy.PRIORITY)
    for name in ("first", "last"):
        run.engine.add(name, a_prompt(64, name[0]), 40, priority=1)
    while len(run.steps) < 17:
        run.step()
    run.engine.add("small", a_prompt(10, "c"), 1, priority=0)
    run.step()
    run.step()

    assert [(step.preempted, step.admitted) for step in run.steps[17:]] == [(("last",), ()), ((), ("small",))]


def test_the_least_urgent_is_preempted():
    """With priorities the highest number loses its place, whoever was admitted last, even if it was planned in that step."""
    run = a_small_run(queue_policy=QueuePolicy.PRIORITY)
    run.engine.add("patient", a_prompt(64), 40, priority=5)
    run.engine.add("urgent", a_prompt(64, "b"), 40, priority=1)
    run.to_the_end()

    assert [step.preempted for step in run.steps if step.preempted] == [("patient",)]
    assert max(run.tokens_at["urgent"]) < max(run.tokens_at["patient"])


def test_a_chunk_planned_for_a_victim_is_taken_back():
    """A prefill that is preempted in the very step in which it was planned computes nothing there, and caches nothing of it."""
    run = a_small_run(blocks=8, queue_policy=QueuePolicy.PRIORITY, long_prefill_tokens=16, admits_whole_prompts=False)
    run.engine.add("patient", a_prompt(96), 1, priority=5)
    run.step()
    run.engine.add("urgent", a_prompt(80, "b"), 1, priority=1)
    while not run.steps[-1].preempted:
        run.step()

    # In the fifth step "patient" takes its fifth and the cache's last block; then "urgent" wants its fourth.
    assert [step.prefill_tokens for step in run.steps] == [16, 32, 32, 32, 16]
    assert run.steps[-1].preempted == ("patient",)
    run.engine.abort("urgent")
    run.step()
    assert run.steps[-1].context_tokens == 64  # "urgent" took the place of no more than the planned block
    run.to_the_end()
    assert (run.last["patient"].cached_tokens, run.last["patient"].created_cache_tokens) == (0, 96)
    assert run.engine.totals.recomputed_tokens == 0


def test_a_more_urgent_request_is_admitted_first():
    """With priorities the queue is in order of priority, then of arrival."""
    run = a_run(max_num_seqs=1, queue_policy=QueuePolicy.PRIORITY)
    for name, priority in (("a", 2), ("b", 1), ("c", 1), ("d", 0)):
        run.engine.add(name, a_prompt(10, name), 1, priority=priority)
    run.to_the_end()

    assert sorted(run.tokens_at, key=run.ttft) == ["d", "b", "c", "a"]


def test_without_priorities_they_are_ignored():
    """First come, first served, whatever priority a request has."""
    run = a_run(max_num_seqs=1)
    for name, priority in (("a", 2), ("b", 1)):
        run.engine.add(name, a_prompt(10, name), 1, priority=priority)
    run.to_the_end()

    assert run.ttft("a") < run.ttft("b")


def test_a_first_chunk_may_be_admitted_alone():
    """Told so, an engine admits a prompt of which only a part has room, and preempts it when the room is gone."""
    run = a_small_run(step_tokens=64, admits_whole_prompts=False)
    run.engine.add("first", a_prompt(64), 60)
    run.step()
    run.engine.add("long", a_prompt(140, "b"), 1)
    run.step()

    assert (run.engine.running, run.engine.waiting) == (2, 0)
    run.to_the_end()
    assert run.last["long"].preempted == 1


def test_long_prefills_leave_room_for_short_ones():
    """With a threshold a long prompt takes only so many tokens of each step, so that a short one behind it starts at once."""
    run = a_run(step_tokens=256, long_prefill_tokens=128)
    run.engine.add("long", a_prompt(1000), 1)
    run.engine.add("short", a_prompt(100, "b"), 1)
    run.to_the_end()

    assert run.ttft("short") == run.steps[0].seconds
    assert [step.prefill_tokens for step in run.steps] == [228] + [128] * 6 + [104]


def test_a_prompt_can_be_found_by_who_is_admitted_in_the_same_step():
    """Two equal prompts in one step: the second one takes the first one's full blocks."""
    run = a_run()
    run.engine.add("one", a_prompt(100), 1)
    run.engine.add("two", a_prompt(100), 1)
    run.to_the_end()

    assert run.steps[0].prefill_tokens == 104
    assert (run.last["one"].cached_tokens, run.last["two"].cached_tokens) == (0, 96)


@pytest.mark.parametrize(("tokens", "cached"), [(95, 80), (96, 80), (97, 96), (112, 96), (113, 112)])
def test_hits_are_whole_blocks_and_leave_a_token(tokens, cached):
    """A repeated prompt hits whole blocks, never its last token."""
    run = a_run()
    for name in ("cold", "warm"):
        run.engine.add(name, a_prompt(tokens), 1)
        run.to_the_end()

    assert run.last["warm"].cached_tokens == cached


def test_answers_are_found_by_prompts_that_hold_them():
    """A follow-up whose prompt contains the answer hits the full blocks of prompt and answer together."""
    run = a_run()
    run.engine.add("first", a_numbered_prompt(100, range(1000, 1000 + 200 // 16)), 100)
    run.to_the_end()
    run.engine.add("second", a_numbered_prompt(230, range(1000, 1000 + 230 // 16)), 1)
    run.to_the_end()

    # The answer's last token was never computed: 199 tokens fill 12 blocks.
    assert run.last["second"].cached_tokens == 192


def test_whoever_was_aborted_leaves_what_it_computed():
    """The full blocks of an aborted request stay cached, its answer's too."""
    run = a_run()
    run.engine.add("first", a_numbered_prompt(100, range(1000, 1012)), 100)
    for _ in range(41):
        run.step()
    run.engine.abort("first")
    run.engine.add("second", a_numbered_prompt(230, range(1000, 1014)), 1)

    assert run.to_the_end().last["second"].cached_tokens == 128


def test_a_request_as_large_as_the_cache_runs_alone():
    """A request that just fits runs to its end by preempting all others."""
    run = a_small_run()
    run.engine.add("first", a_prompt(32, "b"), 100)
    run.engine.add("large", a_prompt(100), 60)
    run.to_the_end()

    assert len(run.tokens_at["large"]) == 60
    assert run.last["large"].preempted > 0


def test_drafts_bring_several_tokens_a_step():
    """With every draft accepted a step brings all drafts and one more, and none beyond the output."""
    run = a_run(speculation=Speculation(drafts=3, acceptance_ratio=1.0))
    run.engine.add("r", a_prompt(100), 11)
    progress = []
    while step := run.engine.schedule():
        run.steps.append(step)
        progress += [(one.generated_tokens, one.new_tokens) for one in run.engine.complete(step)]

    assert progress == [(1, 1), (5, 4), (9, 4), (11, 2)]
    assert [step.decode_tokens for step in run.steps] == [0, 4, 4, 2]
    totals = run.engine.totals
    assert (totals.drafts, totals.drafted_tokens, totals.accepted_tokens) == (3, 7, 7)
    assert totals.accepted_by_position == [3, 2, 2]
    assert totals.generation_tokens == 11


def test_drafts_that_are_all_refused_bring_one_token():
    """Without acceptance every step brings one token, and the blocks taken for drafts are no further than needed."""
    run = a_small_run(speculation=Speculation(drafts=5, acceptance_ratio=0.0))
    run.engine.add("r", a_prompt(28), 100)
    run.to_the_end()

    assert len(run.steps) == 100
    assert run.engine.totals.accepted_tokens == 0


def test_accepted_drafts_follow_their_ratio():
    """Mean tokens a step are the sum of the powers of the acceptance ratio, and positions are accepted that often."""
    run = a_run(speculation=Speculation(drafts=3, acceptance_ratio=0.7), seed=3)
    for number in range(30):
        run.engine.add(f"r{number}", a_prompt(10, chr(97 + number)), 400)
    run.to_the_end()

    totals = run.engine.totals
    assert 1 + totals.accepted_tokens / totals.drafts == pytest.approx(1 + 0.7 + 0.49 + 0.343, rel=0.02)
    ratios = [count / totals.drafts for count in totals.accepted_by_position]
    assert ratios == pytest.approx([0.7, 0.49, 0.343], rel=0.04)


def test_drafts_count_in_the_budget():
    """Verified tokens take part of a step's tokens, so that the last sequences get fewer drafts, or wait for the next step."""
    run = a_run(step_tokens=64, max_num_seqs=20, speculation=Speculation(drafts=3, acceptance_ratio=0.0))
    for number in range(20):
        run.engine.add(f"r{number}", a_prompt(3, chr(97 + number)), 5)
    run.step()
    run.step()

    assert run.steps[1].decode_tokens == 64
    assert sorted(len(times) for times in run.tokens_at.values()) == [1] * 4 + [2] * 16
    assert all(len(times) == 5 for times in run.to_the_end().tokens_at.values())


def test_a_blocked_request_is_looked_at_again_when_room_is_made():
    """Who was first in the queue and found no room is admitted in the step after blocks have been given back."""
    run = a_small_run()
    run.engine.add("first", a_prompt(100), 4)
    run.engine.add("waits", a_prompt(100, "b"), 1)
    run.to_the_end()

    assert run.ttft("waits") == max(run.tokens_at["first"]) + 1.0


def test_just_enough_room_is_enough():
    """Who is first in the queue is admitted as soon as there are exactly as many blocks as it needs."""
    run = a_small_run()
    run.engine.add("leaves", a_prompt(60), 2)
    run.engine.add("stays", a_prompt(40, "b"), 9)
    run.engine.add("waits", a_prompt(100, "c"), 1)
    run.to_the_end()

    # 4 and 3 blocks are in use, and 7 are wanted.
    assert run.ttft("waits") == max(run.tokens_at["leaves"]) + 1.0


def test_a_blocked_request_may_be_let_in_by_blocks_that_others_compute():
    """A request that shares its prompt with one being prefilled finds room once enough of it has been computed."""
    run = a_small_run(blocks=12, step_tokens=64)
    run.engine.add("first", a_prompt(128), 30)
    run.step()
    run.engine.add("same", a_prompt(129), 1)
    run.to_the_end()

    # 9 blocks are wanted and 4 of them shared after the first step, which is one too few to share; then 8 of 9 are.
    assert run.ttft("same") < max(run.tokens_at["first"])
    assert run.last["same"].cached_tokens == 128


def test_reports_can_be_kept_to_the_first_and_the_last():
    """Asked for less, completing tells only first and last tokens; nothing else differs."""
    told = []
    run = a_run()
    run.engine.add("r", a_prompt(10), 5)
    while step := run.engine.schedule():
        told += [progress.generated_tokens for progress in run.engine.complete(step, tells_all=False)]

    assert told == [1, 5]


def test_repr_tells_the_condition():
    """The repr shows queues and blocks."""
    run = a_small_run()
    run.engine.add("r", a_prompt(10), 2)
    run.step()

    assert repr(run.engine.ranks[0]) == "<Rank 0: 1 running, 0 waiting, <BlockPool 1 used, 0 idle, of 10>>"


@pytest.mark.parametrize("values", [{"drafts": 0, "acceptance_ratio": 0.5}, {"drafts": 1, "acceptance_ratio": 1.5}])
def test_speculation_that_cannot_be_is_refused(values):
    """No drafts, or an acceptance outside of 0-1, is an error."""
    with pytest.raises(ValueError, match="drafts are at least 1"):
        Speculation(**values)


def test_what_was_planned_ahead_can_be_cut():
    """A rank that planned steps to the end of an answer books those that are over, and goes on with the one in flight."""
    run = a_small_run()
    (rank,) = run.engine.ranks
    run.engine.add("r", a_prompt(30), 9)
    prefill, at = rank.run(0.0, inf)
    assert prefill is not None
    rank.complete(prefill, tells_all=False)
    planned, last = rank.run(at, inf)
    assert (rank.step_in_flight, at, last) == (planned, 1.0, 9.0)  # a token each second; none is told before the last

    rank.catch_up(4.5, ends := [])
    assert ends == [2.0, 3.0, 4.0]
    assert (run.engine.totals.generation_tokens, used_blocks(run)) == (4, 3)
    in_flight = rank.cut()
    assert in_flight is not None
    step, end = in_flight
    assert (end, step.seconds, step.context_tokens, rank.step_in_flight) == (5.0, 1.0, 33, step)
    assert rank.cut() is None
    with pytest.raises(RuntimeError, match="not in flight"):
        rank.complete(planned)
    assert [one.generated_tokens for one in rank.complete(step)] == [5]


def test_what_is_cached_of_a_prompt_can_be_asked():
    """Whole blocks from its beginning on, of another prompt that begins alike too; asking neither takes nor keeps any."""
    run = a_small_run()
    (rank,) = run.engine.ranks
    prompt, other = a_numbered_prompt(40, range(100, 102)), a_numbered_prompt(70, range(100, 102), range(500, 502))
    assert rank.cached_tokens(prompt) == 0
    run.engine.add("r", prompt, 1)
    run.to_the_end()

    assert (rank.cached_tokens(prompt), rank.cached_tokens(other), used_blocks(run)) == (32, 32, 0)
    run.engine.reset_prefix_cache()
    assert rank.cached_tokens(prompt) == 0
