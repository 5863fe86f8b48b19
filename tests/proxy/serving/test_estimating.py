"""What a request asks for, and whether it was given the right pool."""

from __future__ import annotations

import json

import pytest

from proxy.serving.endpoints import Endpoints
from proxy.serving.estimating import demand_of, judge_pool
from proxy.wire.inference import Work, parse_other, parse_request
from routing.demand import Demand
from routing.estimate import UNLEARNED, TokenEstimate
from routing.guidance import NO_GUIDANCE, Guidance, ModelGuidance
from routing.policy import Snapshot, choose
from routing.topology import Key, Model
from telemetry.record import Misroute
from tests.routing.topologies import a_model, a_pool, a_topology

TOPOLOGY = a_topology(
    a_model(
        a_pool(0, 1, name="short", upto=16_384), a_pool(2, name="middle", upto=65_536), a_pool(3, name="long", upto=131_072)
    ),
    a_model(a_pool(4), name="one"),
)
POOLED, SINGLE = TOPOLOGY.models
ALL_UP = Snapshot((1.0,) * 5, (0.0,) * 5, 0)


def demand(body: dict[str, object], model: Model = POOLED, key: Key | None = None, guidance: Guidance = NO_GUIDANCE) -> Demand:
    return demand_of(parse_request(json.dumps(body).encode()), model, key, guidance)


def pool_of(found: Demand) -> str:
    decision = choose(POOLED, found, ALL_UP)
    return getattr(getattr(decision, "pool", decision), "name", str(decision))


def saying(text: str, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_chinese_is_not_taken_for_english():
    """30,000 Chinese characters go to a pool that holds them, raw or escaped; four characters a token would not."""
    text = "中文测试一二三四五六" * 3000
    for ascii_only in (True, False):
        body = json.dumps(saying(text, max_tokens=100), ensure_ascii=ascii_only).encode()
        found = demand_of(parse_request(body), POOLED, None, NO_GUIDANCE)

        assert 15_000 < found.estimate.tokens < 36_000
        assert pool_of(found) == "middle"


def test_tools_and_output_count_towards_the_pool():
    """A prompt that fits the short pool by itself does not with its tools and its output."""
    text = "the quick brown fox jumps over it " * 1150
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": "looks something up", "parameters": {}}}
        for n in range(400)
    ]

    assert pool_of(demand(saying(text, max_tokens=1000))) == "short"
    assert pool_of(demand(saying(text, max_tokens=1000, tools=tools))) == "middle"
    assert pool_of(demand(saying(text, max_tokens=12_000))) == "middle"


def test_the_longest_of_a_batch_decides_and_all_of_it_is_load():
    """Prompts of 10, 10 and 60,000 tokens go where the last one fits."""
    words = "alpha beta " * 20_000
    found = demand({"model": "m", "prompt": ["short", "short", words], "max_tokens": 10})

    assert pool_of(found) == "middle"
    assert found.load_tokens == pytest.approx(found.estimate.tokens + 30, rel=0.01)

    small = demand({"model": "m", "prompt": ["the quick brown fox"] * 1000, "max_tokens": 10})
    assert pool_of(small) == "short"
    assert small.load_tokens > 1000 * 14
    assert small.prompt_tokens == small.batch_tokens


def test_ids_are_exact():
    """A prompt of ids is no estimate."""
    assert demand({"model": "m", "prompt": list(range(500)), "max_tokens": 1}).estimate == TokenEstimate(500, 500, 500)
    batch = demand({"model": "m", "prompt": [[1, 2], [3, 4, 5]], "max_tokens": 1})
    assert (batch.estimate.tokens, batch.prompt_tokens, batch.load_tokens) == (3, 5, 7)


LEARNED = Guidance({"m": ModelGuidance(UNLEARNED, {"": 900, "agent": 300})})


@pytest.mark.parametrize(
    ("max_tokens", "key", "guidance", "budget"),
    [
        (32_000, "agent", LEARNED, 300),
        (32_000, None, LEARNED, 900),
        (32_000, "new", LEARNED, 900),
        (100, "agent", LEARNED, 100),
        (None, "agent", LEARNED, 300),
        (None, None, NO_GUIDANCE, 1024),
        (32_000, None, NO_GUIDANCE, 32_000),
    ],
)
def test_the_output_budget_is_what_was_learned_or_declared(max_tokens, key, guidance, budget):
    """The smaller of the two, for the key where it has a figure of its own; the declared one stays for the fit check."""
    body = saying("hello") if max_tokens is None else saying("hello", max_tokens=max_tokens)
    who = None if key is None else Key(index=0, name=key, sha256=b"")

    found = demand(body, POOLED, who, guidance)

    assert (found.output_tokens, found.max_tokens) == (budget, max_tokens)


def test_a_declared_budget_can_be_kept_to():
    """Without a quantile nothing learned is used."""
    from dataclasses import replace

    assert demand(saying("hello", max_tokens=9000), replace(POOLED, output_quantile=None), None, LEARNED).output_tokens == 9000


def test_where_nothing_depends_on_it_only_some_prompts_are_read():
    """With a single pool without a bound, one size in eight is read to learn from, the others are estimated by size."""
    read = [demand(saying("word " * 40 + "x" * n), SINGLE).prompt is not None for n in range(64)]

    assert read.count(True) == 8
    assert all(demand(saying("x" * n), SINGLE).estimate.tokens > 0 for n in range(64))


def test_a_prompt_that_surely_fits_is_read_from_a_small_sample():
    """It has fewer bytes than the pool has tokens; a larger one is looked at closely."""
    for size, is_fine in ((2000, False), (20_000, True)):
        prompt = demand(saying("a" * size, max_tokens=100)).prompt
        assert prompt is not None
        assert prompt.is_fine is is_fine


def test_looking_at_a_text_is_no_load():
    """A request that only counts tokens needs no room."""
    request = parse_other(b'{"model":"m","prompt":"' + b"x " * 90_000 + b'"}', Work.COUNT)

    assert demand_of(request, POOLED, None, NO_GUIDANCE).total_tokens == 0


@pytest.mark.parametrize(
    ("estimated", "true", "found"),
    [
        (10_000, 10_500, (None, None)),
        (16_000, 16_200, (None, None)),
        (16_000, 17_000, (Misroute.TOO_SMALL, 1000)),
        (17_000, 16_000, (Misroute.TOO_LARGE, -1000)),
        (200_000, 100_000, (None, None)),
        (100_000, 200_000, (None, None)),
        (60_000, 140_000, (Misroute.TOO_SMALL, 80_000)),
    ],
)
def test_misroutes_are_known_by_what_the_worker_counted(estimated, true, found):
    """Whether the true tokens belong into another pool; beyond the largest there is none."""
    asked = Demand(TokenEstimate(estimated, 0, 2 * estimated), max_tokens=100)

    assert judge_pool(POOLED, asked, true) == found


def test_every_endpoint_reads_its_texts():
    """Whatever the text is called on a path, it is estimated."""
    text = "the quick brown fox " * 200
    for work, body in (
        (Work.READ, {"input": text}),
        (Work.READ, {"input": [text, "x"]}),
        (Work.READ, {"query": "q", "documents": [text, "b"]}),
        (Work.READ, {"text_1": text, "text_2": "b"}),
        (Work.GENERATE, {"input": text}),
        (Work.GENERATE, {"input": [{"role": "user", "content": text}], "instructions": "be brief"}),
        (Work.GENERATE, {"system": text, "messages": [{"role": "user", "content": "hi"}]}),
        (Work.GENERATE, {"messages": [{"role": "user", "content": "hi"}], "system": [{"type": "text", "text": text}]}),
    ):
        request = parse_other(json.dumps({"model": "m", **body}).encode(), work)
        assert 700 < demand_of(request, POOLED, None, NO_GUIDANCE).estimate.tokens < 1300, body


def test_the_endpoints_of_the_topology_know_their_models():
    """The model found is the one whose pools decide."""
    assert Endpoints(TOPOLOGY, 0).model("m") is POOLED


@pytest.mark.parametrize("text", ["a" * 5_000_000, "\n" * 3_000_000, " " * 10_000_000, "-" * 4_000_000])
def test_runs_that_may_be_few_tokens_are_not_refused(text):
    """A vocabulary may have tokens for a hundred blanks: the largest pool's workers are to say."""
    assert pool_of(demand(saying(text, max_tokens=100))) == "long"


def test_what_surely_fits_nowhere_is_refused():
    """A long ordinary text is not taken for a run."""
    import random

    draws = random.Random(1)
    words = " ".join("".join(draws.choices("abcdefghijklmnop", k=6)) for _ in range(500_000))
    assert pool_of(demand(saying(words, max_tokens=100))) == "FIT"
