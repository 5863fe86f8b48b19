"""Which workers are silent, by what one serving process has running there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.upstream.silence import look_for_silence
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.guidance import NO_GUIDANCE, Guidance, WorkerGuidance
from routing.health import Condition, FleetHealth
from tests.proxy.fleets import a_decision, a_topology

TWO = a_topology({"default": ["w-0", "w-1"]})
SILENCE = 30.0
FAST = Guidance(workers={"w-0": WorkerGuidance(prefill_tokens_per_second=10_000.0, decode_tokens_per_second=100.0)})


class Asking:
    """A request that a worker has, as far as this matters."""

    def __init__(
        self, tokens: int = 100, *, worker: str = "w-0", sent_at: float = 0.0, last: float | None = None, **fields: Any
    ) -> None:
        self.decision = a_decision(TWO, worker)
        self.connection = object()
        self.endpoint = SimpleNamespace(response_id=None)
        self.sent_at = sent_at
        self.last_data_at = sent_at if last is None else last
        self.first_body_at = None if last is None else last
        self.relay = None
        self.paused_at = None
        request = SimpleNamespace(stream=fields.pop("stream", True), hides_reasoning=fields.pop("hides_reasoning", False))
        demand = Demand(TokenEstimate(tokens, tokens, tokens), max_tokens=fields.pop("max_tokens", 100))
        self.prepared = SimpleNamespace(request=request, demand=demand)
        self.state = SimpleNamespace(loads=SimpleNamespace(guidance=fields.pop("guidance", NO_GUIDANCE)))
        self.moved: list[str] = []
        for name, value in fields.items():
            setattr(self, name, value)

    def fail_over(self, result: str, *, needs_free: bool) -> bool:
        assert needs_free
        self.moved.append(result)
        return True


def judged(now: float, *exchanges: Asking) -> tuple[Condition, list[bool]]:
    """What is made of worker w-0, and which of the requests were sent elsewhere."""
    health = FleetHealth(TWO)
    look_for_silence(exchanges, health, SILENCE, now)  # type: ignore[arg-type]  # as much of an exchange as is looked at
    health.look(now, [1.0, 1.0])
    return health.condition(health.workers["w-0"]), [bool(exchange.moved) for exchange in exchanges]


def test_all_that_wait_at_a_silent_worker_go_elsewhere() -> None:
    """Also those that came late: that one has waited too long is enough where nothing is heard."""
    assert judged(31.0, Asking(), Asking(sent_at=30.0)) == (Condition.SILENCE, [True, True])


def test_streams_that_have_begun_stay() -> None:
    """They cannot go elsewhere any more."""
    assert judged(31.0, Asking(last=0.5), Asking()) == (Condition.SILENCE, [False, True])


@pytest.mark.parametrize(
    "other",
    [Asking(last=25.0), Asking(last=25.0, sent_at=20.0), Asking(paused_at=1.0, last=0.5)],
    ids=["a stream that goes on", "one that has just begun", "one that is not read because its client is slow"],
)
def test_one_that_gets_something_speaks_for_the_worker(other: Asking) -> None:
    """Whatever the others wait for."""
    assert judged(40.0, Asking(), other) == (Condition.WELL, [False, False])


def test_fresh_requests_say_nothing() -> None:
    """A worker that hangs goes on getting requests; that they have not waited long does not hide it."""
    assert judged(10.0, Asking(), Asking(sent_at=9.0)) == (Condition.WELL, [False, False])
    assert judged(31.0, Asking(), *[Asking(50_000, sent_at=float(at)) for at in range(1, 31)])[0] is Condition.SILENCE


def test_heads_of_answers_are_no_sign_of_an_engine() -> None:
    """The API server of a worker that hangs sends the head of each new stream at once, and nothing after it."""
    fresh = [Asking(sent_at=float(at), last_data_at=at + 0.01) for at in range(1, 31)]

    assert judged(31.0, Asking(last_data_at=0.01), *fresh)[0] is Condition.SILENCE


def test_another_worker_does_not_speak_for_it() -> None:
    """Each is judged by its own."""
    assert judged(31.0, Asking(), Asking(worker="w-1", last=30.0)) == (Condition.SILENCE, [True, False])


def test_a_long_prompt_has_its_time() -> None:
    """Minutes where nothing is known of the worker, seconds where it is; and the prompts before it count too."""
    assert judged(200.0, Asking(100_000))[0] is Condition.WELL
    assert judged(231.0, Asking(100_000))[0] is Condition.SILENCE
    assert judged(59.0, Asking(100_000, guidance=FAST))[0] is Condition.WELL
    assert judged(61.0, Asking(100_000, guidance=FAST))[0] is Condition.SILENCE
    assert judged(231.0, Asking(100_000, sent_at=10.0), Asking(100_000))[0] is Condition.SILENCE
    assert judged(231.0, Asking(100_000, sent_at=3.0), Asking(100, sent_at=4.0))[0] is Condition.WELL
    assert judged(100.0, Asking(100_000, sent_at=3.0), Asking(last=3.0))[0] is Condition.WELL


def test_a_prompt_that_no_worker_can_hold_has_no_more_time_than_one_that_fits() -> None:
    """The worker holds 32,768 tokens: three times 3.3 s at its pace, whatever the estimate of 64 MB of text says."""
    small = WorkerGuidance(max_model_len=32_768, prefill_tokens_per_second=10_000.0, decode_tokens_per_second=100.0)
    guidance = Guidance(workers={"w-0": small})

    assert judged(39.0, Asking(16_000_000, guidance=guidance))[0] is Condition.WELL
    assert judged(41.0, Asking(16_000_000, guidance=guidance))[0] is Condition.SILENCE


@pytest.mark.parametrize("kind", [{"stream": False}, {"hides_reasoning": True}])
def test_an_answer_that_comes_late_has_its_time(kind: dict[str, bool]) -> None:
    """A plain answer, and the end of thoughts that are not shown, come when all of them has been generated."""
    assert judged(200.0, Asking(max_tokens=1000, **kind))[0] is Condition.WELL
    assert judged(235.0, Asking(max_tokens=1000, **kind))[0] is Condition.SILENCE


@pytest.mark.parametrize(
    "waiting",
    [
        Asking(connection=None),
        Asking(decision=None),
        Asking(sent_at=None),
        Asking(endpoint=SimpleNamespace(response_id="resp_1")),
    ],
    ids=["is being connected", "has no worker yet", "waits between two attempts", "looks up an answer"],
)
def test_what_a_worker_has_not_been_asked_says_nothing(waiting: Asking) -> None:
    """However long it takes."""
    assert judged(1000.0, waiting) == (Condition.WELL, [False])


def test_a_word_brings_it_back() -> None:
    """A stream that goes on ends the verdict, in the same look."""
    health = FleetHealth(TWO)
    waiting = Asking(last=0.5)
    look_for_silence([waiting], health, SILENCE, 40.0)  # type: ignore[list-item]  # as above
    assert health.avoided == {0}

    waiting.last_data_at = waiting.first_body_at = 41.0
    look_for_silence([waiting], health, SILENCE, 41.5)  # type: ignore[list-item]  # as above

    assert not health.avoided


def test_a_worker_that_others_always_answer_in_place_of_is_silent() -> None:
    """Where a second worker is asked after a second, no request ever waits for as long as would tell."""
    health = FleetHealth(TWO)
    for number in range(31):
        health.outrun("w-0", float(number), number + 1.0)
    look_for_silence((), health, SILENCE, 31.0)
    health.look(31.0, [1.0, 1.0])

    assert health.condition(health.workers["w-0"]) is Condition.SILENCE
    assert not health.unheard


def test_a_worker_that_is_outrun_and_serves_others_is_not() -> None:
    """A stream goes on there: what was outrun was slow and no more."""
    health = FleetHealth(TWO)
    health.outrun("w-0", 0.0, 31.0)
    look_for_silence([Asking(last=30.5)], health, SILENCE, 31.0)  # type: ignore[list-item]  # as much as is looked at

    assert not health.avoided
    assert not health.unheard


def test_of_a_worker_that_shows_life_no_other_request_is_read() -> None:
    """With thousands of streams, reading each at every look would hold the loop; one sign is enough."""

    class Unread(Asking):
        @property
        def relay(self) -> None:
            raise AssertionError("read without need")

        @relay.setter
        def relay(self, value: None) -> None:
            pass

    assert judged(31.0, Asking(last=30.5), Unread(last=1.0))[0] is Condition.WELL
