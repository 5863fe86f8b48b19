"""The table of GPUs agrees with the published facts, and its values behave."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from roofline.gpu import Certainty, Gpu
from roofline.gpu_names import find_gpu
from roofline.gpus import GPUS
from roofline.precision import Precision
from tests.facts import facts_in

MAKERS = ("nvidia_", "amd_", "intel_", "google_", "huawei_", "apple_")

# Names that several parts share; every other name must resolve without further evidence.
SHARED_NAMES = {"NVIDIA H100", "AMD Instinct MI250X"}
# Listed in the facts as one more name of another part, which has higher peaks.
OWN_ROW = {"NVIDIA GeForce RTX 4090 D": "rtx-4090-d"}
# Rows beyond the facts; sourced in the table.
ADDED = {"mi250x-gcd", "rtx-4090-d", "tpu-v4"}


@cache
def listed() -> dict[str, dict[str, Any]]:
    return {gpu["id"]: gpu for gpu in facts_in("gpus.yaml")["gpus"]}


@cache
def measured_gpus() -> set[str]:
    return {point["gpu"] for point in facts_in("measured.yaml")["points"]}


FACT_IDS = sorted(listed())


def our_id(fact_id: str) -> str:
    maker = next((maker for maker in MAKERS if fact_id.startswith(maker)), "")
    return fact_id.removeprefix(maker).replace("_", "-")


def tera(rates: dict[str, float | None] | None) -> dict[Precision, float]:
    return {Precision(name): rate * 1e12 for name, rate in (rates or {}).items() if rate is not None}


def scaled(figure: float | None, unit: float) -> Any:
    return None if figure is None else pytest.approx(figure * unit, rel=1e-12)


@pytest.mark.parametrize("fact_id", FACT_IDS)
def test_every_figure_equals_the_facts(fact_id: str) -> None:
    """Peaks, memory, bandwidth and links (one direction of the printed two) of a row are those of the facts."""
    fact, gpu = listed()[fact_id], GPUS[our_id(fact_id)]

    assert gpu.dense_flop_per_second == pytest.approx(tera(fact["dense_tflops"]), rel=1e-12)
    assert gpu.sparse_flop_per_second == pytest.approx(tera(fact.get("sparse_marketing_tflops")), rel=1e-12)
    assert gpu.memory_bytes == scaled(fact["memory_gb"], 1e9)
    assert gpu.memory_bytes_per_second == scaled(fact["bandwidth_gbps"], 1e9)
    assert gpu.link_bytes_per_second == scaled(fact["interconnect_gbps_bidir"], 0.5e9)
    assert gpu.pcie_bytes_per_second == scaled(fact["pcie_gbps_bidir"], 0.5e9)
    assert gpu.driver_memory_bytes == scaled(fact.get("nvml_memory_total_mib"), 2**20)
    assert gpu.compute_capability == fact["compute_capability"]
    assert gpu.peaks_certainty == Certainty(fact["certainty"]["tflops"])
    assert gpu.bandwidth_certainty == Certainty(fact["certainty"]["bandwidth"])
    assert set(gpu.names) == set(fact["names"]) - set(OWN_ROW)


@pytest.mark.parametrize("fact_id", FACT_IDS)
def test_every_spelling_of_a_fact_resolves(fact_id: str) -> None:
    """A fact's id, its hyphenated form and ours all name the same row."""
    row = GPUS[our_id(fact_id)]

    assert find_gpu(fact_id) is row
    assert find_gpu(fact_id.replace("_", "-")) is row
    assert find_gpu(row.id.upper()) is row


@pytest.mark.parametrize(("fact_id", "name"), [(fact_id, name) for fact_id in FACT_IDS for name in listed()[fact_id]["names"]])
def test_every_driver_name_resolves(fact_id: str, name: str) -> None:
    """The driver's string and its Kubernetes label find the row, with memory and bandwidth where a name is shared."""
    row = GPUS[OWN_ROW.get(name, our_id(fact_id))]
    bandwidth = row.memory_bytes_per_second if name in SHARED_NAMES else None
    memory = row.driver_memory_bytes or row.memory_bytes if name in SHARED_NAMES else None

    for spelling in (name, name.replace(" ", "-"), name.lower()):
        assert find_gpu(spelling, driver_memory_bytes=memory, memory_bytes_per_second=bandwidth).id == row.id


@pytest.mark.parametrize("name", sorted(measured_gpus()))
def test_every_gpu_with_measurements_resolves(name: str) -> None:
    """Names used by the published measurements find a row without a guess."""
    assert find_gpu(name).id in GPUS


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [("a100_sxm_80", "a100-sxm4-80gb"), ("mi250x_gcd", "mi250x-gcd"), ("m3_max", "m3-max-40c"), ("tpu_v4", "tpu-v4")],
)
def test_measured_names_mean_the_right_part(name: str, gpu_id: str) -> None:
    """Names that are no id of ours mean the part that was measured."""
    assert find_gpu(name).id == gpu_id


def test_table_is_the_facts_and_the_sourced_additions() -> None:
    """No row is there without facts or a reason."""
    assert set(GPUS) == {our_id(fact_id) for fact_id in FACT_IDS} | ADDED


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.id)
def test_rows_are_sound(gpu: Gpu) -> None:
    """Every row has a source and peaks that grow as formats narrow, and its sparse figures exceed its dense ones."""
    assert gpu.source
    assert gpu.id == gpu.id.lower()
    assert gpu.dense_flop_per_second
    assert all(
        gpu.sparse_flop_per_second[precision] > gpu.dense_flop_per_second[precision] for precision in gpu.sparse_flop_per_second
    )
    halves = {gpu.peak(Precision.BF16), gpu.peak(Precision.FP16)}
    assert gpu.dense_flop_per_second.get(Precision.FP8, 1e99) >= max(halves)
    assert gpu.dense_flop_per_second.get(Precision.FP4, 1e99) >= gpu.dense_flop_per_second.get(Precision.FP8, 0)


def test_one_die_is_half_its_module() -> None:
    """A framework's MI250X device has half of the module's compute, memory and bandwidth."""
    die, module = GPUS["mi250x-gcd"], GPUS["mi250x"]

    assert die.peak(Precision.BF16) == 191.5e12
    assert die.memory_bytes == 64e9
    assert {precision: 2 * peak for precision, peak in die.dense_flop_per_second.items()} == module.dense_flop_per_second
    assert 2 * die.memory_bytes_per_second == module.memory_bytes_per_second


def test_export_variant_is_slower_than_the_card_it_is_named_after() -> None:
    """The RTX 4090 D has 114 of 128 multiprocessors, so 0.89 of every peak, at the same bandwidth."""
    variant, card = GPUS["rtx-4090-d"], GPUS["rtx-4090"]

    for precision, peak in variant.dense_flop_per_second.items():
        assert peak / card.dense_flop_per_second[precision] == pytest.approx(114 / 128, rel=2e-3)
    assert variant.memory_bytes_per_second == card.memory_bytes_per_second
    assert variant.peaks_certainty is Certainty.LOW


@pytest.mark.parametrize(
    ("gpu_id", "wanted", "used"),
    [
        ("t4", Precision.BF16, Precision.FP16),
        ("t4", Precision.FP8, Precision.FP16),
        ("t4", Precision.INT8, Precision.INT8),
        ("a100-sxm4-80gb", Precision.FP8, Precision.BF16),
        ("a100-sxm4-80gb", Precision.INT8, Precision.INT8),
        ("h100-sxm", Precision.FP4, Precision.BF16),
        ("b200-sxm", Precision.FP4, Precision.FP4),
        ("b300-sxm", Precision.INT8, Precision.BF16),
        ("v100-sxm2-32gb", Precision.INT8, Precision.FP16),
        ("tpu-v4", Precision.FP16, Precision.BF16),
        ("generic-cpu-ddr5-8ch", Precision.FP16, Precision.BF16),
        ("gaudi3", Precision.INT8, Precision.BF16),
    ],
)
def test_math_falls_back_to_a_wider_format(gpu_id: str, wanted: Precision, used: Precision) -> None:
    """A format without a path on the part, or with a slow one, is multiplied in the nearest wider one that it has."""
    assert GPUS[gpu_id].math(wanted) is used


@pytest.mark.parametrize("gpu_id", GPUS)
def test_no_narrow_format_is_slower_than_a_wide_one(gpu_id: str) -> None:
    """Operands can be widened first: a slow path of their own is no limit."""
    gpu = GPUS[gpu_id]
    wide = gpu.peak(Precision.BF16)

    assert all(gpu.peak(narrow) >= wide for narrow in (Precision.FP4, Precision.FP8, Precision.INT8))


@pytest.mark.parametrize(
    ("gpu_id", "precision", "flop_per_byte"),
    [
        ("h100-sxm", Precision.BF16, 295.3),
        ("h100-sxm", Precision.FP8, 590.7),
        ("a100-sxm4-80gb", Precision.BF16, 153.0),
        ("a100-sxm4-80gb", Precision.FP8, 153.0),
        ("h20", Precision.BF16, 37.0),
        ("t4", Precision.BF16, 203.1),
        ("rtx-4090", Precision.BF16, 163.9),
        ("mi300x", Precision.BF16, 246.7),
    ],
)
def test_ridge_points(gpu_id: str, precision: Precision, flop_per_byte: float) -> None:
    """The ridge point is the dense peak over the bandwidth."""
    assert GPUS[gpu_id].ridge_flop_per_byte(precision) == pytest.approx(flop_per_byte, abs=0.05)


def test_gpu_without_any_peak_says_so() -> None:
    """A part without a path for a format or a wider one is an error that names it."""
    gpu = Gpu(id="bare", names=(), dense_flop_per_second={Precision.FP8: 1e14}, memory_bytes_per_second=1e12, memory_bytes=None)

    with pytest.raises(ValueError, match="no peak is known for the GPU bare at bf16"):
        gpu.peak(Precision.BF16)


def test_warnings_are_kept() -> None:
    """Conflicts between sources and traps are told to the user."""
    assert "conflict" in GPUS["b200-sxm"].note
    assert "conflict" in GPUS["a10g"].note
    assert "bf16" in GPUS["t4"].note
    assert "mi250x-gcd" in GPUS["mi250x"].note
