"""The gateway in front of a real vLLM on the CPU, with a tiny model and light traffic: ``make demo-vllm``.

Ends on Ctrl-C, SIGTERM, or after ``--duration``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import aiohttp
import typer
import yaml

from simulator.children import Child, child
from simulator.demo import Addresses, DemoError, choose_addresses
from simulator.summary import Reading, read_page, summary_line

T = TypeVar("T")
SERVE = Path(__file__).resolve().parent / "serve.py"
MODEL = "tiny"
_HOST = "127.0.0.1"
_DRAIN_SECONDS = 5
_GRACE_SECONDS = 25.0  # for the gateway to drain, for vLLM to end its engine
_READY_SECONDS = 30.0
_PAUSE_SECONDS = 2.0
_SUMMARY_SECONDS = 10.0
_SHARED = "you know that all people of the world use water each day and some have more of it than others " * 20


def gateway_config(addresses: Addresses, worker_url: str, log: Path) -> dict[str, Any]:
    """The gateway's configuration: one model, one pool, one worker."""
    return {
        "listen": addresses.client,
        "observe_listen": addresses.observe,
        "admin_listen": addresses.admin,
        "models": [{"name": MODEL, "workers": [{"name": "vllm-cpu", "url": worker_url}]}],
        "limits": {"drain_seconds": _DRAIN_SECONDS},
        "log": {"path": str(log)},
    }


def chat_body(text: str, max_tokens: int, *, stream: bool) -> dict[str, Any]:
    """A chat request."""
    return {"model": MODEL, "stream": stream, "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}


def welcome(addresses: Addresses, worker_url: str, log: Path) -> str:
    """What a person needs to look around."""
    body = json.dumps(chat_body("Tell me about water", 20, stream=True))
    return f"""
Ridgeline is up, with a real vLLM behind it. Its model is of random weights: what it says is noise, how it says it is vLLM.

  client base URL   http://{addresses.client}/v1
  the same, direct  {worker_url}/v1
  metrics           http://{addresses.observe}/metrics
  vLLM's metrics    {worker_url}/metrics
  recent records    http://{addresses.admin}/api/records
  state             http://{addresses.admin}/api/state
  JSON log          {log}

Try it:

  curl -N http://{addresses.client}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

Ctrl-C ends everything.
"""


async def run_demo(*, with_traffic: bool, duration_seconds: float | None) -> None:
    """Start everything and let it run until a signal comes or the time is over. `DemoError` when a process fails."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-demo-vllm-"))
    typer.echo("Starting vLLM, which takes about half a minute ...")
    async with contextlib.AsyncExitStack() as stack:
        vllm = await stack.enter_async_context(
            child("vllm", [str(SERVE)], folder=folder, grace_seconds=_GRACE_SECONDS, reads_output=True)
        )
        line = await _until(stopping, vllm.first_line())
        if line is None:
            return
        if not line:
            raise DemoError(f"vLLM did not start: {vllm.last_words()}")
        typer.echo(line)
        worker_url = line.split()[-1]
        addresses = choose_addresses(typer.echo, _is_free, lambda: _bound_port(0))
        config, log = folder / "config.yaml", folder / "requests.jsonl"
        config.write_text(yaml.safe_dump(gateway_config(addresses, worker_url, log), sort_keys=False))
        command = ["-m", "proxy.cli", "serve", "--config", str(config)]
        gateway = await stack.enter_async_context(child("gateway", command, folder=folder, grace_seconds=_GRACE_SECONDS))
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        if await _until(stopping, _answers(session, addresses, gateway)) is not None:
            typer.echo(welcome(addresses, worker_url, log))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(duration_seconds):
                    await _until(stopping, _watch(session, addresses, [vllm, gateway], with_traffic=with_traffic))
        typer.echo("Ending ...")
    typer.echo(f"All processes have ended. Configuration and logs are left in {folder}")


async def _until(stopping: asyncio.Event, job: Coroutine[Any, Any, T]) -> T | None:
    """What the job returns, or None when the demo is to stop before."""
    async with _task(job) as running, _task(stopping.wait()) as stop:
        await asyncio.wait([running, stop], return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None


@contextlib.asynccontextmanager
async def _task(job: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(job)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _answers(session: aiohttp.ClientSession, addresses: Addresses, gateway: Child) -> bool:
    """Return True when a request through the gateway has been answered."""
    found = "nothing answers yet"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READY_SECONDS):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    found = await _ask(session, addresses, chat_body("Are you there?", 1, stream=False))
                    if found == "200":
                        return True
                await asyncio.sleep(0.2)
    raise DemoError(f"the gateway did not answer within {_READY_SECONDS:.0f} s: {found}\n{gateway.last_words()}")


async def _watch(session: aiohttp.ClientSession, addresses: Addresses, processes: list[Child], *, with_traffic: bool) -> None:
    """Send light traffic and tell about it, for as long as all processes live. `DemoError` when one ends."""
    before, lines_due = Reading(), _SUMMARY_SECONDS / _PAUSE_SECONDS
    for number in itertools.count(1):
        await asyncio.sleep(_PAUSE_SECONDS)
        for one in processes:
            if one.process.returncode is not None:
                raise DemoError(f"{one.name} ended by itself with status {one.process.returncode}: {one.last_words()}")
        if not with_traffic:
            continue
        text = f"{_SHARED} {number}" if number % 2 else f"question {number}"
        with contextlib.suppress(aiohttp.ClientError):
            await _ask(session, addresses, chat_body(text, 20 + number % 40, stream=bool(number % 3)))
        if number % lines_due == 0:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://{addresses.observe}/metrics") as response:
                    now = read_page(await response.text())
                typer.echo(summary_line(now, before))
                before = now


async def _ask(session: aiohttp.ClientSession, addresses: Addresses, body: dict[str, Any]) -> str:
    """The status of an answer that was read to its end."""
    async with session.post(f"http://{addresses.client}/v1/chat/completions", json=body) as response:
        await response.read()
        return str(response.status)


def _is_free(port: int) -> bool:
    try:
        return _bound_port(port) == port
    except OSError:
        return False


def _bound_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((_HOST, port))
        bound: int = probe.getsockname()[1]
    return bound


def main(
    no_traffic: Annotated[bool, typer.Option("--no-traffic", help="Only start everything; send nothing.")] = False,
    duration: Annotated[float | None, typer.Option(help="Seconds to run once it is up; endless if absent.")] = None,
) -> None:
    """Run the gateway with a real vLLM and light traffic."""
    try:
        asyncio.run(run_demo(with_traffic=not no_traffic, duration_seconds=duration))
    except DemoError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
