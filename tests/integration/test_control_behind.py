"""A control process that has fallen behind: requests go on, records are dropped and counted, and no figure is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from proxy.records import MAX_UNSENT_RECORDS
from tests.integration.gateway import running_gateway

pytestmark = pytest.mark.integration

_CONFIG = {"models": [{"name": "m", "workers": ["http://127.0.0.1:9"]}]}
_ASK = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
_BATCH = 500
_BATCHES = 3 * MAX_UNSENT_RECORDS // (2 * _BATCH)


async def test_requests_go_on_while_control_stands_still() -> None:
    """Each is answered and counted; of the records so many are kept as there is room for, and the others are counted, too."""
    async with running_gateway(_CONFIG) as gateway:
        control = gateway.processes.control
        assert control is not None
        host, port = gateway.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        os.kill(control, signal.SIGSTOP)
        try:
            longest = 0.0
            for _ in range(_BATCHES):
                began_at = time.monotonic()
                writer.write(_ASK * _BATCH)
                answered = 0
                while answered < _BATCH:
                    answered += (await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 200 OK\r\n"), 10)).count(b"HTTP/1.1 200 OK")
                longest = max(longest, time.monotonic() - began_at)
        finally:
            os.kill(control, signal.SIGCONT)
            writer.close()
        total = _BATCH * _BATCHES

        metrics = await gateway.metrics_when(
            lambda metrics: metrics.total("ridgeline_requests_total", endpoint="models") == total, timeout_seconds=20
        )
        dropped = int(metrics.value("ridgeline_records_dropped_total"))
        assert 0 < dropped < total
        logged = await gateway.records(total - dropped, timeout_seconds=20)

    assert len(logged) == total - dropped
    assert len(logged) >= MAX_UNSENT_RECORDS
    assert longest < 5
