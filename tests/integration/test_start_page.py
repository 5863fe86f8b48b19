"""The first page that a newcomer reads: its lines are run as they stand there, only on other ports."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gateway import ROOT, free_ports

# The order of two requests is held against the clock: the machine is wanted for itself, and a second look.
pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.flaky(reruns=2)]

PAGE = ROOT / "docs" / "start.md"
PORTS = ("8000", "8080", "8081", "8082")


def blocks(heading: str, ports: dict[str, str]) -> list[str]:
    """The shell blocks of a section, with other ports and this environment's command."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    found = [re.sub(r"\b(80\d\d)\b", lambda match: ports[match[1]], block) for block in found]
    return [block.replace(".venv/bin/ridgeline", f"{sys.executable} -m proxy.cli") for block in found]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[str]]:
    """What the section's first block starts, answering; and its blocks."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    texts = blocks("Make something slow", ports)
    # The page uses the default addresses of the other two listeners.
    where = f"admin_listen: 127.0.0.1:{ports['8081']}\nobserve_listen: 127.0.0.1:{ports['8082']}\nmodels:"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        ["bash", "-c", texts[0].replace("models:", where)], cwd=tmp_path, env=environment, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 20
        while not _is_ready(ports["8080"]) or not _is_ready(ports["8000"]):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield texts
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def _is_ready(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def test_a_stream_that_a_long_prompt_disturbed_says_so(started: list[str], tmp_path: Path):
    """Block by block: the short request is several times as slow as expected, and the long prompt is its first cause."""
    shown = subprocess.run(["bash", "-ec", started[1]], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=60, check=True)

    records = [ast.literal_eval(line) for line in shown.stdout.splitlines()]
    (disturbed,) = [record for record in records if (record["prompt_tokens"] or 0) < 100 and record["tpot_seconds"]]
    assert disturbed["tpot_seconds"] > 2 * disturbed["tpot_expected_seconds"]
    assert disturbed["causes"][0][0] == "others_prefill"


def test_every_address_on_the_page_is_one_of_those_replaced_here():
    """So no block of the page is run against what somebody else has started."""
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", PAGE.read_text(encoding="utf-8"))) <= set(PORTS)
