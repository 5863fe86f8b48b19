"""Memory and descriptors of the gateway's processes over time, and whether they are flat."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.integration.gateway import Gateway

# What the last third may have more than the middle third: a share and an amount.
MEMORY_BAND = (0.05, 4 * 2**20)
DESCRIPTOR_BAND = (0.25, 8)
_IDLE_DESCRIPTORS = 4  # that each role may have more than before the run
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One role's processes together at one instant, seconds from the start."""

    at_seconds: float
    role: str
    rss_bytes: int
    pss_bytes: int  # what is shared counts once in all
    descriptors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One figure of one role, earlier and later: medians of the middle and the last third, or idle before and after the run."""

    role: str
    figure: str
    earlier: float
    later: float
    most: float  # that the later one may be

    @property
    def is_flat(self) -> bool:
        """Whether it has not grown by more than the band."""
        return self.later <= self.most


def take_samples(gateway: Gateway, at_seconds: float) -> list[Sample]:
    """One sample of each role; a role of which a process ends meanwhile is left out."""
    now = gateway.processes
    roles = {"supervisor": (now.supervisor,), "control": (now.control,), "serving": now.serving or (None,)}
    found = []
    for role, pids in roles.items():
        with suppress(ProcessLookupError, FileNotFoundError):
            figures = [_figures(pid) for pid in pids]
            rss, pss, descriptors = (sum(column) for column in zip(*figures, strict=True))
            found.append(Sample(at_seconds=at_seconds, role=role, rss_bytes=rss, pss_bytes=pss, descriptors=descriptors))
    return found


def _figures(pid: int | None) -> tuple[int, int, int]:
    """RSS, PSS and descriptors. ProcessLookupError or FileNotFoundError if there is no such process any more."""
    if pid is None:
        raise ProcessLookupError
    folder = Path(f"/proc/{pid}")
    sizes = {}
    for line in (folder / "smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        sizes[name] = int(size) * 1024
    if not sizes:  # it has ended, and nobody has asked for its status yet
        raise ProcessLookupError(pid)
    return sizes["Rss:"], sizes["Pss:"], len(os.listdir(folder / "fd"))  # noqa: PTH208 -- names alone


@asynccontextmanager
async def watched(gateway: Gateway, started_at: float, every_seconds: float) -> AsyncIterator[list[Sample]]:
    """Take samples while the block runs."""
    samples: list[Sample] = []

    async def watch() -> None:
        while True:
            samples.extend(take_samples(gateway, time.monotonic() - started_at))
            await asyncio.sleep(every_seconds)

    task = asyncio.create_task(watch())
    try:
        yield samples
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def trends(samples: Sequence[Sample], seconds: float) -> list[Trend]:
    """How each figure of each role went. AssertionError if a third has no sample."""
    by_role: dict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        by_role[one.role].append(one)
    found = []
    for role, own in by_role.items():
        middle = [one for one in own if seconds / 3 <= one.at_seconds < seconds * 2 / 3]
        last = [one for one in own if seconds * 2 / 3 <= one.at_seconds <= seconds]
        assert middle, f"no sample of {role} in the middle third"
        assert last, f"no sample of {role} in the last third"
        for figure, (share, amount) in (
            ("rss_bytes", MEMORY_BAND),
            ("pss_bytes", MEMORY_BAND),
            ("descriptors", DESCRIPTOR_BAND),
        ):
            before, after = (median(getattr(one, figure) for one in third) for third in (middle, last))
            most = before * (1 + share) + amount
            found.append(Trend(role=role, figure=figure, earlier=before, later=after, most=most))
    return found


async def idle_descriptors(gateway: Gateway, before: Sequence[Sample], within_seconds: float) -> list[Trend]:
    """Whether descriptors of each role come down to what they were before the first request.

    The least within the time counts: each worker that is being asked for its health has a connection for a second.
    """
    ends_at = time.monotonic() + within_seconds
    least: dict[str, int] = {}
    while True:
        for one in take_samples(gateway, 0.0):
            least[one.role] = min(one.descriptors, least.get(one.role, one.descriptors))
        found = [
            Trend(
                role=one.role,
                figure="idle_descriptors",
                earlier=one.descriptors,
                later=least[one.role],
                most=one.descriptors + _IDLE_DESCRIPTORS,
            )
            for one in before
        ]
        if all(one.later <= one.earlier for one in found) or time.monotonic() > ends_at:
            return found
        await asyncio.sleep(0.5)


def shown(figure: str, value: float) -> str:
    """For people: bytes in MiB."""
    return f"{value / _MIB:.1f} MiB" if figure.endswith("_bytes") else f"{value:g}"
