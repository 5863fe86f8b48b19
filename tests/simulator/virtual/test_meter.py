"""Figures of streams in virtual time are those of the gateway's meter, fed with the bytes of these streams."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from routing.policy import POLICIES
from simulator import traces
from simulator.arrivals import AtOnce, Closed, Poisson
from simulator.engine.engine import Engine, EngineSettings, Noise, Progress, QueuePolicy, Speculation
from simulator.virtual.fleet import Change, simulate
from simulator.virtual.meter import StepGaps, StreamFigures
from simulator.virtual.routing import by_policy
from simulator.virtual.served import Served
from simulator.vocabulary import tokens_of
from simulator.wire.chat import ChatFormat
from simulator.wire.common import Delta, Head, Style, Usage
from telemetry.events import Usage as Counted
from telemetry.measurements import Measurements
from telemetry.meter import StreamMeter
from telemetry.recorder import GAP_BOUNDS
from tests.simulator.engine_runs import GPU

HEAD = Head(identifier="x", created=1, model="tiny", fingerprint="vllm-0.32.0-00000000")
STYLE = Style(has_parser=True, details=True)
WORDS = list(tokens_of("one two three four five six seven eight"))


@dataclass
class Streams:
    """Collects the tokens of every request: instant and count."""

    found: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def tell(self, at: float, progress: Progress) -> None:
        self.found[int(progress.identifier)].append((at, progress.new_tokens))


def metered(served: Served, tokens: list[tuple[float, int]], finish_reason: str) -> Measurements:
    """What the gateway's meter says of a stream with these tokens, in events as a worker writes them."""
    form = ChatFormat(HEAD, STYLE)
    usage = Usage(
        prompt_tokens=served.prompt_tokens, completion_tokens=served.completion_tokens, cached_tokens=served.cached_tokens
    )
    arrivals, pieces, written = [tokens[0][0]], [form.opening(0, None, None)], 0
    for place, (at, count) in enumerate(tokens):
        words = [WORDS[(written + each) % len(WORDS)] for each in range(count)]
        written += count
        reason = finish_reason if place == len(tokens) - 1 else None
        arrivals.append(at)
        pieces.append(form.piece(Delta(index=0, tokens=words, finish_reason=reason)))
    arrivals += [tokens[-1][0]] * 2
    pieces += [form.closing(usage, None), form.ending()]
    meter = StreamMeter(1, GAP_BOUNDS)
    half = len(pieces) // 2
    meter.feed(arrivals[:half], pieces[:half])
    meter.feed(arrivals[half:], pieces[half:])
    return meter.finish(arrivals[-1])


def agree(one: Measurements, other: Measurements) -> None:
    """All figures are the same; sums of gaps but for the order in which they were added up."""
    assert one.gap_sum_seconds == pytest.approx(other.gap_sum_seconds)
    assert msgspec.structs.replace(one, gap_sum_seconds=0.0) == msgspec.structs.replace(other, gap_sum_seconds=0.0)
    assert one.tpot_seconds() == other.tpot_seconds()


@settings(max_examples=15, deadline=None, phases=[Phase.generate])  # making a failure smaller would take minutes
@given(
    seed=st.integers(0, 1000),
    trace=st.sampled_from([traces.chat, traces.rag, traces.agents, traces.mixed]),
    pace=st.sampled_from([Poisson(per_second=3.0), Closed(users=30, pause_seconds=0.2), AtOnce()]),
    fields=st.fixed_dictionaries(
        {
            "kv_tokens": st.sampled_from([30_000, 120_000]),
            "ranks": st.integers(1, 2),
            "steps_together": st.booleans(),
            "max_num_seqs": st.sampled_from([4, 64]),
            "queue_policy": st.sampled_from(QueuePolicy),
            "noise": st.sampled_from([Noise(), Noise(sigma=0.1, stall_ratio=0.01, stall_seconds=0.5)]),
            "speculation": st.sampled_from([None, Speculation(drafts=2, acceptance_ratio=0.6)]),
        }
    ),
    forgets_at=st.none() | st.floats(0.0, 20.0),
)
def test_figures_are_those_of_the_meter(seed: int, trace: Any, pace: Any, fields: dict[str, Any], forgets_at: float | None):
    """Every request's figures, taken while skipping ahead, are what the real meter reads from its stream's bytes."""

    def course(**more: Any) -> list[Served]:
        engines = [Engine(EngineSettings(**{**GPU, **fields}, seed=number)) for number in range(2)]
        changes = []
        if forgets_at is not None:
            changes.append(Change(forgets_at, lambda engines: engines[0].reset_prefix_cache(preempts_running=True)))
        return simulate(engines, trace(20, pace, seed=seed), by_policy(POLICIES["least-load"], 2), changes=changes, **more)

    streams = Streams()
    course(tell=streams.tell)
    served = course(gap_bounds=GAP_BOUNDS)

    assert any(one.measured is not None for one in served)
    for number, one in enumerate(served):
        assert (one.measured is None) == (one.ended_at is None)
        if one.measured is not None:
            agree(one.measured, metered(one, streams.found[number], one.measured.finish_reasons[0]))
            assert one.tpot_seconds == one.measured.tpot_seconds()
            assert one.first_token_at == one.measured.first_token_at


def test_a_preempted_stream_has_one_long_gap():
    """Who loses its blocks gets nothing until they are computed anew, and the whole time is one gap."""
    streams = Streams()

    def course(**more: Any) -> list[Served]:
        engine = Engine(EngineSettings(**{**GPU, "kv_tokens": 9_000}))
        return simulate([engine], traces.chat(40, AtOnce(), seed=5), by_policy(POLICIES["round-robin"], 1), **more)

    course(tell=streams.tell)
    served = course(gap_bounds=GAP_BOUNDS)

    preempted = [number for number, one in enumerate(served) if one.preemptions and one.measured is not None]
    assert preempted
    for number in preempted:
        measured = served[number].measured
        assert measured is not None
        agree(measured, metered(served[number], streams.found[number], measured.finish_reasons[0]))


def test_figures_are_not_there_unless_asked_for():
    """Without bounds nothing is measured, and the rest is the same."""

    def course(**more: Any) -> list[Served]:
        engines = [Engine(EngineSettings(**GPU))]
        return simulate(engines, traces.chat(5, AtOnce()), by_policy(POLICIES["round-robin"], 1), **more)

    plain, asked = course(), course(gap_bounds=GAP_BOUNDS)

    assert all(one.measured is None for one in plain)
    assert [(one.first_token_at, one.ended_at) for one in plain] == [(one.first_token_at, one.ended_at) for one in asked]


@given(gaps=st.lists(st.integers(0, 6), min_size=1, max_size=40), data=st.data())
def test_the_largest_gap_since_any_step(gaps: list[int], data: st.DataObject):
    """It is the largest of those after so many steps."""
    since = data.draw(st.integers(0, len(gaps)))
    log, at = StepGaps([1.0, 3.0]), 0.0
    for gap in gaps:
        at += gap
        log.step(at)

    assert log.largest_since(since) == max(gaps[since:], default=0)


def test_a_stream_without_tokens_has_no_figures():
    """Asking for what was never there is a mistake."""
    with pytest.raises(RuntimeError, match="no token"):
        StreamFigures([1.0], StepGaps([1.0])).measured(Counted(), "stop")


def test_repr_tells_the_condition():
    """The reprs show how far they are."""
    log = StepGaps([1.0])
    figures = StreamFigures([1.0], log)
    log.step(2.0)
    figures.open(2.0)

    assert (repr(log), repr(figures)) == ("<StepGaps of 1 steps>", "<StreamFigures open, 0 gaps so far>")
