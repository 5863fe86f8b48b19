"""`ridgeline probe` on a real vLLM: it runs to its end, and finds what the worker's own metrics say."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from tests.integration.gateway import ROOT
from tests.vllm.worker import COMPLETION, RealWorker, growth

pytestmark = pytest.mark.asyncio(loop_scope="module")

END_SECONDS = 60.0
LENGTHS = (
    *("--outputs", "8,24,64", "--prompts", "128,256,512,1024", "--prompt-output", "8", "--repeats", "2"),
    *("--contexts", "256", "--concurrency", "1,2,4", "--concurrency-output", "32"),
)


async def test_a_probe_of_a_real_worker_runs_to_its_end(worker: RealWorker) -> None:
    """Lengths are those asked for, tokens are those that the worker counts, and warm prompts are told from cold ones."""
    before = await worker.metrics()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy.cli", "probe", worker.url, *LENGTHS, "--json"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), END_SECONDS)
    after = await worker.metrics()

    assert (process.returncode, err.decode()) == (0, "")
    found = json.loads(out)
    assert (found["ended"], found["failed"], found["left_out"]) == ("complete", 0, [])
    assert found["sampling"]["refused"] == []
    assert [point["output_tokens"] for point in found["output"][0]["points"]] == [8, 24, 64]
    sent = 2 * (2 * (8 + 24 + 64) + 2 * 4 * 8 + 7 * 32)
    finding_out = 4 + 2 * 2
    assert growth(before, after, {"completion": COMPLETION})["completion"] == sent + finding_out
    cold, warm = found["prompt"]
    for point, aim in zip(cold["points"], (128, 256, 512, 1024), strict=True):
        assert point["prompt_tokens"] == pytest.approx(aim, rel=0.1)
    assert cold["cached_ratio"] == 0
    assert warm["cached_ratio"] > 0.5
    assert warm["points"][-1]["ttft_seconds"] < cold["points"][-1]["ttft_seconds"]
    short, *_, long = found["output"][0]["points"]
    assert long["seconds"] > short["seconds"]
    assert found["kv"]["capacity_tokens"] > 0
