"""What holds for all tests: with REQUIRE_REAL=1 in the environment nothing may be left out, so a skipped test fails.

``--part`` runs half of them: `make test` shares the unit tests out among processes, while what measures time or starts real
programs has the machine to itself.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a property, and a run can be repeated as it was.
settings.register_profile("ridgeline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ridgeline")

HERE = Path(__file__).parent
APART = ("integration", "vllm", "browser")  # folders and markers of what measures time or starts real programs
REQUIRES_ALL = os.environ.get("REQUIRE_REAL") == "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Everything, unless told otherwise."""
    parser.addoption("--part", choices=["units", "apart"], help="unit tests alone, or all others")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is not wanted, where the folder tells."""
    return True if config.getoption("part") == "units" and collection_path in [HERE / folder for folder in APART] else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test is in exactly one part; its markers tell which."""
    part = config.getoption("part")
    if part is not None:
        halves: dict[str, list[pytest.Item]] = {"units": [], "apart": []}
        for item in items:
            halves["apart" if any(map(item.get_closest_marker, APART)) else "units"].append(item)
        items[:] = halves.pop(part)
        config.hook.pytest_deselected(items=halves.popitem()[1])


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
