"""Which data-parallel rank."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.ranks import choose_rank


def a_demand(**ties: int) -> Demand:
    return Demand(TokenEstimate(1000, 1000, 1000), max_tokens=0, **ties)


@pytest.mark.parametrize("name", ["affinity", "session"])
def test_the_same_key_goes_to_the_same_rank(name):
    """Equal keys are at home at one rank whatever the load within the bound, and keys are spread over all."""
    random = Random(2)
    keys = [random.getrandbits(64) for _ in range(4000)]
    homes = [choose_rank([0.0] * 4, a_demand(**{name: key})) for key in keys]

    assert homes == [choose_rank([900.0, 0.0, 3000.0, 100.0], a_demand(**{name: key})) for key in keys]
    assert all(850 < count < 1150 for count in Counter(homes).values())
    assert set(homes) == {0, 1, 2, 3}


def test_the_session_outranks_the_beginning():
    """With both known the session decides."""
    by_session = choose_rank([0.0] * 8, a_demand(session=5))
    assert {choose_rank([0.0] * 8, a_demand(session=5, affinity=key << 50)) for key in range(100)} == {by_session}


def test_without_a_key_the_least_loaded():
    """Nothing ties the request to a rank."""
    assert choose_rank([5.0, 3.0, 4.0], a_demand()) == 1


def test_a_rank_with_too_much_to_do_is_passed_over():
    """The least loaded rank gets what is at home at a rank above the bound."""
    home = choose_rank([0.0] * 3, a_demand(affinity=7))
    load = [10_000.0, 20_000.0, 30_000.0]
    load[home] = 1_000_000.0
    assert choose_rank(load, a_demand(affinity=7)) == min(range(3), key=load.__getitem__) != home
