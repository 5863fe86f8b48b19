"""`ridgeline top` as a user runs it, before a real gateway."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.integration.gateway import ROOT, running_gateway
from tests.integration.scripted_worker import ScriptedWorker


async def run(*arguments: str, **environ: str) -> tuple[int | None, str, str]:
    """Exit status, standard output and standard error of the command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy.cli", "top", *arguments),
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("token", [None, "a-token-of-the-tests"])
async def test_it_shows_the_workers_of_a_running_gateway(token: str | None) -> None:
    """Into a pipe it prints once; a gateway with a token is sent the one of the environment."""
    async with ScriptedWorker() as worker:
        config = {"models": [{"name": "tiny", "workers": [{"name": "only-one", "url": worker.url}]}]}
        async with running_gateway({**config, **({"admin_token": token} if token else {})}) as gateway:
            status, out, err = await run("--url", gateway.admin_url, RIDGELINE_ADMIN_TOKEN=token or "")
            assert (status, err) == (0, "")
            assert "only-one" in out
            assert "1 of 1 serving" in out
            if token:
                status, out, err = await run("--url", gateway.admin_url, RIDGELINE_ADMIN_TOKEN="")
                assert (status, out) == (1, "")
                assert "RIDGELINE_ADMIN_TOKEN" in err


async def test_it_says_that_nobody_is_there() -> None:
    """With the address and what may be meant."""
    status, out, err = await run("--once", "--url", "http://127.0.0.1:1")

    assert (status, out) == (1, "")
    assert "no gateway answers at http://127.0.0.1:1 (refused)" in err
