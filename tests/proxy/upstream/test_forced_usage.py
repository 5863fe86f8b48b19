"""Which workers are not asked for usage, because they may send it to everybody, and what one stream tells of that."""

from __future__ import annotations

import pytest

from proxy.upstream.forced_usage import ForcedUsage
from routing.guidance import WorkerGuidance


def following(*runs: str | None) -> ForcedUsage:
    """Of workers w-0, w-1, … with these runs."""
    usage = ForcedUsage()
    usage.follow(workers(*runs))
    return usage


def workers(*runs: str | None) -> dict[str, WorkerGuidance]:
    return {f"w-{number}": WorkerGuidance(usage_trial=run) for number, run in enumerate(runs)}


def test_only_what_is_open_is_tried() -> None:
    """A worker of another version is asked from its first stream on."""
    assert following("0.17.1 1", None).unasked == {"w-0"}


@pytest.mark.parametrize(("is_forced", "unasked"), [(True, {"w-0"}), (False, set()), (None, {"w-0"})])
def test_one_stream_tells(is_forced: bool | None, unasked: set[str]) -> None:
    """While it runs others are asked; a worker that forces usage is not asked again, one that did not tell is tried again."""
    usage = following("0.17.1 1")

    assert usage.begins("w-0")
    assert usage.unasked == set()
    usage.ends("w-0", is_forced)

    assert usage.unasked == unasked
    assert usage.begins("w-0") is (is_forced is None)


def test_the_same_guidance_changes_nothing() -> None:
    """It comes whenever anything else in it changes."""
    usage = following("a", "b")
    usage.begins("w-0")
    usage.ends("w-0", is_forced=False)

    usage.follow(workers("a", "b"))

    assert usage.unasked == {"w-1"}


def test_a_worker_that_was_started_again_is_tried_again() -> None:
    """It may have other flags; the others keep what is known of them."""
    usage = following("a", "b")
    for name in ("w-0", "w-1"):
        usage.begins(name)
        usage.ends(name, is_forced=True)

    usage.follow(workers("a", "b, again"))

    assert usage.unasked == {"w-0", "w-1"}
    assert (usage.begins("w-0"), usage.begins("w-1")) == (False, True)


def test_what_is_gone_is_forgotten() -> None:
    """Also when its stream ends afterwards."""
    usage = following("a")
    usage.begins("w-0")
    usage.follow(workers(None))
    usage.ends("w-0", is_forced=True)

    assert usage.unasked == set()
    usage.follow(workers("a"))
    assert usage.begins("w-0")
