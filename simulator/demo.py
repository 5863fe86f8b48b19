"""The whole product on one machine: simulated workers, the gateway before them, and light traffic.

Start it with ``python -m simulator.demo``; it ends on Ctrl-C, SIGTERM, or after ``--duration``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
import yaml

from simulator.children import Child, child
from simulator.summary import Reading, read_page, summary_line
from simulator.traffic import Script, drive_traffic

MODEL = "llama-3.1-8b"
_HOST = "127.0.0.1"
_READY_SECONDS = 60.0  # for the gateway to answer its first request
_DRAIN_SECONDS = 5  # running requests get this long when the demo ends
_GATEWAY_GRACE_SECONDS = _DRAIN_SECONDS + 15.0
_WORKER_GRACE_SECONDS = 5.0
_SUMMARY_SECONDS = 5.0
_REQUESTS_PER_SECOND = 3.0


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorker:
    """One simulated worker to start."""

    name: str
    pool: str
    gpu: str
    max_model_len: int


WORKERS = (
    DemoWorker(name="short-1", pool="short", gpu="h100-sxm", max_model_len=16_384),
    DemoWorker(name="short-2", pool="short", gpu="h100-sxm", max_model_len=16_384),
    DemoWorker(name="long-1", pool="long", gpu="h200-sxm", max_model_len=131_072),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the gateway listens, as ``host:port``."""

    client: str
    observe: str
    admin: str


def choose_addresses(say: Callable[[str], None], is_free: Callable[[int], bool], free_port: Callable[[], int]) -> Addresses:
    """The default ports, or a free one (which is said) where a default is taken."""
    chosen = []
    for purpose, port in (("clients", 8080), ("metrics", 8082), ("admin", 8081)):
        if is_free(port):
            chosen.append(f"{_HOST}:{port}")
            continue
        instead = free_port()
        say(f"Port {port} is taken; {purpose} will find the gateway on {instead}.")
        chosen.append(f"{_HOST}:{instead}")
    return Addresses(client=chosen[0], observe=chosen[1], admin=chosen[2])


def gateway_config(addresses: Addresses, urls: dict[str, str], log: Path) -> dict[str, Any]:
    """The gateway's configuration, for workers whose base URLs are given by name."""
    pools: dict[str, dict[str, Any]] = {}
    for worker in WORKERS:
        start = {"name": worker.pool, "max_total_tokens": worker.max_model_len, "gpu": worker.gpu, "workers": []}
        pools.setdefault(worker.pool, start)["workers"].append({"name": worker.name, "url": urls[worker.name]})
    return {
        "listen": addresses.client,
        "observe_listen": addresses.observe,
        "admin_listen": addresses.admin,
        "models": [{"name": MODEL, "pools": list(pools.values())}],
        "limits": {"drain_seconds": _DRAIN_SECONDS, "drain_grace_seconds": 0},
        "log": {"path": str(log)},
    }


def welcome(addresses: Addresses, log: Path) -> str:
    """What a person needs to look around."""
    body = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Tell me about water"}]})
    return f"""
Ridgeline is up, with {len(WORKERS)} simulated workers. Their timing comes from the roofline of the GPUs that
they stand for, with losses fitted to published measurements; nothing was measured here.

  live page         http://{addresses.admin}/
  client base URL   http://{addresses.client}/v1
  metrics           http://{addresses.observe}/metrics
  all that it says  http://{addresses.admin}/api/
  JSON log          {log}

Try it:

  curl -N http://{addresses.client}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

Ctrl-C ends everything.
"""


async def run_demo(*, with_traffic: bool, duration_seconds: float | None, log: Path | None, stopping: asyncio.Event) -> None:
    """Start everything, let it run until ``stopping`` is set or the time is over, end everything.

    `DemoError` when a process does not start or ends by itself.
    """
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-demo-"))
    log = log or folder / "requests.jsonl"
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(_worker(worker, folder)) for worker in WORKERS]
        urls = {worker.name: await _worker_url(worker) for worker in workers}
        addresses = choose_addresses(typer.echo, _is_free, _free_port)
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(gateway_config(addresses, urls, log), sort_keys=False))
        command = ["-m", "proxy.cli", "serve", "--config", str(config)]
        gateway = await stack.enter_async_context(
            child("gateway", command, folder=folder, grace_seconds=_GATEWAY_GRACE_SECONDS)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        children = [*workers, gateway]
        if not await _first_of(_answers(session, addresses, gateway), stopping.wait(), _someone_ends(children)):
            typer.echo(welcome(addresses, log))
            jobs: list[Awaitable[object]] = [stopping.wait(), _someone_ends(children)]
            if with_traffic:
                traffic = drive_traffic(f"http://{addresses.client}", Script(MODEL), _REQUESTS_PER_SECOND)
                jobs += [traffic, _tell(session, f"http://{addresses.observe}/metrics")]
            if duration_seconds is not None:
                jobs.append(asyncio.sleep(duration_seconds))
            await _first_of(*jobs)
        typer.echo("Ending ...")
    typer.echo(f"All processes have ended. Configuration and logs are left in {folder}")


def _worker(worker: DemoWorker, folder: Path) -> contextlib.AbstractAsyncContextManager[Child]:
    command = ["-m", "simulator.worker", "--model", MODEL, "--gpu", worker.gpu, "--port", "0"]
    command += ["--max-model-len", str(worker.max_model_len), "--enable-prompt-tokens-details"]
    return child(worker.name, command, folder=folder, grace_seconds=_WORKER_GRACE_SECONDS, reads_output=True)


async def _worker_url(worker: Child) -> str:
    """The base URL, which is the last word of a worker's first line."""
    line = await worker.first_line()
    if not line:
        raise DemoError(f"worker {worker.name} did not start: {worker.last_words()}")
    return line.split()[-1]


async def _answers(session: aiohttp.ClientSession, addresses: Addresses, gateway: Child) -> None:
    """Return when a request through the gateway has been answered."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 1}
    found = "nothing answers yet"
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.post(f"http://{addresses.client}/v1/chat/completions", json=body) as response:
                        if response.status == 200:
                            return
                        found = f"{response.status} {await response.text()}"
                await asyncio.sleep(0.1)
    except TimeoutError:
        words = f"{found}\n{gateway.last_words()}"
        raise DemoError(f"the gateway did not answer within {_READY_SECONDS:.0f} s: {words}") from None


async def _someone_ends(children: list[Child]) -> None:
    """Raise `DemoError` as soon as a child has ended, which none should by itself."""
    waits = {asyncio.create_task(one.process.wait()): one for one in children}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
    one = waits[done.pop()]
    raise DemoError(f"{one.name} ended by itself with status {one.process.returncode}: {one.last_words()}")


async def _tell(session: aiohttp.ClientSession, url: str) -> None:
    """Say a line about the traffic every few seconds, from the gateway's own figures."""
    before = Reading()
    while True:
        await asyncio.sleep(_SUMMARY_SECONDS)
        try:
            async with session.get(url) as response:
                now = read_page(await response.text())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            typer.echo(f"no metrics from the gateway: {error or type(error).__name__}")
            continue
        typer.echo(summary_line(now, before))
        before = now


async def _first_of(*jobs: Awaitable[object]) -> int:
    """Run the jobs until one ends; say which. Its exception is raised, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return min(tasks.index(task) for task in done)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    return port


async def _run_until_signal(*, with_traffic: bool, duration_seconds: float | None, log: Path | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    await run_demo(with_traffic=with_traffic, duration_seconds=duration_seconds, log=log, stopping=stopping)


def main(
    no_traffic: Annotated[bool, typer.Option("--no-traffic", help="Only start everything; send nothing.")] = False,
    duration: Annotated[float | None, typer.Option(help="Seconds to run once it is up; endless if absent.")] = None,
    log: Annotated[Path | None, typer.Option(help="File for the JSON log lines; in a temporary folder if absent.")] = None,
) -> None:
    """Run the gateway with simulated workers and light traffic."""
    try:
        asyncio.run(_run_until_signal(with_traffic=not no_traffic, duration_seconds=duration, log=log and log.absolute()))
    except DemoError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
