"""What holds for all tests: with REQUIRE_REAL=1 in the environment nothing may be left out, so a skipped test fails."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a property, and a run can be repeated as it was.
settings.register_profile("ridgeline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ridgeline")

REQUIRES_ALL = os.environ.get("REQUIRE_REAL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip (but not an expected failure) into a failure."""
    report = yield
    if REQUIRES_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"left out, which REQUIRE_REAL=1 does not allow: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself as a whole."""
    report = yield
    if REQUIRES_ALL and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"left out, which REQUIRE_REAL=1 does not allow: {report.longrepr}"
    return report
