"""Fixtures of the tests against a real vLLM: its installation, the server, a gateway in front of it.

Left out, with the reason, where vLLM cannot be installed; `pytest -m 'not vllm'` leaves them out on purpose.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.gateway import ROOT, Gateway, running_gateway
from tests.vllm.worker import RealWorker, Workers

HERE = Path(__file__).parent
SETUP = ROOT / "deploy" / "vllm-cpu" / "setup.sh"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs vLLM: mark it so."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def workers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Installs vLLM where it is missing, and tells the person who waits."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        setup = subprocess.run([SETUP], stderr=subprocess.PIPE, text=True, check=False)
    if setup.returncode:
        pytest.skip(setup.stderr.strip().rpartition("\n")[2] or f"{SETUP.name} ended with {setup.returncode}")
    with Workers(tmp_path_factory.mktemp("vllm")) as shared:
        yield shared


@pytest.fixture(scope="module")
def worker(workers: Workers) -> RealWorker:
    """A vLLM that serves the tiny model."""
    return workers.running()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(worker: RealWorker) -> AsyncIterator[Gateway]:
    """A gateway whose model ``tiny`` has the one worker."""
    async with running_gateway(workers=[worker.url]) as one:
        yield one
