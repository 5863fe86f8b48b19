"""A user's own figures become a GPU, unless they are a known mistake."""

from __future__ import annotations

import pytest

from roofline.gpu import Certainty
from roofline.gpu_given import given_gpu, given_gpu_text, resolve_gpu
from roofline.gpus import GPUS
from roofline.precision import Precision

MINE = {
    "name": "my-card",
    "dense_flop_per_second": {"bf16": 9.9e14, "fp8": 1.98e15},
    "memory_bytes_per_second": 3.35e12,
    "memory_bytes": 80e9,
    "link_bytes_per_second": 4.5e11,
    "pcie_bytes_per_second": 6.4e10,
}


def test_own_figures_are_taken_as_they_are() -> None:
    """All keys together describe a part that the table need not know."""
    gpu = given_gpu(MINE)

    assert gpu.id == "my-card"
    assert gpu.dense_flop_per_second == {Precision.BF16: 9.9e14, Precision.FP8: 1.98e15}
    assert (gpu.memory_bytes_per_second, gpu.memory_bytes) == (3.35e12, 80e9)
    assert (gpu.link_bytes_per_second, gpu.pcie_bytes_per_second) == (4.5e11, 6.4e10)
    assert gpu.peaks_certainty is Certainty.MEDIUM
    assert gpu.source == "given by the user"


def test_text_and_mapping_say_the_same() -> None:
    """The form for a command line makes the same GPU, with short keys and with long ones."""
    short = "name=my-card,bf16=9.9e14,fp8=1.98e15,bandwidth=3.35e12,memory=80e9,link=4.5e11,pcie=6.4e10"
    long = (
        "name=my-card, bf16=9.9e14, fp8=1.98e15, memory_bytes_per_second=3.35e12, memory_bytes=80e9, link=4.5e11, pcie=6.4e10"
    )

    assert given_gpu_text(short) == given_gpu(MINE)
    assert given_gpu_text(long) == given_gpu(MINE)


def test_least_that_is_needed() -> None:
    """One peak and the bandwidth suffice; what is not given is unknown."""
    gpu = given_gpu({"dense_flop_per_second": {"bf16": 2e14}, "memory_bytes_per_second": 1e12})

    assert gpu.id == "given"
    assert gpu.memory_bytes is None
    assert gpu.link_bytes_per_second is None
    assert gpu.math(Precision.FP8) is Precision.BF16


def test_based_on_keeps_what_is_not_given() -> None:
    """Figures of the known part hold except for those that the user gives."""
    gpu = given_gpu({"name": "throttled", "based_on": "NVIDIA H100 NVL", "dense_flop_per_second": {"bf16": 6e14}})
    known = GPUS["h100-nvl"]

    assert gpu.id == "throttled"
    assert gpu.peak(Precision.BF16) == 6e14
    assert gpu.peak(Precision.FP8) == known.peak(Precision.FP8)
    assert gpu.memory_bytes_per_second == known.memory_bytes_per_second
    assert gpu.driver_memory_bytes == known.driver_memory_bytes
    assert gpu.bandwidth_certainty is Certainty.HIGH
    assert gpu.source.startswith("given by the user; otherwise: H100 data sheet")
    assert gpu.peaks_certainty is Certainty.MEDIUM


def test_based_on_alone_is_the_known_part() -> None:
    """Nothing given changes nothing, and a changed part does not keep the id of the known one."""
    assert given_gpu({"based_on": "h100-sxm"}) == GPUS["h100-sxm"]
    changed = given_gpu({"based_on": "h100-sxm", "memory_bytes": 64e9})
    assert changed.id == "h100-sxm-given"
    assert changed.driver_memory_bytes is None


def test_null_takes_a_path_away() -> None:
    """A format that is null has no path on the part, whatever it is based on."""
    gpu = given_gpu({"based_on": "h100-sxm", "dense_flop_per_second": {"fp8": None}})

    assert gpu.math(Precision.FP8) is Precision.BF16


def test_yaml_reads_exponents_as_text() -> None:
    """Numbers that YAML 1.1 takes for text (9.9e14, without a sign) are numbers; 0 means no link."""
    gpu = given_gpu(
        {"dense_flop_per_second": {"bf16": "9.9e14"}, "memory_bytes_per_second": "3.35e12", "link_bytes_per_second": 0}
    )

    assert gpu.peak(Precision.BF16) == 9.9e14
    assert gpu.link_bytes_per_second == 0


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("bf16=989,bandwidth=3.35e12", r"bf16 is in FLOP/s: 989 looks like TFLOP/s \(write 9.89e14\)"),
        ("fp8=1.979,bandwidth=3.35e12", r"1.979 looks like TFLOP/s \(write 1.979e12\) or PFLOP/s \(write 1.979e15\)"),
        ("bf16=9e14,bandwidth=3350", r"memory_bytes_per_second is in bytes/s: 3350 looks like GB/s \(write 3.35e12\)"),
        ("bf16=9e14,bandwidth=3.35", r"3.35 looks like TB/s \(write 3.35e12\)"),
        ("bf16=9e14,bandwidth=3e12,memory=80", r"memory_bytes is in bytes: 80 looks like GB \(write 8e10\)"),
        ("bf16=9e14,bandwidth=3e12,memory=81559", r"81559 looks like MiB \(write 8.552e10\)"),
        ("bf16=9e14,bandwidth=3e12,link=450", r"link_bytes_per_second is in bytes/s: 450 looks like GB/s \(write 4.5e11\)"),
        ("bf16=9e14,bandwidth=3e12,pcie=64", r"pcie_bytes_per_second is in bytes/s: 64 looks like GB/s \(write 6.4e10\)"),
        ("bf16=9e26,bandwidth=3e12", "9e26 is out of all bounds"),
        ("bf16=9e14,bandwidth=0.0001", "0.0001 is out of all bounds"),
    ],
)
def test_forgotten_units(text: str, advice: str) -> None:
    """A number in a data sheet's unit is refused with the number that is meant."""
    with pytest.raises(ValueError, match=advice):
        given_gpu_text(text)


@pytest.mark.parametrize("value", ["nan", "inf", "-9e14", "0", "fast", True, [9e14], 10**400], ids=str)
def test_numbers_are_positive_and_finite(value: object) -> None:
    """What is no positive finite number is refused under its key."""
    with pytest.raises(ValueError, match="bf16 is a positive number of FLOP/s"):
        given_gpu({"dense_flop_per_second": {"bf16": value}, "memory_bytes_per_second": 3e12})


@pytest.mark.parametrize(
    ("text", "known", "dense"),
    [
        ("name=my-card,bf16=1.979e15,bandwidth=3.35e12", "h100-sxm", "9.894e14"),
        ("name=my-card,bf16=1.98e15,bandwidth=3.35e12", "h100-sxm", "9.894e14"),  # rounded
        ("name=my-h100,bf16=1.513e15,bandwidth=5e12", "h100-pcie", "7.565e14"),  # by name, whatever its bandwidth
        ("based_on=l40s,fp8=1.466e15", "l40s", "7.33e14"),
        ("based_on=a100-sxm4-80gb,int8=1.248e15", "a100-sxm4-80gb", "6.24e14"),
        ("based_on=h20,bf16=2.96e14", "h20", "1.48e14"),  # no headline in the table, but twice the dense rate
        ("name=spark,fp4=1e15,bandwidth=273e9", "gb10-dgx-spark", "5e14"),
        ("name=thing,fp4=3.352e15,bandwidth=1.79e12", "rtx-5090", "1.676e15"),
        ("name=thing,bf16=2.615e15,bandwidth=5.3e12", "mi300x", "1.307e15"),
        ("based_on=NVIDIA A100-SXM4-80GB MIG 7g.80gb,bf16=6.24e14", "a100-sxm4-80gb-mig-7g.80gb", "3.12e14"),
    ],
)
def test_sparse_headlines_are_refused(text: str, known: str, dense: str) -> None:
    """A peak that holds for 2:4 sparsity only is refused with the reason and the dense figure."""
    with pytest.raises(
        ValueError, match=rf"what {known} reaches with 2:4 structured sparsity.* write its dense peak, {dense}$"
    ):
        given_gpu_text(text)


def test_half_precision_accumulation_is_named_too() -> None:
    """GeForce parts reach their sparse figure densely with FP16 accumulation, so the refusal says both."""
    with pytest.raises(ValueError, match="2:4 structured sparsity or FP16 accumulation only"):
        given_gpu_text("based_on=rtx-4090,bf16=330.4e12")


@pytest.mark.parametrize(
    "text",
    [
        "name=my-l40s,bf16=3.62e14,bandwidth=864e9",
        "name=thing,bf16=3.62e14,bandwidth=864e9",  # an L40's sparse figure, but an L40S's dense one
        "based_on=h100-sxm,fp8=1.979e15",  # the bf16 headline is the fp8 peak
        "name=thing,bf16=1.979e15,bandwidth=7e12",  # no known part has that bandwidth
        "based_on=mi210,bf16=362e12",  # no structured sparsity known
        "based_on=t4,fp16=130e12",  # no structured sparsity before Ampere
        "name=thing,fp32=39e12,bandwidth=1555e9",  # sparsity does not concern fp32
    ],
)
def test_dense_figures_are_not_refused(text: str) -> None:
    """A number that some part reaches with dense weights, or that belongs to no known part, is taken."""
    assert given_gpu_text(text).dense_flop_per_second


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS.values() if gpu.id != "generic-cpu-ddr5-8ch"], ids=lambda gpu: gpu.id)
def test_every_known_part_can_be_given(gpu: object) -> None:
    """The figures of any row, written out under another name, pass all checks."""
    peaks = dict(gpu.dense_flop_per_second)  # type: ignore[attr-defined]
    fields = {"name": "box", "dense_flop_per_second": peaks, "memory_bytes_per_second": gpu.memory_bytes_per_second}  # type: ignore[attr-defined]

    assert given_gpu(fields).dense_flop_per_second == peaks
    assert given_gpu({"based_on": gpu.id, **fields}).dense_flop_per_second == peaks  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"memory_byte": 8e10}, "no 'memory_byte'; do you mean 'memory_bytes'"),
        ({"bandwidth": 3e12}, "no 'bandwidth' here; write 'memory_bytes_per_second'"),
        ({"bf16": 9e14}, "bf16 belongs under dense_flop_per_second"),
        ({"dense_flop_per_second": {"bf17": 9e14}}, "do you mean 'dense_flop_per_second.bf16'"),
        ({"dense_flop_per_second": 9e14}, "dense_flop_per_second is a mapping"),
        ({"name": "x"}, "needs dense_flop_per_second"),
        ({"dense_flop_per_second": {"bf16": 9e14}}, "needs memory_bytes_per_second"),
        ({"dense_flop_per_second": {"bf16": None}, "memory_bytes_per_second": 3e12}, "needs dense_flop_per_second"),
        ({"name": 3}, "name of a GPU is a text"),
        ({"based_on": " "}, "based_on of a GPU is a text"),
        ({"based_on": "H100"}, "may be h100-sxm"),
        ({"zzz": 1}, "it has name, based_on, dense_flop_per_second"),
        (
            {"based_on": "gaudi3", "dense_flop_per_second": dict.fromkeys(("fp16", "bf16", "fp8"))},
            "nothing is left of the peaks",
        ),
    ],
)
def test_wrong_fields_are_explained(fields: dict[str, object], advice: str) -> None:
    """Unknown and missing keys are errors that name what would be right."""
    with pytest.raises(ValueError, match=advice):
        given_gpu(fields)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("bf17=9e14,bandwidth=3e12", "no 'bf17'; do you mean 'bf16'"),
        ("bf16=9e14,bandwith=3e12", "no 'bandwith'; do you mean 'bandwidth'"),
        ("bf16=9e14,bf16=8e14,bandwidth=3e12", "gives bf16 twice"),
        ("bandwidth=3e12,memory_bytes_per_second=3e12", "gives memory_bytes_per_second twice"),
        ("bf16=9e14,3e12", "'3e12' in the GPU .* is not of the form key=number"),
        ("bf16=,bandwidth=3e12", "'bf16=' in the GPU .* is not of the form key=number"),
        ("dense_flop_per_second=9e14", "no 'dense_flop_per_second'"),
    ],
)
def test_wrong_text_is_explained(text: str, advice: str) -> None:
    """The text form refuses what it cannot read, with the key that is meant."""
    with pytest.raises(ValueError, match=advice):
        given_gpu_text(text)


def test_any_way_to_say_it() -> None:
    """An id, a driver's name, text and a mapping all resolve in one place."""
    assert resolve_gpu("h100-sxm") is GPUS["h100-sxm"]
    assert resolve_gpu("NVIDIA L40S") is GPUS["l40s"]
    assert resolve_gpu(MINE).id == "my-card"
    assert resolve_gpu("name=mine,bf16=2e14,bandwidth=1e12").id == "mine"
    with pytest.raises(ValueError, match="unknown GPU 'abacus'"):
        resolve_gpu("abacus")
