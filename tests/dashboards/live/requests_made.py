"""Records for the tests of the live page."""

from __future__ import annotations

from typing import Any

from telemetry.record import Outcome, RequestRecord


def a_record(request_id: str = "r-1", **fields: Any) -> RequestRecord:
    """A stream that went well, unless said otherwise."""
    usual: dict[str, Any] = {
        "ended_unix_seconds": 1_800_000_000.0,
        "model": "m",
        "pool": "default",
        "worker": "w-0",
        "endpoint": "chat",
        "stream": True,
        "status": 200,
        "outcome": Outcome.OK,
        "attempts": 1,
        "ttft_seconds": 0.2,
        "upstream_ttft_seconds": 0.19,
        "tpot_seconds": 0.02,
        "e2e_seconds": 1.2,
        "upload_seconds": 0.001,
        "queue_seconds": 0.0,
        "connect_seconds": 0.0,
        "client_wait_seconds": 0.0,
        "overhead_seconds": 0.01,
        "prompt_tokens": 1000,
        "completion_tokens": 51,
        "cached_tokens": 400,
        "token_events": 51,
    }
    return RequestRecord(request_id=request_id, **{**usual, **fields})
