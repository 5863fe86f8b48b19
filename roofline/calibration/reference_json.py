"""References as plain values that JSON can hold, so that they outlive a process."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from roofline.calibration.calibration import CalibrationKey, Coverage
from roofline.calibration.loss_fit import Basis, Estimate
from roofline.calibration.reference import Reference
from roofline.calibration.sample import Figure
from roofline.deployment import Parallelism
from roofline.expected import Losses

SCHEMA = 1
_NAMES = ("model", "gpu", "weights", "kv", "engine", "engine_version")
_COUNTS = ("tensor", "pipeline", "data")
_CONSTANTS = (
    "compute_efficiency_ratio",
    "memory_efficiency_ratio",
    "layer_overhead_seconds",
    "parallel_layer_overhead_seconds",
    "request_overhead_seconds",
)
_NUMBERS = ("samples", "outlier_ratio", "misfit_ratio", "prediction_error_ratio")
_COVERAGE = ("samples", "least_ideal_seconds", "most_ideal_seconds")


def reference_to_json(reference: Reference) -> dict[str, object]:
    """Dictionaries, strings, numbers, booleans and ``None`` only. `reference_from_json` makes an equal reference of it."""
    key, sharing = reference.key, reference.key.parallelism
    return {
        "schema": SCHEMA,
        "key": {
            **{name: getattr(key, name) for name in _NAMES},
            "parallelism": {**{name: getattr(sharing, name) for name in _COUNTS}, "expert": sharing.expert},
            "exchanges": key.exchanges,
        },
        "constants": {
            name: {"value": estimate.value, "standard_error": estimate.standard_error, "basis": estimate.basis.value}
            for name, estimate in reference.estimates.items()
        },
        "error_ratio": reference.losses.error_ratio,
        "source": reference.losses.source,
        **{name: getattr(reference, name) for name in _NUMBERS},
        "coverage": {
            figure.value: {name: getattr(covered, name) for name in _COVERAGE} for figure, covered in reference.coverage.items()
        },
        "accepted_unix_seconds": reference.accepted_unix_seconds,
    }


def reference_from_json(value: object) -> Reference:
    """``ValueError`` naming the key that is missing or wrong, and what would be right. Keys that are not known are ignored."""
    top = _Branch.of(value, "")
    schema = top.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise ValueError(f"schema: this version reads {SCHEMA}, not {schema!r}")
    constants = top.branch("constants")
    estimates = {name: _estimate(constants.branch(name)) for name in _CONSTANTS}
    losses = Losses(  # which refuses what is out of range, by these names
        compute_efficiency_ratio=estimates["compute_efficiency_ratio"].value,
        memory_efficiency_ratio=estimates["memory_efficiency_ratio"].value,
        layer_overhead_seconds=estimates["layer_overhead_seconds"].value,
        parallel_layer_overhead_seconds=estimates["parallel_layer_overhead_seconds"].value,
        request_overhead_seconds=estimates["request_overhead_seconds"].value,
        error_ratio=None if top.get("error_ratio") is None else top.number("error_ratio"),
        source=top.text("source"),
    )
    samples, outliers, misfit, prediction_error = (top.number(name) for name in _NUMBERS)
    return Reference(
        key=_key(top.branch("key")),
        losses=losses,
        estimates=estimates,
        samples=samples,
        coverage=_coverage(top.branch("coverage")),
        outlier_ratio=outliers,
        misfit_ratio=misfit,
        prediction_error_ratio=prediction_error,
        accepted_unix_seconds=top.number("accepted_unix_seconds"),
    )


class _Branch:
    """One dictionary of the tree, with the path that leads to it."""

    __slots__ = ("_path", "_values")

    def __init__(self, values: Mapping[object, object], path: str) -> None:
        self._values = values
        self._path = path

    @classmethod
    def of(cls, value: object, path: str) -> _Branch:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path or 'reference'}: an object, not {value!r}")
        return cls(value, path)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> object:
        if key not in self._values:
            raise ValueError(f"{self.path(key)}: is missing")
        return self._values[key]

    def branch(self, key: str) -> _Branch:
        return _Branch.of(self.get(key), self.path(key))

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise ValueError(f"{self.path(key)}: a text, not {value!r}")
        return value

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise ValueError(f"{self.path(key)}: true or false, not {value!r}")
        return value

    def count(self, key: str) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{self.path(key)}: a whole number of at least 1, not {value!r}")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise ValueError(f"{self.path(key)}: a finite number of at least 0, not {value!r}")
        return float(value)

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _key(branch: _Branch) -> CalibrationKey:
    sharing = branch.branch("parallelism")
    return CalibrationKey(
        model=branch.text("model"),
        gpu=branch.text("gpu"),
        weights=branch.text("weights"),
        kv=branch.text("kv"),
        parallelism=Parallelism(
            tensor=sharing.count("tensor"),
            pipeline=sharing.count("pipeline"),
            data=sharing.count("data"),
            expert=sharing.flag("expert"),
        ),
        exchanges=branch.flag("exchanges"),
        engine=branch.text("engine"),
        engine_version=branch.text("engine_version"),
    )


def _estimate(branch: _Branch) -> Estimate:
    basis = branch.text("basis")
    if basis not in set(Basis):
        raise ValueError(f"{branch.path('basis')}: one of {', '.join(Basis)}, not {basis!r}")
    return Estimate(branch.number("value"), branch.number("standard_error"), Basis(basis))


def _coverage(branch: _Branch) -> Mapping[Figure, Coverage]:
    covered = {}
    for figure in Figure:
        if figure in branch:
            own = branch.branch(figure)
            least, most = own.number("least_ideal_seconds"), own.number("most_ideal_seconds")
            if not 0.0 < least <= most:
                raise ValueError(f"{own.path('least_ideal_seconds')}: above 0 and at most {most}, not {least}")
            covered[figure] = Coverage(samples=own.number("samples"), least_ideal_seconds=least, most_ideal_seconds=most)
    return covered
