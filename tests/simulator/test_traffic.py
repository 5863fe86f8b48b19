"""The demo's traffic."""

from __future__ import annotations

import json
from collections import Counter

from simulator.bodies import Served, parse_chat, parse_completion
from simulator.traffic import Call, Script

SERVED = Served(models=("m",), max_model_len=131_072)


def calls(count: int = 300, seed: int = 0) -> list[Call]:
    script = Script("m", seed)
    return [script.draw() for _ in range(count)]


def test_the_same_seed_gives_the_same_calls():
    """Traffic is drawn from its seed alone."""
    assert calls(20) == calls(20)
    assert calls(20) != calls(20, seed=1)


def test_all_kinds_of_calls_occur():
    """There are streams, plain answers, completions and clients that leave; most are streams."""
    drawn = calls()
    kinds = Counter(
        "leaver" if call.leaves_after_chunks else call.path.rpartition("/v1/")[2] + (" stream" if call.body["stream"] else "")
        for call in drawn
    )

    assert set(kinds) == {"chat/completions stream", "chat/completions", "completions stream", "leaver"}
    assert kinds["chat/completions stream"] > len(drawn) / 2


def test_prompts_are_for_one_of_the_two_pools_and_share_prefixes():
    """A prompt is well within the short pool or well beyond it, within 8,000 to 30,000 tokens; few begin in their own way."""
    drawn = calls()
    prompts = []
    for call in drawn:
        parse = parse_chat if "chat" in call.path else parse_completion
        prompts.append(parse(json.dumps(call.body).encode(), SERVED).sources[0].prompt)
    long = [prompt for prompt in prompts if prompt.tokens > 8_000]

    assert 0.03 * len(drawn) < len(long) < 0.2 * len(drawn)
    assert all(20_000 < prompt.tokens < 30_000 for prompt in long)
    assert all(prompt.tokens < 5_000 for prompt in prompts if prompt not in long)
    assert len({prompt.blocks[:40] for prompt in prompts if len(prompt.blocks) > 40}) <= 7


def test_calls_come_at_the_rate_asked_for():
    """The mean pause is the inverse of the rate."""
    script = Script("m")
    pauses = [script.pause_seconds(4.0) for _ in range(2000)]

    assert 0.22 < sum(pauses) / len(pauses) < 0.28
