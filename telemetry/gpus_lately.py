"""What the GPUs of one worker did lately: whether their clock is below what is usual, and how busy their memory is.

A clock says something only while the GPU works: an idle one lets it fall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median, quantiles

from telemetry.dcgm import Gpus

_READINGS = 360  # that the usual clock is taken from: an hour, at one every ten seconds
_LEAST_READINGS = 6  # below, nothing is usual yet
_BUSY_RATIO = 0.05  # of the time; less is idle
_USUAL_QUARTILE = 2  # the upper one
_OF_HEAVY_WORK = frozenset({"power_cap"})  # what GPUs do under full load as a matter of course


class GpusLately:
    """`look` with each reading. Instants are seconds of one clock."""

    __slots__ = ("_clocks", "_seen", "_usual", "newest")

    def __init__(self) -> None:
        self.newest: Gpus | None = None
        self._clocks: deque[float] = deque(maxlen=_READINGS)  # while busy
        self._seen: deque[tuple[float, Gpus]] = deque(maxlen=_READINGS)
        self._usual: float | None = None

    def __repr__(self) -> str:
        return f"<GpusLately {self.newest}>"

    def look(self, at: float, gpus: Gpus | None) -> None:
        """Note what the exporter says; ``None`` when it said nothing of them."""
        self.newest = gpus
        if gpus is None:
            return
        self._seen.append((at, gpus))
        if gpus.sm_clock_hertz is not None and _is_busy(gpus):
            self._clocks.append(gpus.sm_clock_hertz)
            if len(self._clocks) >= _LEAST_READINGS:
                upper = quantiles(self._clocks, n=4, method="inclusive")[_USUAL_QUARTILE]
                self._usual = upper if self._usual is None else max(self._usual, upper)

    @property
    def usual_clock_hertz(self) -> float | None:
        """The clock that they have had at work most of the time; ``None`` before that is known.

        It never falls: who is held down for a day must not become the measure of itself.
        """
        return self._usual

    def clock_ratio(self, since: float, peers: Iterable[GpusLately] = ()) -> float | None:
        """The least clock at work from then on, over the usual one: their own, or that of peers where that is higher.

        ``None``: not known. A reading that stood when it began counts, too.
        """
        clocks = [gpus.sm_clock_hertz for gpus in self._between(since) if gpus.sm_clock_hertz is not None and _is_busy(gpus)]
        others = [usual for peer in peers if (usual := peer.usual_clock_hertz) is not None]
        usual = max([*([] if self._usual is None else [self._usual]), *([median(others)] if others else [])], default=None)
        return None if not clocks or not usual else min(clocks) / usual

    def is_limited(self, since: float) -> bool:
        """Whether the driver says that heat or a lack of power held a clock down from then on."""
        return any(is_limited(gpus) for gpus in self._between(since))

    def dram_active_ratio(self, since: float) -> float | None:
        """How busy the memory was from then on, at most; ``None``: not known."""
        known = (gpus.dram_active_ratio for gpus in self._between(since))
        return max((ratio for ratio in known if ratio is not None), default=None)

    def _between(self, since: float) -> Iterable[Gpus]:
        for at, gpus in reversed(self._seen):
            yield gpus
            if at <= since:
                return


def is_limited(gpus: Gpus) -> bool:
    """Whether heat or a lack of power holds a clock down; a power cap alone does so under full load in health, too."""
    return not _OF_HEAVY_WORK.issuperset(gpus.limited_by)


def _is_busy(gpus: Gpus) -> bool:
    """Whether they work; taken for granted where that is not told."""
    return gpus.utilisation_ratio is None or gpus.utilisation_ratio >= _BUSY_RATIO
