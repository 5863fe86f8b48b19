"""Which requests a probe sends."""

from __future__ import annotations

from dataclasses import replace

from proxy.probing.design import Burst, Design, Experiment, fitting, requests_of

SMALL = Design(outputs=(16, 64), prompts=(256, 4096), concurrencies=(1, 8), contexts=(512,), repeats=2)


def test_all_lengths_come_before_any_of_them_again() -> None:
    """A drift of the worker spreads over all lengths alike."""
    outputs = [burst.output_tokens for burst in SMALL.bursts() if burst.experiment is Experiment.OUTPUT]

    assert outputs == [16, 64, 16, 64]


def test_what_cannot_be_sent_is_left_out_and_named_once() -> None:
    """Lengths beyond the model's context and more at once than allowed are not sent, and the reason is told."""
    found = fitting(SMALL, most_tokens=4096, most_at_once=4)

    assert all(burst.prompt_tokens + burst.output_tokens <= 4096 and burst.requests <= 4 for burst in found.bursts)
    assert len(found.left_out) == 2
    assert "4,096 + 64 tokens: more than the 4,096" in found.left_out[0]
    assert "8 at once" in found.left_out[1]
    assert "--max-concurrency" in found.left_out[1]


def test_everything_is_sent_where_nothing_is_known_of_the_model() -> None:
    """An endpoint that does not tell its context gets all lengths."""
    assert fitting(SMALL, most_tokens=None, most_at_once=8).bursts == tuple(SMALL.bursts())


def test_prompts_sent_again_count_twice() -> None:
    """Cold and warm are two requests each."""
    bursts = [Burst(experiment=Experiment.CONCURRENCY, prompt_tokens=9, output_tokens=9, requests=n) for n in (1, 4)]

    assert requests_of(bursts, is_warm_too=False) == 5
    assert requests_of(bursts, is_warm_too=True) == 10


def test_a_steady_load_is_sent_when_it_is_asked_for() -> None:
    """As many streams as requests at once, each with so many requests; once, for a prompt that is sent again is no new one."""
    bursts = [one for one in replace(SMALL, steady_requests=5).bursts() if one.experiment is Experiment.STEADY]

    assert [(one.requests, one.in_turn, one.prompt_tokens) for one in bursts] == [(1, 5, 512), (8, 5, 512)]
    assert requests_of(bursts, is_warm_too=True) == 45
    assert bursts[1].title == "8 kept under way, 512 + 128 tokens"
    assert all(one.experiment is not Experiment.STEADY for one in SMALL.bursts())
