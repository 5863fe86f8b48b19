"""What NVIDIA's dcgm-exporter says of the GPUs of one worker: its page read, and those GPUs picked by their labels.

A value that the driver does not give comes as blank (a number near 2^63) and counts as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import NamedTuple

import msgspec

CLOCK = "DCGM_FI_DEV_SM_CLOCK"  # MHz
UTILISATION = "DCGM_FI_DEV_GPU_UTIL"  # percent
DRAM_ACTIVE = "DCGM_FI_PROF_DRAM_ACTIVE"  # 0 to 1
TENSOR_ACTIVE = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"  # 0 to 1
POWER = "DCGM_FI_DEV_POWER_USAGE"  # W
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"  # °C
XID = "DCGM_FI_DEV_XID_ERRORS"  # the code of the last one, 0: none
REASONS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")  # a bit each; newer name and older one
EVENTS = "DCGM_EXP_CLOCK_EVENTS_COUNT"  # of each reason, within the exporter's last minutes; label `clock_event`
_WANTED = frozenset({CLOCK, UTILISATION, DRAM_ACTIVE, TENSOR_ACTIVE, POWER, TEMPERATURE, XID, *REASONS, EVENTS})

# Bits of the reasons, by the names that the exporter itself has for them; idling and settings of somebody are no trouble.
_LIMITS = {0x04: "power_cap", 0x08: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake"}
_BLANK = 2.0**47  # the least of the numbers that stand for no value
_LINE = re.compile(rb"^(DCGM_\w+)\{([^\n]*)\} ([^\s]+)", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="((?:[^"\\\n]|\\.)*)"')
_ESCAPED = re.compile(rb"\\(.)")


class Sample(NamedTuple):
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


class Gpus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The GPUs of one worker together, as they were when the exporter last looked. ``None``: it does not say."""

    gpus: int
    sm_clock_hertz: float | None = None  # of the slowest
    limited_by: tuple[str, ...] = ()  # what holds a clock of them down: power_cap, sw_thermal, hw_thermal, ...
    utilisation_ratio: float | None = None  # share of the time in which anything ran, of the busiest
    dram_active_ratio: float | None = None  # share of the cycles in which memory sends or receives, mean; 0.8 is its peak
    tensor_active_ratio: float | None = None  # share of the cycles in which tensor cores work, mean
    power_watts: float | None = None  # sum
    temperature_celsius: float | None = None  # of the hottest
    xid: int | None = None  # code of the last error of the driver, the greatest of them; 0: none


def read_page(page: bytes) -> list[Sample]:
    """The lines that matter on a dcgm-exporter's page; none of a page of something else."""
    found = []
    for line in _LINE.finditer(page):
        name = line[1].decode()
        if name in _WANTED:
            labels = {key.decode(): _text(value) for key, value in _LABEL.findall(line[2])}
            try:
                value = float(line[3])
            except ValueError:
                continue
            if isfinite(value) and 0.0 <= value < _BLANK:
                found.append(Sample(name, labels, value))
    return found


def pick(samples: Iterable[Sample], labels: Mapping[str, tuple[str, ...]]) -> Gpus | None:
    """The GPUs each of whose labels has one of these values; ``None`` if there is none. No labels: all GPUs."""
    gpus: dict[tuple[str, ...], dict[str, float]] = {}
    limits: set[str] = set()
    for name, found, value in samples:
        if not all(found.get(label) in values for label, values in labels.items()):
            continue
        # One GPU may have a line for each pod that shares it, and errors have labels of their own.
        which = (found.get("Hostname", ""), found.get("UUID") or found.get("gpu", ""), found.get("GPU_I_ID", ""))
        gpu = gpus.setdefault(which, {})
        if name == EVENTS:
            if value > 0.0:
                limits.add(found.get("clock_event", ""))
        elif name in REASONS:
            limits.update(limit for bit, limit in _LIMITS.items() if int(value) & bit)
        else:
            gpu[name] = max(value, gpu.get(name, value))
    if not gpus:
        return None

    def known(name: str) -> list[float]:
        return [gpu[name] for gpu in gpus.values() if name in gpu]

    clocks, busy, xids = known(CLOCK), known(UTILISATION), known(XID)
    return Gpus(
        gpus=len(gpus),
        sm_clock_hertz=1e6 * min(clocks) if clocks else None,
        limited_by=tuple(limit for limit in _LIMITS.values() if limit in limits),
        utilisation_ratio=max(busy) / 100.0 if busy else None,
        dram_active_ratio=_mean(known(DRAM_ACTIVE)),
        tensor_active_ratio=_mean(known(TENSOR_ACTIVE)),
        power_watts=sum(power) if (power := known(POWER)) else None,
        temperature_celsius=max(known(TEMPERATURE), default=None),
        xid=int(max(xids)) if xids else None,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _text(value: bytes) -> str:
    return _ESCAPED.sub(rb"\1", value).decode(errors="replace")
