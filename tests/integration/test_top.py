"""`ridgeline top` as a user runs it, before a real gateway."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.certificates import Authority
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


async def test_it_asks_by_tls_and_says_what_is_lacking(tmp_path: Path) -> None:
    """With the CA of the certificate it shows the fleet; without it, and without TLS, it says what to write."""
    ca = Authority(tmp_path)
    certificate, key = ca.issue("admin", "127.0.0.1")
    tls = {"certificate": str(certificate), "key": str(key)}
    async with ScriptedWorker() as worker, running_gateway({"admin_tls": tls}, workers=[worker.url]) as gateway:
        url = gateway.admin_url
        assert url.startswith("https://")
        status, out, err = await run("--url", url, "--ca", str(ca.file))
        assert (status, err) == (0, "")
        assert "1 of 1 serving" in out
        status, out, err = await run("--url", url)
        assert (status, out) == (1, "")
        assert "--ca FILE" in err
        status, out, err = await run("--url", url.replace("https://", "http://"))
        assert (status, out) == (1, "")
        assert "https://" in err


async def test_a_file_that_is_no_ca_is_named(tmp_path: Path) -> None:
    """Before anything is asked."""
    empty = tmp_path / "empty.crt"
    empty.write_text("")
    for file, said in ((empty, "holds no certificate"), (tmp_path / "missing.crt", "No such file")):
        status, out, err = await run("--ca", str(file))

        assert (status, out) == (2, "")
        assert f"--ca {file}" in err
        assert said in err
