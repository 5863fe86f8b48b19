"""The gateway's figures are the worker's own, whatever flags it runs with; `make test-vllm-all` tries all sets of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.vllm.comparing import compare, in_front_of
from tests.vllm.flag_sets import BY_NAME
from tests.vllm.worker import RealWorker

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=2)]


async def test_figures_are_those_of_the_worker(worker: RealWorker) -> None:
    """As served here: streams are those of a direct call, tokens are counted alike, times differ by the way between."""
    flag_set = BY_NAME["as served here"]
    async with in_front_of(worker, flag_set) as gateway:
        found = await compare(gateway, worker, flag_set)

    assert not list(found.faults())
    assert found.streams == 8


async def test_so_they_are_where_usage_is_forced_and_parsers_hold_text_back(workers: object, tmp_path: Path) -> None:
    """With usage in each event of each stream, asked or not, reasoning, and calls of tools."""
    flag_set = BY_NAME["usage forced, parsers"]
    worker = await asyncio.to_thread(RealWorker, tmp_path / "vllm.log", *flag_set.arguments)
    try:
        async with in_front_of(worker, flag_set) as gateway:
            found = await compare(gateway, worker, flag_set)
    finally:
        await asyncio.to_thread(worker.stop)

    assert not list(found.faults())
    assert found.streams == 12
