"""Fleets as `/api/fleet` tells them, for the terminal to draw."""

from __future__ import annotations

from typing import Any

import msgspec

from dashboards.live.shown import Fleet

NOW = 1_800_000_000.0


def a_worker(name: str = "short-1", code: str = "ok", **fields: Any) -> dict[str, Any]:
    """One worker of which nothing is known yet but how it is."""
    return {
        "worker": name,
        "source": "config",
        "state": {"code": code, "reason": "", "since_unix_seconds": NOW - 40},
        "in_flight_requests": 0,
        **dict.fromkeys(("running_requests", "waiting_requests", "kv_usage_ratio", "attained_ttft_ratio")),
        **dict.fromkeys(("attained_tpot_ratio", "hit_ratio", "ttft", "tpot")),
        **dict.fromkeys(("floor_beaten", "restarts", "scrape_failures"), 0),
        "lately": {},
        "causes": {},
        "outcomes": {},
        **fields,
    }


def a_figure(p50: float, attained: float | None = None) -> dict[str, Any]:
    """TTFT or TPOT around this median."""
    spread = {"counts": [1], "first": 0}
    return {
        "requests": 9,
        "p50_seconds": p50,
        "p90_seconds": 2 * p50,
        "p99_seconds": 3 * p50,
        "expected_p50_seconds": p50 / 2,
        "floor_p50_seconds": p50 / 4,
        "attained_p50_ratio": attained,
        "measured": spread,
        "expected": None,
        "floor": None,
    }


def a_fleet(*workers: dict[str, Any], findings: tuple[dict[str, Any], ...] = (), **pool: Any) -> Fleet:
    """One pool with these workers."""
    totals = dict.fromkeys(("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "hit_known_tokens"), 0)
    whole = {
        "now_unix_seconds": NOW,
        "headline": {"severity": "ok", "text": "All healthy: 1 worker"},
        "findings": list(findings),
        "gateway": {
            "version": "0.1.0",
            "processes": 2,
            "serving": 2,
            "loop_lag_seconds": 0.001,
            "control_lag_seconds": None,
            "records_dropped": 0,
            "log_lines_dropped": 0,
            "unrouted": {},
        },
        "pools": [
            {
                "model": "llama",
                "pool": "short",
                "policy": "session",
                "max_total_tokens": None,
                "hardware": None,
                "queued_requests": 0,
                "in_flight_requests": 3,
                "lately": {},
                "causes": {},
                **dict.fromkeys(("hit_ratio", "ttft", "tpot")),
                "totals": {**totals, "outcomes": {}, "hit_unknown_requests": 0, "hit_ratio": None},
                "workers": list(workers),
                **pool,
            }
        ],
        "keys": [],
        "something_new": 1,  # of a later version
    }
    return msgspec.json.decode(msgspec.json.encode(whole), type=Fleet)
