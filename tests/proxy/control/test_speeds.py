"""How fast workers are expected to be, for the policy that compares it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.config.settings import Config, parse_config
from proxy.control.fleet import Fleet
from proxy.control.speeds import Speeds
from routing.guidance import NO_GUIDANCE, PoolGuidance, Speed, pool_key
from telemetry.record import Outcome, PrefillResult, RequestRecord

NO_FLEET = cast("Fleet", None)
KEY = pool_key("llama-3.1-8b", "fast")


def a_config(gpu: str | None = "h100-sxm", policy: str = "fastest") -> Config:
    line = "" if gpu is None else f", gpu: {gpu}"
    pool = f"{{name: fast, policy: {policy}, workers: [http://a, http://b]{line}}}"
    return parse_config(f"models: [{{name: llama-3.1-8b, pools: [{pool}]}}]", {}, "test")


def a_record(**fields: Any) -> RequestRecord:
    known = {
        "pool": "fast",
        "ttft_seconds": 1.0,
        "e2e_seconds": 4.0,
        "prompt_tokens": 100,
        "cached_tokens": 50,
    }
    return RequestRecord(
        request_id="r",
        ended_unix_seconds=0.0,
        model="llama-3.1-8b",
        endpoint="chat",
        outcome=Outcome.OK,
        **(known | fields),
    )


def speed_in(speeds: Speeds) -> Speed | None:
    return speeds.advise(NO_GUIDANCE, NO_FLEET).pools[KEY].speed


def test_speeds_come_from_gpu_and_shape():
    """An 8B model on an H100: tens of microseconds for a prompt token, milliseconds for a step; less with faster memory."""
    configs = iter([a_config("h100-sxm"), a_config("h200-sxm")])
    speeds = Speeds(lambda: next(configs), Path())
    speed, faster = speed_in(speeds), speed_in(speeds)

    assert speed is not None
    assert faster is not None
    assert 1e-5 < speed.prefill_token_seconds < 1e-4
    assert 4e-3 < speed.step_seconds < 2e-2
    assert faster.step_seconds < speed.step_seconds
    assert 0 < speed.context_token_seconds < 1e-6


def test_an_unknown_speed_is_told_once(caplog: pytest.LogCaptureFixture):
    """Without a GPU the pool is named in one notice, however often advice is asked for, also after a reload."""
    config = a_config(gpu=None)
    speeds = Speeds(lambda: config, Path())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert speed_in(speeds) is None
        config = a_config(gpu=None)
        assert speed_in(speeds) is None

    assert [record.getMessage() for record in caplog.records] == [
        "pool llama-3.1-8b/fast: policy fastest goes by least load, as its speed is not known: its gpu is not given"
    ]


def test_a_reload_makes_new_speeds():
    """The configuration in force counts; pools of other policies get no speed, and cost nothing."""
    config = a_config(policy="least-load")
    speeds = Speeds(lambda: config, Path())
    assert speeds.advise(NO_GUIDANCE, NO_FLEET) is NO_GUIDANCE
    speeds.take([a_record()])
    config = a_config()
    assert speed_in(speeds) is not None
    assert repr(speeds) == "<Speeds of 1 pools>"


def test_shares_are_learned_from_requests():
    """A quarter of the time before the first token, half of the prompt cached, once there were enough of the pool's own."""
    config = a_config()
    speeds = Speeds(lambda: config, Path())
    speeds.advise(NO_GUIDANCE, NO_FLEET)
    speeds.take([a_record()] * 10)
    default = PoolGuidance()
    before = speeds.advise(NO_GUIDANCE, NO_FLEET).pools[KEY]
    assert (before.prefill_ratio, before.cached_ratio) == (default.prefill_ratio, default.cached_ratio)

    others = [a_record(pool="other", ttft_seconds=4.0), a_record(ttft_seconds=None), a_record(prompt_is_estimate=True)]
    speeds.take([a_record()] * 20 + others)
    after = speeds.advise(NO_GUIDANCE, NO_FLEET).pools[KEY]
    assert (after.prefill_ratio, after.cached_ratio) == (0.25, 0.5)


def test_what_a_stage_computed_is_not_computed_again():
    """Of such requests only what the pool's own workers did counts: nothing of the prompt, and no time at the stage."""
    config = a_config()
    speeds = Speeds(lambda: config, Path())
    speeds.advise(NO_GUIDANCE, NO_FLEET)
    usual = a_record()
    longer = {name: getattr(usual, name) + 2.0 for name in ("ttft_seconds", "e2e_seconds")}
    speeds.take([a_record(prefill_result=PrefillResult.COMPUTED, prefill_leg_seconds=2.0, cached_tokens=0, **longer)] * 40)

    after = speeds.advise(NO_GUIDANCE, NO_FLEET).pools[KEY]
    assert (after.prefill_ratio, after.cached_ratio) == (0.25, 1.0)


def test_what_is_not_said_to_be_cached_is_not():
    """Workers that do not report cached tokens leave the share at 0."""
    config = a_config()
    speeds = Speeds(lambda: config, Path())
    speeds.advise(NO_GUIDANCE, NO_FLEET)
    speeds.take([a_record(cached_tokens=None)] * 40)

    assert speeds.advise(NO_GUIDANCE, NO_FLEET).pools[KEY].cached_ratio == 0.0
