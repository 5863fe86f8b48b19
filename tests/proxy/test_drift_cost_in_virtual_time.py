"""What a drift is said to cost, held against the prefill that a simulated engine really did for it.

The same requests are served twice by fresh engines, with the prompt as it was and as it became; the truth is the difference of
the time that their steps took. The gateway reads the requests' JSON by its own functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from proxy.control.drifting import DriftWatch
from proxy.serving.beginnings import Beginnings
from simulator.engine.engine import Engine, EngineSettings
from simulator.engine.prefix import prompt_of_text
from simulator.engine.roofline_timing import RooflineTimer
from telemetry.prefix_drift import Drift
from tests.proxy.control.clocks import Clock
from tests.proxy.control.test_judging import Court
from tests.telemetry.judged import YARDSTICK, a_stream

BEFORE, AFTER = 40, 60  # requests with the prompt as it was, and as it became
DICE = Random(11)
ENGLISH = " ".join(DICE.choice(("answer", "customers", "politely", "about", "orders", "and", "returns")) for _ in range(1500))
CHINESE = "".join(DICE.choice("你是客服助手请礼貌回答关于订单和退货的问题不要提价格") for _ in range(4000))


@dataclass(frozen=True)
class Story:
    before: str
    after: Callable[[int], str]  # by number of the request
    is_escaped: bool = False  # clients write escapes from then on


COSTLY = {
    "a blank at the end of its first line": Story(ENGLISH, lambda _: ENGLISH[:200] + " " + ENGLISH[200:]),
    "a timestamp at its start": Story(ENGLISH, lambda number: f"It is 12:{number:03}. {ENGLISH}"),
    "a timestamp before escaped Chinese": Story(CHINESE, lambda number: f"现在是{number:03}秒。{CHINESE}", is_escaped=True),
}


class Worker:
    """A simulated engine, kept at so many requests at once, which counts the seconds of its steps."""

    def __init__(self, at_once: int, output_tokens: int) -> None:
        timer = RooflineTimer(YARDSTICK.deployment)
        self.engine = Engine(EngineSettings(timer=timer, kv_tokens=400_000, step_tokens=8192))
        self.at_once = at_once
        self.output_tokens = output_tokens
        self.busy_seconds = 0.0

    def serve(self, texts: list[str]) -> list[tuple[int, int, int]]:
        """Number, prompt tokens and those of them that were cached, of each request as it ends."""
        served, begun = [], 0
        prompts = [prompt_of_text(text) for text in texts]
        while len(served) < len(texts):
            while begun < len(texts) and begun - len(served) < self.at_once:
                self.engine.add(str(begun), prompts[begun], self.output_tokens)
                begun += 1
            step = self.engine.schedule()
            assert step is not None
            self.busy_seconds += step.seconds
            for progress in self.engine.complete(step):
                if progress.is_finished:
                    number = int(progress.identifier)
                    served.append((number, prompts[number].tokens, progress.cached_tokens))
        return served


def told_and_true(story: Story, at_once: int = 1, output_tokens: int = 1) -> tuple[list[Drift], float]:
    """What the gateway finds, and the seconds that the worker spent more than without the change."""
    questions = [
        f"And what about order {number}? " + "It has not come yet. " * (number % 7) for number in range(BEFORE + AFTER)
    ]
    systems = [story.before if number < BEFORE else story.after(number) for number in range(BEFORE + AFTER)]
    drifting, steady = Worker(at_once, output_tokens), Worker(at_once, output_tokens)
    steady.serve([story.before + question for question in questions])
    court, clock, beginnings = Court(), Clock(), Beginnings()
    watch = DriftWatch(court.judge.prefill_of, clock.steady)
    watch.adopt(court.topology, court.cells)
    served = drifting.serve([system + question for system, question in zip(systems, questions, strict=True)])
    for at, (number, tokens, cached) in enumerate(served):
        clock.now = float(at)
        raw = json.dumps(
            [{"role": "system", "content": systems[number]}, {"role": "user", "content": questions[number]}],
            ensure_ascii=story.is_escaped and number >= BEFORE,
        )
        beginning = beginnings.find(raw.encode(), b"", clock.now, is_salted=False)
        watch.take([a_stream(tokens, cached=cached, ended_unix_seconds=clock.now, beginning=beginning)])
    return watch.view(), drifting.busy_seconds - steady.busy_seconds


@pytest.mark.parametrize(("at_once", "output_tokens"), [(1, 1), (16, 64)], ids=["one at a time", "16 at once"])
@pytest.mark.parametrize("name", COSTLY)
def test_what_a_drift_costs_is_what_the_engine_spent(name: str, at_once: int, output_tokens: int) -> None:
    """Within a fifth: of prompts that miss once, that miss each time, and of prompts whose JSON is escaped besides."""
    (drift,), spent = told_and_true(COSTLY[name], at_once, output_tokens)

    assert drift.requests == AFTER
    assert spent > 0
    assert drift.missed_seconds == pytest.approx(spent, rel=0.2)


@pytest.mark.parametrize("at_once", [1, 16])
def test_a_blank_at_the_end_costs_next_to_nothing(at_once: int) -> None:
    """Nothing in front of it is lost: the change is told, and no tokens and no seconds with it."""
    (drift,), spent = told_and_true(Story(ENGLISH, lambda _: ENGLISH + " "), at_once, 64)

    assert (drift.missed_tokens, drift.missed_seconds) == (0, 0.0)
    assert spent < 0.005
