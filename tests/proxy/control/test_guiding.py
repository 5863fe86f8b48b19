"""What control has learned reaches whoever routes, and a fault in one adviser keeps nothing from the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from proxy.control.fleet import Fleet
from proxy.control.guiding import Guide
from proxy.published import GuidanceReader
from routing.guidance import NO_GUIDANCE, Guidance, WorkerGuidance
from telemetry.record import RequestRecord

NO_FLEET = cast("Fleet", None)


class _Knows:
    def __init__(self, *names: str) -> None:
        self.names = names
        self.taken = 0

    def take(self, records: Sequence[RequestRecord]) -> None:
        self.taken += len(records)

    def advise(self, guidance: Guidance, _fleet: Fleet) -> Guidance:
        return Guidance(guidance.models, guidance.pools, guidance.workers | {name: WorkerGuidance() for name in self.names})


class _Fails:
    def take(self, records: Sequence[RequestRecord]) -> None:
        raise RuntimeError(records)

    def advise(self, guidance: Guidance, _fleet: Fleet) -> Guidance:
        raise RuntimeError(guidance)


def test_guidance_is_published_when_it_changes(tmp_path: Path):
    """Readers get what all advisers say, once; the same again is no news."""
    one, other = _Knows("a"), _Knows("b")
    guide, reader = Guide([one, _Fails(), other], tmp_path), GuidanceReader(tmp_path)
    assert reader.read_news() is None

    guide.publish(NO_FLEET)
    found = reader.read_news()
    assert found is not None
    assert set(found.workers) == {"a", "b"}

    guide.publish(NO_FLEET)
    assert reader.read_news() is None

    other.names = ()
    guide.publish(NO_FLEET)
    found = reader.read_news()
    assert found is not None
    assert set(found.workers) == {"a"}


def test_a_fault_of_one_adviser_keeps_no_record_from_another(tmp_path: Path):
    """Each gets every record."""
    one = _Knows()
    Guide([_Fails(), one], tmp_path).take([cast("RequestRecord", None)] * 3)
    assert one.taken == 3


def test_guidance_that_cannot_be_read_is_no_news(tmp_path: Path):
    """A torn or foreign file changes nothing."""
    Guide([_Knows("a")], tmp_path).publish(NO_FLEET)
    path = next(tmp_path.glob("guidance*"))
    path.write_bytes(b"\xc1 not msgpack")
    assert GuidanceReader(tmp_path).read_news() is None
    assert NO_GUIDANCE.workers == {}
