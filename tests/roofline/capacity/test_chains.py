"""Tasks of several calls."""

from __future__ import annotations

import pytest

from roofline.capacity.chains import Call, Turn, chain_on, chain_time, turns
from roofline.expected import DEFAULT_LOSSES
from roofline.limits import Surroundings, decode_limit, prefill_limit
from tests.roofline.workers import a_worker

THREE_CALLS = [
    Call(prompt_tokens=1_000, completion_tokens=200),
    Call(prompt_tokens=1_500, completion_tokens=300),
    Call(prompt_tokens=2_000, completion_tokens=500),
]
SECONDS_PER_TOKEN = 2 * 7e9 / (300e12 * 0.4)  # 7B at 40 percent of 300 TFLOP/s


def test_three_calls_without_cache() -> None:
    """4,500 prompt tokens at 2 x 7B FLOP and 1,000 completion tokens at 20 ms, the first of each call free: 20.465 s."""
    found = chain_time(THREE_CALLS, lambda turn: SECONDS_PER_TOKEN * turn.uncached_tokens, lambda turn: 0.02)

    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (4_500, 1_000, 0)
    assert found.prefill_seconds == pytest.approx(0.525)
    assert found.decode_seconds == pytest.approx(19.94)
    assert found.latency_seconds == pytest.approx(20.465, rel=1e-9)
    assert found.dominant == "decode"
    assert any("fewer calls" in remedy for remedy in found.remedies)


def test_history_is_read_again_by_every_call() -> None:
    """A call with history has all earlier prompts and completions before its own prompt, cached as far as it says."""
    calls = [
        Call(prompt_tokens=1_000, completion_tokens=200, has_history=True, cached_ratio=0.5),
        Call(prompt_tokens=100, completion_tokens=300, has_history=True, cached_ratio=0.5),
        Call(prompt_tokens=50, completion_tokens=10),
        Call(prompt_tokens=10, completion_tokens=20, has_history=True, cached_ratio=1.0),
    ]

    assert turns(calls) == (
        Turn(prompt_tokens=1_000, cached_tokens=500, completion_tokens=200),  # nothing before it: a share of the prompt
        Turn(prompt_tokens=1_300, cached_tokens=600, completion_tokens=300),
        Turn(prompt_tokens=50, cached_tokens=0, completion_tokens=10),
        Turn(prompt_tokens=1_670, cached_tokens=1_660, completion_tokens=20),
    )


def test_long_histories_are_bound_by_prefills() -> None:
    """Agents that read much and say little spend their time on prompts, and the remedies are others."""
    calls = [Call(prompt_tokens=20_000, completion_tokens=20, has_history=True) for _ in range(4)]
    found = chain_time(calls, lambda turn: SECONDS_PER_TOKEN * turn.uncached_tokens, lambda turn: 0.02)

    assert found.dominant == "prefill"
    assert any("prefix cache" in remedy for remedy in found.remedies)


def test_the_last_token_is_always_computed() -> None:
    """A prompt that is found whole in the cache still has its last token computed."""
    assert turns([Call(prompt_tokens=100, completion_tokens=1, cached_ratio=1.0)])[0].uncached_tokens == 1


def test_on_a_worker() -> None:
    """Each turn takes what the limits say of it, with what the worker does besides."""
    deployment, losses = a_worker("Llama-3.1-8B", "h100-sxm"), DEFAULT_LOSSES["vllm"]
    around = Surroundings(running=7.0, context_tokens=2_000)
    first, last = chain_on(deployment, losses, [THREE_CALLS[0], Call(prompt_tokens=100, completion_tokens=1)], around).turns

    assert first.prefill_seconds == prefill_limit(deployment, losses, prompt_tokens=1_000, around=around).expected_seconds
    step = decode_limit(deployment, losses, context_tokens=1_000, completion_tokens=200, around=around).expected_seconds
    assert first.decode_seconds == pytest.approx(199 * step)
    assert last.decode_seconds == 0.0


def test_cached_history_saves_time() -> None:
    """The more of the history is found, the sooner the chain is done."""
    deployment, losses = a_worker("Llama-3.1-8B", "h100-sxm"), DEFAULT_LOSSES["vllm"]
    latencies = [
        chain_on(
            deployment,
            losses,
            [Call(prompt_tokens=4_000, completion_tokens=100, has_history=True, cached_ratio=ratio) for _ in range(4)],
        ).latency_seconds
        for ratio in (0.0, 0.5, 0.9)
    ]

    assert latencies == sorted(latencies, reverse=True)
    assert latencies[0] > latencies[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 1}, "prompt and completion tokens"),
        ({"prompt_tokens": 1, "completion_tokens": 0}, "prompt and completion tokens"),
        ({"prompt_tokens": 1, "completion_tokens": 1, "cached_ratio": 1.1}, "lies in 0-1"),
    ],
)
def test_calls_that_cannot_be_are_refused(call: dict[str, float], message: str) -> None:
    """Neither empty prompts nor shares above one; and a chain has calls."""
    with pytest.raises(ValueError, match=message):
        Call(**call)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="at least one call"):
        turns([])
