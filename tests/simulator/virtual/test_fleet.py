"""A fleet in virtual time: instants by hand, the same with and without skipping ahead, and what a choice may look at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.estimate import TokenEstimate
from routing.policy import POLICIES
from routing.topology import Model, Pool
from simulator import traces
from simulator.arrivals import Arrival, AtOnce, Bursty, Closed, Pace, Poisson
from simulator.engine.engine import Engine, EngineSettings, Noise, QueuePolicy, Speculation
from simulator.engine.prefix import BlockRuns, Prompt
from simulator.engine.timing import ConstantTimer, DecodeSeconds, StepWork, Window
from simulator.virtual.fleet import Change, Fleet, simulate
from simulator.virtual.routing import by_model, by_policy, workers_named
from simulator.virtual.served import Served, summarise
from tests.simulator.engine_runs import GPU, TIMER, a_prompt


def an_arrival(at_seconds: float, tokens: int = 100, output: int = 3, text: str = "a", **fields: object) -> Arrival:
    return Arrival(at_seconds=at_seconds, prompt=a_prompt(tokens, text), output_tokens=output, **fields)  # type: ignore[arg-type]


def an_engine(**fields: object) -> Engine:
    return Engine(EngineSettings(**{**GPU, **fields}))  # type: ignore[arg-type]


def first(_arrival: Arrival, _fleet: Fleet) -> int:
    return 0


def test_a_request_alone_takes_its_steps():
    """The first token comes a prefill after the arrival, and the others a decode step each after that."""
    (served,) = simulate([an_engine()], [an_arrival(7.0, tokens=100, output=3)], first)

    prefill = 0.010 + 100 * 0.0001
    decode = [0.010 + 0.000001 * past for past in (100, 101)]
    assert served.first_token_at == 7.0 + prefill
    assert served.ended_at == 7.0 + prefill + decode[0] + decode[1]
    assert (served.worker, served.prompt_tokens, served.completion_tokens) == (0, 100, 3)


def test_who_comes_during_a_step_waits_for_its_end():
    """An arrival is served by the first step that begins after it."""
    one, other = simulate([an_engine()], [an_arrival(0.0), an_arrival(0.001, text="b")], first)

    assert other.ttft_seconds == pytest.approx(0.019 + 0.010 + 100 * 0.0001 + 100 * 0.000001)
    assert one.tpot_seconds is not None
    assert one.tpot_seconds > 0.015


@pytest.mark.parametrize(("steps_together", "waits"), [(True, 0.019), (False, 0.0)])
def test_an_idle_rank_steps_along(steps_together: bool, waits: float):
    """A rank with nothing to do begins with its first request only when the step of the others is over."""
    engine = an_engine(ranks=2, steps_together=steps_together)
    one, other = simulate([engine], [an_arrival(0.0), an_arrival(0.001, text="b")], first)

    assert (one.rank, other.rank) == (0, 1)
    assert other.ttft_seconds == pytest.approx(waits + 0.010 + 100 * 0.0001)


@pytest.mark.parametrize("steps_together", [True, False])
def test_a_busy_rank_slows_all(steps_together: bool):
    """While one rank prefills, each step of the others takes as long; alone each takes its own time."""
    engine = an_engine(ranks=2, steps_together=steps_together)
    small, large = simulate([engine], [an_arrival(0.0, tokens=100, output=3), an_arrival(0.0, tokens=2000, text="b")], first)

    alone = 0.010 + 100 * 0.0001
    assert (small.rank, large.rank) == (0, 1)
    assert large.ttft_seconds == 0.010 + 2000 * 0.0001
    assert small.ttft_seconds == (large.ttft_seconds if steps_together else alone)
    assert small.tpot_seconds == pytest.approx(0.010 + (2000.5 if steps_together else 100.5) * 0.000001)


def test_who_comes_at_the_same_instant_shares_the_first_step():
    """Arrivals of one instant at an idle engine are prefilled together."""
    served = simulate([an_engine()], [an_arrival(0.0), an_arrival(0.0, text="b")], first)

    assert [one.first_token_at for one in served] == [0.010 + 200 * 0.0001] * 2


@pytest.mark.parametrize("skips_ahead", [True, False])
def test_who_comes_at_the_end_of_a_step_misses_the_next(skips_ahead):
    """At one instant a step ends and the next begins before anybody arrives."""
    second = ConstantTimer(step_seconds=1.0, prefill_seconds_per_token=0.0, context_seconds_per_token=0.0)
    arrivals = [an_arrival(0.0, output=9), an_arrival(2.0, text="b")]
    served = simulate([an_engine(timer=second)], arrivals, first, skips_ahead=skips_ahead)

    assert served[1].first_token_at == 4.0


def test_a_follow_up_comes_some_time_after_the_answer():
    """The next request of a chain arrives its time to think after the last token, and finds the prefix."""
    follow_up = an_arrival(2.5, tokens=164)
    one, other = simulate([an_engine()], [an_arrival(1.0, follow_up=follow_up)], first)

    assert one.ended_at is not None
    assert other.arrived_at == one.ended_at + 2.5
    assert other.cached_tokens == 96


def test_the_time_before_the_queue_counts():
    """What passes between the choice and the engine's queue is part of the time to the first token."""
    plain, later = (
        simulate([an_engine(timer=replace(TIMER, request_overhead_seconds=seconds))], [an_arrival(1.0)], first)[0]
        for seconds in (0.0, 0.25)
    )

    assert plain.ttft_seconds is not None
    assert later.ttft_seconds == pytest.approx(plain.ttft_seconds + 0.25)
    assert later.arrived_at == 1.0


def test_a_refused_request_has_no_times_and_no_follow_up():
    """Whom nobody wants, and who could never run, is refused; nothing that would follow ever comes, and no load is left."""
    loads = []

    def choose(arrival: Arrival, fleet: Fleet) -> int | None:
        loads.append((fleet.in_flight[0], fleet.load_tokens[0]))
        return None if arrival.kind == "unwanted" else 0

    arrivals = [
        an_arrival(0.0, kind="unwanted", follow_up=an_arrival(1.0)),
        an_arrival(0.1, tokens=16_001, kind="too long", follow_up=an_arrival(1.0)),
        an_arrival(9.0, kind="good"),
    ]
    served = simulate([an_engine()], arrivals, choose)

    assert [(one.kind, one.worker, one.ttft_seconds is None) for one in served] == [
        ("unwanted", None, True),
        ("too long", None, True),
        ("good", 0, False),
    ]
    assert loads == [(0, 0)] * 3


def test_each_other_request_in_flight_delays_the_queue():
    """The second of two at once waits for the overhead of one other, the third for two; alone there is none."""
    timer = replace(TIMER, request_overhead_seconds=0.5, stream_overhead_seconds=10.0)
    arrivals = [an_arrival(0.0, output=1), *(an_arrival(1000.0, output=1, text=text) for text in "bcd")]
    ttfts = [one.ttft_seconds or 0.0 for one in simulate([an_engine(timer=timer)], arrivals, first)]
    alone = ttfts[0]

    assert ttfts == pytest.approx([alone, alone, alone + 10.0, alone + 20.0])
    assert alone < 1.0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_choice_sees_what_engines_have_done_by_then(ranks):
    """Blocks in use and tokens generated are those of the instant, also where an engine had planned further ahead."""

    def course(*, skips_ahead: bool) -> list[tuple[float, int, int]]:
        seen = []

        def choose(_arrival: Arrival, fleet: Fleet) -> int:
            (engine,) = fleet.engines
            seen.append((engine.kv_usage_ratio, engine.totals.generation_tokens, engine.totals.steps))
            return 0

        arrivals = [an_arrival(0.0, output=300), an_arrival(1.0, output=2, text="b"), an_arrival(1.5, output=9, text="c")]
        simulate([an_engine(ranks=ranks)], arrivals, choose, skips_ahead=skips_ahead)
        return seen

    ahead = course(skips_ahead=True)
    assert ahead == course(skips_ahead=False)
    assert ahead[0][1] < ahead[1][1] < ahead[2][1]


def test_a_choice_sees_the_fleet_as_it_is():
    """Loads count who is in flight, by prompt and declared output; turns grow; engines show their batches at that instant."""
    seen = []

    def choose(_arrival: Arrival, fleet: Fleet) -> int:
        running = [engine.running for engine in fleet.engines]
        seen.append((fleet.now, fleet.turn, *fleet.in_flight, *fleet.load_tokens, *running))
        return fleet.turn % 2

    arrivals = [
        an_arrival(0.0, tokens=100, output=200, max_tokens=500),  # runs for more than 2 s
        an_arrival(1.0, tokens=100, output=20),  # for less than half a second
        an_arrival(1.0005),
        an_arrival(2.0),
        an_arrival(60.0),
    ]
    simulate([an_engine(), an_engine()], arrivals, choose)

    assert seen == [
        (0.0, 0, 0, 0, 0, 0, 0, 0),
        (1.0, 1, 1, 0, 600, 0, 1, 0),
        (1.0005, 2, 1, 1, 600, 120, 1, 1),
        (2.0, 3, 1, 0, 600, 0, 1, 0),
        (60.0, 4, 0, 0, 0, 0, 0, 0),
    ]


def test_things_can_happen_to_the_fleet():
    """A change at an instant holds for the steps planned from then on."""

    def slow_down(engines: object) -> None:
        engines[0].slow_factor = 10.0  # type: ignore[index]

    served = simulate(
        [an_engine()], [an_arrival(0.0, output=2), an_arrival(5.0, output=2)], first, changes=[Change(3.0, slow_down)]
    )

    assert served[0].tpot_seconds == pytest.approx(0.010 + 0.0001)
    assert served[1].tpot_seconds == pytest.approx(10 * (0.010 + 0.0001))


def test_a_paused_fleet_wakes_up():
    """Requests to a paused engine are served once it goes on; if it never does, they have no end."""

    def pause(engines: object, *, paused: bool) -> None:
        engines[0].is_paused = paused  # type: ignore[index]

    stop = Change(0.0, lambda engines: pause(engines, paused=True))
    go_on = Change(8.0, lambda engines: pause(engines, paused=False))

    (served,) = simulate([an_engine()], [an_arrival(1.0)], first, changes=[stop, go_on])
    assert served.first_token_at == pytest.approx(8.0 + 0.020)
    (unserved,) = simulate([an_engine()], [an_arrival(1.0)], first, changes=[stop])
    assert (unserved.worker, unserved.first_token_at, unserved.ended_at) == (0, None, None)


class WindowedTimer(ConstantTimer):
    """Reads within a window cost extra."""

    @property
    def windows(self) -> tuple[Window, ...]:
        return (Window(200), Window(64, is_chunked=True))

    def seconds(self, work: StepWork) -> float:
        return super().seconds(work) + 1e-6 * work.windowed_tokens[0] + 3e-6 * work.windowed_tokens[1]

    def decoding(self, count: int) -> DecodeSeconds:
        plain = super().decoding(count)
        return lambda contexts, windows: [
            seconds + 1e-6 * windowed[0] + 3e-6 * windowed[1]
            for seconds, windowed in zip(plain(contexts, ()), windows, strict=True)
        ]


WINDOWED = WindowedTimer(step_seconds=0.01, prefill_seconds_per_token=1e-5, context_seconds_per_token=1e-7)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    trace=st.sampled_from([traces.chat, traces.rag, traces.agents, traces.batch, traces.mixed]),
    pace=st.sampled_from([Poisson(per_second=3.0), Bursty(per_second=1.0), Closed(users=30, pause_seconds=0.2), AtOnce()]),
    fields=st.fixed_dictionaries(
        {
            "timer": st.sampled_from([WINDOWED, TIMER]),
            "kv_tokens": st.sampled_from([30_000, 120_000]),
            "ranks": st.integers(1, 2),
            "steps_together": st.booleans(),
            "max_num_seqs": st.sampled_from([4, 64]),
            "queue_policy": st.sampled_from(QueuePolicy),
            "noise": st.sampled_from([Noise(), Noise(sigma=0.1, stall_ratio=0.01, stall_seconds=0.5)]),
            "speculation": st.sampled_from([None, Speculation(drafts=2, acceptance_ratio=0.6)]),
        }
    ),
    slow_at=st.none() | st.floats(0.0, 20.0),
)
def test_skipping_ahead_changes_nothing(seed, trace, pace, fields, slow_at):
    """With and without skipping ahead every request gets its tokens at the same instants, to the last bit."""

    def course(*, skips_ahead: bool) -> tuple[list[Served], list[object]]:
        engines = [an_engine(seed=number, **fields) for number in range(2)]
        changes = [] if slow_at is None else [Change(slow_at, lambda engines: setattr(engines[0], "slow_factor", 3.0))]
        choose = by_policy(POLICIES["least-load"], 2)
        served = simulate(engines, trace(40, pace, seed=seed), choose, changes=changes, skips_ahead=skips_ahead)
        return served, [engine.totals for engine in engines]

    assert course(skips_ahead=True) == course(skips_ahead=False)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(1, 40), st.integers(0, 4)), min_size=1, max_size=20
    ),
    policy=st.sampled_from(QueuePolicy),
)
def test_skipping_ahead_changes_nothing_where_blocks_are_few(requests, policy):
    """The same in a cache of 24 blocks for sequences of up to 25, which share their beginnings and preempt each other."""
    arrivals = []
    for number, (at, tokens, output, shared) in enumerate(requests):
        full = min(tokens + output, 95) // 4
        runs = BlockRuns((range(min(shared, full)), range(100 * number + 100, 100 * number + 100 + max(0, full - shared))))
        prompt = Prompt(tokens=tokens, blocks=runs, digest=b"", block_tokens=4)
        arrivals.append(Arrival(at_seconds=float(at), prompt=prompt, output_tokens=output, priority=number % 3))

    def course(*, skips_ahead: bool) -> tuple[list[Served], object]:
        timer = ConstantTimer(step_seconds=0.7, prefill_seconds_per_token=0.01, context_seconds_per_token=0.001)
        engine = an_engine(timer=timer, kv_tokens=96, block_tokens=4, max_num_seqs=6, queue_policy=policy)
        return simulate([engine], arrivals, first, skips_ahead=skips_ahead), engine.totals

    assert course(skips_ahead=True) == course(skips_ahead=False)


@pytest.mark.parametrize("pace", [Poisson(per_second=5.0), Closed(users=20)])
def test_the_same_trace_twice_is_the_same(pace: Pace):
    """Fresh engines of the same seeds give the same results to the last bit, and other seeds give others."""

    def course(seed: int) -> list[Served]:
        engines = [an_engine(seed=seed + number, noise=Noise(sigma=0.05)) for number in range(3)]
        return simulate(engines, traces.chat(200, pace), by_policy(POLICIES["round-robin"], 3))

    assert course(1) == course(1) != course(100)


def test_everything_is_accounted_for():
    """Tokens, hits and preemptions of the requests add up to those of the engines."""
    engines = [an_engine(kv_tokens=40_000, timer=TIMER, max_num_seqs=32) for _ in range(2)]
    served = simulate(engines, traces.rag(300, Poisson(per_second=30.0)), by_policy(POLICIES["round-robin"], 2))
    summary = summarise(served)

    assert summary.completed == 300
    assert summary.completion_tokens == sum(engine.totals.generation_tokens for engine in engines)
    assert summary.prompt_tokens == sum(engine.totals.prompt_tokens for engine in engines)
    assert sum(one.cached_tokens for one in served) == sum(engine.totals.prefix_hit_tokens for engine in engines)
    assert summary.preemptions == sum(engine.totals.preemptions for engine in engines) > 0
    assert [one.arrived_at for one in served] == sorted(one.arrived_at for one in served)


def test_policies_of_the_gateway_choose():
    """Round robin deals requests out in turn; least load prefers the worker with fewer tokens in flight."""
    arrivals = [
        an_arrival(0.001 * number, tokens=tokens, text=chr(97 + number)) for number, tokens in enumerate((5000, 10, 10, 10))
    ]

    in_turn = simulate([an_engine(), an_engine()], arrivals, by_policy(POLICIES["round-robin"], 2))
    by_load = simulate([an_engine(), an_engine()], arrivals, by_policy(POLICIES["least-load"], 2))
    assert [one.worker for one in in_turn] == [0, 1, 0, 1]
    assert [one.worker for one in by_load] == [0, 1, 1, 1]


def test_pools_of_the_gateway_are_kept_apart():
    """Pool and worker are chosen as for the gateway, by estimate and declared output; who fits no pool is refused."""
    workers = workers_named(["short", "long"])
    pools = tuple(
        Pool(index=index, model="m", name=worker.name, workers=(worker,), max_total_tokens=limit)
        for index, (worker, limit) in enumerate(zip(workers, (1000, 8000), strict=True))
    )
    model = Model(index=0, name="m", aliases=(), pools=pools)
    arrivals = [an_arrival(float(number), tokens=900, max_tokens=tokens) for number, tokens in enumerate((50, 500, 9000))]

    exact = simulate([an_engine(), an_engine()], arrivals, by_model(model))
    doubled = simulate(
        [an_engine(), an_engine()], arrivals, by_model(model, lambda tokens: TokenEstimate(2 * tokens, tokens, 4 * tokens))
    )
    assert [one.worker for one in exact] == [0, 1, None]
    assert [one.worker for one in doubled] == [1, 1, None]


def test_repr_tells_the_condition():
    """The repr shows how large the fleet is, the instant, and how many are under way."""
    assert repr(Fleet([an_engine()], lambda: None)) == "<Fleet of 1 at 0.000000 s, 0 in flight>"
