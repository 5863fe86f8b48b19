"""Whatever comes and goes: nothing leaks, nothing is exceeded, everything ends, tokens come in order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.engine import Engine, EngineSettings, Progress, QueuePolicy, Speculation
from simulator.engine.prefix import BlockRuns, Prompt
from tests.simulator.engine_runs import TIMER

BLOCKS = 24
SIZE = 4


@st.composite
def some_settings(draw: st.DrawFn) -> EngineSettings:
    seqs = draw(st.integers(1, 6))
    return EngineSettings(
        timer=TIMER,
        kv_tokens=BLOCKS * SIZE,
        block_tokens=SIZE,
        max_num_seqs=seqs,
        step_tokens=draw(st.integers(seqs, 40)),
        long_prefill_tokens=draw(st.none() | st.integers(1, 20)),
        queue_policy=draw(st.sampled_from(QueuePolicy)),
        admits_whole_prompts=draw(st.booleans()),
        caches_prefixes=draw(st.booleans()),
        speculation=draw(st.none() | st.builds(Speculation, drafts=st.integers(1, 4), acceptance_ratio=st.floats(0, 1))),
    )


@st.composite
def a_request(draw: st.DrawFn) -> tuple[Prompt, int, int]:
    """A prompt of one of three families, whose members share their beginnings; output, and priority."""
    tokens, output = draw(st.integers(1, 60)), draw(st.integers(1, 30))
    family, shared = draw(st.integers(0, 2)), draw(st.integers(0, 5))
    full = (tokens + draw(st.sampled_from([0, output]))) // SIZE
    head = range(1000 * family, 1000 * family + min(shared, full))
    tail = range(10_000 + 100 * shared + 1000 * family, 10_000 + 100 * shared + 1000 * family + full - len(head))
    return Prompt(tokens=tokens, blocks=BlockRuns((head, tail)), digest=b"", block_tokens=SIZE), output, draw(st.integers(0, 2))


class Watched:
    """An engine whose steps are checked."""

    def __init__(self, settings: EngineSettings) -> None:
        self.engine = Engine(settings)
        self.wanted: dict[str, int] = {}
        self.got: dict[str, int] = {}
        self.leaving: str | None = None

    def step(self, abort: int | None = None) -> bool:
        step = self.engine.schedule()
        if step is None:
            return False
        limits = self.engine.settings
        assert 0 < step.prefill_tokens + step.decode_tokens <= limits.step_tokens
        assert self.engine.running <= limits.max_num_seqs
        assert 0.0 < self.engine.kv_usage_ratio <= 1.0
        if abort is not None and self.wanted:
            self.abort(list(self.wanted)[abort % len(self.wanted)])
        for progress in self.engine.complete(step):
            self.take(progress)
        assert self.engine.running + self.engine.waiting == len(self.wanted)
        return True

    def take(self, progress: Progress) -> None:
        assert progress.new_tokens >= 1
        assert progress.generated_tokens == self.got.get(progress.identifier, 0) + progress.new_tokens
        assert progress.cached_tokens % SIZE == 0
        self.got[progress.identifier] = progress.generated_tokens
        assert progress.is_finished == (progress.generated_tokens == self.wanted[progress.identifier])
        if progress.is_finished:
            del self.wanted[progress.identifier]

    def abort(self, name: str) -> None:
        assert self.engine.abort(name)
        del self.wanted[name]


@settings(max_examples=150, deadline=None)
@given(
    limits=some_settings(),
    moves=st.lists(st.tuples(a_request(), st.integers(0, 4), st.none() | st.integers(0, 9)), max_size=25),
    resets=st.sets(st.integers(0, 25), max_size=2),
)
def test_whatever_comes_and_goes(limits, moves, resets):
    """Each step keeps to tokens, sequences and blocks; tokens come in order, everybody ends, and all blocks come back."""
    watched = Watched(limits)
    for number, ((prompt, output, priority), steps, abort) in enumerate(moves):
        name = f"r{number}"
        watched.engine.add(name, prompt, output, priority=priority)
        watched.wanted[name] = output
        for _ in range(steps):
            watched.step(abort)
        if number in resets:
            assert watched.engine.reset_prefix_cache(preempts_running=True)
            assert watched.engine.kv_usage_ratio == 0.0
    for _ in range(10_000):
        if not watched.step():
            break

    assert watched.wanted == {}
    assert (watched.engine.running, watched.engine.waiting, watched.engine.kv_usage_ratio) == (0, 0, 0.0)
    # Whoever needs every block gets them all, without losing any.
    whole = Prompt(tokens=BLOCKS * SIZE - 1, blocks=(), digest=b"", block_tokens=SIZE)
    watched.engine.add("whole", whole, 1)
    watched.wanted["whole"] = 1
    while watched.step():
        pass
    assert watched.got["whole"] == 1
    assert watched.engine.reset_prefix_cache()


@given(limits=some_settings(), requests=st.lists(a_request(), max_size=12))
def test_the_same_course_twice(limits, requests):
    """The same requests to engines of the same settings: the same steps, to the last bit."""
    courses = []
    for _ in range(2):
        engine = Engine(limits)
        for number, (prompt, output, priority) in enumerate(requests):
            engine.add(f"r{number}", prompt, output, priority=priority)
        course = []
        while step := engine.schedule():
            course.append((step, engine.complete(step)))
        courses.append(course)

    assert courses[0] == courses[1]
