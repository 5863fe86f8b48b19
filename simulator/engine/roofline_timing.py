"""Step times of a simulated GPU from `roofline`: the expected time of each step, by constants of the simulation's own.

The constants belong to the *simulated* GPU. A gateway before it believes what its configuration and its calibration say; that
the two can differ is the point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import pow as power
from typing import NamedTuple

from roofline.capacity.memory import DEFAULT_SETTINGS, MemorySettings, memory_budget
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES, Losses
from roofline.terms import AttentionTerm
from roofline.work import Span, attended
from simulator.engine.timing import DecodeSeconds, Part, StepWork, Window

_SURELY_LESS = 1.0 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much longer than `Losses` say the parts of a step take; 1 as long, 2 twice as long. All above 0."""

    compute_factor: float = 1.0  # as by a lower clock
    memory_factor: float = 1.0  # as by slower memory
    overhead_factor: float = 1.0  # per layer: as by a slow host
    exchange_factor: float = 1.0  # between GPUs: as by a link that fell back

    def __post_init__(self) -> None:
        factors = (self.compute_factor, self.memory_factor, self.overhead_factor, self.exchange_factor)
        if not all(factor > 0 for factor in factors):
            raise ValueError(f"factors must be above 0, got {self}")


def kv_cache_tokens(deployment: Deployment, memory: MemorySettings = DEFAULT_SETTINGS) -> int:
    """Tokens that the KV cache of one data-parallel rank holds, as `roofline.capacity.memory` estimates it.

    ``ValueError`` if the weights leave no room for it.
    """
    budget = memory_budget(deployment, memory)
    if not budget.fits:
        held = f"{deployment.shape.name} in {deployment.weights.name} on {deployment.parallelism.gpus} x {deployment.gpu.id}"
        missing = f"{budget.missing_bytes / 2**30:.1f} GiB of memory a GPU are missing"
        raise ValueError(f"{held} leaves no room for a KV cache: {missing}; give more GPUs, or narrower weights")
    return budget.tokens() // deployment.parallelism.data


class _Attention(NamedTuple):
    """One attention term with what is needed of it for every part."""

    term: AttentionTerm
    is_plain: bool  # reaches everything, and there is one way to compute it
    held: float  # copies of the cache that GPUs read
    flop_per_pair: float
    flop_per_second: float  # one GPU
    bytes_per_token: float

    def attended(self, part: Part) -> tuple[float, float]:
        """Seconds of one GPU at its peak, and bytes, all copies."""
        past, new, logits = part
        if self.is_plain:  # what most layers of most models do, written out
            flop = new * (past + 0.5 * (new + 1)) * self.flop_per_pair
            return flop / self.flop_per_second, (past + new) * self.bytes_per_token * self.held
        flop, moved = attended(self.term, Span(past, new, logits=logits))
        return flop / self.flop_per_second, moved * self.held


@dataclass(frozen=True, slots=True)
class _DecodeRates:
    """Seconds for decoding sequences, linear in what is summed over them."""

    sequence_seconds: float
    context_seconds_per_token: float
    window_seconds_per_token: tuple[float, ...]


class RooflineTimer:
    """Times the steps of one engine; equal to `roofline.expected.expected` of the same spans, but for the factors.

    Timing a step costs the same for many decoding sequences as for one, since everything about them is linear in sums. Ranks of
    an engine are timed one by one: give the deployment of one rank (``data=1``). That ranks with shared experts wait for each
    other is the engine's part (`Engine.schedule_together`).
    """

    def __init__(
        self,
        deployment: Deployment,
        losses: Losses = DEFAULT_LOSSES["vllm"],
        scale: Scale | None = None,
        *,
        stream_overhead_seconds: float = 0.0,
    ) -> None:
        if deployment.parallelism.data > 1:
            raise ValueError(
                f"each data-parallel rank has an engine of its own: give a deployment of one rank, not {deployment!r}"
            )
        scale = scale or Scale()
        rates = deployment.rates
        self.deployment = deployment
        self.losses = losses
        self.scale = scale
        self.stream_overhead_seconds = stream_overhead_seconds * scale.overhead_factor
        self._rates = rates
        self._compute = scale.compute_factor / (losses.compute_efficiency_ratio * rates.gpus)  # per second of one GPU
        self._memory = scale.memory_factor / (losses.memory_efficiency_ratio * rates.bytes_per_second)  # seconds per byte
        per_layer = losses.layer_overhead_seconds
        self._exchange = 0.0  # seconds per token
        if rates.exchanges:
            per_layer += losses.parallel_layer_overhead_seconds
            self._exchange = deployment.exchange_seconds_per_token * scale.exchange_factor
        self._overhead_seconds = rates.layers * per_layer * scale.overhead_factor
        self._attention = tuple(_attention(rate.term, rate.copies) for rate in rates.attention)
        self.windows = tuple(dict.fromkeys(window for each in self._attention if (window := _window(each.term)) is not None))
        self._decode_compute, self._decode_memory = self._decode_rates()

    def __repr__(self) -> str:
        return f"<RooflineTimer of {self.deployment!r}, {self.scale}>"

    @property
    def request_overhead_seconds(self) -> float:
        """Once a request, outside of steps: between its arrival and the engine's queue."""
        return self.losses.request_overhead_seconds * self.scale.overhead_factor

    def seconds(self, work: StepWork) -> float:
        """Compute or memory, whichever is slower, then overheads, then what GPUs exchange."""
        rates, parts, decoding = self._rates, work.parts, work.decoding
        tokens = logits = 0  # of the parts
        attention_seconds = 0.0
        moved = rates.step_bytes + 2.0 * len(parts) * rates.state_bytes
        if len(self._attention) == 1 and self._attention[0].is_plain:  # the same, written out for most models
            _, _, held, flop_per_pair, flop_per_second, bytes_per_token = self._attention[0]
            for past, new, wanted in parts:
                tokens += new
                logits += wanted
                attention_seconds += new * (past + 0.5 * (new + 1)) * flop_per_pair / flop_per_second
                moved += (past + new) * bytes_per_token * held
        else:
            for part in parts:
                tokens += part.new
                logits += part.logits
                for attention in self._attention:
                    seconds, cached = attention.attended(part)
                    attention_seconds += seconds
                    moved += cached
        if logits or decoding:
            moved += rates.head_bytes
        for experts in rates.experts:
            moved += experts.bytes * (1.0 - power(experts.idle_ratio, tokens + decoding))
        compute = tokens * rates.token_seconds + logits * rates.logit_seconds + attention_seconds
        compute, memory = compute * self._compute, moved * self._memory
        if decoding:
            by_compute, by_memory, context = self._decode_compute, self._decode_memory, work.context_tokens
            compute += decoding * by_compute.sequence_seconds  # one after another, in the same order as in `decoding`
            memory += decoding * by_memory.sequence_seconds
            compute += context * by_compute.context_seconds_per_token
            memory += context * by_memory.context_seconds_per_token
            for place, read in enumerate(work.windowed_tokens):
                compute += read * by_compute.window_seconds_per_token[place]
                memory += read * by_memory.window_seconds_per_token[place]
        return max(compute, memory) + self._overhead_seconds + (tokens + decoding) * self._exchange

    def decoding(self, count: int) -> DecodeSeconds:
        """The same for decode steps; everything that does not depend on the contexts is added up once."""
        rates, by_compute, by_memory = self._rates, self._decode_compute, self._decode_memory
        moved = rates.step_bytes + rates.head_bytes
        for experts in rates.experts:
            moved += experts.bytes * (1.0 - power(experts.idle_ratio, count))
        compute_base = count * by_compute.sequence_seconds
        memory_base = moved * self._memory + count * by_memory.sequence_seconds
        compute_each, memory_each = by_compute.context_seconds_per_token, by_memory.context_seconds_per_token
        compute_windows, memory_windows = by_compute.window_seconds_per_token, by_memory.window_seconds_per_token
        overhead, exchange = self._overhead_seconds, count * self._exchange

        def plain(contexts: range, _: Iterable[tuple[int, ...]]) -> list[float]:
            ends = (contexts[0], contexts[-1])
            # Both grow by a straight line: what is larger at both ends, by more than rounding, is larger in between.
            if all(compute_base + at * compute_each < _SURELY_LESS * (memory_base + at * memory_each) for at in ends):
                return [(memory_base + context * memory_each) + overhead + exchange for context in contexts]
            return [
                max(compute_base + context * compute_each, memory_base + context * memory_each) + overhead + exchange
                for context in contexts
            ]

        def windowed(contexts: range, windows: Iterable[tuple[int, ...]]) -> list[float]:
            found = []
            for context, reads in zip(contexts, windows, strict=True):
                compute, memory = compute_base + context * compute_each, memory_base + context * memory_each
                for place, read in enumerate(reads):
                    compute += read * compute_windows[place]
                    memory += read * memory_windows[place]
                found.append(max(compute, memory) + overhead + exchange)
            return found

        return windowed if self.windows else plain

    def _decode_rates(self) -> tuple[_DecodeRates, _DecodeRates]:
        """What a decoding sequence, each token before it, and each such token within a window add to compute and memory."""
        rates = self._rates
        sequence_seconds, sequence_bytes = rates.token_seconds + rates.logit_seconds, 2.0 * rates.state_bytes
        context_seconds = context_bytes = 0.0
        window_seconds, window_bytes = [0.0] * len(self.windows), [0.0] * len(self.windows)
        for term, _, held, *_ in self._attention:
            # Behind one token or more the latent itself is cheaper to attend to than expanding it.
            pair = (term.absorbed_flop_per_pair or term.flop_per_pair) / term.flop_per_second
            sequence_seconds += pair
            sequence_bytes += term.bytes_per_token * held
            window = _window(term)
            if window is None:
                context_seconds += pair
                context_bytes += term.bytes_per_token * held
            else:
                place = self.windows.index(window)
                window_seconds[place] += pair
                window_bytes[place] += term.bytes_per_token * held
        compute, memory = self._compute, self._memory
        return (
            _DecodeRates(
                sequence_seconds * compute, context_seconds * compute, tuple(each * compute for each in window_seconds)
            ),
            _DecodeRates(sequence_bytes * memory, context_bytes * memory, tuple(each * memory for each in window_bytes)),
        )


def _attention(term: AttentionTerm, copies: float) -> _Attention:
    is_plain = term.reach.tokens is None and term.absorbed_flop_per_pair is None
    return _Attention(term, is_plain, 1.0 + copies, term.flop_per_pair, term.flop_per_second, term.bytes_per_token)


def _window(term: AttentionTerm) -> Window | None:
    return None if term.reach.tokens is None else Window(term.reach.tokens, term.reach.is_chunked)
