"""Random draws: of the right distribution, and the same for ever."""

from __future__ import annotations

from statistics import fmean, median, pstdev

import pytest

from simulator.draws import Draws, Length, Zipf


def test_draws_stay_the_same():
    """A seed gives these numbers under every Python version; changing them changes everybody's traces."""
    draws = Draws(7, "pinned")

    assert draws.uniform() == 0.41076643978344096
    assert [draws.below(1000) for _ in range(4)] == [977, 790, 255, 903]
    assert [round(draws.exponential(10.0), 9), round(draws.normal(), 9)] == [5.14558606, -0.486054163]
    assert round(draws.gamma(0.5, 3.0), 9) == 5.948699708
    assert [draws.tokens(Length(median=200, sigma=1.0)) for _ in range(4)] == [1074, 30, 266, 225]


def test_names_keep_streams_apart():
    """Two names of one seed, and two seeds of one name, give different draws."""
    assert len({Draws(seed, name).uniform() for seed in (1, 2) for name in ("a", "b")}) == 4


def test_a_range_is_kept():
    """Uniform draws lie within their bounds, whole ones below their count, and each of these comes."""
    draws = Draws(1)

    assert all(2.0 <= draws.uniform(2.0, 3.0) < 3.0 for _ in range(1000))
    assert {draws.below(5) for _ in range(1000)} == {0, 1, 2, 3, 4}


def test_chances_are_kept():
    """What happens with a chance of 0.3 happens that often; with 0 and 1 never and always."""
    draws = Draws(1)

    assert fmean(draws.happens(0.3) for _ in range(20_000)) == pytest.approx(0.3, abs=0.01)
    assert (draws.happens(0.0), draws.happens(1.0)) == (False, True)


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda draws: draws.exponential(5.0), 5.0, 5.0),
        (lambda draws: draws.normal(), 0.0, 1.0),
        (lambda draws: draws.gamma(4.0, 10.0), 10.0, 5.0),
        (lambda draws: draws.gamma(0.25, 10.0), 10.0, 20.0),
        (lambda draws: draws.lognormal(1.0, 0.5), 1.1331, 0.6039),
    ],
)
def test_distributions_have_their_moments(draw, mean, deviation):
    """Mean and standard deviation of many draws are those of the distribution."""
    draws = Draws(1)
    values = [draw(draws) for _ in range(40_000)]

    assert fmean(values) == pytest.approx(mean, abs=0.03 * deviation)
    assert pstdev(values) == pytest.approx(deviation, rel=0.05)


def test_lengths_keep_to_their_bounds():
    """Lengths have the median that was asked for and are cut off at both ends."""
    draws, length = Draws(1), Length(median=100, sigma=1.0, least=20, most=400)
    tokens = [draws.tokens(length) for _ in range(5000)]

    assert (min(tokens), max(tokens)) == (20, 400)
    assert median(tokens) == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("values", [{"median": 0}, {"least": 0}, {"least": 9, "most": 8}, {"sigma": -1.0}])
def test_lengths_that_cannot_be_are_refused(values):
    """An empty range, or nothing to draw from, is an error."""
    with pytest.raises(ValueError, match="1 <= least <= most"):
        Length(**{"median": 10, "sigma": 1.0, **values})


def test_popularity_falls_with_rank():
    """With an exponent of 1 the first of ten comes twice as often as the second and ten times as often as the last."""
    draws, zipf = Draws(1), Zipf(10, 1.0)
    ranks = [zipf.draw(draws) for _ in range(50_000)]
    counts = [ranks.count(rank) for rank in range(10)]

    assert sum(counts) == 50_000
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.05)
    assert counts[0] / counts[9] == pytest.approx(10.0, rel=0.1)
