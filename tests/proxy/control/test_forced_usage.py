"""Versions of vLLM that leave open whether usage is sent to everybody."""

from __future__ import annotations

from typing import Any, cast

import pytest

from proxy.control.fleet import Fleet
from proxy.control.forced_usage import UsageAdviser, leaves_it_open
from routing.guidance import NO_GUIDANCE, Guidance, WorkerGuidance


@pytest.mark.parametrize(
    ("version", "is_open"),
    [
        ("0.8.5", False),
        ("0.10.2", False),
        ("0.11.0", True),
        ("0.11.2.dev3+gabc", True),
        ("0.17.1", True),
        ("0.21.9", True),
        ("0.22.1", False),
        ("0.32.0", False),
        ("1.11.0", False),
        ("0.9", False),
        ("dev", False),
        ("", False),
    ],
)
def test_versions(version: str, is_open: bool) -> None:
    """Those that can put it into the last event alone, and only those."""
    assert leaves_it_open(version) is is_open


def test_each_run_has_a_name_of_its_own() -> None:
    """The same version begun at another time may have other flags; what others advise of the worker stays."""

    class Running:
        def engine_runs(self) -> dict[str, Any]:
            return {"old": ("0.17.1", 5.0), "unsaid": ("0.17.1", None), "new": ("0.32.0", 5.0)}

    before = Guidance(workers={"old": WorkerGuidance(max_model_len=7)})
    advised = UsageAdviser().advise(before, cast("Fleet", Running()))

    assert advised.workers == {
        "old": WorkerGuidance(max_model_len=7, usage_trial="0.17.1 5.0"),
        "unsaid": WorkerGuidance(usage_trial="0.17.1 None"),
    }
    assert NO_GUIDANCE.workers == {}
