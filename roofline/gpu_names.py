"""Which GPU a name means: our ids, common aliases, names that drivers tell, labels in Kubernetes. It never guesses.

Upper and lower case, spaces, hyphens and underscores make no difference. A word that is not part of the known name and is
not known to be harmless ("Laptop", "SXM3", "64GB") means another part, with other limits, and the name is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roofline.gpu import Gpu
from roofline.gpu_slices import slice_of, split_profile
from roofline.gpus import GPUS

Words = tuple[str, ...]

ALIASES: Mapping[str, str] = {
    "a100-pcie-40": "a100-pcie-40gb",
    "a100-pcie-80": "a100-pcie-80gb",
    "a100-sxm-40": "a100-sxm4-40gb",
    "a100-sxm-40gb": "a100-sxm4-40gb",
    "a100-sxm-80": "a100-sxm4-80gb",
    "a100-sxm-80gb": "a100-sxm4-80gb",
    "a6000": "rtx-a6000",
    "b200-sxm6": "b200-sxm",
    "b300": "b300-sxm",
    "b300-sxm6": "b300-sxm",
    "dgx-spark": "gb10-dgx-spark",
    "h100-sxm5": "h100-sxm",
    "h200-sxm5": "h200-sxm",
    "h800-sxm5": "h800-sxm",
    "rtx-4090d": "rtx-4090-d",
    # Labels of Google's Kubernetes
    "tpu-v4-podslice": "tpu-v4",
    "tpu-v5-lite-device": "tpu-v5e",
    "tpu-v5-lite-podslice": "tpu-v5e",
    "tpu-v5p-slice": "tpu-v5p",
    "tpu-v6e-slice": "tpu-v6e",
}

# One name, several parts. Boards that call themselves just "NVIDIA H100" are of several makes (even one with 94 GB that is
# no H100 NVL), so memory and bandwidth have to tell.
_SHARED_NAMES: Mapping[str, tuple[str, ...]] = {"NVIDIA H100": ("h100-sxm", "h100-pcie")}

_MAKERS = frozenset({"nvidia", "amd", "intel", "google", "huawei", "apple"})
_HARMLESS = _MAKERS | frozenset(
    {
        "corporation",
        "tesla",
        "geforce",
        "instinct",
        "habana",
        "cloud",
        "tensor",
        "core",
        "gpu",
        "graphics",
        "accelerator",
        "card",
    }
    | {"oam"}  # the only form of the Instinct parts known here
    | {"shared"}  # Kubernetes label of a time-sliced GPU: its limits are the whole card's
)
_VIRTUAL_FUNCTION = "vf"  # of an AMD GPU: all of it, or a part; its memory tells
_VIRTUAL_SIZE = re.compile(
    r"(?!910)\d{1,3}[abcq](?:me|gfx)?"
)  # "A100-40C", "L40S-8Q", "A100-1-5CME": types of virtual GPUs end so
_MEMORY = re.compile(r"(\d+)gb?")
_MEMORY_TOLERANCE_RATIO = 0.08  # GB against GiB is 7 %, what ECC takes of GDDR 6 %
_BANDWIDTH_TOLERANCE_RATIO = 0.03  # a PCIe and an SXM A100 are 5 % apart; memory clock x bus width is up to 2.5 % off sheets

FIGURES_WANTED = (
    "name, dense_flop_per_second (by format: bf16, fp8, ...), memory_bytes_per_second, memory_bytes, "
    "link_bytes_per_second, pcie_bytes_per_second"
)


class UnknownGpu(ValueError):  # noqa: N818 - reads as what it says: this GPU is not known
    """No GPU, or more than one, can be meant; the message says why, what is near, and which figures to give instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What is known of the device besides its name; None: nothing."""

    memory_bytes: float | None
    compute_capability: str | None
    memory_bytes_per_second: float | None

    def disagreements(self, card: Gpu, device: Gpu) -> list[str]:
        """Which figures speak against ``device``, which is ``card`` or a slice of it."""
        found = []
        share = 1.0 if not card.memory_bytes else (device.memory_bytes or 0.0) / card.memory_bytes
        if self.memory_bytes is not None and not _is_memory_of(card, self.memory_bytes, share):
            found.append(
                f"the driver reports {self.memory_bytes:.4g} bytes of memory, {device.id} has {device.memory_bytes:.4g}"
            )
        capability = None if self.compute_capability is None else self.compute_capability.strip().lower().split(":")[0]
        if capability is not None and capability != card.compute_capability:
            found.append(f"its compute capability is {capability}, {card.id} has {card.compute_capability}")
        bandwidth = self.memory_bytes_per_second
        if bandwidth is not None and not _is_near(bandwidth, card.memory_bytes_per_second, _BANDWIDTH_TOLERANCE_RATIO):
            found.append(f"its bandwidth is {bandwidth:.4g} bytes per second, {card.id} has {card.memory_bytes_per_second:.4g}")
        return found

    @property
    def is_nothing(self) -> bool:
        return self.memory_bytes is None and self.compute_capability is None and self.memory_bytes_per_second is None


def find_gpu(
    name: str,
    *,
    driver_memory_bytes: float | None = None,
    compute_capability: str | None = None,
    memory_bytes_per_second: float | None = None,
) -> Gpu:
    """The GPU of that name; of a MIG device its share (`roofline.gpu_slices`).

    What else is known of the device decides between parts of one name and is held against the part found: total memory as
    the driver reports it, compute capability ("9.0", "gfx942"), bandwidth of the whole card (memory clock times bus width).
    Where the CPU shares the memory, it depends on the machine, and the reported total replaces ours.

    `UnknownGpu` for a name that is not known, that several parts share, that another figure contradicts, or that is a
    virtual GPU's, of which no peak can be assumed.
    """
    seen = _Seen(
        memory_bytes=driver_memory_bytes,
        compute_capability=compute_capability,
        memory_bytes_per_second=memory_bytes_per_second,
    )
    whole = _words(name)
    if whole in _BY_ID:
        return _confirmed(name, [(_BY_ID[whole], _BY_ID[whole])], seen, is_full_name=True)
    if any(word in {"grid", "vgpu"} or _VIRTUAL_SIZE.fullmatch(word) for word in whole):
        raise UnknownGpu(
            f"{name!r} is a virtual GPU: what share of the card it gets is not in its name, so no peak can be assumed. "
            f"Give its figures: {FIGURES_WANTED}"
        )
    try:
        card_name, profile = split_profile(name)
    except ValueError as error:
        raise UnknownGpu(str(error)) from None
    cards, is_full_name = _candidates(name, _words(card_name), seen)
    if profile is None:
        return _confirmed(name, [(card, card) for card in cards], seen, is_full_name=is_full_name)
    pairs = []
    reasons = []
    for card in cards:
        try:
            pairs.append((card, slice_of(card, profile)))
        except ValueError as error:
            reasons.append(str(error))
    if not pairs:
        raise UnknownGpu(f"{name!r}: {'; '.join(reasons)}")
    return _confirmed(name, pairs, seen, is_full_name=is_full_name)


def gpus_named_like(name: str) -> tuple[Gpu, ...]:
    """Known GPUs whose model ("h100", "4090", "mi300x") is a word of this name, whatever else the name says."""
    models = {word for word in _words(name) if _is_model(word)}
    return tuple(gpu for gpu in GPUS.values() if models & set(_words(gpu.id)))


def _candidates(name: str, given: Words, seen: _Seen) -> tuple[tuple[Gpu, ...], bool]:
    """Parts that the name may mean, and whether it is a full name of them or only part of one."""
    words = _significant(given)
    if not words:
        raise _unknown(f"{name!r} names no card", ())
    if given in _BY_ID:
        return (_BY_ID[given],), True
    if words in _BY_NAME:
        return _BY_NAME[words], True
    for known in _LONGEST_FIRST:
        if _contains(words, known):
            others = _without(words, known)
            cards = tuple(card for card in _BY_NAME[known] if all(_is_harmless(word, card, seen) for word in others))
            if cards:
                return cards, True
            if others == (_VIRTUAL_FUNCTION,):
                why = f"{name!r} is all of a card or a part of it, which its total memory as the driver reports it would tell:"
            else:
                why = f"{' '.join(others)!r} in {name!r} is not part of any name known here, so it may be another part than"
            raise _unknown(f"{why} {_ids(_BY_NAME[known])}", (words, *(_words(card.id) for card in _BY_NAME[known])))
    cards = _family(words)
    if not cards:
        raise _unknown(f"unknown GPU {name!r}", (words,))
    return cards, False


def _confirmed(name: str, pairs: Sequence[tuple[Gpu, Gpu]], seen: _Seen, *, is_full_name: bool) -> Gpu:
    """The one device that everything seen agrees with. ``pairs``: cards, and what of them the name means."""
    against = {device.id: seen.disagreements(card, device) for card, device in pairs}
    left = [(card, device) for card, device in pairs if not against[device.id]]
    if not left:
        reasons = "; ".join(reason for found in against.values() for reason in found)
        raise _unknown(f"{name!r} does not fit: {reasons}", (_significant(_words(name)),))
    if len(left) > 1 or (not is_full_name and seen.is_nothing):
        family = {device.id: None for _, device in left} | {card.id: None for card in _family(_significant(_words(name)))}
        raise UnknownGpu(
            f"{name!r} may be {' or '.join(family)}: write one of these, or tell the driver's total memory and the bandwidth. "
            f"Or give its figures: {FIGURES_WANTED}"
        )
    card, device = left[0]
    if seen.memory_bytes is not None and device is not card:
        return replace(device, driver_memory_bytes=int(seen.memory_bytes))
    if seen.memory_bytes is not None and _shares_memory(card):
        return replace(device, memory_bytes=float(seen.memory_bytes), driver_memory_bytes=int(seen.memory_bytes))
    return device


def _words(name: str) -> Words:
    """Words of a name in lower case, without what nvidia-smi -L prints around it."""
    bare = re.sub(r"^\s*gpu\s+\d+:|\(uuid:.*|\((?:r|tm)\)|[®™]", " ", name.lower())
    return tuple(word for word in re.split(r"[\s_\-,/()]+", bare) if word)


def _significant(words: Words) -> Words:
    return tuple(word for word in words if word not in _HARMLESS)


def _is_harmless(word: str, card: Gpu, seen: _Seen) -> bool:
    """Whether a word beside a known name changes nothing: memory that the card has, or a virtual function with all of it."""
    if word == _VIRTUAL_FUNCTION:
        return seen.memory_bytes is not None
    match = _MEMORY.fullmatch(word)
    return match is not None and _is_memory_of(card, float(match[1]) * 1e9, 1.0)


def _is_memory_of(card: Gpu, memory_bytes: float, share: float) -> bool:
    """Whether a total is that of the card, or of this share of it, allowing for GiB sold as GB and for what ECC takes."""
    figures = [figure * share for figure in (card.memory_bytes, card.driver_memory_bytes) if figure]
    if not figures:
        return True
    least, most = min(figures) * (1 - _MEMORY_TOLERANCE_RATIO), max(figures) * (1 + _MEMORY_TOLERANCE_RATIO)
    return memory_bytes <= most and (memory_bytes >= least or _shares_memory(card))


def _shares_memory(card: Gpu) -> bool:
    """Whether the CPU's memory is the GPU's: then machines differ in how much there is."""
    return card.memory_bytes is None or card.compute_capability == "metal"


def _is_near(one: float, other: float, tolerance_ratio: float) -> bool:
    return abs(one - other) <= tolerance_ratio * other


def _is_model(word: str) -> bool:
    """Whether a word designates a model, not a memory size or a socket: "h100", "4090", "910b3"."""
    return bool(re.fullmatch(r"(?!sxm|pcie|ddr|hbm)[a-z]{1,5}\d+[a-z]?|\d{4}|910b\d", word))


def _family(words: Words) -> tuple[Gpu, ...]:
    """Parts of whose names these words are some, the model among them."""
    if not any(_is_model(word) for word in words):
        return ()
    return tuple(gpu for gpu in GPUS.values() if any(set(words) <= set(_words(spelling)) for spelling in (gpu.id, *gpu.names)))


def _contains(words: Words, known: Words) -> bool:
    return any(words[at : at + len(known)] == known for at in range(len(words) - len(known) + 1))


def _without(words: Words, known: Words) -> Words:
    at = next(at for at in range(len(words)) if words[at : at + len(known)] == known)
    return words[:at] + words[at + len(known) :]


def _ids(gpus: Iterable[Gpu]) -> str:
    return " or ".join(gpu.id for gpu in gpus)


def _unknown(problem: str, near: Iterable[Words]) -> UnknownGpu:
    """The refusal, with ids that look like what was asked for."""
    spellings = {"-".join(key): gpus for key, gpus in _BY_NAME.items()}
    matches = [match for words in near for match in difflib.get_close_matches("-".join(words), spellings, n=3, cutoff=0.5)]
    ids = list(dict.fromkeys(gpu.id for match in matches for gpu in spellings[match]))[:4]
    hint = f" Known here and near: {', '.join(ids)}." if ids else ""
    return UnknownGpu(f"{problem}.{hint} To use it, give its figures: {FIGURES_WANTED}")


def _by_id() -> dict[Words, Gpu]:
    """Ids and aliases, bare and behind each maker's name."""
    spellings = {gpu.id: gpu for gpu in GPUS.values()} | {alias: GPUS[gpu_id] for alias, gpu_id in ALIASES.items()}
    return {
        (*prefix, *_words(spelling)): gpu
        for spelling, gpu in spellings.items()
        for prefix in ((), *((maker,) for maker in _MAKERS))
    }


def _by_name() -> dict[Words, tuple[Gpu, ...]]:
    """Significant words of all ids, aliases and driver names; one name may be that of several parts."""
    found: dict[Words, dict[str, Gpu]] = {}
    for gpu in GPUS.values():
        for name in gpu.names:
            found.setdefault(_significant(_words(name)), {})[gpu.id] = gpu
    for name, gpu_ids in _SHARED_NAMES.items():
        found.setdefault(_significant(_words(name)), {}).update({gpu_id: GPUS[gpu_id] for gpu_id in gpu_ids})
    for words, gpu in _BY_ID.items():
        found.setdefault(_significant(words), {gpu.id: gpu})
    return {words: tuple(gpus.values()) for words, gpus in found.items()}


_BY_ID = _by_id()
_BY_NAME = _by_name()
_LONGEST_FIRST = sorted(_BY_NAME, key=lambda words: (len(words), len("".join(words))), reverse=True)
