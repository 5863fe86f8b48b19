"""What is said to be wrong, in which order, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from dashboards.live.finding import Finding, Growth
from dashboards.live.findings import Findings, headline
from dashboards.live.hour import Hour, Minute
from dashboards.live.views import FleetView, GatewayFacts, PoolView, State, Totals, WorkerView
from dashboards.live.window import Figure, Spread, Sums
from telemetry.dcgm import Gpus
from telemetry.prefix_drift import Drift, DriftKind

NOTHING = Spread(0, [1])


def a_worker(name: str = "w-0", state: str = "ok", since: float | None = None, **fields: Any) -> WorkerView:
    usual: dict[str, Any] = {
        "source": "config",
        "in_flight_requests": 0,
        "running_requests": 0,
        "waiting_requests": 0,
        "kv_usage_ratio": 0.1,
        "attained_ttft_ratio": 1.0,
        "attained_tpot_ratio": 1.0,
        "floor_beaten": 0,
        "restarts": 0,
        "scrape_failures": 0,
        "attempts": 0,
        "attempts_busy": 0,
        "attempts_failed": 0,
        "lately": Sums(requests=100),
        "hit_ratio": None,
        "ttft": None,
        "tpot": None,
        "causes": {},
        "outcomes": {},
    }
    return WorkerView(worker=name, state=State(state, "", since), **{**usual, **fields})


def a_pool(*workers: WorkerView, rejected: int = 0, **fields: Any) -> PoolView:
    usual: dict[str, Any] = {
        "model": "m",
        "pool": "default",
        "policy": "least-load",
        "max_total_tokens": None,
        "hardware": "h100-sxm",
        "queued_requests": 0,
        "in_flight_requests": 0,
        "totals": Totals(
            requests=0,
            outcomes={"rejected": rejected},
            prompt_tokens=0,
            completion_tokens=0,
            cached_tokens=0,
            hit_known_tokens=0,
            hit_unknown_requests=0,
            hit_ratio=None,
        ),
        "lately": Sums(requests=100),
        "hit_ratio": None,
        "ttft": None,
        "tpot": None,
        "causes": {},
    }
    return PoolView(workers=list(workers), **{**usual, **fields})


def a_view(*pools: PoolView, now: float = 1000.0, **gateway: Any) -> FleetView:
    facts: dict[str, Any] = {
        "version": "1",
        "processes": 1,
        "serving": 1,
        "loop_lag_seconds": 0.001,
        "control_lag_seconds": 0.001,
        "records_dropped": 0,
        "log_lines_dropped": 0,
        "unrouted": {},
    }
    return FleetView(now_unix_seconds=now, gateway=GatewayFacts(**{**facts, **gateway}), pools=list(pools), keys=[])


def found_in(view: FleetView, *drifts: Drift) -> list[Finding]:
    return Findings().look(view, drifts, Hour())


def test_nothing_is_found_in_a_healthy_fleet() -> None:
    """And the headline says so, with how much that is based on."""
    view = a_view(a_pool(a_worker("w-0"), a_worker("w-1")))

    assert found_in(view) == []
    assert headline(view, []).text == "All healthy: 2 workers, 100 requests in the last two minutes"


SLOW = {"lately": Sums(requests=40, deviating=20), "attained_tpot_ratio": 0.2, "causes": {"slower_than_peers": 18, "batch": 2}}
FAULTS = [
    ("worker_down", "down", a_pool(a_worker(state="down"), a_worker("w-1"))),
    ("worker_silence", "says nothing", a_pool(a_worker(state="silence"), a_worker("w-1"))),
    ("worker_errors", "no new requests", a_pool(a_worker(state="errors"), a_worker("w-1"))),
    ("pool_down", "none of its 1 worker left", a_pool(a_worker(state="down"))),
    ("pool_down", "has no worker", a_pool()),
    ("pool_down", "none of its 1 worker left: 1 is draining", a_pool(a_worker(state="draining"))),
    (
        "pool_down",
        "none of its 2 workers left: 1 is draining",
        a_pool(a_worker(state="draining"), a_worker("w-1", state="down")),
    ),
    (
        "slow",
        "20 % of the expected TPOT is attained; main cause: the worker is slower",
        a_pool(a_worker(**SLOW), a_worker("w-1")),
    ),
    ("slow", "20 of 40 requests at worker w-0", a_pool(a_worker(**{**SLOW, "attained_tpot_ratio": None}))),
    ("failing", "50 of 100 requests", a_pool(a_worker(lately=Sums(requests=100, failed=50), outcomes={"truncated": 50}))),
    ("kv", "KV cache full (98 %)", a_pool(a_worker(kv_usage_ratio=0.98))),
    ("kv", "75 % of its KV cache", a_pool(a_worker(kv_usage_ratio=0.75))),
    ("waiting", "9 requests wait inside worker w-0, 4 run", a_pool(a_worker(waiting_requests=9, running_requests=4))),
    ("queue", "3 requests of pool default", a_pool(a_worker(), queued_requests=3)),
    ("hit_unknown", "do not say", a_pool(a_worker(), lately=Sums(requests=10, hit_unknown=9))),
    (
        "late_ttft",
        "TTFT above 1 s",
        a_pool(a_worker(), hardware=None, ttft=Figure(9, 1.6, 2.0, 3.0, None, None, None, NOTHING, None)),
    ),
]


@pytest.mark.parametrize(("kind", "text", "pool"), FAULTS)
def test_a_fault_is_named(kind: str, text: str, pool: PoolView) -> None:
    """Each in words, with its place."""
    found = found_in(a_view(pool))

    assert kind in {finding.kind for finding in found}
    one = next(finding for finding in found if finding.kind == kind)
    assert text in one.text
    assert (one.model, one.pool) == ("m", "default")


@pytest.mark.parametrize(
    ("gateway", "kind"),
    [
        ({"serving": 0}, "gateway"),
        ({"processes": 2}, "gateway"),
        ({"loop_lag_seconds": 0.4}, "loop_lag"),
        ({"control_lag_seconds": 4.0}, "control_lag"),
        ({"is_config_refused": True}, "configuration"),
        ({"control_restarted_seconds": 5.0}, "control_restarts"),
        ({"is_stopping": True}, "stopping"),
        ({"is_stopping": True, "serving": 0}, "stopping"),
    ],
)
def test_the_gateway_itself_is_looked_at(gateway: dict[str, Any], kind: str) -> None:
    """Its own delay is never mistaken for a worker's."""
    assert [finding.kind for finding in found_in(a_view(a_pool(a_worker()), **gateway))] == [kind]


def test_that_control_was_started_again_is_told_for_a_while() -> None:
    """Since when, as it knows nothing of the time before; ten minutes later it is no news."""
    (told,) = found_in(a_view(a_pool(a_worker()), now=1000.0, control_restarted_seconds=5.0))

    assert (told.severity, told.since_unix_seconds) == ("notice", 995.0)
    assert found_in(a_view(a_pool(a_worker()), control_restarted_seconds=601.0)) == []


@pytest.mark.parametrize(
    ("causes", "peer", "peer_slow", "cause"),
    [
        ({"unexplained": 10, "kv_pressure": 5}, 1.0, 0, "kv_pressure"),
        ({"unexplained": 10, "batch": 5}, 1.0, 0, "slower_than_peers"),
        ({"unexplained": 10, "batch": 5}, 1.0, 40, "batch"),
        ({"unexplained": 10, "batch": 1}, 1.0, 40, "slower_than_peers"),
        ({"unexplained": 10}, 1.0, 40, "slower_than_peers"),
        ({"unexplained": 10}, None, 5, "slower_than_peers"),
        ({"unexplained": 10}, 0.3, 40, "unexplained"),
        ({"unexplained": 10}, None, 40, "unexplained"),
    ],
)
def test_a_slow_worker_has_a_cause_where_one_is_known(
    causes: dict[str, int], peer: float | None, peer_slow: int, cause: str
) -> None:
    """What explains nothing comes last, and peers that do well tell of a worker that does not."""
    slow = a_worker("w-0", **{**SLOW, "causes": causes})
    other = a_worker("w-1", attained_ttft_ratio=None, attained_tpot_ratio=peer, lately=Sums(requests=100, deviating=peer_slow))

    found = next(each for each in found_in(a_view(a_pool(slow, other))) if each.worker == "w-0")

    assert found.cause == cause


def test_a_pool_that_was_drained_by_hand_is_down() -> None:
    """Its clients get 503 whoever wanted it so, and the headline says that first."""
    view = a_view(a_pool(a_worker(state="draining"), pool="short"), a_pool(a_worker("w-1"), pool="long"))

    found = found_in(view)

    assert headline(view, found).severity == "critical"
    assert headline(view, found).text.startswith("Pool short of m has none of its 1 worker left: 1 is draining")
    assert found[0].advice.startswith("Resume")


def test_a_worker_that_runs_nothing_while_requests_wait_may_hang() -> None:
    """For ten seconds it is only said that they wait, then what to do about it; never that the worker has too much to run."""
    findings = Findings()
    hung, well = a_worker(waiting_requests=9), a_worker("w-1", waiting_requests=1, running_requests=4)
    told = [
        next(
            (each.kind, each.severity, each.cause) for each in findings.look(a_view(a_pool(worker, well), now=now), [], Hour())
        )
        for now, worker in ((0.0, hung), (9.0, hung), (10.0, hung), (11.0, a_worker()), (12.0, hung), (21.0, hung))
    ]

    waits, hangs = ("waiting", "notice", None), ("worker_hung", "warning", None)
    assert told == [waits, waits, hangs, ("waiting", "notice", "engine_queue"), waits, waits]


def test_a_worker_of_which_it_is_known_that_it_hangs_is_named_once() -> None:
    """Silence says more than what waits inside."""
    findings = Findings()
    pool = a_pool(a_worker(state="silence", waiting_requests=9), a_worker("w-1"))

    told = [[each.kind for each in findings.look(a_view(pool, now=now), [], Hour())] for now in (0.0, 20.0)]

    assert told == [["worker_silence"], ["worker_silence"]]


def test_a_worker_with_more_to_do_is_not_called_slow() -> None:
    """What it has more of is what makes its requests slow."""
    busy = {**SLOW, "causes": {"engine_queue": 18}, "lately": Sums(requests=40, deviating=20, prompt_tokens=90_000)}
    idle = a_worker("w-1", lately=Sums(requests=40, prompt_tokens=10_000))

    causes = [found.cause for found in found_in(a_view(a_pool(a_worker(**busy), idle)))]

    assert causes == ["engine_queue"]


def test_what_most_workers_suffer_from_is_said_once() -> None:
    """Of the pool; one worker alone is named."""
    batch = {**SLOW, "causes": {"batch": 20}}
    lately = Sums(requests=120, deviating=60)

    together = found_in(a_view(a_pool(*(a_worker(f"w-{number}", **batch) for number in range(3)), lately=lately)))
    kv = {**SLOW, "causes": {"kv_pressure": 20}}
    alone = found_in(a_view(a_pool(a_worker("w-0", **kv), a_worker("w-1"), a_worker("w-2"))))

    assert [(finding.worker, finding.cause) for finding in together] == [(None, "batch")]
    assert [(finding.worker, finding.cause) for finding in alone] == [("w-0", "kv_pressure")]


def test_the_worst_comes_first() -> None:
    """And among what is as bad, what is nearer to the cause; the headline counts the others that are serious."""
    silent, full = a_worker("w-0", "silence", since=960.0), a_worker("w-1", kv_usage_ratio=0.99)
    view = a_view(a_pool(silent, full, queued_requests=9), a_pool(a_worker("w-2", "draining"), a_worker("w-3"), pool="other"))

    found = found_in(view)

    assert [finding.kind for finding in found] == [
        "worker_silence",
        "kv",
        "queue",
        "worker_draining",
    ]
    told = headline(view, found)
    assert told.text == "Worker w-0 takes requests and says nothing, though its health check answers (for 40 s)"
    assert (told.severity, told.more) == ("warning", 2)


def test_it_is_told_since_when() -> None:
    """From the look at which it came up; what stood at the first look has no beginning, and what went begins anew."""
    findings = Findings()
    good, bad = a_pool(a_worker()), a_pool(a_worker(kv_usage_ratio=0.99))

    told = [
        [finding.since_unix_seconds for finding in findings.look(a_view(pool, now=now), [], Hour())]
        for now, pool in ((1.0, good), (2.0, bad), (3.0, bad), (4.0, good), (5.0, bad))
    ]

    assert told == [[], [2.0], [2.0], [], [5.0]]
    assert Findings().look(a_view(bad), [], Hour())[0].since_unix_seconds is None


def test_a_drift_names_its_key_and_place() -> None:
    """While requests of the changed text come, and not for ever."""
    drift = Drift(
        model="m",
        kind=DriftKind.INSERTED,
        position_bytes=1234,
        change_bytes=20,
        since=900.0,
        until=990.0,
        keys={"app-a": 30, "": 2},
        requests=32,
        texts=1,
        missed_tokens=64_000,
    )

    (found,) = found_in(a_view(a_pool(a_worker())), drift)

    assert (found.kind, found.key, found.since_unix_seconds) == ("drift", "app-a", 900.0)
    assert found.text == (
        "The system prompt of key app-a for m has changed (text was inserted near byte 1,234): "
        "32 requests missed 64,000 cached tokens"
    )
    assert found.severity == "warning"
    assert found_in(a_view(a_pool(a_worker()), now=5000.0), drift) == []

    drift.texts, drift.missed_tokens = 32, 900
    (cheap,) = found_in(a_view(a_pool(a_worker())), drift)
    assert (cheap.severity, "changes with each request" in cheap.text) == ("notice", True)


def test_who_suffers_most_comes_first() -> None:
    """Among slow workers of a pool."""
    little = {**SLOW, "causes": {"kv_pressure": 9}, "lately": Sums(requests=40, deviating=9)}
    much = {**SLOW, "causes": {"missed_prefix": 20}}

    found = found_in(a_view(a_pool(a_worker("w-0", **little), a_worker("w-1", **much), a_worker("w-2"), a_worker("w-3"))))

    assert [each.worker for each in found] == ["w-1", "w-0"]


def an_hour(*hit_ratios: float | None, tokens: int = 50_000) -> Hour:
    """Minutes with these hit shares, the last one last."""
    made = [
        Minute(
            begins_unix_seconds=60.0 * minute,
            requests=100,
            failed=0,
            deviations=0,
            completion_tokens=0,
            ttft_p50_seconds=None,
            ttft_p99_seconds=None,
            tpot_p50_seconds=None,
            tpot_p99_seconds=None,
            hit_ratio=ratio,
            hit_known_tokens=tokens,
        )
        for minute, ratio in enumerate(hit_ratios)
    ]

    class Known(Hour):
        def of(self, model: str, pool: str) -> list[Minute]:
            return made

    return Known()


@pytest.mark.parametrize(
    ("hit_ratio", "known", "hour", "told"),
    [
        (0.1, 50_000, an_hour(*[0.8] * 10), True),
        (0.7, 50_000, an_hour(*[0.8] * 10), False),
        (0.1, 1_000, an_hour(*[0.8] * 10), False),
        (0.1, 50_000, an_hour(), False),
        (0.1, 50_000, an_hour(*[0.8] * 5), False),
        (0.1, 50_000, an_hour(*[0.8] * 10, tokens=1_000), False),
        (0.1, 50_000, an_hour(*[0.8] * 20, *[0.1] * 40), True),  # for forty minutes already
        (0.02, 50_000, an_hour(*[0.06] * 10), False),  # no cache to lose
        (0.04, 50_000, an_hour(*[0.12] * 10), True),
    ],
)
def test_a_drop_of_the_hit_share_is_held_against_the_hour(hit_ratio: float, known: int, hour: Hour, told: bool) -> None:
    """With enough traffic in both, a share that is worth something, and for as long as most of the hour remembers another."""
    pool = a_pool(a_worker(), hit_ratio=hit_ratio, lately=Sums(requests=50, hit_known_tokens=known))

    found = Findings().look(a_view(pool), [], hour)

    assert [finding.kind for finding in found] == ["hit_drop"] * told


def test_workers_that_are_gone_are_forgotten() -> None:
    """Names that come and go, as pods do, leave nothing behind; what stays is remembered."""
    findings = Findings()
    for number in range(30):
        workers = (a_worker("stays", restarts=number // 29), a_worker(f"pod-{number}", waiting_requests=3))
        found = findings.look(a_view(a_pool(*workers), now=1000.0 + number), [], Hour())

    assert "restarted" in {finding.kind for finding in found}  # held against the looks before
    growth = findings._growth
    subjects = {subject for known in (growth._known, growth._begun, growth._marks) for subject in known}
    assert {name for subject in subjects for name in subject if name.startswith("pod-")} == {"pod-29"}


def test_what_is_counted_is_news_for_a_minute() -> None:
    """The growth of a spell, nothing at the first look, and nothing once it has stood still for a minute."""
    growth = Growth()

    told = [growth.of(("x",), value, now) for now, value in ((0, 5), (1, 7), (40, 8), (90, 8), (120, 8), (200, 9), (201, 9))]

    assert told == [0, 2, 3, 3, 0, 1, 1]


def test_a_serving_process_that_ended_by_itself_is_told() -> None:
    """For a minute: it is back at once, and the requests that it had are lost."""
    findings = Findings()
    told = [
        [
            (each.kind, each.severity, each.text)
            for each in findings.look(a_view(a_pool(a_worker()), now=now, **gateway), [], Hour())
        ]
        for now, gateway in ((0.0, {"serving_restarts": 3}), (5.0, {"serving_restarts": 4}), (70.0, {"serving_restarts": 4}))
    ]

    text = "A serving process ended by itself and was started again: the requests that it had were cut off"
    assert told == [[], [("process_restarts", "warning", text)], []]


@pytest.mark.parametrize(("state", "told"), [("draining", "worker_draining"), ("slow_start", "worker_slow_start")])
def test_whatever_is_said_comes_with_what_to_do(state: str, told: str) -> None:
    """An arrow in front of nothing helps nobody."""
    found = next(each for each in found_in(a_view(a_pool(a_worker(state=state), a_worker("w-1")))) if each.kind == told)

    assert found.advice


def test_what_is_shown_in_a_terminal_too_points_at_no_list_of_the_page() -> None:
    """`top` has workers and no requests."""
    findings = Findings()
    well = a_worker("w-1")
    findings.look(a_view(a_pool(well)), [], Hour())

    found = findings.look(
        a_view(a_pool(a_worker(state="errors"), well, rejected=3), unrouted={"rejected": 2}, now=1001.0), [], Hour()
    )

    assert {"unrouted", "refused", "worker_errors"} <= {each.kind for each in found}
    assert not [each.advice for each in found if "list" in each.advice or "below" in each.advice]
    assert "a limit of their key" in next(each.text for each in found if each.kind == "unrouted")


def test_attempts_that_other_workers_made_good_are_told() -> None:
    """Clients see nothing of it, and half of what a worker is asked comes to nothing; what was long ago is no news."""
    findings = Findings()
    tried = [
        *((0.0, 500, 90, 10), (5.0, 600, 110, 18), (61.0, 600, 110, 18)),
        *((100.0, 700, 110, 28), (122.0, 700, 110, 28), (260.0, 800, 112, 28)),
    ]
    told = [
        [
            (each.kind, each.severity, each.text)
            for each in findings.look(
                a_view(a_pool(a_worker(attempts=of_all, attempts_busy=busy, attempts_failed=failed), a_worker("w-1")), now=now),
                [],
                Hour(),
            )
        ]
        for now, of_all, busy, failed in tried
    ]

    one = ("attempts", "warning", "28 of 100 attempts at worker w-0 came to nothing lately: 20 busy (429 or 503), 8 failed")
    both = ("attempts", "notice", "38 of 200 attempts at worker w-0 came to nothing lately: 20 busy (429 or 503), 18 failed")
    other = ("attempts", "notice", "10 of 100 attempts at worker w-0 came to nothing lately: 10 failed")
    assert told == [[], [one], [one], [both], [other], []]


@pytest.mark.parametrize(
    ("busy", "severity", "begins"), [(100, "warning", "100 of 200 attempts at worker w-0"), (40, "ok", "")]
)
def test_a_worker_half_of_whose_answers_are_503_is_in_the_headline(busy: int, severity: str, begins: str) -> None:
    """Also when others make it good for the clients; a share that passing back-pressure has is no more than a notice."""
    findings = Findings()
    for now, of_all, some in ((0.0, 0, 0), (50.0, 200, busy)):
        view = a_view(a_pool(a_worker(attempts=of_all, attempts_busy=some), a_worker("w-1")), now=now)
        found = findings.look(view, [], Hour())

    said = headline(view, found)
    assert (said.severity, said.text.startswith(begins or "All healthy")) == (severity, True)


CAPPED = Gpus(gpus=2, sm_clock_hertz=1.1e9, limited_by=("power_cap",), xid=0)
HOT = Gpus(gpus=2, sm_clock_hertz=1.1e9, limited_by=("sw_thermal", "hw_thermal", "power_cap"), xid=0)


@pytest.mark.parametrize(
    ("gpus", "ratio", "told"),
    [
        (None, None, []),
        (HOT, None, []),
        (HOT, 0.95, []),
        (HOT, 0.85, [("gpu_clocks", "warning")]),
        (HOT, 0.55, [("gpu_clocks", "warning")]),
        (CAPPED, 0.75, []),
        (CAPPED, 0.65, [("gpu_clocks", "notice")]),
        (CAPPED, 0.55, [("gpu_clocks", "warning")]),
        (Gpus(gpus=1, xid=79), None, [("gpu_xid", "notice")]),
    ],
)
def test_what_gpus_say_is_told(gpus: Gpus | None, ratio: float | None, told: list[tuple[str, str]]) -> None:
    """A clock far below the usual one, and errors of the driver."""
    found = found_in(a_view(a_pool(a_worker(gpus=gpus, clock_ratio=ratio), a_worker("w-1"))))

    assert [(each.kind, each.severity) for each in found] == told
    if gpus is HOT and ratio == 0.55:
        text = "The GPUs of worker w-0 run at 55 % of their usual clock (1100 MHz), held down by heat and its power cap"
        assert (found[0].text, found[0].worker) == (text, "w-0")


def test_a_clock_that_is_held_down_comes_before_what_it_slows() -> None:
    """It is nearer to the cause than that the worker is slow."""
    found = found_in(a_view(a_pool(a_worker(**SLOW, gpus=HOT, clock_ratio=0.5), a_worker("w-1"))))

    assert [each.kind for each in found][:2] == ["gpu_clocks", "slow"]


def test_refusals_and_beaten_floors_are_told_while_they_happen() -> None:
    """Counters that stood there before are no news."""
    findings = Findings()
    before = a_view(a_pool(a_worker(floor_beaten=7), rejected=3))
    after = a_view(a_pool(a_worker(floor_beaten=12), rejected=5), now=1001.0)

    assert findings.look(before, [], Hour()) == []
    assert [finding.kind for finding in findings.look(after, [], Hour())] == ["facts", "refused"]
