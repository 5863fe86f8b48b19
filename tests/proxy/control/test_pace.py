"""Control learns how slow workers usually are, and serving processes are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from proxy.control.fleet import Fleet
from proxy.control.pace import PaceAdviser
from routing.guidance import NO_GUIDANCE, Guidance, WorkerGuidance
from routing.pace import NEEDED
from telemetry.record import Outcome, PrefillResult, RequestRecord
from tests.proxy.fleets import a_topology

FLEET = cast("Fleet", SimpleNamespace(topology=a_topology({"default": ["w-0", "w-1"]})))
ELSEWHERE = cast("Fleet", SimpleNamespace(topology=a_topology({"default": ["w-1"]})))


def a_record(**fields: Any) -> RequestRecord:
    usual = {"request_id": "r", "ended_unix_seconds": 1.0, "outcome": Outcome.OK, "stream": True, "worker": "w-0"}
    measured = {"prompt_tokens": 4000, "cached_tokens": 0, "upstream_ttft_seconds": 0.5, "tpot_seconds": 0.01}
    return RequestRecord(**{**usual, **measured, **fields})


def test_the_pace_of_workers_is_added_to_what_others_say() -> None:
    """A worker with enough streams has its rates in the guidance; what others know of workers stays."""
    adviser = PaceAdviser()
    adviser.take([a_record()] * NEEDED)

    found = adviser.advise(Guidance(workers={"w-1": WorkerGuidance()}), FLEET)

    assert found.workers["w-0"] == WorkerGuidance(prefill_tokens_per_second=8000.0, decode_tokens_per_second=100.0)
    assert found.workers["w-1"] == WorkerGuidance()


def test_nothing_is_learned_of_what_went_wrong_or_is_a_guess() -> None:
    """Broken requests, plain ones, those without a worker; and of an estimate only the decode rate."""
    adviser = PaceAdviser()
    wrong = ({"outcome": Outcome.TRUNCATED}, {"stream": False}, {"worker": None})
    adviser.take([a_record(**fields) for fields in wrong] * NEEDED)
    assert adviser.advise(NO_GUIDANCE, FLEET) == NO_GUIDANCE

    adviser.take([a_record(prompt_is_estimate=True)] * NEEDED)

    assert adviser.advise(NO_GUIDANCE, FLEET).workers == {"w-0": WorkerGuidance(decode_tokens_per_second=100.0)}


def test_a_prompt_that_a_stage_computed_says_nothing_of_the_workers_prefill() -> None:
    """It fetched the blocks, and generated."""
    adviser = PaceAdviser()
    adviser.take([a_record(prefill_result=PrefillResult.COMPUTED)] * NEEDED)

    assert adviser.advise(NO_GUIDANCE, FLEET).workers == {"w-0": WorkerGuidance(decode_tokens_per_second=100.0)}


def test_a_worker_that_is_gone_is_forgotten() -> None:
    """Its name may come back with another GPU behind it."""
    adviser = PaceAdviser()
    adviser.take([a_record()] * NEEDED)

    assert adviser.advise(NO_GUIDANCE, ELSEWHERE).workers == {}
    assert adviser.advise(NO_GUIDANCE, FLEET).workers == {}
