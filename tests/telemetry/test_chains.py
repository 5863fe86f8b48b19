"""Call chains: numbered, summed, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.chains import KEPT_CALLS, SHOWN_CHAINS, ChainTable
from telemetry.record import Outcome, PrefillResult, RequestRecord


def a_record(chain_id: str | None = "chain", at: float = 1000.0, **fields: Any) -> RequestRecord:
    return RequestRecord(
        **{
            "request_id": "r",
            "ended_unix_seconds": at,
            "chain_id": chain_id,
            "outcome": Outcome.OK,
            "e2e_seconds": 1.0,
            **fields,
        }
    )


def follow(table: ChainTable, record: RequestRecord) -> RequestRecord:
    return table.follow(record, record.ended_unix_seconds)


def the_chain(table: ChainTable, now: float = 1000.0) -> dict[str, Any]:
    (chain,) = table.view(now)["newest"]
    return dict(chain)


def test_calls_are_numbered() -> None:
    """Each record of a chain gets the number of its call and stays as it is otherwise; others are not touched."""
    table = ChainTable()
    records = [a_record("a"), a_record("b"), a_record("a"), a_record(None), a_record("a")]

    followed = [follow(table, record) for record in records]

    assert [record.chain_call for record in followed] == [1, 1, 2, None, 3]
    assert followed[3] is records[3]
    assert followed[0].request_id == "r"


def test_figures_are_summed() -> None:
    """Tokens in and out, prefill and decode time are summed over the calls, and the growth of the context is its mean step."""
    table = ChainTable()
    calls = [(1000, 0, 101), (1500, 896, 51), (2400, 1408, 201)]
    for number, (prompt, cached, completion) in enumerate(calls):
        follow(
            table,
            a_record(
                at=1000.0 + 10 * number,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
                upstream_ttft_seconds=0.5,
                tpot_seconds=0.02,
            ),
        )

    chain = the_chain(table, 1020.0)

    assert (chain["calls"], chain["prompt_tokens"], chain["cached_tokens"], chain["completion_tokens"]) == (3, 4900, 2304, 353)
    assert chain["prefill_seconds"] == 1.5
    assert chain["decode_seconds"] == pytest.approx(0.02 * (100 + 50 + 200))
    assert (chain["first_prompt_tokens"], chain["last_prompt_tokens"], chain["largest_prompt_tokens"]) == (1000, 2400, 2400)
    assert chain["growth_tokens_per_call"] == 700
    assert chain["seconds"] == 21.0  # from the beginning of the first call
    assert [(call.number, call.prompt_tokens, call.completion_tokens) for call in chain["newest_calls"]] == [
        (1, 1000, 101),
        (2, 1500, 51),
        (3, 2400, 201),
    ]


@pytest.mark.parametrize(("result", "seconds"), [(PrefillResult.COMPUTED, 0.75), (PrefillResult.TIMEOUT, 0.5), (None, 0.5)])
def test_prefill_at_a_stage_is_prefill(result: PrefillResult | None, seconds: float) -> None:
    """Of both legs where the prompt came from there; time that a stage took in vain is none."""
    table = ChainTable()
    record = a_record(upstream_ttft_seconds=0.5, prefill_result=result, prefill_leg_seconds=0.25)
    for _ in range(2):
        follow(table, record)

    assert the_chain(table)["prefill_seconds"] == 2 * seconds


def test_unknown_figures_add_nothing() -> None:
    """A call whose figures are unknown counts as a call; the growth is that of the calls that tell."""
    table = ChainTable()
    for prompt in (100, None, 300):
        follow(table, a_record(prompt_tokens=prompt))
    follow(table, a_record(outcome=Outcome.CLIENT_GONE, e2e_seconds=None))

    chain = the_chain(table)

    assert (chain["calls"], chain["failed_calls"], chain["prompt_tokens"]) == (4, 1, 400)
    assert chain["growth_tokens_per_call"] == 200
    assert chain["decode_seconds"] == 0.0


def test_a_context_may_shrink() -> None:
    """After a compaction the growth is negative, and the largest prompt is remembered."""
    table = ChainTable()
    for prompt in (100, 900, 60):
        follow(table, a_record(prompt_tokens=prompt))

    assert the_chain(table)["growth_tokens_per_call"] == -20
    assert the_chain(table)["largest_prompt_tokens"] == 900


def test_the_table_is_bounded() -> None:
    """However many chains clients invent, no more than the bound are kept, and the one that is in use stays."""
    table = ChainTable(most_chains=10)
    follow(table, a_record("mine"))
    for number in range(1000):
        follow(table, a_record(f"c-{number}"))
        if number % 5 == 0:
            follow(table, a_record("mine"))

    assert len(table) == 10
    assert follow(table, a_record("mine")).chain_call == 202
    assert follow(table, a_record("c-3")).chain_call == 1


def test_the_calls_of_a_chain_are_bounded() -> None:
    """A chain of very many calls keeps its sums and its newest calls."""
    table = ChainTable()
    for number in range(1000):
        follow(table, a_record(prompt_tokens=number))

    chain = the_chain(table)

    assert chain["calls"] == 1000
    assert [call.number for call in chain["newest_calls"]] == list(range(1001 - KEPT_CALLS, 1001))


def test_an_idle_chain_begins_anew() -> None:
    """After the idle time a chain is not shown any more, and its next call is the first again."""
    table = ChainTable(idle_seconds=60.0)
    for _ in range(2):
        follow(table, a_record(at=1000.0))

    assert table.view(1060.0)["chains"] == 1
    assert table.view(1060.5)["newest"] == []
    assert follow(table, a_record(at=1060.5)).chain_call == 1


def test_the_view_is_bounded_and_newest_first() -> None:
    """Chains of one call are only counted; of the others the newest are shown."""
    table = ChainTable()
    for number in range(SHOWN_CHAINS + 50):
        follow(table, a_record(f"c-{number}"))
    for number in range(SHOWN_CHAINS + 20):
        follow(table, a_record(f"c-{number}"))

    view = table.view(1000.0)

    assert (view["chains"], view["chains_of_several_calls"]) == (SHOWN_CHAINS + 50, SHOWN_CHAINS + 20)
    assert [chain["chain_id"] for chain in view["newest"]] == [f"c-{n}" for n in range(SHOWN_CHAINS + 19, 19, -1)]
