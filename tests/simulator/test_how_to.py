"""The page on simulating workers: commands are accepted, all faults are shown, and requests are answered as it says."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import aiohttp
import pytest
import typer

from simulator.faults import End, Faults
from simulator.hardware import Hardware, place
from simulator.server import WorkerSettings, start_worker
from simulator.worker import app

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "simulate-a-worker.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
CONTROL = [command for command in COMMANDS if any(":9000/" in word for word in command)]


def test_options_are_those_of_the_command():
    """Every option that the page names exists."""
    group = typer.main.get_command(app)
    known = {name for option in group.params for name in option.opts}
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE))

    assert named <= known | {"--help"}


def test_every_fault_is_exposed():
    """Whoever reads the page knows all faults and all ends, and nothing else is called one."""
    assert all(f'"{field.name}"' in PAGE for field in fields(Faults))
    assert all(f"`{end}`" in PAGE for end in End)


@pytest.mark.integration
async def test_the_control_ports_requests_are_answered():
    """Each curl line gets status 200, and what it puts in force is what is told then."""
    settings = WorkerSettings(model="m", shape="llama-3.1-8b", gpu="h100-sxm", port=0, control_port=0)
    running, _ = await start_worker(settings)
    try:
        async with aiohttp.ClientSession() as http:
            for command in CONTROL:
                method = command[command.index("-X") + 1] if "-X" in command else "GET"
                body = command[command.index("-d") + 1] if "-d" in command else None
                (address,) = (word for word in command if ":9000/" in word)
                url = f"{running.control_url}/{address.rpartition('/')[2]}"
                async with http.request(method, url, data=body) as response:
                    assert response.status == 200, await response.text()
                    told = (await response.json())["faults"]
                    assert bool(told) == (method != "DELETE"), command
    finally:
        await running.cleanup()

    assert len(CONTROL) > len(fields(Faults)) / 2


@pytest.mark.parametrize("command", [command for command in COMMANDS if command[0] == "ridgeline" and "--help" not in command])
def test_commands_are_understood(command: list[str]):
    """Options exist and their values are of the right kind; model and GPU mean something, but for the reader's own file."""
    given = typer.main.get_command(app).make_context("simulate", command[2:]).params
    shape = None if given["shape"] == "path/to/config.json" else given["shape"]
    model = "llama-3.1-8b" if given["shape"] != shape else given["model"]
    hardware = Hardware(gpus=given["gpus"], weight_dtype=given["weight_dtype"], kv_cache_dtype=given["kv_cache_dtype"])

    assert place(model, shape, given["gpu"], hardware).kv_tokens > 0
