"""A GPU from a user's own figures, inline in a configuration or on a command line, or from its name.

Figures are checked for the two mistakes that everybody makes: a number copied from a data sheet without its unit, and a
peak that holds for sparse matrices only.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roofline.gpu import Certainty, Gpu
from roofline.gpu_names import find_gpu, gpus_named_like
from roofline.gpus import GPUS
from roofline.precision import Precision

_KEYS = (
    "name",
    "based_on",
    "dense_flop_per_second",
    "memory_bytes_per_second",
    "memory_bytes",
    "link_bytes_per_second",
    "pcie_bytes_per_second",
)
_SHORT_KEYS: Mapping[str, str] = {  # of the text form
    "bandwidth": "memory_bytes_per_second",
    "memory": "memory_bytes",
    "link": "link_bytes_per_second",
    "pcie": "pcie_bytes_per_second",
}
_SOURCE = "given by the user"
_SAME_FIGURE_RATIO = 0.005  # sheets round: 1979 and 1978.9
_SAME_BANDWIDTH_RATIO = 0.03
_FIRST_SPARSE_CAPABILITY = 8.0  # NVIDIA tensor cores have 2:4 sparsity since Ampere, always at twice the dense rate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    """What numbers of a kind look like in base units, and in which units data sheets print them."""

    unit: str
    least: float
    most: float
    sheet_units: Mapping[str, float]
    may_be_zero: bool = False


_PEAK = _Quantity(unit="FLOP/s", least=1e11, most=1e17, sheet_units={"TFLOP/s": 1e12, "PFLOP/s": 1e15})
_BANDWIDTH = _Quantity(unit="bytes/s", least=1e10, most=1e14, sheet_units={"GB/s": 1e9, "TB/s": 1e12})
_MEMORY = _Quantity(unit="bytes", least=1e9, most=1e13, sheet_units={"GB": 1e9, "MiB": 2.0**20})
_LINK = _Quantity(unit="bytes/s", least=1e9, most=1e13, sheet_units={"GB/s": 1e9, "TB/s": 1e12}, may_be_zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What the user gave, checked and in base units; None: not given."""

    name: str | None
    peaks: Mapping[Precision, float | None]  # None: no such path
    memory_bytes_per_second: float | None
    memory_bytes: float | None
    link_bytes_per_second: float | None
    pcie_bytes_per_second: float | None

    @property
    def present_peaks(self) -> dict[Precision, float]:
        return {precision: peak for precision, peak in self.peaks.items() if peak is not None}


def resolve_gpu(spec: str | Mapping[str, object]) -> Gpu:
    """The GPU that a configuration or command line means: an id or driver's name, or figures as mapping or as text.

    ``ValueError`` (`roofline.gpu_names.UnknownGpu` for names) says what is wrong and what would be right.
    """
    if isinstance(spec, Mapping):
        return given_gpu(spec)
    return given_gpu_text(spec) if "=" in spec else find_gpu(spec)


def given_gpu_text(text: str) -> Gpu:
    """A GPU from ``name=my-card,bf16=9.9e14,fp8=1.98e15,bandwidth=3.35e12,memory=80e9,link=4.5e11``.

    Formats are keys of their own; ``bandwidth``, ``memory``, ``link`` and ``pcie`` stand for the long keys of `given_gpu`,
    which are taken too. ``ValueError`` as there.
    """
    fields: dict[str, object] = {}
    peaks: dict[str, object] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ValueError(f"{part.strip()!r} in the GPU {text!r} is not of the form key=number, such as bandwidth=3.35e12")
        target = peaks if key in set(Precision) else fields
        long_key = _SHORT_KEYS.get(key, key)
        if long_key in target:
            raise ValueError(f"the GPU {text!r} gives {key} twice")
        if target is fields and (long_key not in _KEYS or long_key == "dense_flop_per_second"):
            raise ValueError(_unknown_key(key, ("name", "based_on", *Precision, *_SHORT_KEYS)))
        target[long_key] = value
    return given_gpu({**fields, "dense_flop_per_second": peaks} if peaks else fields)


def given_gpu(fields: Mapping[str, object]) -> Gpu:
    """A GPU from a user's figures, in base units.

    Keys: ``name`` (becomes the id), ``based_on`` (a known GPU whose figures hold where none is given),
    ``dense_flop_per_second`` (a mapping from bf16, fp16, fp8, int8, fp4, fp32; null: the part has no such path),
    ``memory_bytes_per_second``, ``memory_bytes``, ``link_bytes_per_second`` and ``pcie_bytes_per_second`` (one direction;
    0: none). Without ``based_on`` one peak and the bandwidth are needed. Numbers may be text, as YAML reads 9.9e14 as text.

    ``ValueError`` for unknown keys, numbers that are not positive and finite or not in base units, and peaks that are the
    sparse headline figure of the GPU they are based on or named like or, if of none, of a known one of that bandwidth.
    """
    for key in fields:
        if key not in _KEYS:
            raise ValueError(_misplaced(key) or _unknown_key(key, _KEYS))
    known = None if fields.get("based_on") is None else find_gpu(_text(fields, "based_on"))
    if known is not None and len(fields) == 1:
        return known
    figures = _Figures(
        name=None if fields.get("name") is None else _text(fields, "name"),
        peaks=_given_peaks(fields.get("dense_flop_per_second")),
        memory_bytes_per_second=_number(fields, "memory_bytes_per_second", _BANDWIDTH),
        memory_bytes=_number(fields, "memory_bytes", _MEMORY),
        link_bytes_per_second=_number(fields, "link_bytes_per_second", _LINK),
        pcie_bytes_per_second=_number(fields, "pcie_bytes_per_second", _LINK),
    )
    gpu = _new_gpu(figures) if known is None else _changed_gpu(known, figures)
    like = gpus_named_like(gpu.id) if known is None else (known,)
    for precision, peak in figures.present_peaks.items():
        _refuse_sparse(precision, peak, gpu.memory_bytes_per_second, like)
    return gpu


def _new_gpu(figures: _Figures) -> Gpu:
    """A GPU of which nothing is known but these figures."""
    if not figures.present_peaks:
        raise ValueError("a GPU needs dense_flop_per_second with one format at least ({bf16: 9.894e14}), or based_on")
    if figures.memory_bytes_per_second is None:
        raise ValueError("a GPU needs memory_bytes_per_second, such as 3.35e12, or based_on with a known GPU's id")
    return Gpu(
        id=figures.name or "given",
        names=() if figures.name is None else (figures.name,),
        dense_flop_per_second=figures.present_peaks,
        memory_bytes_per_second=figures.memory_bytes_per_second,
        memory_bytes=figures.memory_bytes,
        link_bytes_per_second=figures.link_bytes_per_second,
        pcie_bytes_per_second=figures.pcie_bytes_per_second,
        source=_SOURCE,
        peaks_certainty=Certainty.MEDIUM,
        bandwidth_certainty=Certainty.MEDIUM,
    )


def _changed_gpu(known: Gpu, figures: _Figures) -> Gpu:
    """A known GPU with these figures in place of its own."""
    kept = {precision: peak for precision, peak in known.dense_flop_per_second.items() if precision not in figures.peaks}
    peaks = kept | figures.present_peaks
    if not peaks:
        raise ValueError(f"nothing is left of the peaks of {known.id}: a GPU needs one format at least")
    bandwidth, memory = figures.memory_bytes_per_second, figures.memory_bytes
    link, pcie = figures.link_bytes_per_second, figures.pcie_bytes_per_second
    return replace(
        known,
        id=figures.name or f"{known.id}-given",
        names=known.names if figures.name is None else (figures.name,),
        dense_flop_per_second=peaks,
        memory_bytes_per_second=known.memory_bytes_per_second if bandwidth is None else bandwidth,
        memory_bytes=known.memory_bytes if memory is None else memory,
        driver_memory_bytes=known.driver_memory_bytes if memory is None else None,
        link_bytes_per_second=known.link_bytes_per_second if link is None else link,
        pcie_bytes_per_second=known.pcie_bytes_per_second if pcie is None else pcie,
        source=f"{_SOURCE}; otherwise: {known.source}",
        peaks_certainty=Certainty.MEDIUM if figures.peaks else known.peaks_certainty,
        bandwidth_certainty=known.bandwidth_certainty if bandwidth is None else Certainty.MEDIUM,
    )


def _refuse_sparse(precision: Precision, peak: float, memory_bytes_per_second: float, like: Sequence[Gpu]) -> None:
    """``ValueError`` if a peak is what some GPU reaches with structured sparsity only.

    ``like``: the GPUs that it may be copied from; if there are none, all of the same bandwidth. A figure that one of these
    reaches with dense matrices is no sign of the mistake (an L40S is as fast dense as an L40 sparse).
    """
    like = like or [
        known
        for known in GPUS.values()
        if _is_same(memory_bytes_per_second, known.memory_bytes_per_second, _SAME_BANDWIDTH_RATIO)
    ]
    dense = [known.dense_flop_per_second.get(precision) for known in like]
    if any(figure is not None and _is_same(peak, figure, _SAME_FIGURE_RATIO) for figure in dense):
        return
    for known in like:
        sparse = _sparse_headline(known, precision)
        if sparse is not None and _is_same(peak, sparse, _SAME_FIGURE_RATIO):
            # GeForce parts reach the same number with dense matrices and FP16 accumulation, which engines do not use.
            or_so = " or FP16 accumulation" if any("GeForce" in name for name in known.names) else ""
            raise ValueError(
                f"{_plain(peak)} FLOP/s for {precision} is what {known.id} reaches with 2:4 structured sparsity{or_so} only: "
                f"language models are dense, write its dense peak, {_plain(known.dense_flop_per_second[precision])}"
            )


def _sparse_headline(gpu: Gpu, precision: Precision) -> float | None:
    """The rate with structured sparsity; None where a part has none or runs the format no faster with it."""
    dense = gpu.dense_flop_per_second.get(precision)
    if dense is None or precision is Precision.FP32:
        return None
    if precision in gpu.sparse_flop_per_second:
        return gpu.sparse_flop_per_second[precision]
    try:
        has_sparsity = float(gpu.compute_capability) >= _FIRST_SPARSE_CAPABILITY
    except ValueError:  # other makers: "gfx942", "tpu"
        return None
    return 2.0 * dense if has_sparsity else None


def _given_peaks(given: object) -> Mapping[Precision, float | None]:
    """Peaks by format, checked; None where the user says that there is no path."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"dense_flop_per_second is a mapping such as {{bf16: 9.894e14, fp8: 1.979e15}}, not {given!r}")
    for key in given:
        if key not in set(Precision):
            raise ValueError(
                _unknown_key(f"dense_flop_per_second.{key}", [f"dense_flop_per_second.{known}" for known in Precision])
            )
    return {Precision(key): _number(given, key, _PEAK) for key in given}


def _number(fields: Mapping[str, object], key: str, quantity: _Quantity) -> float | None:
    """The number under a key in base units; None if absent or null."""
    value = fields.get(key)
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # what float() refuses is refused
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if quantity.may_be_zero and number == 0:
        return 0.0
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{key} is a positive number of {quantity.unit}, not {value!r}")
    if quantity.least <= number <= quantity.most:
        return number
    meant = {
        unit: number * scale
        for unit, scale in quantity.sheet_units.items()
        if quantity.least <= number * scale <= quantity.most
    }
    if meant:
        guesses = " or ".join(f"{unit} (write {_plain(right)})" for unit, right in meant.items())
        raise ValueError(f"{key} is in {quantity.unit}: {value} looks like {guesses}")
    raise ValueError(
        f"{key} is in {quantity.unit}, between {quantity.least:g} and {quantity.most:g}; {value} is out of all bounds"
    )


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} of a GPU is a text, not {value!r}")
    return value.strip()


def _misplaced(key: str) -> str | None:
    """What to write instead of a key of the text form; None if it is none."""
    if key in set(Precision):
        return f"{key} belongs under dense_flop_per_second: {{{key}: ...}}"
    return f"a GPU has no {key!r} here; write {_SHORT_KEYS[key]!r}" if key in _SHORT_KEYS else None


def _unknown_key(key: str, known: Iterable[str]) -> str:
    names = [str(name) for name in known]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    return f"a GPU has no {key!r}; " + (f"do you mean {near[0]!r}?" if near else f"it has {', '.join(names)}")


def _is_same(one: float, other: float, tolerance_ratio: float) -> bool:
    return abs(one - other) <= tolerance_ratio * other


def _plain(number: float) -> str:
    """A large number as one writes it in a configuration: 9.894e14."""
    return f"{number:.4g}".replace("e+", "e")
