"""An engine with a virtual clock, for tests: every step takes exactly as long as it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator.engine.engine import Engine, EngineSettings, Progress, Step
from simulator.engine.prefix import Prompt, prompt_of_text
from simulator.engine.timing import ConstantTimer

TIMER = ConstantTimer(step_seconds=0.010, prefill_seconds_per_token=0.0001, context_seconds_per_token=0.000001)
GPU: dict[str, Any] = {"timer": TIMER, "kv_tokens": 16_000}


@dataclass
class Run:
    engine: Engine
    now: float = 0.0
    steps: list[Step] = field(default_factory=list)
    tokens_at: dict[str, list[float]] = field(default_factory=dict)  # one instant for each token
    last: dict[str, Progress] = field(default_factory=dict)

    def step(self) -> bool:
        step = self.engine.schedule()
        if step is None:
            return False
        self.now += step.seconds
        self.steps.append(step)
        for progress in self.engine.complete(step):
            self.tokens_at.setdefault(progress.identifier, []).extend([self.now] * progress.new_tokens)
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


def a_run(**settings: object) -> Run:
    return Run(Engine(EngineSettings(**{**GPU, **settings})))  # type: ignore[arg-type]


def a_prompt(tokens: int, text: str = "a") -> Prompt:
    """A prompt of so many tokens, sharing no block with one of another text."""
    return prompt_of_text((text * tokens * 4)[: tokens * 4])
