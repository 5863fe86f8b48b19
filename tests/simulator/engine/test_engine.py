"""The engine, run against a virtual clock."""

from __future__ import annotations

import pytest

from simulator.engine.engine import Engine, EngineSettings, Noise
from tests.simulator.engine_runs import GPU, a_prompt, a_run


def test_a_request_gets_each_of_its_tokens_once():
    """Progress counts up from 1 to the output length, and the last one is marked."""
    run = a_run()
    run.engine.add("r", a_prompt(100), 5)
    seen = []
    while step := run.engine.schedule():
        seen += [(progress.generated_tokens, progress.is_finished) for progress in run.engine.complete(step)]

    assert seen == [(1, False), (2, False), (3, False), (4, False), (5, True)]
    assert (run.engine.running, run.engine.waiting, run.engine.kv_usage_ratio) == (0, 0, 0.0)


def test_a_step_takes_what_its_work_costs():
    """Step time is the base, the prefill tokens and the context read, each at its price."""
    run = a_run()
    run.engine.add("r", a_prompt(100), 2)
    run.to_the_end()

    assert [step.seconds for step in run.steps] == [0.010 + 100 * 0.0001, 0.010 + 100 * 0.000001]


def test_ttft_grows_with_the_prompt():
    """A longer prompt waits longer for its first token."""
    ttfts = []
    for tokens in (10, 100, 1000, 4000):
        run = a_run()
        run.engine.add("r", a_prompt(tokens), 1)
        ttfts.append(run.to_the_end().ttft("r"))

    assert sorted(set(ttfts)) == ttfts


def test_ttft_grows_with_load():
    """The same prompt waits longer behind others."""
    alone, behind = a_run(), a_run()
    for number in range(8):
        behind.engine.add(f"other{number}", a_prompt(1000, str(number)), 20)
    for run in (alone, behind):
        run.engine.add("r", a_prompt(500, "r"), 1)
        run.to_the_end()

    assert behind.ttft("r") > 2 * alone.ttft("r")


def test_tpot_grows_with_context_and_load():
    """Decoding is slower with more context of one's own, and slower still with others in the batch."""
    tpots = []
    for tokens, others in ((100, 0), (4000, 0), (4000, 6)):
        run = a_run()
        run.engine.add("r", a_prompt(tokens, "r"), 20)
        for number in range(others):
            run.engine.add(f"other{number}", a_prompt(1000, str(number)), 20)
        tpots.append(run.to_the_end().tpot("r"))

    assert sorted(set(tpots)) == tpots


def test_a_warm_prefix_is_not_computed_again():
    """A repeated prompt takes its full blocks from the cache, says so, and is faster."""
    run = a_run()
    run.engine.add("cold", a_prompt(1000), 1)
    run.to_the_end()
    cold_at = run.now
    run.engine.add("warm", a_prompt(1000), 1)
    run.to_the_end()

    assert (run.last["cold"].cached_tokens, run.last["cold"].created_cache_tokens) == (0, 992)
    assert (run.last["warm"].cached_tokens, run.last["warm"].created_cache_tokens) == (992, 0)
    assert run.now - cold_at < cold_at / 4
    totals = run.engine.totals
    assert (
        totals.prefix_queried_tokens,
        totals.prefix_hit_tokens,
        totals.prompt_tokens,
        totals.generation_tokens,
    ) == (2000, 992, 2000, 2)


def test_a_long_prompt_is_prefilled_in_chunks():
    """No step computes more than its budget; the first token comes with the last chunk."""
    run = a_run(step_tokens=512)
    run.engine.add("r", a_prompt(1200), 1)
    run.to_the_end()

    assert [step.prefill_tokens for step in run.steps] == [512, 512, 176]
    assert [run.now] == run.tokens_at["r"]


def test_decoding_goes_on_beside_a_long_prefill():
    """A running sequence gets a token in every step in which somebody else is prefilled, and counts in the budget."""
    run = a_run(step_tokens=256)
    run.engine.add("decoding", a_prompt(10), 50)
    run.step()
    run.engine.add("long", a_prompt(1000, "l"), 1)
    before = len(run.tokens_at["decoding"])
    while "long" not in run.tokens_at:
        run.step()

    assert len(run.tokens_at["decoding"]) - before == 4
    assert all(step.prefill_tokens + step.decode_tokens <= 256 for step in run.steps)
    assert run.steps[1].prefill_tokens == 255


def test_no_more_sequences_run_than_allowed():
    """What exceeds the number of sequences waits, and runs in the order of arrival."""
    run = a_run(max_num_seqs=2)
    for name in ("first", "second", "third"):
        run.engine.add(name, a_prompt(10, name), 3)
    run.step()

    assert (run.engine.running, run.engine.waiting) == (2, 1)
    run.to_the_end()
    assert run.ttft("third") > max(run.tokens_at["first"])


def test_who_finds_no_room_in_the_kv_cache_waits():
    """A prompt is admitted only with room for all of it, though its blocks are taken as it grows."""
    run = a_run()
    run.engine.add("big", a_prompt(9000), 10)
    run.engine.add("also", a_prompt(9000, "b"), 10)
    ratios = []
    while "big" not in run.tokens_at:
        run.step()
        ratios.append(run.engine.kv_usage_ratio)
        assert (run.engine.running, run.engine.waiting) == (1, 1)

    assert ratios == [0.128, 0.256, 0.384, 0.512, 0.563]
    run.to_the_end()
    assert run.ttft("also") > max(run.tokens_at["big"])


def test_aborting_a_waiting_request_forgets_it():
    """An aborted request that waited never runs."""
    run = a_run(max_num_seqs=1)
    run.engine.add("runs", a_prompt(10), 2)
    run.engine.add("waits", a_prompt(10, "w"), 2)
    run.step()

    assert run.engine.abort("waits")
    run.to_the_end()
    assert "waits" not in run.tokens_at


def test_aborting_during_a_step_takes_effect_at_once():
    """A request aborted while its step is in flight is out of the batch at once and gets no token from that step."""
    run = a_run()
    run.engine.add("leaves", a_prompt(100), 10)
    run.engine.add("stays", a_prompt(100, "s"), 1)
    step = run.engine.schedule()
    assert step is not None

    assert run.engine.abort("leaves")
    assert run.engine.running == 1
    assert [progress.identifier for progress in run.engine.complete(step)] == ["stays"]
    assert run.engine.kv_usage_ratio == 0.0


def test_an_identifier_may_be_used_again_during_the_step_of_its_forerunner():
    """A new request of an aborted one's name does not get the tokens of the step in flight."""
    run = a_run()
    run.engine.add("r", a_prompt(100), 2)
    step = run.engine.schedule()
    assert step is not None
    run.engine.abort("r")
    run.engine.add("r", a_prompt(50, "n"), 1)

    assert run.engine.complete(step) == []
    assert len(run.to_the_end().tokens_at["r"]) == 1


def test_aborting_what_is_not_there_says_so():
    """Aborting an unknown or finished request changes nothing."""
    assert not a_run().engine.abort("nobody")


@pytest.mark.parametrize(
    ("tokens", "output", "why"), [(10, 0, "at least 1"), (10, 1, "there already"), (15_990, 20, "do not fit")]
)
def test_what_could_never_run_is_refused(tokens, output, why):
    """No output, a name in use, or more tokens than the KV cache holds is an error when it is added."""
    run = a_run()
    run.engine.add("r", a_prompt(10), 1)

    with pytest.raises(ValueError, match=why):
        run.engine.add("r" if "there" in why else "new", a_prompt(tokens, "n"), output)


def test_steps_are_completed_before_the_next_is_planned():
    """Scheduling twice, or completing what is not in flight, is a mistake of the driver."""
    run = a_run()
    run.engine.add("r", a_prompt(10), 2)
    step = run.engine.schedule()
    assert step is not None

    with pytest.raises(RuntimeError, match="completed first"):
        run.engine.schedule()
    run.engine.complete(step)
    with pytest.raises(RuntimeError, match="not in flight"):
        run.engine.complete(step)


def test_without_noise_time_is_what_the_steps_cost():
    """With nothing random the instant of every token is the plain sum of what the timer says."""
    run = a_run(noise=Noise())
    run.engine.add("r", a_prompt(100), 10)
    run.to_the_end()

    now = 0.010 + 0.0001 * 100
    expected = [now]
    for past in range(100, 109):
        now += 0.010 + 0.000001 * past
        expected.append(now)
    assert run.tokens_at["r"] == expected


def test_the_same_requests_take_the_same_time():
    """Two engines given the same requests take the same steps."""
    runs = [a_run(), a_run()]
    for run in runs:
        for number in range(5):
            run.engine.add(f"r{number}", a_prompt(300 * (number + 1), str(number)), 10)
        run.to_the_end()

    assert runs[0].tokens_at == runs[1].tokens_at


def test_a_paused_engine_begins_no_step():
    """While it is paused nothing is planned; what was in flight can be completed, and all goes on afterwards."""
    run = a_run()
    run.engine.add("r", a_prompt(10), 3)
    step = run.engine.schedule()
    assert step is not None
    run.engine.is_paused = True
    run.engine.complete(step)

    assert run.engine.is_paused
    assert run.engine.schedule() is None
    assert run.engine.running == 1
    run.engine.is_paused = False
    assert run.to_the_end().last["r"].is_finished


def test_a_slow_factor_stretches_steps_from_then_on():
    """A factor set at run time multiplies the duration of the steps planned after it."""
    run = a_run()
    run.engine.add("r", a_prompt(10), 3)
    run.step()
    run.engine.slow_factor = 3.0
    run.to_the_end()

    assert [step.seconds for step in run.steps[1:]] == [3.0 * (0.010 + 10 * 0.000001), 3.0 * (0.010 + 11 * 0.000001)]
    with pytest.raises(ValueError, match="above 0"):
        run.engine.slow_factor = 0.0
    assert run.engine.slow_factor == 3.0


def test_an_engine_can_stop_to_cache_prefixes():
    """With the cache switched off at run time nothing is found and nothing is remembered, and nothing counts as asked for."""
    run = a_run()
    run.engine.add("first", a_prompt(100), 1)
    run.to_the_end()
    run.engine.caches_prefixes = False
    assert not run.engine.caches_prefixes
    for name in ("second", "third"):
        run.engine.add(name, a_prompt(100), 1)
        run.to_the_end()
    run.engine.caches_prefixes = True
    run.engine.add("fourth", a_prompt(100), 1)
    run.to_the_end()

    assert [run.last[name].cached_tokens for name in ("first", "second", "third", "fourth")] == [0, 0, 0, 96]
    assert run.engine.totals.prefix_queried_tokens == 200


def test_a_reset_forgets_what_nobody_uses():
    """The prefix cache can be emptied while nothing runs; otherwise it says no and stays."""
    run = a_run()
    run.engine.add("first", a_prompt(100), 5)
    run.step()
    assert not run.engine.reset_prefix_cache()
    run.to_the_end()
    assert run.engine.reset_prefix_cache()
    run.engine.add("second", a_prompt(100), 1)

    assert run.to_the_end().last["second"].cached_tokens == 0


def test_a_reset_can_preempt_who_runs():
    """With preemption everything is forgotten in any case, and running requests compute all again and still finish."""
    run = a_run()
    run.engine.add("r", a_prompt(100), 5)
    run.step()
    step = run.engine.schedule()
    assert step is not None

    assert run.engine.reset_prefix_cache(preempts_running=True)
    assert run.engine.complete(step) == []
    run.to_the_end()
    assert [step.prefill_tokens for step in run.steps] == [100, 101, 0, 0, 0]
    assert (run.last["r"].generated_tokens, run.last["r"].preempted) == (5, 1)


def test_ranks_have_queues_and_caches_of_their_own():
    """Requests spread over data-parallel ranks by load, equals in turn; a prefix is warm only on the rank that computed it."""
    engine = Engine(EngineSettings(**GPU, ranks=3))
    assert [engine.add(f"r{number}", a_prompt(100), 1) for number in range(4)] == [0, 1, 2, 0]
    for rank in range(3):
        step = engine.schedule(rank)
        assert step is not None
        assert step.rank == rank
        cached = {progress.identifier: progress.cached_tokens for progress in engine.complete(step)}
        assert cached == ({"r0": 0, "r3": 96} if rank == 0 else {f"r{rank}": 0})

    assert engine.totals.prompt_tokens == 400
    assert [rank.totals.prompt_tokens for rank in engine.ranks] == [200, 100, 100]


def test_idle_ranks_take_turns():
    """Requests that come one after another, each when the one before has been answered, go to one rank after the other."""
    engine = Engine(EngineSettings(**GPU, ranks=3))
    chosen = []
    for number in range(5):
        chosen.append(engine.add(f"r{number}", a_prompt(10), 1))
        step = engine.schedule(chosen[-1])
        assert step is not None
        engine.complete(step)

    assert chosen == [0, 1, 2, 0, 1]


def test_a_request_can_choose_its_rank():
    """A rank that is asked for is taken whatever its load; one that is not there is refused."""
    engine = Engine(EngineSettings(**GPU, ranks=2))

    assert [engine.add(f"r{number}", a_prompt(10), 1, rank=1) for number in range(3)] == [1, 1, 1]
    assert engine.add("other", a_prompt(10), 1) == 0
    assert (engine.ranks[0].waiting, engine.ranks[1].waiting, engine.waiting) == (1, 3, 4)
    assert engine.abort("r1")
    with pytest.raises(ValueError, match="rank must be in 0-1, got 2"):
        engine.add("new", a_prompt(10), 1, rank=2)


def test_waiting_counts_double_on_a_crowded_rank():
    """With more than half of its KV cache in use, a rank with a queue is avoided for one that runs as many and a few more."""
    engine = Engine(EngineSettings(**GPU, ranks=2, max_num_seqs=3, step_tokens=16_000))
    engine.add("big", a_prompt(9000), 50, rank=0)
    engine.add("waits", a_prompt(9000, "b"), 50, rank=0)
    for number in range(2):
        engine.add(f"small{number}", a_prompt(10, "c"), 50, rank=1)
    for rank in range(2):
        step = engine.schedule(rank)
        assert step is not None
        engine.complete(step)

    assert (engine.ranks[0].running, engine.ranks[0].waiting) == (1, 1)
    assert [engine.add(f"r{number}", a_prompt(10), 1) for number in range(2)] == [1, 0]


def test_prompts_must_be_cut_as_the_cache_is():
    """A prompt whose blocks have another size than the cache's is refused."""
    engine = Engine(EngineSettings(**GPU, block_tokens=32))

    with pytest.raises(ValueError, match="in blocks of 16 tokens, not of 32"):
        engine.add("r", a_prompt(100), 1)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({**GPU, "ranks": 0}, "ranks must be at least 1, got 0"),
        ({**GPU, "kv_tokens": 15}, "at least one block of 16 tokens"),
        ({**GPU, "step_tokens": 63}, r"step_tokens \(63\) must be at least max_num_seqs \(64\)"),
        ({**GPU, "long_prefill_tokens": 0}, "long_prefill_tokens must be at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, why):
    """Missing, empty or contradictory settings are errors that say so."""
    with pytest.raises(ValueError, match=why):
        EngineSettings(**settings)


def test_noise_is_drawn_from_the_seed():
    """Steps of equal work take different times, the same for the same seed and others for another; ranks differ too."""
    by_seed = []
    for seed in (1, 1, 2):
        run = a_run(noise=Noise(sigma=0.1), seed=seed)
        run.engine.add("r", a_prompt(10), 20)
        by_seed.append([step.seconds for step in run.to_the_end().steps])
    engine = Engine(EngineSettings(**GPU, noise=Noise(sigma=0.1), ranks=2))
    by_rank = []
    for rank in range(2):
        engine.add(f"r{rank}", a_prompt(10), 1, rank=rank)
        step = engine.schedule(rank)
        assert step is not None
        by_rank.append(step.seconds)

    assert len(set(by_seed[0])) == 20
    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert by_rank[0] != by_rank[1]


def test_repr_tells_the_condition():
    """The repr shows both queues."""
    run = a_run()
    run.engine.add("r", a_prompt(10), 2)

    assert repr(run.engine).startswith("<Engine 0 running, 1 waiting, ")


def test_fetched_tokens_take_blocks_and_are_not_computed():
    """Of a prompt that another worker computed only the last token is left to compute; its cache is as full as ever."""
    run = a_run()
    run.engine.add("r", a_prompt(100), 3, fetched_tokens=100)
    run.step()

    assert (run.steps[0].prefill_tokens, run.steps[0].context_tokens) == (1, 99)
    assert run.engine.kv_usage_ratio == 7 / 1000
    assert (run.last["r"].cached_tokens, run.last["r"].fetched_tokens) == (99, 99)
    assert run.engine.totals.fetched_tokens == 99
    run.to_the_end()
    assert run.steps[-1].context_tokens == 101


def test_what_is_here_is_not_fetched():
    """Tokens found in the prefix cache count as found, and only those beyond them as fetched."""
    run = a_run()
    run.engine.add("first", a_prompt(64), 1)
    run.to_the_end()
    run.engine.add("second", a_prompt(100), 1, fetched_tokens=80)
    run.to_the_end()

    assert run.steps[-1].prefill_tokens == 20
    assert (run.last["second"].cached_tokens, run.last["second"].fetched_tokens) == (80, 16)


def test_a_preemption_loses_what_was_fetched():
    """After it everything is computed here."""
    run = a_run(caches_prefixes=False)
    run.engine.add("r", a_prompt(100), 3, fetched_tokens=100)
    run.step()
    run.engine.reset_prefix_cache(preempts_running=True)
    run.step()

    assert run.steps[-1].prefill_tokens == 101


def test_no_more_can_be_fetched_than_there_is():
    """More tokens than the prompt has are a mistake."""
    with pytest.raises(ValueError, match="fetched_tokens must be in 0-10, got 11"):
        a_run().engine.add("r", a_prompt(10), 1, fetched_tokens=11)
