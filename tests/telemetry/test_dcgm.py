"""What a dcgm-exporter's page says of a worker's GPUs."""

from __future__ import annotations

import pytest

from telemetry.dcgm import Gpus, pick, read_page
from tests.telemetry.dcgm_pages import a_line, a_page


def test_the_gpus_of_a_page_are_put_together() -> None:
    """In base units: the slowest clock, the hottest, all power, and how busy they are on the mean."""
    page = a_page(1) + a_page(
        1, host="node-2", DCGM_FI_DEV_SM_CLOCK=1200, DCGM_FI_DEV_GPU_TEMP=81, DCGM_FI_PROF_DRAM_ACTIVE=0.7
    )

    assert pick(read_page(page), {}) == Gpus(
        gpus=2,
        sm_clock_hertz=1.2e9,
        limited_by=(),
        utilisation_ratio=0.97,
        dram_active_ratio=pytest.approx(0.6),
        tensor_active_ratio=0.25,
        power_watts=1024.5,
        temperature_celsius=81.0,
        xid=0,
    )


@pytest.mark.parametrize(
    ("labels", "gpus"),
    [
        ({}, 8),
        ({"gpu": ("3",)}, 2),
        ({"gpu": ("0", "1"), "Hostname": ("node-2",)}, 2),
        ({"UUID": ("GPU-node-1-2",)}, 1),
        ({"pod": ("vllm-0",)}, 4),
        ({"pod": ("vllm-9",)}, None),
        ({"gpu": ("4",)}, None),
        ({"nothing": ("0",)}, None),
    ],
)
def test_labels_pick_gpus(labels: dict[str, tuple[str, ...]], gpus: int | None) -> None:
    """All of them have to fit, each with one of its values; none that fit is not the same as no GPU at work."""
    page = a_page(4, labels={"pod": "vllm-0"}) + a_page(4, host="node-2", labels={"pod": "vllm-1"})

    found = pick(read_page(page), labels)

    assert (None if found is None else found.gpus) == gpus


@pytest.mark.parametrize(
    ("bits", "limits"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x100, ()),  # idle, a setting, a display
        (0x4, ("power_cap",)),
        (0x8 | 0x40, ("hw_slowdown", "hw_thermal")),
        (0x20 | 0x80, ("sw_thermal", "hw_power_brake")),
    ],
)
@pytest.mark.parametrize("name", ["DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"])
def test_what_holds_a_clock_down(name: str, bits: int, limits: tuple[str, ...]) -> None:
    """Heat and power do; that nothing runs, or somebody's setting, is no trouble."""
    found = pick(read_page(a_page(**{"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": None, name: bits})), {})

    assert found is not None
    assert found.limited_by == limits


def test_events_that_were_counted_tell_it_as_well() -> None:
    """By names; those with a count of 0 did not happen."""
    events = "".join(
        a_line("DCGM_EXP_CLOCK_EVENTS_COUNT", count, clock_event=event, window_size_in_ms="300000")
        for event, count in (("gpu_idle", 9), ("hw_thermal", 2), ("power_cap", 0))
    )
    found = pick(read_page(a_page(1, DCGM_FI_DEV_CLOCKS_EVENT_REASONS=None) + events.encode()), {})

    assert found is not None
    assert (found.gpus, found.limited_by) == (1, ("hw_thermal",))


@pytest.mark.parametrize("value", [9223372036854775794, "NaN", "+Inf", -1, "", "much"])
def test_what_is_no_value_is_unknown(value: object) -> None:
    """Drivers that do not know have numbers for that, and none of them is a clock."""
    found = pick(read_page(a_page(DCGM_FI_DEV_SM_CLOCK=value)), {})

    assert found is not None
    assert (found.sm_clock_hertz, found.gpus) == (None, 2)


def test_the_usual_counters_alone_are_enough_for_a_clock() -> None:
    """Without profiling, which not all GPUs allow, the rest is unknown."""
    page = a_page(1, DCGM_FI_PROF_DRAM_ACTIVE=None, DCGM_FI_PROF_PIPE_TENSOR_ACTIVE=None, DCGM_FI_DEV_CLOCKS_EVENT_REASONS=None)
    found = pick(read_page(page), {})

    assert found is not None
    assert (found.sm_clock_hertz, found.dram_active_ratio, found.tensor_active_ratio, found.limited_by) == (
        1.98e9,
        None,
        None,
        (),
    )


def test_gpus_that_several_share_and_slices_of_one_are_told_apart() -> None:
    """A line for each pod that shares a GPU is still one GPU; slices of one are several."""
    shared = "".join(a_line("DCGM_FI_DEV_POWER_USAGE", 300, pod=pod) for pod in ("a", "b"))
    sliced = "".join(a_line("DCGM_FI_DEV_SM_CLOCK", 1980, GPU_I_ID=slice_) for slice_ in ("1", "2"))

    one, two = pick(read_page(shared.encode()), {}), pick(read_page(sliced.encode()), {})

    assert one is not None
    assert two is not None
    assert (one.gpus, one.power_watts, two.gpus) == (1, 300.0, 2)


@pytest.mark.parametrize("page", [b"", b"<html>", b"vllm:num_requests_running 3\n", b"DCGM_FI_DEV_SM_CLOCK 3\n", b"\xff{} 1\n"])
def test_a_page_of_something_else_has_none(page: bytes) -> None:
    """And nothing is raised."""
    assert read_page(page) == []


def test_labels_with_quotes_are_read() -> None:
    """As Prometheus' format escapes them."""
    (sample,) = read_page(b'DCGM_FI_DEV_SM_CLOCK{gpu="0",note="a \\"b\\" \\\\ c",pod="p"} 1\n')
    assert sample.labels == {"gpu": "0", "note": 'a "b" \\ c', "pod": "p"}
