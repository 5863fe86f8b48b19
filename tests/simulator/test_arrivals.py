"""When sessions begin, and what follows what."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from simulator.arrivals import Arrival, AtOnce, Bursty, Closed, Poisson, paced
from simulator.draws import Draws
from tests.simulator.engine_runs import a_prompt


def a_session(number: int, requests: int) -> list[Arrival]:
    """Requests with 5 s to think before each but the first."""
    return [Arrival(at_seconds=5.0, prompt=a_prompt(10), output_tokens=1, session=number) for _ in range(requests)]


@pytest.mark.parametrize(("pace", "variation"), [(Poisson(per_second=4.0), 1.0), (Bursty(per_second=4.0, shape=0.25), 2.0)])
def test_sessions_begin_at_their_rate(pace, variation):
    """The mean gap is one over the rate, and gaps vary as much as the process says."""
    instants = list(islice(pace.instants(Draws(1)), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(instants)]

    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.05)


def test_a_session_is_a_chain():
    """Only the first request of a session has an instant of its own; the others follow it with their times to think."""
    heads = paced([a_session(0, 3), a_session(1, 1)], Poisson(per_second=1.0), Draws(1))

    assert [[one.session for one in head.chain()] for head in heads] == [[0, 0, 0], [1]]
    assert [one.at_seconds for one in heads[0].chain()][1:] == [5.0, 5.0]
    assert 0.0 < heads[0].at_seconds < heads[1].at_seconds


def test_a_job_is_there_at_once():
    """All sessions begin at 0."""
    assert [head.at_seconds for head in paced([a_session(number, 1) for number in range(3)], AtOnce(), Draws(1))] == [0.0] * 3


def test_users_take_turns_at_sessions():
    """With a closed loop each user has one chain: the sessions dealt out in turn, with pauses between them."""
    heads = paced(
        [a_session(number, 2) for number in range(5)], Closed(users=2, pause_seconds=60.0, ramp_seconds=4.0), Draws(1)
    )

    assert [head.at_seconds for head in heads] == [0.0, 2.0]
    assert [[one.session for one in head.chain()] for head in heads] == [[0, 0, 2, 2, 4, 4], [1, 1, 3, 3]]
    waits = [one.at_seconds for one in heads[0].chain()]
    assert waits[1::2] == [5.0, 5.0, 5.0]
    assert all(wait > 0.0 and wait != 5.0 for wait in waits[2::2])


def test_users_without_a_session_do_not_come():
    """More users than sessions: as many chains as there are sessions."""
    assert len(paced([a_session(0, 1)], Closed(users=3), Draws(1))) == 1


def test_what_cannot_be_is_refused():
    """A closed loop without users, and a session without requests, are errors."""
    with pytest.raises(ValueError, match="at least one user"):
        Closed(users=0)
    with pytest.raises(ValueError, match="at least one request"):
        paced([[]], AtOnce(), Draws(1))
