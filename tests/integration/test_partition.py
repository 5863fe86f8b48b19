"""A link that swallows every packet without a word, in a network namespace of the gateway's own: no user needs any rights."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integration.gateway import ROOT
from tests.integration.namespaces import in_own

pytestmark = [pytest.mark.integration, pytest.mark.flaky(reruns=2)]


def test_a_worker_behind_a_link_that_swallows_everything() -> None:
    """Every wait has its limit, what has not begun goes to the other worker, and the first one serves when the link is back."""
    command = (*in_own("net", "mount"), sys.executable, "-m", "tests.integration.partitioned")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)

    assert [one["status"] for one in seen["before"]] == [200, 200]
    assert seen["reached_before"] == 1  # it is one of the two

    kept = sorted(seen["kept connection"], key=lambda one: one["seconds"])
    assert [one["status"] for one in kept] == [200, 200]
    assert 1 <= kept[1]["seconds"] < 2.5  # the limit on the first byte, then the other worker

    assert seen["stream"]["is_told"]
    assert 0.9 < seen["stream"]["seconds"] < 2.5  # the limit on silence

    assert (seen["new connection"]["status"], seen["new connection"]["code"]) == (503, "worker_unreachable")
    assert 0.5 <= seen["new connection"]["seconds"] < 1.5  # the limit on a connection

    assert [one["status"] for one in seen["others meanwhile"]] == [200] * 4
    assert max(one["seconds"] for one in seen["others meanwhile"]) < 1.5
    assert seen["reached_meanwhile"] == 0

    assert seen["again"] == 200
    assert seen["again_seconds"] < 10
