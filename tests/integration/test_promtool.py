"""The text as Prometheus' own tool judges it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from routing.topology import Key, Model, Pool, Topology, Worker
from telemetry.exposition import Writer
from telemetry.layout import Layout

pytestmark = pytest.mark.integration


def a_topology() -> Topology:
    worker = Worker(
        index=0, name='w "0" \\ \n ü', url="http://[::1]:8000", host="::1", port=8000, base_path="", authority="[::1]:8000"
    )
    pool = Pool(index=0, model="llama", name="default", workers=(worker,))
    return Topology(
        models=(Model(index=0, name="llama", aliases=(), pools=(pool,)),),
        pools=(pool,),
        workers=(worker,),
        keys=(Key(index=0, name="app-a", sha256=bytes(32)),),
    )


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")  # a failure under REQUIRE_REAL=1
    return found


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e300])
def test_promtool_accepts_the_text_and_has_no_advice(promtool, value):
    """`promtool check metrics` parses every series and its linter finds nothing about names, types and help."""
    topology = a_topology()
    layout = Layout.of(topology)
    array = [value] * layout.size
    text = Writer(topology, layout, version="1.2.3").write_all([array, array], array)

    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False, timeout=30)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
