"""The engine, run against a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from simulator.engine import Engine, EngineSettings, Progress, Step
from simulator.gpus import DEMO_GPUS, DemoGpu, gpu_by_name
from simulator.prefix import Prompt, prompt_of_text

GPU = DemoGpu(step_seconds=0.010, prefill_seconds_per_token=0.0001, context_seconds_per_token=0.000001, kv_tokens=16_000)


@dataclass
class Run:
    """An engine with a virtual clock: every step takes exactly as long as it says."""

    engine: Engine
    now: float = 0.0
    steps: list[Step] = field(default_factory=list)
    tokens_at: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, Progress] = field(default_factory=dict)

    def step(self) -> bool:
        step = self.engine.schedule()
        if step is None:
            return False
        self.now += step.seconds
        self.steps.append(step)
        for progress in self.engine.complete(step):
            self.tokens_at.setdefault(progress.identifier, []).append(self.now)
            self.last[progress.identifier] = progress
        return True

    def to_the_end(self) -> Run:
        while self.step():
            pass
        return self

    def ttft(self, identifier: str) -> float:
        return self.tokens_at[identifier][0]

    def tpot(self, identifier: str) -> float:
        times = self.tokens_at[identifier]
        return (times[-1] - times[0]) / (len(times) - 1)


def a_run(*, gpu: DemoGpu = GPU, max_num_seqs: int = 64, step_tokens: int = 2048) -> Run:
    return Run(Engine(EngineSettings(gpu=gpu, max_num_seqs=max_num_seqs, step_tokens=step_tokens)))


def a_prompt(tokens: int, text: str = "a") -> Prompt:
    """A prompt of so many tokens, sharing no block with one of another text."""
    return prompt_of_text((text * tokens * 4)[: tokens * 4])


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

    assert [pytest.approx(0.010 + 100 * 0.0001), pytest.approx(0.010 + 101 * 0.000001)] == [step.seconds for step in run.steps]


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
    assert all(sum(tokens for _, tokens in step.parts) <= 256 for step in run.steps)
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
    """A sequence is admitted only with room for all of it, so nothing is ever preempted."""
    run = a_run()
    run.engine.add("big", a_prompt(9000), 10)
    run.engine.add("also", a_prompt(9000, "b"), 10)
    run.step()

    assert (run.engine.running, run.engine.waiting) == (1, 1)
    assert 0.5 < run.engine.kv_usage_ratio < 0.6
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


def test_the_same_requests_take_the_same_time():
    """Two engines given the same requests take the same steps."""
    runs = [a_run(), a_run()]
    for run in runs:
        for number in range(5):
            run.engine.add(f"r{number}", a_prompt(300 * (number + 1), str(number)), 10)
        run.to_the_end()

    assert runs[0].tokens_at == runs[1].tokens_at


def test_repr_tells_the_condition():
    """The repr shows both queues."""
    run = a_run()
    run.engine.add("r", a_prompt(10), 2)

    assert repr(run.engine).startswith("<Engine 0 running, 1 waiting, ")


def test_an_unknown_gpu_is_named_with_the_known_ones():
    """Who asks for a GPU that has no constants learns which have."""
    assert gpu_by_name("h100-sxm") is DEMO_GPUS["h100-sxm"]
    with pytest.raises(ValueError, match=r"unknown GPU 'h100'; .*h100-sxm, h200-sxm"):
        gpu_by_name("h100")
