"""Floor and expectation beside each curve of a probe, where GPU and model are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roofline.capacity.memory import MemorySettings
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES, Losses
from roofline.gpu_given import resolve_gpu
from roofline.limits import Limit, Surroundings, decode_limit, prefill_limit
from roofline.written import Written, deployment_of
from simulator.model_files import load_model


@dataclass(frozen=True, slots=True)
class Pair:
    """Least and expected seconds."""

    floor_seconds: float
    expected_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the worker is held against."""

    deployment: Deployment
    losses: Losses
    chunk_tokens: int

    def ttft(self, prompt_tokens: int, cached_tokens: int = 0) -> Pair:
        """Of a request alone."""
        around = Surroundings(chunk_tokens=self.chunk_tokens)
        cached = min(cached_tokens, prompt_tokens)
        return _pair(
            prefill_limit(self.deployment, self.losses, prompt_tokens=prompt_tokens, cached_tokens=cached, around=around)
        )

    def tpot(self, prompt_tokens: int, output_tokens: int, requests: float = 1) -> Pair:
        """Of so many alike at once, all of them decoding. The floor is that of one: more can only be slower."""
        context = prompt_tokens + output_tokens // 2
        around = Surroundings(running=requests - 1, context_tokens=context, chunk_tokens=self.chunk_tokens)
        return _pair(
            decode_limit(
                self.deployment,
                self.losses,
                context_tokens=prompt_tokens,
                completion_tokens=max(2, output_tokens),
                around=around,
            )
        )

    def whole(self, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> Pair:
        """Of a request alone, to its last token."""
        first = self.ttft(prompt_tokens, cached_tokens)
        if output_tokens < 2:
            return first
        each = self.tpot(prompt_tokens, output_tokens)
        return Pair(
            first.floor_seconds + (output_tokens - 1) * each.floor_seconds,
            first.expected_seconds + (output_tokens - 1) * each.expected_seconds,
        )


def expectation_of(
    gpu: str,
    shape: str,
    *,
    gpus: int | None = None,
    tensor: int | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    chunk_tokens: int | None = None,
) -> Expectation:
    """``ValueError`` or ``OSError`` says what is not known or cannot be."""
    written = Written(weight_dtype=weight_dtype, kv_dtype=kv_dtype, gpus=gpus, tensor=tensor)
    deployment = deployment_of(load_model(shape, Path()), resolve_gpu(gpu), written)
    limits = MemorySettings(max_batched_tokens=chunk_tokens).limits(deployment.gpu)
    return Expectation(deployment=deployment, losses=DEFAULT_LOSSES["vllm"], chunk_tokens=limits.batched_tokens)


def _pair(limit: Limit) -> Pair:
    return Pair(limit.floor_seconds, limit.expected_seconds)
