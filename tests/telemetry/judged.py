"""Records and yardsticks for tests about limits: Llama 3.1 8B on an H100, and requests that take what is expected of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from roofline.expected import DEFAULT_LOSSES
from roofline.gpu_given import resolve_gpu
from roofline.limits import Surroundings, decode_limit, prefill_limit
from roofline.written import Written, deployment_of
from simulator.model_files import load_model
from telemetry.judgement import Yardstick
from telemetry.record import Outcome, RequestRecord

YARDSTICK = Yardstick(
    deployment=deployment_of(load_model("llama-3.1-8b", Path()), resolve_gpu("h100-sxm"), Written()),
    losses=DEFAULT_LOSSES["vllm"],
)


def ttft(prompt: int, cached: int = 0, running: float = 0.0, context: int = 0) -> float:
    """Expected seconds."""
    around = Surroundings(running=running, context_tokens=context, chunk_tokens=YARDSTICK.chunk_tokens)
    limit = prefill_limit(YARDSTICK.deployment, YARDSTICK.losses, prompt_tokens=prompt, cached_tokens=cached, around=around)
    return limit.expected_seconds


def tpot(prompt: int, completion: int, running: float = 0.0, context: int = 0) -> float:
    """Expected seconds."""
    around = Surroundings(running=running, context_tokens=context, chunk_tokens=YARDSTICK.chunk_tokens)
    limit = decode_limit(
        YARDSTICK.deployment, YARDSTICK.losses, context_tokens=prompt, completion_tokens=completion, around=around
    )
    return limit.expected_seconds


def a_stream(prompt: int = 2000, completion: int = 101, cached: int | None = 0, **other: Any) -> RequestRecord:
    """A stream alone at its worker that took what is expected, but for what is given."""
    first = ttft(prompt, cached or 0)
    record = RequestRecord(
        request_id="r",
        ended_unix_seconds=1.0,
        model="llama-3.1-8b",
        pool="short",
        worker="w-0",
        endpoint="chat",
        stream=True,
        status=200,
        outcome=Outcome.OK,
        ttft_seconds=first,
        upstream_ttft_seconds=first,
        tpot_seconds=tpot(prompt, completion),
        queue_seconds=0.0,
        connect_seconds=0.0,
        overhead_seconds=0.0001,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        ahead_tokens=0,
        beside_prefill_requests=0.0,
        beside_prefill_prompt_tokens=0.0,
        beside_decode_requests=0.0,
        beside_decode_prompt_tokens=0.0,
        arrived_tokens=0,
    )
    return msgspec.structs.replace(record, **other)


def later(record: RequestRecord, seconds: float) -> RequestRecord:
    """The same with a TTFT that is so much later, by the worker's doing."""
    assert record.ttft_seconds is not None
    assert record.upstream_ttft_seconds is not None
    return msgspec.structs.replace(
        record,
        ttft_seconds=record.ttft_seconds + seconds,
        upstream_ttft_seconds=record.upstream_ttft_seconds + seconds,
    )
