"""A serving process and the process that counts for it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.serving.counting import CountingProcess
from proxy.serving.counting_process import Job
from routing.topology import TokenizerSource, Topology
from telemetry.record import CountResult
from tests.routing.topologies import a_model, a_pool, a_topology
from tests.tokenizers_made import a_tiktoken_file, a_tokenizer_file

pytestmark = pytest.mark.asyncio


def a_topology_with(source: TokenizerSource) -> Topology:
    return a_topology(replace(a_model(a_pool(0)), tokenizer=source))


async def until_counted(counting: CountingProcess, source: TokenizerSource) -> int | None:
    """Tokens of a short prompt, once the source is loaded."""
    for _ in range(200):
        counting.look_after(a_topology_with(source), time.monotonic())
        result, tokens = await counting.count(Job(0, source, prompt=b'"hello a"'))
        if result is CountResult.COUNTED:
            return tokens
        await asyncio.sleep(0.05)
    raise TimeoutError(repr(counting))


async def test_a_source_that_a_reload_brings_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another file, or the same with another limit."""
    monkeypatch.setattr("proxy.serving.counting._RESTART_SECONDS", 0.1)
    first = TokenizerSource(file=str(a_tokenizer_file(tmp_path)), timeout_seconds=5)
    counting = CountingProcess()
    try:
        assert await until_counted(counting, first) == 3
        assert await until_counted(counting, replace(first, timeout_seconds=4)) == 3
        assert await until_counted(counting, TokenizerSource(tiktoken=str(a_tiktoken_file(tmp_path)))) == 3
    finally:
        counting.close()
        await asyncio.sleep(0.3)  # it and its pipes end
