"""Learning what a model's tokens are made of."""

from __future__ import annotations

import json
import random

import pytest

from routing.estimate import PRIORS, UNLEARNED, Prompt, estimate
from routing.estimate_learning import Learner
from routing.estimate_prompt import read_chat
from routing.estimate_text import FEATURES, Mix


def a_prompt(words: int, number: int = 0) -> Prompt:
    text = " ".join(random.Random(number).choices(["alpha", "be", "Gamma", "delta-epsilon", "of", "x1"], k=words))
    return read_chat(json.dumps([{"role": "user", "content": text}]).encode(), (), has_tools=False)


def teach(learner: Learner, answers: int, per_word: float, first: int = 0) -> None:
    for number in range(first, first + answers):
        words = 50 + number * 37 % 2000
        prompt = a_prompt(words, number)
        learner.learn(prompt, estimate(prompt, learner.coefficients).tokens, round(words * per_word) + 10)


def error(learner: Learner, per_word: float) -> float:
    found = estimate(a_prompt(1500, 9999), learner.coefficients)
    return found.tokens / (1500 * per_word + 10) - 1


@pytest.mark.parametrize("per_word", [0.9, 1.4, 2.4])
def test_a_tokenizer_is_learned_from_its_counts(per_word):
    """Whatever vocabulary is behind a model, 100 answers bring the estimate to within 10 %, and narrow the interval."""
    learner = Learner()
    before = estimate(a_prompt(1500, 9999), UNLEARNED)
    teach(learner, 100, per_word)
    after = estimate(a_prompt(1500, 9999), learner.coefficients)

    assert abs(error(learner, per_word)) < 0.1
    assert after.most / after.least < before.most / before.least
    assert after.least <= 1500 * per_word + 10 <= after.most


def test_another_model_behind_the_name_is_learned_too():
    """What was learned is forgotten when answers say otherwise."""
    learner = Learner()
    teach(learner, 500, 1.0)
    teach(learner, 300, 2.0, first=500)

    assert abs(error(learner, 2.0)) < 0.1


def test_a_wild_answer_moves_little():
    """One worker that reports nonsense does not spoil the estimates of all."""
    learner = Learner()
    teach(learner, 200, 1.4)
    before = error(learner, 1.4)
    for true in (1, 10_000_000):
        prompt = a_prompt(1500)
        learner.learn(prompt, estimate(prompt, learner.coefficients).tokens, true)

    assert abs(error(learner, 1.4) - before) < 0.05


def test_nothing_leaves_its_bounds():
    """Not even when every answer is nonsense."""
    learner = Learner()
    teach(learner, 300, 500.0)

    for name, weight in zip(FEATURES, learner.coefficients.weights, strict=True):
        assert PRIORS[name][2] <= weight <= PRIORS[name][3], name


def test_what_was_not_seen_keeps_its_prior():
    """A model that only ever got English is as unsure of Chinese as before."""
    learner = Learner()
    teach(learner, 200, 1.4)
    found = learner.coefficients

    assert found.weights[FEATURES.index("ideographs")] == PRIORS["ideographs"][0]
    assert found.spreads[Mix.CJK] == pytest.approx(UNLEARNED.spreads[Mix.CJK])
    assert found.spreads[Mix.PROSE] < UNLEARNED.spreads[Mix.PROSE]


@pytest.mark.parametrize("changed", [{"images": 1}, {"audios": 1}, {"prompts": 2}, {"has_text": False}, {"token_ids": 3}])
def test_usage_of_more_than_one_text_teaches_nothing(changed):
    """Images, batches and ids have tokens that no text explains."""
    learner = Learner()
    prompt = Prompt(a_prompt(100).counts, Mix.PROSE, **changed)
    learner.learn(prompt, 100, 5000)

    assert learner.coefficients == UNLEARNED


def test_learning_goes_on_where_it_ended():
    """A new control process begins with what the last one had published."""
    learner = Learner()
    teach(learner, 200, 2.0)
    again = Learner(learner.coefficients)

    assert again.coefficients.weights == learner.coefficients.weights
    assert abs(error(again, 2.0)) < 0.1
    teach(again, 1, 2.0, first=300)
    assert again.coefficients.answers == 201


def test_tokens_per_byte_follow_the_answers():
    """The rough estimate learns too, each kind of text for itself."""
    learner = Learner()
    teach(learner, 200, 3.0)

    ascii_only, other = learner.coefficients.per_byte
    assert ascii_only > 0.4
    assert other == UNLEARNED.per_byte[1]
