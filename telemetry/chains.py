"""Call chains: requests that belong together, as those of an agent or of one retrieval do, and how their context grows.

A request says which chain it belongs to by a header or by its trace; here its calls are numbered and summed. The table is
bounded: the chain that has been idle longest goes first, so that clients that invent ids can only make it forget.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from telemetry.record import RequestRecord

MOST_CHAINS = 4096
IDLE_SECONDS = 1800.0  # after the last call; a later one begins the chain anew
KEPT_CALLS = 32  # of each chain
SHOWN_CHAINS = 100


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a chain. Tokens and seconds as in the record, None where unknown."""

    number: int  # from 1
    request_id: str
    ended_unix_seconds: float
    outcome: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    prefill_seconds: float | None
    decode_seconds: float | None
    e2e_seconds: float | None


@dataclass(slots=True)
class Chain:
    """The calls of one chain so far. Sums are over the calls that have the figure."""

    chain_id: str
    began_at: float
    ended_at: float  # of the call that ended last
    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    e2e_seconds: float = 0.0
    failed_calls: int = 0
    first_prompt_tokens: int | None = None
    last_prompt_tokens: int | None = None
    largest_prompt_tokens: int | None = None
    newest: deque[Call] = field(default_factory=lambda: deque(maxlen=KEPT_CALLS))
    prompts: int = 0  # calls whose prompt tokens are known

    @property
    def growth_tokens_per_call(self) -> float | None:
        """By how much the prompt grew from one call to the next, on average; None before there are two that tell."""
        if self.first_prompt_tokens is None or self.last_prompt_tokens is None or self.prompts < 2:
            return None
        return (self.last_prompt_tokens - self.first_prompt_tokens) / (self.prompts - 1)

    def add(self, record: RequestRecord, at: float) -> Call:
        """Count one more call, which ended ``at``."""
        self.calls += 1
        call = Call(
            number=self.calls,
            request_id=record.request_id,
            ended_unix_seconds=record.ended_unix_seconds,
            outcome=record.outcome.value,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            completion_tokens=record.completion_tokens,
            prefill_seconds=prefill_seconds(record),
            decode_seconds=decode_seconds(record),
            e2e_seconds=record.e2e_seconds,
        )
        self.newest.append(call)
        self.ended_at = max(self.ended_at, at)
        self.failed_calls += call.outcome != "ok"
        self.cached_tokens += call.cached_tokens or 0
        self.completion_tokens += call.completion_tokens or 0
        self.prefill_seconds += call.prefill_seconds or 0.0
        self.decode_seconds += call.decode_seconds or 0.0
        self.e2e_seconds += call.e2e_seconds or 0.0
        prompt = call.prompt_tokens
        if prompt is not None:
            self.prompts += 1
            self.prompt_tokens += prompt
            self.last_prompt_tokens = prompt
            self.largest_prompt_tokens = max(prompt, self.largest_prompt_tokens or 0)
            if self.first_prompt_tokens is None:
                self.first_prompt_tokens = prompt
        return call


def prefill_seconds(record: RequestRecord) -> float | None:
    """Sent to a worker to the first token of a stream, of both legs where a stage computed the prompt; None without one."""
    if record.upstream_ttft_seconds is None or not record.is_prefilled_elsewhere:
        return record.upstream_ttft_seconds
    return record.upstream_ttft_seconds + (record.prefill_leg_seconds or 0.0)


def decode_seconds(record: RequestRecord) -> float | None:
    """First to last token of a stream: what TPOT is the mean of; None where that is not known."""
    if record.tpot_seconds is None or record.completion_tokens is None:
        return None
    return record.tpot_seconds * (record.completion_tokens - 1)


class ChainTable:
    """The chains of one gateway. Instants are seconds of a clock that nobody sets."""

    def __init__(self, *, most_chains: int = MOST_CHAINS, idle_seconds: float = IDLE_SECONDS) -> None:
        self._most = most_chains
        self._idle_seconds = idle_seconds
        self._chains: dict[str, Chain] = {}  # the one that had a call last is at the end

    def __repr__(self) -> str:
        return f"<ChainTable {len(self)} of {self._most} chains>"

    def __len__(self) -> int:
        return len(self._chains)

    def follow(self, record: RequestRecord, at: float) -> RequestRecord:
        """Count a record in its chain ``at`` its end, and give it back with the number of its call; unchanged without one."""
        if record.chain_id is None:
            return record
        chain = self._chains.pop(record.chain_id, None)
        if chain is None or at - chain.ended_at > self._idle_seconds:
            chain = Chain(record.chain_id, at - (record.e2e_seconds or 0.0), at)
        self._chains[record.chain_id] = chain
        if len(self._chains) > self._most:
            del self._chains[next(iter(self._chains))]
        return msgspec.structs.replace(record, chain_call=chain.add(record, at).number)

    def view(self, now: float, most: int = SHOWN_CHAINS) -> dict[str, Any]:
        """The chains of at least two calls that are not idle, the newest first, at most so many, and how many there are."""
        alive = [chain for chain in self._chains.values() if now - chain.ended_at <= self._idle_seconds]
        several = [chain for chain in alive if chain.calls > 1]
        return {
            "chains": len(alive),
            "chains_of_several_calls": len(several),
            "newest": [_shown(chain) for chain in several[-most:][::-1]],
        }


def _shown(chain: Chain) -> dict[str, Any]:
    return {
        "chain_id": chain.chain_id,
        "calls": chain.calls,
        "failed_calls": chain.failed_calls,
        "seconds": chain.ended_at - chain.began_at,
        "ended_unix_seconds": chain.newest[-1].ended_unix_seconds,
        "prompt_tokens": chain.prompt_tokens,
        "cached_tokens": chain.cached_tokens,
        "completion_tokens": chain.completion_tokens,
        "prefill_seconds": chain.prefill_seconds,
        "decode_seconds": chain.decode_seconds,
        "e2e_seconds": chain.e2e_seconds,
        "first_prompt_tokens": chain.first_prompt_tokens,
        "last_prompt_tokens": chain.last_prompt_tokens,
        "largest_prompt_tokens": chain.largest_prompt_tokens,
        "growth_tokens_per_call": chain.growth_tokens_per_call,
        "newest_calls": list(chain.newest),
    }
