"""References outlive a process, and what is not one is refused by name."""

from __future__ import annotations

import copy
import json
from functools import cache
from random import Random
from typing import Any

import pytest

from roofline.calibration.calibration import CalibrationKey
from roofline.calibration.reference import Reference, accept
from roofline.calibration.reference_json import SCHEMA, reference_from_json, reference_to_json
from tests.roofline.synthetic_workers import FOUR_GPUS, SyntheticWorker, calibrated, losses_off_by


@cache
def a_reference() -> Reference:
    key = CalibrationKey.of(FOUR_GPUS, engine="vllm", engine_version="0.11.0")
    worker = SyntheticWorker(losses_off_by(0.9, 1.1, 1.2, 0.01), Random(1), deployment=FOUR_GPUS)
    fit = calibrated(worker, 300, key=key).fit()
    assert fit is not None
    return accept(fit, accepted_unix_seconds=1_700_000_000.5)


def a_tree() -> dict[str, Any]:
    return copy.deepcopy(json.loads(json.dumps(reference_to_json(a_reference()))))


def test_a_reference_comes_back_equal() -> None:
    """Through text and back, nothing is lost; one without a known error too."""
    tree = a_tree()

    assert reference_from_json(tree) == a_reference()
    assert reference_from_json({**tree, "error_ratio": None}).losses.error_ratio is None


def test_keys_that_are_not_known_are_ignored() -> None:
    """A later version may say more under the same schema."""
    assert reference_from_json({**a_tree(), "comment": "new"}) == a_reference()


def test_a_figure_without_samples_is_absent() -> None:
    """A reference of TPOT only has no TTFT coverage, before and after."""
    tree = a_tree()
    del tree["coverage"]["ttft"]

    assert list(reference_from_json(tree).coverage) == ["tpot"]


WRONG: dict[str, tuple[tuple[str, ...], object, str]] = {
    "other schema": (("schema",), SCHEMA + 1, r"^schema: this version reads 1, not 2$"),
    "schema as truth": (("schema",), True, r"^schema: this version reads 1, not True$"),
    "key is a text": (("key",), "llama", r"^key: an object, not 'llama'$"),
    "name is a number": (("key", "engine_version"), 0.11, r"^key.engine_version: a text, not 0.11$"),
    "no GPUs": (("key", "parallelism", "tensor"), 0, r"^key.parallelism.tensor: a whole number of at least 1, not 0$"),
    "truth as count": (("key", "parallelism", "data"), True, r"^key.parallelism.data: a whole number of at least 1, not True$"),
    "count as truth": (("key", "parallelism", "expert"), 0, r"^key.parallelism.expert: true or false, not 0$"),
    "text as number": (("samples",), "many", r"^samples: a finite number of at least 0, not 'many'$"),
    "no number": (("misfit_ratio",), float("nan"), r"^misfit_ratio: a finite number of at least 0, not nan$"),
    "negative": (("outlier_ratio",), -0.1, r"^outlier_ratio: a finite number of at least 0, not -0.1$"),
    "truth as number": (
        ("accepted_unix_seconds",),
        False,
        r"^accepted_unix_seconds: a finite number of at least 0, not False$",
    ),
    "beyond the peak": (("constants", "memory_efficiency_ratio", "value"), 1.5, r"^memory_efficiency_ratio lies above 0"),
    "unknown basis": (
        ("constants", "layer_overhead_seconds", "basis"),
        "guess",
        r"^constants.layer_overhead_seconds.basis: one of fitted, scaled, at_limit, not 'guess'$",
    ),
    "coverage upside down": (
        ("coverage", "tpot", "most_ideal_seconds"),
        1e-9,
        r"^coverage.tpot.least_ideal_seconds: above 0 and at most 1e-09, not ",
    ),
}


@pytest.mark.parametrize(("path", "value", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(path: tuple[str, ...], value: object, message: str) -> None:
    """The message begins with the key and says what would be right."""
    tree = a_tree()
    branch = tree
    for key in path[:-1]:
        branch = branch[key]
    branch[path[-1]] = value

    with pytest.raises(ValueError, match=message):
        reference_from_json(tree)


def paths(tree: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where every value of the tree lies."""
    found = []
    for key, value in tree.items():
        found.append((*above, key))
        if isinstance(value, dict):
            found += paths(value, (*above, key))
    return found


OPTIONAL = {("coverage", "ttft"), ("coverage", "tpot")}


@pytest.mark.parametrize("path", [path for path in paths(a_tree()) if path not in OPTIONAL], ids=".".join)
def test_what_is_missing_is_named(path: tuple[str, ...]) -> None:
    """Every single key, wherever it lies."""
    tree = a_tree()
    branch = tree
    for key in path[:-1]:
        branch = branch[key]
    del branch[path[-1]]

    with pytest.raises(ValueError, match=rf"^{'.'.join(path)}: is missing$"):
        reference_from_json(tree)


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_only_an_object_is_a_reference(value: object) -> None:
    """Whatever else lies in a file."""
    with pytest.raises(ValueError, match="reference: an object, not"):
        reference_from_json(value)
