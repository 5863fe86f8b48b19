"""Names find the part that they mean, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.gpu_names import ALIASES, UnknownGpu, find_gpu, gpus_named_like
from roofline.gpus import GPUS
from roofline.precision import Precision

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("H100 NVL 94GB", "h100-nvl"),
        ("NVIDIA H100 SXM5 80GB", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H20-3e", "h20-3e"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("A100-SXM4-40GB", "a100-sxm4-40gb"),  # drivers before 470
        ("NVIDIA Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla-T4-SHARED", "t4"),
        ("nvidia_rtx_6000_ada", "rtx-6000-ada"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d"),
        ("GPU 0: NVIDIA L4 (UUID: GPU-2f815c32-768d-d782-1073-db01d7b90215)", "l4"),
        ("NVIDIA(R) L4", "l4"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("mi250x", "mi250x"),
        ("tpu-v5-lite-podslice", "tpu-v5e"),
        ("  h100_sxm ", "h100-sxm"),
    ],
)
def test_known_names(name: str, gpu_id: str) -> None:
    """A name with harmless words around it means its own part, the longest known name first."""
    assert find_gpu(name).id == gpu_id


@pytest.mark.parametrize(("alias", "gpu_id"), ALIASES.items())
def test_aliases_name_rows(alias: str, gpu_id: str) -> None:
    """Every alias leads to a row and hides no id."""
    assert find_gpu(alias) is GPUS[gpu_id]
    assert alias not in GPUS


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100X",
        "NVIDIA A10M",
        "NVIDIA L40G",
        "NVIDIA A30X",
        "NVIDIA H800 PCIe",
        "NVIDIA H100 64GB",
        "NVIDIA H100 SXM5 94GB",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA A100-SXM-64GB",
        "Tesla V100-SXM3-32GB",
        "Quadro RTX 6000",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA L40S 24GB",
        "AMD Instinct MI300A",
        "Ascend 910B",
        "Apple M3",
        "80GB",
        "server edition",
        "",
        " - ",
        "abacus",
    ],
)
def test_other_parts_are_refused(name: str) -> None:
    """A part that is not in the table never gets another one's figures; the refusal says which figures to give."""
    with pytest.raises(UnknownGpu, match=r"give its figures: name, dense_flop_per_second"):
        find_gpu(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", ("rtx-4090",)),
        ("NVIDIA L40G", ("l40", "l40s")),
        ("h100-smx", ("h100-sxm",)),
        ("NVIDIA H100 SXM5 94GB", ("h100-sxm",)),
        ("NVIDIA GeForce RTX 5080", ("rtx-5090",)),
    ],
)
def test_refusals_name_what_is_near(name: str, near: tuple[str, ...]) -> None:
    """A refusal lists ids that look like what was asked for."""
    with pytest.raises(UnknownGpu) as refusal:
        find_gpu(name)

    for gpu_id in near:
        assert gpu_id in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("NVIDIA H100", ("h100-sxm", "h100-pcie", "h100-nvl")),
        ("H100", ("h100-sxm", "h100-pcie", "h100-nvl")),
        ("NVIDIA A100", ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb")),
        ("A100-SXM4", ("a100-sxm4-40gb", "a100-sxm4-80gb")),
        ("A100 80GB", ("a100-pcie-80gb", "a100-sxm4-80gb")),
        ("GH200", ("gh200-96gb", "gh200-144gb")),
        ("RTX 6000", ("rtx-6000-ada", "rtx-pro-6000-blackwell-server")),
        ("AMD Instinct MI250X", ("mi250x", "mi250x-gcd")),
        ("A100 80GB MIG 3g.40gb", ("a100-pcie-80gb-mig-3g.40gb", "a100-sxm4-80gb-mig-3g.40gb")),
    ],
)
def test_ambiguous_names_list_their_candidates(name: str, candidates: tuple[str, ...]) -> None:
    """A name that several parts share is refused with all of them."""
    with pytest.raises(UnknownGpu, match="may be") as refusal:
        find_gpu(name)

    for gpu_id in candidates:
        assert gpu_id in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth", "gpu_id"),
    [
        ("NVIDIA H100", 81_559 * MIB, 2619e6 * 5120 / 4, "h100-sxm"),  # memory clock, bus width, two transfers a clock
        ("NVIDIA H100", None, 1593e6 * 5120 / 4, "h100-pcie"),
        ("NVIDIA A100", 81_920 * MIB, 2039e9, "a100-sxm4-80gb"),
        ("NVIDIA A100", 81_251 * MIB, 1935e9, "a100-pcie-80gb"),
        ("V100-SXM2", 32_510 * MIB, None, "v100-sxm2-32gb"),
        ("GH200", 97_871 * MIB, None, "gh200-96gb"),
        ("AMD Instinct MI250X", 64 * GIB, None, "mi250x-gcd"),
        ("AMD Instinct MI300X VF", 191 * GIB, None, "mi300x"),
    ],
)
def test_memory_and_bandwidth_decide(name: str, memory: float | None, bandwidth: float | None, gpu_id: str) -> None:
    """What the driver tells besides the name picks one of the parts that share it."""
    assert find_gpu(name, driver_memory_bytes=memory, memory_bytes_per_second=bandwidth).id == gpu_id


def test_part_of_a_name_needs_evidence() -> None:
    """A name that only begins like one known part may be another part, unless a figure confirms it."""
    with pytest.raises(UnknownGpu, match="'A800' may be a800-sxm4-80gb"):
        find_gpu("A800")
    assert find_gpu("A800", driver_memory_bytes=81_920 * MIB).id == "a800-sxm4-80gb"


def test_virtual_function_needs_its_memory() -> None:
    """A virtual function has all of a card or a part of it, so without its memory it is refused."""
    with pytest.raises(UnknownGpu, match="all of a card or a part of it"):
        find_gpu("AMD Instinct MI300X VF")


def test_memory_alone_does_not_decide_between_equal_cards() -> None:
    """Two H100 with 80 GB stay ambiguous when only their memory is known."""
    with pytest.raises(UnknownGpu, match="h100-sxm or h100-pcie"):
        find_gpu("NVIDIA H100", driver_memory_bytes=81_559 * MIB)


def test_bare_h100_with_94_gb_is_no_nvl() -> None:
    """The SXM5 board with 94 GB calls itself just H100 and must not get the slower card's peaks."""
    with pytest.raises(UnknownGpu, match="does not fit"):
        find_gpu("NVIDIA H100", driver_memory_bytes=95_830 * MIB)


@pytest.mark.parametrize(
    ("name", "memory", "capability", "bandwidth", "reason"),
    [
        ("NVIDIA L40S", 24e9, None, None, r"the driver reports 2.4e\+10 bytes of memory, l40s has 4.8e\+10"),
        ("h100-sxm", None, "8.0", None, "its compute capability is 8.0, h100-sxm has 9.0"),
        (
            "NVIDIA H100 PCIe",
            81_559 * MIB,
            "9.0",
            3.35e12,
            r"its bandwidth is 3.35e\+12 bytes per second, h100-pcie has 2e\+12",
        ),
        ("AMD Instinct MI300X VF", 96 * GIB, None, None, "mi300x has"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 20e9, None, None, r"a100-sxm4-80gb-mig-3g.40gb has 4e\+10"),
    ],
)
def test_contradictions_are_named(
    name: str, memory: float | None, capability: str | None, bandwidth: float | None, reason: str
) -> None:
    """A figure that does not fit the named part is an error that says which one and what was expected."""
    with pytest.raises(UnknownGpu, match=reason):
        find_gpu(name, driver_memory_bytes=memory, compute_capability=capability, memory_bytes_per_second=bandwidth)


@pytest.mark.parametrize(
    ("name", "memory", "capability"),
    [
        ("Tesla T4", 15_109 * MIB, "7.5"),  # ECC takes its part
        ("NVIDIA L40S", 49_140 * MIB, "8.9"),  # ECC off
        ("NVIDIA A100-SXM4-40GB", 40_536 * MIB, "8.0"),  # older driver
        ("AMD Instinct MI325X", 256 * GIB, "gfx942:sramecc+:xnack-"),
        ("NVIDIA GB10", int(119.7 * GIB), "12.1"),
    ],
)
def test_drivers_may_count_a_little_differently(name: str, memory: float, capability: str) -> None:
    """ECC, driver versions and GiB sold as GB do not make another part."""
    assert find_gpu(name, driver_memory_bytes=memory, compute_capability=capability) in GPUS.values()


def test_shared_memory_is_what_the_machine_has() -> None:
    """Where the CPU shares its memory the reported total replaces the largest option."""
    gpu = find_gpu("Apple M2 Ultra", driver_memory_bytes=64 * GIB)

    assert gpu.memory_bytes == 64 * GIB
    assert gpu.dense_flop_per_second == GPUS["m2-ultra"].dense_flop_per_second
    assert find_gpu("generic-cpu", driver_memory_bytes=512 * GIB).memory_bytes == 512 * GIB
    with pytest.raises(UnknownGpu, match="does not fit"):
        find_gpu("Apple M2 Ultra", driver_memory_bytes=512 * GIB)


@pytest.mark.parametrize(
    "name",
    [
        "GRID A100D-40C",
        "GRID T4-16Q",
        "NVIDIA A100-40C",
        "NVIDIA A100-1-5CME",
        "NVIDIA L40S-48Q",
        "NVIDIA-L40S-8Q",
        "NVIDIA A16-2B",
        "NVIDIA H100XM-80C",
        "NVIDIA H100L-1-12C MIG 1g.12gb",
        "NVIDIA RTX PRO 6000 Blackwell DC-4-96Q",
        "NVIDIA L40S vGPU",
    ],
)
def test_virtual_gpus_are_refused(name: str) -> None:
    """No peak can be assumed for a share of unknown size."""
    with pytest.raises(UnknownGpu, match="virtual GPU"):
        find_gpu(name)


@pytest.mark.parametrize(
    ("name", "card", "compute", "memory"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "a100-sxm4-80gb", 3 / 7, 4 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 1g.20gb", "a100-sxm4-80gb", 1 / 7, 2 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 7g.80gb", "a100-sxm4-80gb", 1, 1),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "a100-sxm4-40gb", 1 / 7, 1 / 8),
        ("NVIDIA A100-SXM4-40GB MIG 1g.10gb", "a100-sxm4-40gb", 1 / 7, 2 / 8),
        ("H100 80GB HBM3 MIG 1g.10gb", "h100-sxm", 1 / 7, 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "h100-sxm", 1 / 7, 1 / 8),
        ("nvidia-h100-80gb-hbm3-mig-1g.10gb.me", "h100-sxm", 1 / 7, 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 4g.40gb", "h100-sxm", 4 / 7, 4 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1c.4g.40gb", "h100-sxm", 1 / 7, 4 / 8),
        ("NVIDIA H100 PCIe MIG 3g.40gb Device 0:", "h100-pcie", 3 / 7, 4 / 8),
        ("NVIDIA H100 NVL MIG 1g.12gb", "h100-nvl", 1 / 7, 1 / 8),
        ("NVIDIA H100 NVL MIG 4g.47gb", "h100-nvl", 4 / 7, 4 / 8),
        ("NVIDIA H200 MIG 1g.18gb", "h200-sxm", 1 / 7, 1 / 8),
        ("NVIDIA H200 MIG 2g.35gb", "h200-sxm", 2 / 7, 2 / 8),
        ("NVIDIA GH200 480GB MIG 4g.48gb", "gh200-96gb", 4 / 7, 4 / 8),
        ("NVIDIA H20 MIG 3g.48gb", "h20", 3 / 7, 4 / 8),
        ("NVIDIA B200 MIG 1g.23gb", "b200-sxm", 1 / 7, 1 / 8),
        ("NVIDIA B200 MIG 3g.90gb", "b200-sxm", 3 / 7, 4 / 8),
        ("NVIDIA B300 SXM6 AC MIG 1g.34gb", "b300-sxm", 1 / 7, 1 / 8),
        ("NVIDIA GB200 MIG 3g.93gb", "gb200", 3 / 7, 4 / 8),
        ("NVIDIA GB300 MIG 7g.278gb", "gb300", 1, 1),
        ("NVIDIA A30 MIG 1g.6gb+me", "a30", 1 / 4, 1 / 4),
        ("NVIDIA A30 MIG 2g.12gb", "a30", 2 / 4, 2 / 4),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb+me.all", "rtx-pro-6000-blackwell-server", 1 / 4, 1 / 4),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 2g.48gb-me", "rtx-pro-6000-blackwell-server", 2 / 4, 2 / 4),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 4g.96gb+gfx", "rtx-pro-6000-blackwell-server", 1, 1),
        # Hopper with 132 multiprocessors: 60 of them for 3g, 26 for 1g with two memory slices
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "h100-sxm", 60 / 132, 4 / 8),
        ("NVIDIA H200 MIG 3g.71gb", "h200-sxm", 60 / 132, 4 / 8),
        ("NVIDIA H100 NVL MIG 1g.24gb", "h100-nvl", 26 / 132, 2 / 8),
    ],
)
def test_mig_devices_have_their_share(name: str, card: str, compute: float, memory: float) -> None:
    """A slice has its share of compute, and of memory and bandwidth, and no link; its id names it again."""
    device, whole = find_gpu(name), GPUS[card]

    assert device.id.startswith(f"{card}-mig-")
    assert device.peak(Precision.BF16) == pytest.approx(whole.peak(Precision.BF16) * compute)
    assert set(device.dense_flop_per_second) == set(whole.dense_flop_per_second)
    assert device.memory_bytes == pytest.approx((whole.memory_bytes or 0) * memory)
    assert device.memory_bytes_per_second == pytest.approx(whole.memory_bytes_per_second * memory)
    assert device.link_bytes_per_second == 0
    assert device.driver_memory_bytes is None
    assert find_gpu(device.id) == device


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NVIDIA L4 MIG 1g.10gb", "l4 has no MIG"),
        ("NVIDIA GeForce RTX 5090 MIG 1g.10gb", "rtx-5090 has no MIG"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.5gb", "no MIG profile 1g.5gb; it has about 1g.10gb, 1g.20gb, 2g.20gb"),
        ("NVIDIA H100 80GB HBM3 MIG 5g.40gb", "no MIG profile 5g.40gb"),
        ("NVIDIA A100-SXM4-80GB MIG 4c.3g.40gb", "between 1 and 3 slices"),
        ("NVIDIA A100-SXM4-80GB MIG half", "names no profile"),
        ("MIG 1g.10gb", "names no card"),
        ("NVIDIA A100X MIG 1g.10gb", "unknown GPU"),
    ],
)
def test_impossible_slices_are_refused(name: str, reason: str) -> None:
    """A profile that the card does not have, or a slice of an unknown card, is an error that says so."""
    with pytest.raises(UnknownGpu, match=reason):
        find_gpu(name)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9_728 * MIB),
        ("NVIDIA H100 NVL MIG 1g.12gb", int(10.62 * GIB)),
        ("NVIDIA H200 MIG 1g.18gb", 16 * GIB),
        ("NVIDIA H200 MIG 3g.71gb", int(69.8 * GIB)),
        ("NVIDIA B200 MIG 1g.23gb", 23_552 * MIB),
    ],
)
def test_reported_memory_of_a_slice_is_kept(name: str, reported: int) -> None:
    """The total that the driver reports for a slice fits its share and becomes part of it."""
    assert find_gpu(name, driver_memory_bytes=reported).driver_memory_bytes == reported


def test_slices_are_never_surer_than_their_card() -> None:
    """A share is derived, so its figures are of medium certainty at best."""
    assert find_gpu("a100-sxm4-80gb-mig-3g.40gb").peaks_certainty == "medium"


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("my-h100", {"h100-sxm", "h100-pcie", "h100-nvl"}),
        ("Lab 4090 #2", {"rtx-4090", "rtx-4090-d"}),
        ("l40s-tuned", {"l40s"}),
        ("910b3", {"ascend-910b3"}),
        ("node-3", set()),
        ("box-80gb-sxm4", set()),
    ],
)
def test_likeness_goes_by_the_model(name: str, ids: set[str]) -> None:
    """A made-up name is like the parts whose model it contains, not like all of the same memory or socket."""
    assert {gpu.id for gpu in gpus_named_like(name)} == ids


@given(
    gpu=st.sampled_from(list(GPUS.values())),
    junk=st.text(alphabet="bcdfghjklmnpqrstvwxyz", min_size=4, max_size=9).filter(
        lambda word: word not in {"card", "gpu", "tensor", "shared", "cloud", "graphics"}
    ),
    in_front=st.booleans(),
)
def test_an_unknown_word_is_never_ignored(gpu: object, junk: str, in_front: bool) -> None:
    """Whatever else a driver puts into a name may mean another part."""
    name = gpu.names[0]  # type: ignore[attr-defined]
    with pytest.raises(UnknownGpu):
        find_gpu(f"{junk} {name}" if in_front else f"{name} {junk}")
