"""What `ridgeline doctor` prints, its exit status, and its options."""

from __future__ import annotations

import asyncio
import io
import json
from functools import partial

import pytest
from aiohttp.test_utils import unused_port
from rich.console import Console
from typer.testing import CliRunner

from proxy.cli import app as command
from proxy.doctor.command import examine
from tests.proxy.doctor.test_looking import KEY, a_config, a_vllm, a_website, served


async def run(path, *, as_json: bool, environ=None):
    output = io.StringIO()
    console = Console(file=output)
    options = {"as_json": as_json, "wants_completion": False, "grace_seconds": None, "console": console}
    status = await asyncio.to_thread(examine, path, environ or {}, **options)
    return status, output.getvalue()


@pytest.mark.parametrize(("make", "status"), [(partial(a_vllm, "m", key=KEY), 0), (a_website, 2)])
async def test_what_is_printed(tmp_path, make, status):
    """Table and JSON tell the same, the status is that of the worst finding, and neither has a key or a proxy's password."""
    path = tmp_path / "ridgeline.yaml"
    environ = {"VLLM_KEY": KEY, "HTTP_PROXY": f"http://user:{KEY}@proxy"}
    async with served(make()) as url:
        path.write_text(a_config(url, more="worker_key: ${VLLM_KEY}"))
        table_status, table = await run(path, as_json=False, environ=environ)
        json_status, text = await run(path, as_json=True, environ=environ)
    report = json.loads(text)
    assert (table_status, json_status, report["status"]) == (status, status, status)
    assert {found["severity"] for found in report["findings"]} == ({"error", "hint"} if status else {"hint"})
    assert "workers: 1 of 1 answer" in table
    assert "HTTP_PROXY" in table
    assert KEY not in table + text


async def test_a_bad_configuration(tmp_path, capsys):
    """Problems of the file are told as `check` does, with status 2, and nobody is asked."""
    path = tmp_path / "bad.yaml"
    path.write_text("lisen: 1\n")
    assert await run(path, as_json=False) == (2, "")
    assert "did you mean `listen`?" in capsys.readouterr().err
    status, text = await run(path, as_json=True)
    assert (status, json.loads(text)["valid"]) == (2, False)


def test_the_command(tmp_path):
    """The command hands on its options; the grace period may come from the environment."""
    path = tmp_path / "ridgeline.yaml"
    path.write_text(a_config(f"http://127.0.0.1:{unused_port()}"))
    environ = {"TERMINATION_GRACE_PERIOD_SECONDS": "30"}
    result = CliRunner().invoke(command, ["doctor", "--config", str(path), "--json"], env=environ)
    assert result.exit_code == 2
    assert {"worker_refused", "grace_too_short"} <= {found["code"] for found in json.loads(result.stdout)["findings"]}
