"""What control learns from records and tells the serving processes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from proxy.control.fleet import Fleet
from proxy.control.learning import TokenAdviser
from proxy.published import last_guidance, publish_guidance
from routing.estimate import UNLEARNED, estimate
from routing.estimate_prompt import read_chat
from routing.guidance import NO_GUIDANCE, Guidance
from telemetry.record import Outcome, RequestRecord
from tests.routing.topologies import a_model, a_pool, a_topology

FLEET = cast("Fleet", SimpleNamespace(topology=a_topology(a_model(a_pool(0)))))


def an_answer(number: int, per_word: float = 2.0, **changes: object) -> RequestRecord:
    words = 20 + number % 300
    prompt = read_chat(json.dumps([{"role": "user", "content": "alpha Beta " * words}]).encode(), (), has_tools=False)
    figures = {
        "model": "m",
        "outcome": Outcome.OK,
        "prompt": prompt,
        "estimated_prompt_tokens": estimate(prompt, UNLEARNED).tokens,
        "prompt_tokens": int(2 * words * per_word),
        "completion_tokens": 50,
    }
    required = {"request_id": f"r-{number}", "ended_unix_seconds": 0.0, "endpoint": "chat", "pool": "default", "stream": True}
    return RequestRecord(**required | figures | changes)  # type: ignore[arg-type]


def learned(adviser: TokenAdviser, guidance: Guidance = NO_GUIDANCE) -> Guidance:
    return adviser.advise(guidance, FLEET)


def test_answers_become_coefficients_and_budgets():
    """What serving processes are told of a model follows its answers."""
    adviser = TokenAdviser()
    assert learned(adviser) == NO_GUIDANCE
    for start in range(0, 200, 20):
        adviser.take([an_answer(number, key="app") for number in range(start, start + 20)])

    found = learned(adviser).models["m"]
    assert found.tokens is not None
    assert found.tokens.answers == 200
    assert estimate(an_answer(100).prompt, found.tokens).tokens == pytest.approx(480, rel=0.1)
    assert found.output_tokens == {"": pytest.approx(50, rel=0.11), "app": pytest.approx(50, rel=0.11)}


@pytest.mark.parametrize(
    "changes", [{"prompt_is_estimate": True}, {"prompt_tokens": None}, {"prompt": None}, {"estimated_prompt_tokens": None}]
)
def test_what_no_worker_counted_teaches_nothing(changes):
    """Our own guesses are no answers."""
    adviser = TokenAdviser()
    adviser.take([an_answer(1, **changes)])

    assert learned(adviser).models["m"].tokens is None


@pytest.mark.parametrize("changes", [{"outcome": Outcome.TRUNCATED}, {"completion_is_estimate": True}])
def test_only_whole_answers_tell_how_long_answers_are(changes):
    """A client that left early does not make the next answer shorter."""
    adviser = TokenAdviser()
    adviser.take([an_answer(number, **changes) for number in range(200)])

    assert learned(adviser).models["m"].output_tokens == {}


def test_a_restarted_control_process_goes_on(tmp_path):
    """It reads what was published last, so that serving processes do not fall back to the priors."""
    assert last_guidance(tmp_path) == NO_GUIDANCE
    adviser = TokenAdviser()
    for start in range(0, 200, 20):
        adviser.take([an_answer(number) for number in range(start, start + 20)])
    before = learned(adviser)
    publish_guidance(tmp_path, before)

    after = learned(TokenAdviser(last_guidance(tmp_path))).models["m"]

    assert after.tokens is not None
    assert after.tokens.weights == before.models["m"].tokens.weights
    assert after.output_tokens == before.models["m"].output_tokens


def test_the_model_that_is_gone_is_not_published():
    """Guidance is about the fleet as it is."""
    adviser = TokenAdviser()
    adviser.take([an_answer(1, model="other")])

    assert learned(adviser).models == {}


def test_a_record_with_its_prompt_survives_the_socket():
    """What is learned from travels with the record."""
    record = an_answer(3)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=RequestRecord) == record
