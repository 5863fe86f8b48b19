"""The host's memory, and what moving weights or cache there costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.capacity.host_memory import host_memory, kv_offload_cost, weight_offload_cost
from tests.roofline.shapes import a_gpu
from tests.roofline.workers import a_worker


def test_offloaded_weights_cross_the_bus_in_every_step() -> None:
    """8 GB over 32 GB/s take a quarter of a second, which makes a step of 50 ms six times as long."""
    cost = weight_offload_cost(replace(a_gpu(), pcie_bytes_per_second=32e9), 8e9)

    assert cost is not None
    assert (cost.moved_bytes, cost.pcie_bytes_per_second, cost.seconds) == (8e9, 32e9, 0.25)
    assert cost.step_factor(0.05) == pytest.approx(6.0)


def test_cache_crosses_once() -> None:
    """Bringing back 4,096 tokens of an 8B model (0.54 GB) takes 17 ms over 32 GB/s."""
    cost = kv_offload_cost(replace(a_gpu(), pcie_bytes_per_second=32e9), 4_096 * 131_072)

    assert cost is not None
    assert cost.seconds == pytest.approx(0.0168, rel=0.01)


def test_an_unknown_bus_has_no_cost() -> None:
    """Where the rate is not known nothing is said; negative bytes are a mistake."""
    assert weight_offload_cost(a_gpu(), 1e9) is None
    with pytest.raises(ValueError, match="at least 0"):
        weight_offload_cost(a_gpu(), -1.0)


def test_what_a_host_must_hold() -> None:
    """Processes of two GPUs, what is pinned for each of them and in all, and the checkpoint while it loads."""
    deployment = a_worker("Llama-3.1-8B", "h100-sxm", tensor=2)
    plain = host_memory(deployment)
    offloading = host_memory(deployment, offloaded_bytes=5e9, kv_offload_bytes=20e9)

    assert plain.pinned_bytes == 0.0
    assert plain.processes_bytes == 1.2e9 + 2 * 3e9
    assert plain.staging_bytes == deployment.weight_bytes
    assert offloading.needed_bytes == plain.needed_bytes + 2 * 5e9 + 20e9
    assert offloading.comfortable_bytes == offloading.needed_bytes + deployment.weight_bytes
