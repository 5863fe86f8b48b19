"""What holds for all tests: with REQUIRE_REAL=1 in the environment nothing may be left out, so a skipped test fails.

``--part`` runs one of three parts. `make test` shares unit tests and integration tests out among two processes, one part after
the other; what measures time closely or is heavy by itself has the machine for itself.
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
# In the order of preference; markers, and the folders of all tests that bear them. The last is what is left.
PARTS = {"alone": ("alone", "vllm", "browser"), "integration": ("integration",), "units": ()}
FOLDERS = {
    "units": {HERE / name for name in ("integration", "vllm", "browser")},
    "integration": {HERE / "vllm", HERE / "browser"},
}
REQUIRES_ALL = os.environ.get("REQUIRE_REAL") == "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Everything, unless told otherwise."""
    parser.addoption("--part", choices=sorted(PARTS), help="only these")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is not wanted, where the folder tells."""
    return True if collection_path in FOLDERS.get(config.getoption("part"), ()) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test is in exactly one part; its markers tell which."""
    part = config.getoption("part")
    if part is not None:
        others = [item for item in items if _part_of(item) != part]
        items[:] = [item for item in items if _part_of(item) == part]
        config.hook.pytest_deselected(items=others)


def _part_of(item: pytest.Item) -> str:
    return next(part for part, markers in PARTS.items() if not markers or any(map(item.get_closest_marker, markers)))


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
