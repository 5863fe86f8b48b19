"""Slices of a GPU: what of its limits a MIG device has (NVIDIA Multi-Instance GPU).

A name such as ``MIG 3g.40gb`` tells compute slices and memory; ``1c.3g.20gb`` is one compute slice of such an instance.
Suffixes (``+me``, ``+gfx``, ``-me``, ``+me.all``; dots instead of plus signs in Kubernetes labels) concern media engines and
graphics and change nothing here. Source: NVIDIA MIG user guide, "Supported MIG Profiles" and "MIG Device Names".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from roofline.gpu import Certainty, Gpu

_PROFILE = re.compile(
    r"^(?P<card>.*?)[\s_-]*\bmig[\s_-]+(?:(?P<instance>\d)c\.)?(?P<compute>\d)g\.(?P<gigabytes>\d+)gb(?:[+.-](?:me|gfx|all))*"
    r"(?:\s+device\s+\d+:?)?\s*$",
    re.IGNORECASE,
)
_SIZE_TOLERANCE_RATIO = 0.03  # profiles round their memory to whole GB: 1g.18gb of 141 GB, 1g.23gb of 180 GB

# Compute slices of an instance -> memory slices that it may have; by how many slices the compute of the card is cut into.
_MEMORY_SLICES: Mapping[int, Mapping[int, tuple[int, ...]]] = {
    7: {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)},
    4: {1: (1,), 2: (2,), 4: (4,)},
}
_QUARTERED = frozenset(
    {"a30", "rtx-pro-6000-blackwell", "rtx-pro-6000-blackwell-maxq", "rtx-pro-6000-blackwell-server"},
)
_CUT_IN_SEVENTHS = frozenset({"8.0", "9.0", "10.0", "10.3"})  # compute capabilities of A100, H100, B200, B300 and their kin

# Where the driver grants more multiprocessors than the profile's sevenths, as `nvidia-smi mig -lgip` prints them on Hopper
# parts with 132: 60 for 3g, 26 for 1g with two memory slices. A seventh of the peak each would be a limit that can be beaten.
_FULL_HOPPER = frozenset({"h100-sxm", "h100-nvl", "h200-sxm", "h200-nvl", "h800-sxm", "gh200-96gb", "gh200-144gb"})
_GENEROUS_RATIO: Mapping[tuple[int, int], float] = {(3, 4): 60 / 132, (1, 2): 26 / 132}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the name of a MIG device tells."""

    compute_slices: int
    gigabytes: int
    instance_slices: int | None = None  # of the compute slices, those of a compute instance; None: all

    def __str__(self) -> str:
        share = "" if self.instance_slices is None else f"{self.instance_slices}c."
        return f"{share}{self.compute_slices}g.{self.gigabytes}gb"


def split_profile(name: str) -> tuple[str, Profile | None]:
    """A device name as the card's part and the MIG profile; ``None`` if the name has none.

    ``ValueError`` if the name says MIG but no profile can be read from it.
    """
    match = _PROFILE.match(name.strip())
    if match is None:
        if re.search(r"\bmig\b", name.replace("_", "-"), re.IGNORECASE):
            raise ValueError(f"{name!r} is a MIG device, but names no profile such as 'MIG 3g.40gb' behind the card")
        return name, None
    instance = match["instance"]
    profile = Profile(
        compute_slices=int(match["compute"]),
        gigabytes=int(match["gigabytes"]),
        instance_slices=None if instance is None else int(instance),
    )
    return match["card"], profile


def slice_of(gpu: Gpu, profile: Profile) -> Gpu:
    """Limits of one MIG device of ``gpu``: its share of the peaks and of memory and bandwidth, and no link to other GPUs.

    ``ValueError`` if the card has no such profile: not MIG-capable, or other sizes.
    """
    total = _compute_slices(gpu)
    memory_slices = _fitting_memory_slices(gpu, profile, total)
    parts = profile.compute_slices if profile.instance_slices is None else profile.instance_slices
    if not 1 <= parts <= profile.compute_slices:
        raise ValueError(
            f"MIG {profile}: a compute instance has between 1 and {profile.compute_slices} slices of its GPU instance"
        )
    compute_ratio = _compute_ratio(gpu, profile.compute_slices, memory_slices, total) * parts / profile.compute_slices
    memory_ratio = memory_slices / (8 if total == 7 else total)
    return replace(
        gpu,
        id=f"{gpu.id}-mig-{profile}",
        names=tuple(f"{name} MIG {profile}" for name in gpu.names),
        dense_flop_per_second={precision: peak * compute_ratio for precision, peak in gpu.dense_flop_per_second.items()},
        sparse_flop_per_second={precision: peak * compute_ratio for precision, peak in gpu.sparse_flop_per_second.items()},
        memory_bytes_per_second=gpu.memory_bytes_per_second * memory_ratio,
        memory_bytes=None if gpu.memory_bytes is None else gpu.memory_bytes * memory_ratio,
        link_bytes_per_second=0.0,  # MIG devices have no peer-to-peer transfers, over NVLink or PCIe
        driver_memory_bytes=None,  # less than its share of the card's: the driver keeps some back for each slice
        peaks_certainty=Certainty.LOW if gpu.peaks_certainty is Certainty.LOW else Certainty.MEDIUM,
        bandwidth_certainty=Certainty.LOW if gpu.bandwidth_certainty is Certainty.LOW else Certainty.MEDIUM,
        note=f"MIG device with {compute_ratio:.3f} of the compute and {memory_ratio:g} of the memory of {gpu.id}",
    )


def _compute_slices(gpu: Gpu) -> int:
    """Into how many slices MIG cuts the card's compute."""
    if gpu.id in _QUARTERED:
        return 4
    if gpu.compute_capability in _CUT_IN_SEVENTHS:
        return 7
    raise ValueError(f"{gpu.id} has no MIG")


def _fitting_memory_slices(gpu: Gpu, profile: Profile, total: int) -> int:
    """How many memory slices a profile of that size has."""
    slice_bytes = (gpu.memory_bytes or 0.0) / (8 if total == 7 else total)
    for count in _MEMORY_SLICES[total].get(profile.compute_slices, ()):
        if abs(profile.gigabytes * 1e9 - count * slice_bytes) <= _SIZE_TOLERANCE_RATIO * count * slice_bytes:
            return count
    sizes = ", ".join(
        f"{compute}g.{round(count * slice_bytes / 1e9)}gb"
        for compute, counts in _MEMORY_SLICES[total].items()
        for count in counts
    )
    raise ValueError(f"{gpu.id} has no MIG profile {profile}; it has about {sizes}")


def _compute_ratio(gpu: Gpu, compute_slices: int, memory_slices: int, total: int) -> float:
    """Share of the card's multiprocessors that a GPU instance has at most."""
    if gpu.id in _FULL_HOPPER:
        return _GENEROUS_RATIO.get((compute_slices, memory_slices), compute_slices / total)
    return compute_slices / total
