"""What a worker's last requests had in common, and what its probes have said meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

from proxy.control.calibrating import has_clean_tpot, has_clean_ttft
from proxy.control.standards import Standard
from telemetry.judgement import Judgement
from telemetry.record import RequestRecord

FIGURES = ("ttft", "tpot")  # by which a worker is called slow
SHOWN = {"ttft": "cold", "tpot": "tpot"}
"""What is shown of a figure as the worker's capacity: of TTFT, what was attained of cold prompts."""
_RECENT = 32  # requests of a worker that its medians are taken over
_LEAST_RECENT = 12  # below, a median says nothing
_PROBES = 256  # changes of a worker's gauges that are remembered: some twenty minutes of them
_STEP = 8  # medians are taken anew after so many


class Probed:
    """What probes have said of a worker's queue and cache: a request may have suffered long before it ended."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=_PROBES)  # instant, waiting, usage; only what changed

    def look(self, now: float, waiting: float, kv_usage: float) -> None:
        """Note what is there now."""
        if isnan(waiting) and isnan(kv_usage):
            return
        if not self._seen or self._seen[-1][1:] != (waiting, kv_usage):
            self._seen.append((now, waiting, kv_usage))

    def peak(self, since: float) -> tuple[float | None, float | None]:
        """The greatest of each from then on; ``None``: not known."""
        waiting = kv_usage = None
        for at, one, other in reversed(self._seen):
            waiting = one if waiting is None or one > waiting else waiting
            kv_usage = other if kv_usage is None or other > kv_usage else kv_usage
            if at <= since:
                break
        return waiting, kv_usage


@dataclass(slots=True)
class Puzzle:
    """A request that deviated when nothing was known that would explain it."""

    record: RequestRecord
    judgement: Judgement
    taken: int  # requests of its worker until then
    tries_left: int = 4


class Lately:
    """What the last requests of one worker had in common."""

    __slots__ = (
        *("attained", "contexts", "medians", "probed", "puzzles", "running", "standard"),
        *("taken", "usual_context", "usual_running"),
    )

    def __init__(self) -> None:
        self.attained: dict[str, deque[float]] = {figure: deque(maxlen=_RECENT) for figure in (*FIGURES, "cold")}
        self.medians: dict[str, float] = dict.fromkeys(self.attained, nan)
        self.running: deque[float] = deque(maxlen=4 * _RECENT)
        self.contexts: deque[float] = deque(maxlen=4 * _RECENT)
        self.probed = Probed()
        self.puzzles: deque[Puzzle] = deque(maxlen=_RECENT)
        self.standard: Standard | None = None  # that the ratios were measured by
        self.taken = 0
        self.usual_running: float | None = None
        self.usual_context: float | None = None

    def take(self, record: RequestRecord, judgement: Judgement) -> bool:
        """Remember one request. Whether medians are new.

        What it attained counts only where others' prompts were not in its way; that of cold prompts' TTFT is kept apart, too.
        """
        self.taken += 1
        if (held := judgement.ttft) is not None and has_clean_ttft(record) and not held.is_interval:
            self.attained["ttft"].append(held.attained_ratio)
            if record.is_cold:
                self.attained["cold"].append(held.attained_ratio)
        if (held := judgement.tpot) is not None and has_clean_tpot(record):
            self.attained["tpot"].append(held.attained_ratio)
        self.running.append(record.beside_decode_requests or 0.0)
        self.contexts.append(float(record.prompt_tokens or 0))
        if self.taken % _STEP:
            return False
        self.renew()
        return True

    def puzzle(self, record: RequestRecord, judgement: Judgement) -> None:
        """Remember a request that deviated and that nothing explains, as it came from the serving process."""
        self.puzzles.append(Puzzle(record, judgement, self.taken))

    def open_puzzles(self) -> list[Puzzle]:
        """Those among the requests that the medians are taken over; each is given four times at most."""
        found = [puzzle for puzzle in self.puzzles if puzzle.taken > self.taken - _RECENT and puzzle.tries_left > 0]
        for puzzle in found:
            puzzle.tries_left -= 1
        self.puzzles.clear()
        self.puzzles.extend(found)
        return found

    def slower_ratio(self) -> float | None:
        """Measured over expected, of the figure that lost more; ``None`` if nothing is lost, or nothing known."""
        known = [attained for figure in FIGURES if (attained := self.medians[figure]) > 0.0]
        return 1.0 / min(known) if known and min(known) < 1.0 else None

    def renew(self) -> None:
        """Take the medians anew."""
        for figure, ratios in self.attained.items():
            self.medians[figure] = median(ratios) if len(ratios) >= _LEAST_RECENT else nan
        if len(self.running) >= _LEAST_RECENT:
            self.usual_running = median(self.running)
            self.usual_context = median(self.contexts)

    def measure_by(self, standard: Standard) -> None:
        """Hold requests against this from now on; what was attained by another measure is forgotten."""
        self.standard = standard
        self.puzzles.clear()
        for figure, ratios in self.attained.items():
            ratios.clear()
            self.medians[figure] = nan

    def slower_than(self, peers: Iterable[Lately]) -> float | None:
        """How much slower the worker is lately than the median of its peers, at its own work; ``None`` without any.

        Peers are those that are measured by the same standard: another version of the engine has a pace of its own.
        """
        alike = [peer for peer in peers if peer.standard is self.standard]
        for figure in FIGURES:
            own = self.medians[figure]
            others = [ratio for peer in alike if not isnan(ratio := peer.medians[figure])]
            if others and own > 0.0 and (ratio := median(others) / own) > 1.0:
                return ratio
        return None
