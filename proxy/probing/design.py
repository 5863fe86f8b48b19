"""Which requests a probe sends: three experiments as bursts of equal requests, and what of them does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Experiment(StrEnum):
    """What is varied."""

    OUTPUT = "output"  # the output at one prompt: whole time is a line
    PROMPT = "prompt"  # the prompt at one output: TTFT is a curve
    CONCURRENCY = "concurrency"  # requests at once, for a few prompts: throughput has a knee
    STEADY = "steady"  # requests kept under way: what users get


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Requests that are sent at the same instant. First with prompts that nobody has seen, then the same ones again.

    Those of a steady load are streams instead, each of which sends ``in_turn`` requests one after the other, all of them new.
    """

    experiment: Experiment
    prompt_tokens: int  # aimed at
    output_tokens: int
    requests: int = 1
    in_turn: int = 1
    repeat: int = 0

    @property
    def total(self) -> int:
        """Requests, sent once."""
        return self.requests * self.in_turn

    @property
    def is_sent_again(self) -> bool:
        """Whether the same prompts follow, to be found in the cache."""
        return self.experiment is not Experiment.STEADY

    @property
    def title(self) -> str:
        """In a few words."""
        at_once = "" if self.requests == 1 else f"{self.requests} at once, "
        if self.experiment is Experiment.STEADY:
            at_once = f"{self.requests} kept under way, "
        return f"{at_once}{self.prompt_tokens:,} + {self.output_tokens:,} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Lengths and numbers of all experiments. An empty tuple leaves an experiment out."""

    outputs: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    output_prompt_tokens: int = 512
    prompts: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 6144, 8192)
    prompt_output_tokens: int = 64
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (2048, 8192)
    concurrency_output_tokens: int = 128
    steady_requests: int = 0  # that each stream of a steady load sends; 0 leaves it out
    repeats: int = 3  # of the first two
    is_warm_too: bool = True

    def bursts(self) -> Iterator[Burst]:
        """In the order in which they are sent: all lengths before any of them again, so that a drift of the worker spreads."""
        for repeat in range(self.repeats):
            for output in self.outputs:
                yield Burst(
                    experiment=Experiment.OUTPUT,
                    prompt_tokens=self.output_prompt_tokens,
                    output_tokens=output,
                    repeat=repeat,
                )
        for repeat in range(self.repeats):
            for prompt in self.prompts:
                yield Burst(
                    experiment=Experiment.PROMPT, prompt_tokens=prompt, output_tokens=self.prompt_output_tokens, repeat=repeat
                )
        for context in self.contexts:
            for requests in self.concurrencies:
                yield Burst(
                    experiment=Experiment.CONCURRENCY,
                    prompt_tokens=context,
                    output_tokens=self.concurrency_output_tokens,
                    requests=requests,
                )
        for context in self.contexts if self.steady_requests else ():
            for requests in self.concurrencies:
                yield Burst(
                    experiment=Experiment.STEADY,
                    prompt_tokens=context,
                    output_tokens=self.concurrency_output_tokens,
                    requests=requests,
                    in_turn=self.steady_requests,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """What of a design can be sent, and why the rest cannot."""

    bursts: tuple[Burst, ...]
    left_out: tuple[str, ...]


def fitting(design: Design, *, most_tokens: int | None, most_at_once: int) -> Fitting:
    """Leave out what the model's context (``None``: not known) or the allowed number of requests at once forbids."""
    kept: list[Burst] = []
    left_out: dict[str, None] = {}
    for burst in design.bursts():
        if most_tokens is not None and burst.prompt_tokens + burst.output_tokens > most_tokens:
            left_out[f"{burst.title}: more than the {most_tokens:,} that the model takes"] = None
        elif burst.requests > most_at_once:
            left_out[f"{burst.title}: at most {most_at_once} are allowed (--max-concurrency)"] = None
        else:
            kept.append(burst)
    return Fitting(bursts=tuple(kept), left_out=tuple(left_out))


def requests_of(bursts: Sequence[Burst], *, is_warm_too: bool) -> int:
    """Requests that these are."""
    return sum(burst.total * (2 if is_warm_too and burst.is_sent_again else 1) for burst in bursts)
