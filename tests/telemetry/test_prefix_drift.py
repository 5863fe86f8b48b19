"""Where a prompt's beginning diverged from what was hot, and what else loses a hit."""

from __future__ import annotations

from base64 import b64encode
from random import Random

import pytest

from routing.sketch import BLOCK_BYTES, family_of, sketch_of
from telemetry.prefix_drift import MOST_FAMILIES, MOST_RESTARTS, DriftKind, Lost, Observation, PrefixDrifts, compare

DICE = Random(7)
WORDS = ("answer", "customers", "politely", "about", "orders", "and", "returns", "in", "short", "sentences", "without", "any")
SYSTEM = " ".join(f"{DICE.choice(WORDS)}{'.' if DICE.random() < 0.1 else ''}" for _ in range(900)).encode()
HIT = 1400


def an_observation(text: bytes = SYSTEM, at: float = 0.0, cached: int | None = HIT, **other: object) -> Observation:
    fields: dict[str, object] = {
        "at": at,
        "model": "m",
        "key": "app-a",
        "worker": "w-0",
        "family": family_of(text),
        "length_bytes": len(text),
        "sketch": sketch_of(text),
        "prompt_tokens": 1650,
        "cached_tokens": cached,
    }
    return Observation(**fields | other)  # type: ignore[arg-type]


def warm(requests: int = 50) -> PrefixDrifts:
    """A family that is hot: 85 % of its prompts come from the cache."""
    drifts = PrefixDrifts()
    for number in range(requests):
        assert drifts.observe(an_observation(at=float(number), cached=HIT if number else 0)) is None
    return drifts


MIDDLE = len(SYSTEM) // 2
CHANGES = {
    "a blank at the end": (SYSTEM + b" ", DriftKind.INSERTED, len(SYSTEM), 1),
    "a date at the start": (b"Today is Monday. " + SYSTEM, DriftKind.INSERTED, 0, 17),
    "a sentence in the middle": (
        SYSTEM[:MIDDLE] + b" Never mention prices. " + SYSTEM[MIDDLE:],
        DriftKind.INSERTED,
        MIDDLE,
        23,
    ),
    "a part taken out": (SYSTEM[:MIDDLE] + SYSTEM[MIDDLE + 400 :], DriftKind.REMOVED, MIDDLE, -400),
    "a word for another": (SYSTEM[:1000] + b"XXXXXXXXXX" + SYSTEM[1010:], DriftKind.CHANGED, 1000, 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_beginning_is_found(name):
    """Within ten requests: what was done to the text, where to within 64 bytes, since when, for whom, and what it costs."""
    text, kind, position, added = CHANGES[name]
    drifts = warm()

    found = [drifts.observe(an_observation(text, at=100.0 + number, cached=0, key="app-b")) for number in range(10)]

    assert found[:4] == [None] * 4  # a few may be somebody's try
    (drift,) = drifts.drifts()
    assert found[-1] is drift
    assert abs(drift.position_bytes - position) <= BLOCK_BYTES
    assert (drift.since, drift.until, drift.keys) == (100.0, 109.0, {"app-b": 10})
    assert drift.missed_tokens == 10 * HIT
    if name != "a word for another":
        assert drift.kind is kind
    assert drift.change_bytes == added


def test_a_text_that_changes_each_time_is_one_finding():
    """A clock at the start makes a new text of every request, and one drift with as many texts as requests."""
    drifts = warm()
    for number in range(30):
        drifts.observe(an_observation(b"It is 12:00:%02d. " % number + SYSTEM, at=100.0 + number, cached=0))

    (drift,) = drifts.drifts()
    assert (drift.requests, drift.texts, drift.position_bytes) == (30, 30, 0)


def test_what_hits_again_costs_nothing_more():
    """A changed text is cached in its turn: only what was missed until then is counted."""
    drifts = warm()
    for number in range(20):
        drifts.observe(an_observation(SYSTEM + b" ", at=100.0 + number, cached=HIT if number else 0))

    assert drifts.drifts()[0].missed_tokens == HIT


def test_unrelated_traffic_is_no_drift():
    """Other prompts, long and short, that share nothing or little with what is hot."""
    drifts = warm()
    for number in range(300):
        dice = Random(number)
        text = " ".join(dice.choice(WORDS) for _ in range(dice.randint(20, 900))).encode()
        drifts.observe(an_observation(text, at=100.0 + number, cached=0))
        drifts.observe(an_observation(SYSTEM[:1000] + text * 5, at=100.0 + number, cached=0))

    assert drifts.drifts() == []


def test_a_text_that_never_hit_cannot_drift():
    """Without hits there is nothing to lose."""
    drifts = PrefixDrifts()
    for number in range(50):
        drifts.observe(an_observation(at=float(number), cached=0))
    for number in range(20):
        drifts.observe(an_observation(SYSTEM + b"!", at=100.0 + number, cached=0))

    assert drifts.drifts() == []


@pytest.mark.parametrize(
    ("changes", "restarted_at", "reason"),
    [
        ({}, None, Lost.EVICTED),
        ({"is_salted": True}, None, Lost.SALTED),
        ({"worker": "w-9"}, None, Lost.ELSEWHERE),
        ({}, 60.0, Lost.RESTARTED),
        ({}, 10.0, Lost.EVICTED),  # seen there since
        ({"cached": HIT}, 60.0, None),
        ({"cached": None}, None, None),
    ],
)
def test_what_lost_the_hit_of_the_same_text(changes, restarted_at, reason):
    """The worker made room, was started anew, never had it; or the request wanted a cache of its own."""
    drifts = warm()
    if restarted_at is not None:
        drifts.note_restart("w-0", restarted_at)

    assert drifts.lost(an_observation(at=100.0, **{"cached": 0, **changes})) is reason


@pytest.mark.parametrize(
    ("changes", "restarted_at", "expected"),
    [
        ({}, None, HIT),
        ({"worker": "w-9"}, None, 0),
        ({}, 60.0, 0),
        ({"at": 50.0 + 601.0}, None, 0),
        ({"prompt_tokens": 900}, None, 900),
        ({"text": b"another " * 200}, None, None),
    ],
)
def test_what_hit_can_be_expected(changes, restarted_at, expected):
    """What the family usually has at a worker that has seen it of late, and nothing at one that has not."""
    drifts = warm()
    if restarted_at is not None:
        drifts.note_restart("w-0", restarted_at)

    assert drifts.expected_cached_tokens(an_observation(**{"at": 55.0, **changes})) == expected


def test_families_are_bounded():
    """However many different prompts come, only so many are remembered; the hot one that goes on is among them."""
    drifts = warm()
    for number in range(3 * MOST_FAMILIES):
        drifts.observe(an_observation(b"prompt %d " % number * 60, at=100.0 + number, cached=0))
        if number % 500 == 0:
            drifts.observe(an_observation(at=100.0 + number))

    assert f"{MOST_FAMILIES} families" in repr(drifts)
    assert drifts.expected_cached_tokens(an_observation(at=100.0 + 3 * MOST_FAMILIES)) is not None


def letters(first: int, last: int, count: int = 10_000) -> bytes:
    """Letters of one script without a blank or a full stop, as UTF-8."""
    return "".join(chr(DICE.randrange(first, last)) for _ in range(count)).encode()


UNCUT = {
    "one word again and again": b"lorem " * 6000,
    "base64": b64encode(DICE.randbytes(24_000)),
    "Chinese": letters(0x4E00, 0x9FA5),
    "Korean": letters(0xAC00, 0xD7A3),
    "Thai": letters(0xE01, 0xE30),
    "words": SYSTEM * 6,
}


@pytest.mark.parametrize("length", [1_000, 12_000, 24_000])
@pytest.mark.parametrize("name", UNCUT)
def test_what_a_text_is_written_in_does_not_matter(name, length):
    """Nor whether there is a place to cut it at, nor how long it is: what was done to it, and where to within 64 bytes."""
    text = UNCUT[name][:length]
    for at in (0, 1, length // 3, length // 2, min(length, 16_000) - 300):
        before, grown = sketch_of(text), sketch_of(text[:at] + b"[12:30 h]" + text[at:])
        shrunk, other = sketch_of(text[:at] + text[at + 200 :]), sketch_of(text[:at] + b"[12:30 h]" + text[at + 9 :])

        for changed, kind, added in (
            (grown, DriftKind.INSERTED, 9),
            (shrunk, DriftKind.REMOVED, -200),
            (other, DriftKind.CHANGED, 0),
        ):
            found = compare(before, changed)
            assert found is not None, (at, kind)
            assert found[0] is kind
            assert 0 <= at - found[1] < BLOCK_BYTES
            assert found[2] == added


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 20_000])
def test_a_text_did_not_come_from_itself(length):
    """Equal texts have no change; nor has one with nothing in it."""
    sketch = sketch_of(b"x" * length)
    assert compare(sketch, sketch) is None


def test_a_sketch_is_small_and_says_nothing():
    """At most 16 kB from either end are looked at, and no part of the text is in it."""
    sketch = sketch_of(SYSTEM * 50)
    assert (len(sketch.blocks), len(sketch.ends)) == (256, 256)
    assert sketch.length_bytes == 50 * len(SYSTEM)
    assert b"politely" not in repr(sketch).encode()


def test_restarts_are_remembered_up_to_a_bound():
    """Pods come under new names for ever; a worker that was restarted once more is not among the oldest."""
    drifts = warm()
    drifts.note_restart("w-0", 55.0)
    for number in range(MOST_RESTARTS + 10):
        drifts.note_restart(f"pod-{number}", 60.0)
        if number == 50:
            drifts.note_restart("w-0", 60.0)

    assert len(drifts._restarted) == MOST_RESTARTS
    assert drifts.lost(an_observation(at=61.0, cached=0)) is Lost.RESTARTED
