"""Fixtures of the integration tests: scripted workers, and a gateway in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.gateway import Gateway, running_gateway
from tests.integration.scripted_worker import ScriptedWorker

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts real sockets: mark it so."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture
async def worker() -> AsyncIterator[ScriptedWorker]:
    """One scripted worker."""
    async with ScriptedWorker() as one:
        yield one


@pytest.fixture
async def other_worker() -> AsyncIterator[ScriptedWorker]:
    """A second scripted worker, for tests of routing and failover."""
    async with ScriptedWorker() as one:
        yield one


@pytest.fixture
async def gateway(worker: ScriptedWorker) -> AsyncIterator[Gateway]:
    """A gateway whose model ``tiny`` has the one worker of the fixture `worker`."""
    async with running_gateway(workers=[worker.url]) as one:
        yield one
