"""The values an engine takes and gives: its settings, a request, a step, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from simulator.engine.prefix import BLOCK_TOKENS, Prompt
from simulator.engine.timing import Noise, StepTimer


class QueuePolicy(StrEnum):
    """Who of the waiting is admitted first, and who of the running is preempted first."""

    FCFS = "fcfs"  # whoever came first; the last admitted is preempted
    PRIORITY = "priority"  # the lowest number, then whoever came first; the highest number, then the last to come, is preempted


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: each step of a decoding sequence verifies ``drafts`` proposed tokens."""

    drafts: int  # at least 1
    acceptance_ratio: float  # 0-1: chance that a draft is accepted after all before it were

    def __post_init__(self) -> None:
        if self.drafts < 1 or not 0 <= self.acceptance_ratio <= 1:
            raise ValueError(f"drafts are at least 1 and the acceptance lies in 0-1, not {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What bounds a step, and what it costs.

    ``ValueError`` for settings that cannot be.
    """

    timer: StepTimer  # how long steps take
    kv_tokens: int  # capacity of the KV cache of one rank, rounded down to whole blocks
    block_tokens: int = BLOCK_TOKENS  # of one KV block; prompts must be cut alike
    max_num_seqs: int = 64  # sequences that run at once on one rank
    step_tokens: int = 2048  # tokens computed in one step, prefill and decode together; at least max_num_seqs
    long_prefill_tokens: int | None = None  # most prompt tokens of one sequence in one step; None: as many as there is room for
    queue_policy: QueuePolicy = QueuePolicy.FCFS
    admits_whole_prompts: bool = True  # a request is admitted only if all of its prompt has room, not just the first chunk
    caches_prefixes: bool = True
    speculation: Speculation | None = None
    ranks: int = 1  # data-parallel engines, each with queues and a KV cache of its own
    steps_together: bool = False  # steps of all ranks begin and end together, as where they share their experts
    noise: Noise = Noise()  # noqa: RUF009 -- immutable
    seed: int = 0  # what noise and acceptance are drawn from

    def __post_init__(self) -> None:
        for name in ("block_tokens", "max_num_seqs", "step_tokens", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.kv_blocks < 1:
            raise ValueError(f"the KV cache must hold at least one block of {self.block_tokens} tokens")
        if self.step_tokens < self.max_num_seqs:
            raise ValueError(f"step_tokens ({self.step_tokens}) must be at least max_num_seqs ({self.max_num_seqs})")
        if self.long_prefill_tokens is not None and self.long_prefill_tokens < 1:
            raise ValueError(f"long_prefill_tokens must be at least 1, got {self.long_prefill_tokens}")

    @property
    def kv_blocks(self) -> int:
        """Capacity of the KV cache of one rank in blocks."""
        return self.kv_tokens // self.block_tokens


@dataclass(slots=True, kw_only=True)
class Controls:
    """What may be changed while an engine runs; all of its ranks share it."""

    slow_factor: float = 1.0  # steps take so many times as long
    is_paused: bool = False  # no step begins
    caches_prefixes: bool = True  # False: nothing is found in the prefix cache, and nothing is remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it was added."""

    identifier: str
    prompt: Prompt
    output_tokens: int  # how many it will generate
    priority: int = 0  # lower is earlier; only with `QueuePolicy.PRIORITY`
    number: int = 0  # order of arrival
    fetched_tokens: int = 0  # of the prompt, whose KV cache another worker hands over


class Step(NamedTuple):  # one for every step of every engine: a dataclass takes three times as long to make
    """What one step computes. Hand it back to `Engine.complete` after ``seconds``."""

    rank: int
    seconds: float
    decode_tokens: int  # computed for sequences that decode; with speculation drafts too
    prefill_tokens: int  # computed of prompts (and again of what a preemption lost)
    context_tokens: int  # tokens whose KV cache existed before, summed over the sequences
    admitted: tuple[str, ...]  # who runs for the first time, so that its wait is over
    preempted: tuple[str, ...]  # who lost its place and its KV cache, and waits again


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One sequence got one token, or with speculation several."""

    identifier: str
    generated_tokens: int  # so far, these included
    new_tokens: int  # at least 1
    cached_tokens: int  # prompt tokens not computed when it was first admitted: found in the prefix cache, or fetched
    created_cache_tokens: int  # prompt tokens the prefix cache learned
    is_finished: bool
    preempted: int = 0  # times it lost its KV cache so far
    fetched_tokens: int = 0  # those of the cached tokens that came from another worker


@dataclass(slots=True, kw_only=True)
class Totals:
    """What an engine has done since it was made; only ever grows."""

    steps: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    fetched_tokens: int = 0  # prompt tokens whose KV cache came from another worker
    prompt_tokens: int = 0  # of finished prefills, cached ones included
    generation_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # computed again because a preemption had lost them
    drafts: int = 0  # steps of sequences that verified drafts
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)  # one for each draft position
