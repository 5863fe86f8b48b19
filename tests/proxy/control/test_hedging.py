"""Control learns how long prompts of each length usually wait for their first token, and serving processes are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from proxy.control.fleet import Fleet
from proxy.control.hedging import NEEDED, HedgeAdviser
from routing.guidance import NO_GUIDANCE, Guidance, pool_key
from telemetry.record import HedgeResult, Outcome, RequestRecord
from tests.proxy.fleets import a_topology

POOLS = {"default": ["w-0", "w-1"]}
BY_QUANTILE = cast("Fleet", SimpleNamespace(topology=a_topology(POOLS, hedging={"after_quantile": 0.9})))
BY_SECONDS = cast("Fleet", SimpleNamespace(topology=a_topology(POOLS, hedging={"after_seconds": 1})))


def a_record(seconds: float, tokens: int = 100, **fields: Any) -> RequestRecord:
    usual = {"request_id": "r", "ended_unix_seconds": 1.0, "model": "m", "pool": "default", "outcome": Outcome.OK}
    return RequestRecord(**{**usual, "upstream_ttft_seconds": seconds, "estimated_prompt_tokens": tokens, **fields})


def taught(*records: RequestRecord, fleet: Fleet = BY_QUANTILE) -> Guidance:
    adviser = HedgeAdviser()
    adviser.advise(NO_GUIDANCE, fleet)
    adviser.take(records)
    return adviser.advise(NO_GUIDANCE, fleet)


def seconds_of(guidance: Guidance) -> tuple[float | None, ...]:
    return guidance.pools[pool_key("m", "default")].hedge_seconds


def test_the_quantile_of_each_length_is_told() -> None:
    """Two digits of it, and nothing of lengths of which too few are known."""
    short = [a_record(number / 1000) for number in range(1, NEEDED + 1)]
    found = taught(*short, *[a_record(3.0, 5000)] * (NEEDED - 1))

    assert seconds_of(found) == (0.09, None, None, None, None)


def test_who_was_outrun_is_later_than_all() -> None:
    """Its time was cut off: without it, what is late would become ever shorter."""
    usual = [a_record(0.1)] * (NEEDED - 5)
    outrun = [a_record(0.02, hedge=HedgeResult.WON)] * 5
    many = [a_record(0.02, hedge=HedgeResult.WON)] * 20

    assert seconds_of(taught(*usual, *outrun))[0] == 0.1
    assert taught(*usual, *many) == NO_GUIDANCE  # the quantile is one of theirs: it is not known


def test_nothing_is_learned_of_what_tells_nothing() -> None:
    """Failures, plain answers, a first worker that failed."""
    strange = ({"outcome": Outcome.TRUNCATED}, {"upstream_ttft_seconds": None}, {"hedge": HedgeResult.TOOK_OVER})

    assert taught(*[a_record(1.0, **fields) for fields in strange] * NEEDED) == NO_GUIDANCE


def test_pools_with_a_fixed_time_need_no_lesson() -> None:
    """Nothing is kept of them."""
    assert taught(*[a_record(1.0)] * NEEDED, fleet=BY_SECONDS) == NO_GUIDANCE
