"""What control says of how much each worker should be given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.config.settings import Config, parse_config
from proxy.config.wiring import build_topology
from proxy.control.capping import CapAdviser
from proxy.control.fleet import Fleet
from roofline.capacity.admission import FILL_RATIO, cap_requests
from roofline.expected import DEFAULT_LOSSES
from roofline.gpu_given import resolve_gpu
from roofline.written import Written, deployment_of
from routing.guidance import NO_GUIDANCE, Guidance, WorkerGuidance
from simulator.model_files import load_model
from telemetry.record import Outcome, RequestRecord

MODEL = "llama-3.1-8b"


def a_config(admission: str = "{}", gpu: str = "h100-sxm", model: str = MODEL) -> Config:
    pool = f"{{name: default, gpu: {gpu}, admission: {admission}, workers: [http://w-0:1, http://w-1:1]}}"
    return parse_config(f"models: [{{name: {model}, pools: [{pool}]}}]", {}, "test")


def a_fleet(config: Config, **kv_tokens: float) -> Fleet:
    """Workers that have said the sizes of their caches, by name with ``_`` for the rest of it."""
    told = {name.replace("_", "-") + ":1": tokens for name, tokens in kv_tokens.items()}
    return cast("Fleet", SimpleNamespace(topology=build_topology(config), kv_tokens=lambda: told))


def records(count: int, prompt: int = 900, completion: int = 200, budget: int = 2000, **fields: Any) -> list[RequestRecord]:
    common = {"request_id": "1", "ended_unix_seconds": 0.0, "model": MODEL, "pool": "default", "worker": "w-0:1"}
    return [
        RequestRecord(
            **(common | {"outcome": Outcome.OK} | fields),
            prompt_tokens=prompt,
            completion_tokens=completion,
            load_tokens=budget,
        )
    ] * count


def advice(config: Config, taken: list[RequestRecord], **kv_tokens: float) -> Guidance:
    adviser = CapAdviser(lambda: config, Path())
    adviser.take(taken)
    return adviser.advise(NO_GUIDANCE, a_fleet(config, **kv_tokens))


def test_nothing_is_said_before_there_were_requests():
    """A gateway that has just started caps nobody."""
    assert advice(a_config(), records(19), w_0=100_000.0) == NO_GUIDANCE


def test_a_worker_that_says_its_cache_is_capped_by_it():
    """By the tokens that fill it, with budgets that are twice the contexts, in steps of 5 %."""
    found = advice(a_config(), records(50), w_0=100_000.0)

    assert found.workers["w-0:1"].max_tokens == pytest.approx(100_000 * FILL_RATIO * 2.0, rel=0.05)
    assert (found.workers["w-0:1"].max_tokens or 0) <= 100_000 * FILL_RATIO * 2.0


def test_one_that_does_not_is_capped_by_what_its_gpu_has_room_for():
    """80 GB with 16 GB of weights hold some 450,000 tokens of this model."""
    found = advice(a_config(), records(50, budget=1000))

    assert found.workers["w-1:1"].max_tokens == pytest.approx(451_232 * FILL_RATIO, rel=0.05)


def test_requests_follow_the_mean_context():
    """Contexts are prompts and half of the completions; longer ones give fewer requests."""
    deployment = deployment_of(load_model(MODEL, Path()), resolve_gpu("h100-sxm"), Written())
    short, long = advice(a_config(), records(50)), advice(a_config(), records(50, prompt=16_000))

    most = cap_requests(deployment, DEFAULT_LOSSES["vllm"], 1000)
    assert most * 0.94 <= (short.workers["w-0:1"].max_requests or 0) <= most
    assert (long.workers["w-0:1"].max_requests or 0) < most / 5


def test_without_a_gpu_the_cache_alone_is_a_cap():
    """What is not known is not invented."""
    config = parse_config(f"models: [{{name: {MODEL}, workers: [http://w-0:1, http://w-1:1]}}]", {}, "test")

    found = advice(config, records(50), w_0=100_000.0)

    assert set(found.workers) == {"w-0:1"}
    assert found.workers["w-0:1"].max_requests is None


def test_a_model_that_is_not_known_has_no_computed_caps():
    """Its workers are capped by the caches they tell of, or not at all."""
    config = a_config(model="my-own")

    assert advice(config, records(50, model="my-own")) == NO_GUIDANCE
    assert set(advice(config, records(50, model="my-own"), w_1=5000.0).workers) == {"w-1:1"}


def test_a_pool_that_wants_none_gets_none():
    """With derive: false nothing is said of it."""
    assert advice(a_config("{derive: false}"), records(50), w_0=100_000.0) == NO_GUIDANCE


def test_what_others_said_stays():
    """Advice is added to what there is, also of the same worker."""
    config = a_config()
    adviser = CapAdviser(lambda: config, Path())
    adviser.take(records(50))
    before = Guidance(workers={"other": WorkerGuidance(max_requests=1.0), "w-0:1": WorkerGuidance()})

    found = adviser.advise(before, a_fleet(config))

    assert set(found.workers) == {"other", "w-0:1", "w-1:1"}
    assert found.workers["other"].max_requests == 1.0


def test_steady_traffic_changes_no_cap():
    """Small changes of the mean stay within a step, as a rule, so that little is published."""
    config = a_config()
    adviser = CapAdviser(lambda: config, Path())
    adviser.take(records(200))
    seen = set()
    for number in range(200):
        adviser.take(records(1, prompt=890 + number % 20, budget=1990 + number % 20))
        found = adviser.advise(NO_GUIDANCE, a_fleet(config, w_0=100_000.0))
        seen.add((found.workers["w-0:1"].max_requests, found.workers["w-0:1"].max_tokens))

    assert len(seen) <= 4


def test_a_reload_is_followed():
    """Another GPU in the file gives other caps; a pool that is gone is forgotten."""
    configs = [a_config()]
    adviser = CapAdviser(lambda: configs[-1], Path())
    adviser.take(records(50))
    before = adviser.advise(NO_GUIDANCE, a_fleet(configs[-1]))

    configs.append(a_config(gpu="rtx-4090"))
    after = adviser.advise(NO_GUIDANCE, a_fleet(configs[-1]))
    configs.append(a_config(model="gone"))

    assert (after.workers["w-0:1"].max_tokens or 0) < (before.workers["w-0:1"].max_tokens or 0) / 5
    assert adviser.advise(NO_GUIDANCE, a_fleet(configs[-1])) == NO_GUIDANCE
    assert "default" not in repr(adviser)


def test_requests_that_tell_nothing_are_left_out():
    """Without usage, or without a worker, a record says nothing about contexts."""
    unknown = [RequestRecord(request_id="1", ended_unix_seconds=0.0, model=MODEL, pool="default", worker="w-0:1")] * 50

    assert advice(a_config(), unknown, w_0=100_000.0) == NO_GUIDANCE
