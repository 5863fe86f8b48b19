"""What is asked of latency: presets for kinds of use, and how a figure stands to them.

Thresholds are means unless said otherwise, and all of them are meant to be overridden: `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

JITTER_RATIO = 1.5  # P99 of TPOT over its median: above, it is felt as a stall


class Verdict(StrEnum):
    """How a figure stands to a target."""

    NO_TARGET = "no_target"
    NO_GAIN = "no_gain"  # faster than anyone notices: the capacity is better spent on more requests
    GOOD = "good"
    ACCEPTABLE = "acceptable"  # within the target, but noticed
    MISSED = "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Latency targets of one kind of use. ``None``: not asked for. ``ValueError`` if they are out of order."""

    name: str
    source: str
    ttft_good_seconds: float | None = None
    ttft_seconds: float | None = None  # above, it is missed
    tpot_no_gain_seconds: float | None = None
    tpot_aim_seconds: float | None = None  # the fast end of what is good: what to size for
    tpot_seconds: float | None = None  # above, it is missed
    jitter_ratio: float | None = None  # P99 of TPOT over its median

    def __post_init__(self) -> None:
        for ladder in (
            (self.ttft_good_seconds, self.ttft_seconds),
            (self.tpot_no_gain_seconds, self.tpot_aim_seconds, self.tpot_seconds),
        ):
            rungs = [seconds for seconds in ladder if seconds is not None]
            if rungs != sorted(rungs) or any(seconds <= 0 for seconds in rungs):
                raise ValueError(f"targets of {self.name} are positive and rise from best to worst, not {rungs}")

    def ttft_verdict(self, seconds: float) -> Verdict:
        """How a time to the first token stands."""
        return _verdict(seconds, None, self.ttft_good_seconds, self.ttft_seconds)

    def tpot_verdict(self, seconds: float) -> Verdict:
        """How a time per output token stands."""
        return _verdict(seconds, self.tpot_no_gain_seconds, self.tpot_seconds, self.tpot_seconds)

    def jitter_verdict(self, p99_seconds: float, median_seconds: float) -> Verdict:
        """How evenly tokens come, by P99 and median of TPOT. ``ValueError`` unless the median is above 0."""
        if not median_seconds > 0:
            raise ValueError(f"the median of TPOT is above 0, not {median_seconds}")
        return _verdict(p99_seconds / median_seconds, None, None, self.jitter_ratio)


_TTFT = "users of a chat take half a second as prompt, and doubt that anything happens after one"
_TPOT = "30-50 ms a token read naturally (Chinese text, about one character each); nobody notices what is faster than 25 ms"
_JITTER = "P99 of TPOT above 1.5 times its median is felt as a stall"

CHAT = Targets(
    name="chat",
    source=f"{_TTFT}; {_TPOT}; {_JITTER}",
    ttft_good_seconds=0.5,
    ttft_seconds=1.0,
    tpot_no_gain_seconds=0.025,
    tpot_aim_seconds=0.030,
    tpot_seconds=0.050,
    jitter_ratio=JITTER_RATIO,
)
CUSTOMER_SERVICE = Targets(
    name="customer-service",
    source=f"customers wait up to 1.5 s for a first word; {_TPOT}; {_JITTER}",
    ttft_good_seconds=0.5,
    ttft_seconds=1.5,
    tpot_no_gain_seconds=0.025,
    tpot_aim_seconds=0.030,
    tpot_seconds=0.050,
    jitter_ratio=JITTER_RATIO,
)
BATCH_JOB = Targets(name="batch", source="nobody waits for a single answer: only throughput counts")

PRESETS: Mapping[str, Targets] = MappingProxyType({targets.name: targets for targets in (CHAT, CUSTOMER_SERVICE, BATCH_JOB)})


def targets_named(name: str) -> Targets:
    """A preset. ``ValueError`` names those that there are."""
    try:
        return PRESETS[name.strip().lower().replace("_", "-")]
    except KeyError:
        raise ValueError(f"no targets are called {name!r}; there are {', '.join(PRESETS)}") from None


def _verdict(figure: float, no_gain: float | None, good: float | None, most: float | None) -> Verdict:
    if no_gain is not None and figure < no_gain:
        return Verdict.NO_GAIN
    if most is None and good is None:
        return Verdict.NO_TARGET
    if most is not None and figure > most:
        return Verdict.MISSED
    return Verdict.GOOD if good is None or figure <= good else Verdict.ACCEPTABLE
