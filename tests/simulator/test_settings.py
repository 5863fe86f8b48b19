"""Settings of a simulated worker: what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.dialect import ForcedUsage
from simulator.engine.timing import ConstantTimer
from simulator.settings import WorkerSettings


def settings(**fields: Any) -> WorkerSettings:
    return WorkerSettings(**{"model": "m", "shape": "llama-3.1-8b", "gpu": "h100-sxm", "port": 0, **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"imitate": "1.0"}, "unknown version '1.0'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"data_parallel_size": 0}, "data_parallel_size must be at least 1, got 0"),
        ({"draft_tokens": -1}, "draft_tokens must be at least 0, got -1"),
        ({"shutdown_seconds": -1}, "shutdown_seconds must be at least 0, got -1"),
        ({"max_queued": 0}, "max_queued must be at least 1, got 0"),
        ({"sse_keep_alive_seconds": 0}, "sse_keep_alive_seconds must be above 0, got 0"),
    ],
)
def test_what_cannot_be_is_refused(fields, why):
    """The error names the setting, what it may be, and what was given."""
    with pytest.raises(ValueError, match=why):
        settings(**fields)


def test_the_engine_is_as_it_was_asked_for():
    """Ranks, sequences, blocks and drafts are the engine's."""
    engine = (
        settings(data_parallel_size=2, max_num_seqs=3000, block_tokens=32, draft_tokens=4, draft_acceptance_ratio=0.5)
        .launch()
        .engine
    )

    assert len(engine.ranks) == 2
    assert (engine.settings.max_num_seqs, engine.settings.step_tokens, engine.settings.block_tokens) == (3000, 8192, 32)
    assert engine.settings.speculation is not None
    assert (engine.settings.speculation.drafts, engine.settings.speculation.acceptance_ratio) == (4, 0.5)
    assert settings().launch().engine.settings.speculation is None


@pytest.mark.parametrize(
    ("shape", "ranks", "together"), [("qwen3-30b-a3b", 2, True), ("qwen3-30b-a3b", 1, False), ("llama-3.1-8b", 2, False)]
)
def test_ranks_of_a_mixture_of_experts_step_together(shape: str, ranks: int, together: bool):
    """Only where several ranks share experts."""
    engine = settings(shape=shape, gpu="h200-sxm", data_parallel_size=ranks).launch().engine

    assert engine.settings.steps_together is together


def test_steps_may_be_timed_by_something_else():
    """With a timer and a size of the KV cache model and GPU need not mean anything; a size alone replaces the GPU's."""
    timer = ConstantTimer(step_seconds=1.0, prefill_seconds_per_token=0.0, context_seconds_per_token=0.0)
    timed, longest = settings(gpu="mine", shape=None, timer=timer, kv_tokens=160, step_noise_sigma=0.1).launch()

    assert (timed.settings.timer, timed.settings.kv_blocks, timed.settings.noise.sigma, longest) == (timer, 10, 0.1, 160)
    assert settings(kv_tokens=160, max_model_len=160).launch().engine.settings.kv_blocks == 10


def test_a_context_must_fit_the_cache():
    """One request of the greatest length must be able to run."""
    with pytest.raises(ValueError, match=r"max_model_len 500000 is more than the [0-9]+ tokens of KV cache on h100-sxm"):
        settings(max_model_len=500_000).launch()


def test_requests_are_read_as_the_flags_say():
    """Names, parsers and forced usage are those of the settings; what forcing does depends on the version."""
    served = settings(aliases=("n",), calls_tools=True, force_include_usage=True, imitate="0.11").served(100)

    assert (served.models, served.calls_tools, served.forced_usage) == (("m", "n"), True, ForcedUsage.FINAL)
    assert settings().served(100).forced_usage is None
