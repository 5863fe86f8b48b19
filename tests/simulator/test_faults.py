"""Sets of faults: what can be said, what cannot, and whom they hit."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from simulator.faults import NO_FAULTS, End, Faults, FaultSwitch, read_faults


def test_no_faults_are_the_default():
    """An empty object is no fault at all."""
    assert read_faults("{}") == Faults() == NO_FAULTS
    assert NO_FAULTS.as_object() == {}
    assert not NO_FAULTS.hits_requests


def test_what_is_read_can_be_written():
    """A set is told as it was given, without what is as usual."""
    given = {"slow_factor": 2.5, "end": "bad-chunk", "end_at_token": 3, "count": 2, "crlf": True}
    faults = read_faults(json.dumps(given))

    assert (faults.slow_factor, faults.end, faults.end_at_token) == (2.5, End.BAD_CHUNK, 3)
    assert faults.as_object() == given
    assert read_faults(json.dumps(faults.as_object())) == faults


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("", "faults are a JSON object"),
        ("[]", 'faults are a JSON object such as {"slow_factor": 2}, not list'),
        ('{"slow": 2}', "unknown fault 'slow'; did you mean 'slow_factor'?"),
        ('{"xyzzy": 2}', "unknown fault 'xyzzy'; known: slow_factor, pause"),
        ('{"slow_factor": "2"}', "slow_factor: Expected `float`, got `str`"),
        ('{"slow_factor": 0}', "slow_factor must be above 0, got 0.0"),
        ('{"end": "explode"}', "end: must be one of reset, close, exit, stall, cut, bad-chunk, error, abort"),
        ('{"end_at_token": 3}', "end_at_token needs an end: one of reset"),
        ('{"end": "reset", "end_at_token": -1}', "end_at_token must be at least 0, got -1"),
        ('{"status": 200}', "status must lie in 400-599, got 200"),
        ('{"health_status": 99}', "health_status must lie in 200-599, got 99"),
        ('{"retry_after_seconds": 1}', "retry_after_seconds needs a status"),
        ('{"status": 429, "retry_after_seconds": -1}', "retry_after_seconds must be at least 0, got -1"),
        ('{"first_token_delay_seconds": -1}', "first_token_delay_seconds must be at least 0"),
        ('{"tokens_per_event": 0}', "tokens_per_event must be at least 1, got 0"),
        ('{"comment_seconds": 0}', "comment_seconds must be above 0"),
        ('{"silent": true, "count": 0}', "count must be at least 1, got 0"),
        ('{"silent": true, "probability": 0}', "probability must be above 0 and at most 1, got 0.0"),
        ('{"pause": true, "count": 1}', "there is no fault of requests in this set"),
        ('{"probability": 0.5}', "there is no fault of requests in this set"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(raw, why):
    """The error names the fault, what it may be, and what was given."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the text is compared below
        read_faults(raw)

    assert why in str(caught.value)


def test_faults_of_requests_hit_every_request_by_default():
    """Without a limit all are hit, and counted."""
    switch = FaultSwitch(Faults(silent=True))

    assert [switch.draw().silent for _ in range(3)] == [True] * 3
    assert (switch.seen, switch.hit) == (3, 3)


def test_a_count_hits_the_first():
    """Later requests are as without faults."""
    switch = FaultSwitch(Faults(silent=True, count=2))

    assert [switch.draw() == NO_FAULTS for _ in range(4)] == [False, False, True, True]


def test_a_probability_hits_some_and_the_same_for_the_same_seed():
    """About as many as it says are hit; who they are is drawn from the seed."""

    def hits(seed: int) -> list[bool]:
        switch = FaultSwitch(Faults(silent=True, probability=0.3, seed=seed))
        return [switch.draw().silent for _ in range(1000)]

    assert 250 < sum(hits(1)) < 350
    assert hits(1) == hits(1) != hits(2)


def test_states_of_the_worker_hit_no_request():
    """A paused engine is nothing that is done to single requests."""
    switch = FaultSwitch(Faults(pause=True, slow_factor=2))

    assert switch.draw() == NO_FAULTS
    assert (switch.seen, switch.hit) == (1, 0)


def test_new_faults_begin_anew():
    """Counts and draws start again with each set."""
    switch = FaultSwitch(Faults(silent=True, count=1))
    switch.draw()
    switch.set(Faults(crlf=True, count=1))

    assert (switch.seen, switch.hit, switch.draw().crlf) == (0, 0, True)
    assert repr(switch) == "<FaultSwitch {'crlf': True, 'count': 1}, 1 of 1 hit>"


def test_what_the_gateway_makes_of_every_fault_has_a_test():
    """In one file, where a page sends its readers. Two fields pick requests and are no fault."""
    source = (Path(__file__).parents[1] / "integration" / "test_faults_of_workers.py").read_text()
    picks = {"probability", "seed"}

    named = set(re.findall(r"\b(\w+)=", source)) | set(re.findall(r'"([\w-]+)"', source))
    assert {each.name for each in fields(Faults)} - picks <= named
    assert {end for end in End if f"End.{end.name}" not in source and end not in named} == set()
