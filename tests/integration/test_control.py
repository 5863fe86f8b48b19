"""The control process as the supervisor starts it, beside something that acts as the serving processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from math import isnan
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from proxy.config.settings import load_config
from proxy.config.wiring import build_topology
from proxy.records import RecordSender
from telemetry.catalog import EXPOSED
from telemetry.cells import Cells, create_cells, map_cells
from telemetry.layout import Layout, slot
from telemetry.record import Outcome, RequestRecord

WORKER_KEY = "worker-s3cret"
PAGE = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 2.0\n'


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


class Control:
    """A control process, its run directory and what it says."""

    def __init__(self, folder: Path, *, workers: list[str], log: str | None = None, processes: int = 2) -> None:
        with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
            self.observers, self.admin = (f"127.0.0.1:{free.getsockname()[1]}" for free in (first, second))
        self.log = folder / "records.jsonl"
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self._errors = folder / "errors"
        self._config = folder / "gateway.yaml"
        config = {
            "listen": "127.0.0.1:8080",
            "observe_listen": self.observers,
            "admin_listen": self.admin,
            "models": [{"name": "tiny", "workers": workers}],
            "worker_key": WORKER_KEY,
            "keys": [{"name": "app-a", "sha256": "ab" * 32}],
            "log": {"path": log or str(self.log)},
        }
        self._config.write_text(yaml.safe_dump(config))
        self.topology = build_topology(load_config(self._config, {}))
        self.layout = Layout.of(self.topology)
        self._processes = processes
        self._process: asyncio.subprocess.Process | None = None
        self._parent_fd = -1

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def start(self, *, wait: bool = True) -> None:
        reading, self._parent_fd = os.pipe()
        (self.run_dir / "control.addresses").unlink(missing_ok=True)
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy.control.process", "--config", str(self._config), "--run-dir", str(self.run_dir)),
                *("--processes", str(self._processes), "--parent-fd", str(reading)),
                pass_fds=[reading],
                stderr=errors,
                stdout=errors,
            )
        os.close(reading)
        if wait:
            await eventually(lambda: self.process.returncode is not None or (self.run_dir / "control.addresses").exists())

    def leave_alone(self) -> None:
        """End the pipe, as the end of the supervisor does."""
        if self._parent_fd >= 0:
            os.close(self._parent_fd)
            self._parent_fd = -1

    async def ended(self) -> int:
        async with asyncio.timeout(10):
            return await self.process.wait()

    async def end(self) -> int:
        self.process.terminate()
        return await self.ended()

    def cells(self) -> Cells:
        cells = map_cells(self.run_dir / "control.cells", self.layout)
        assert cells is not None
        return cells

    async def is_probed(self) -> None:
        """Wait for the first turn of the first worker's probe to be over."""
        cells = self.cells()
        base = self.layout.worker_base(0)
        running, failures = (base + slot(f"ridgeline_{name}") for name in ("worker_running_requests", "scrape_failures_total"))
        await eventually(lambda: cells.values[failures] or not isnan(cells.values[running]))
        cells.close()

    def serving(self, number: int) -> Cells:
        return create_cells(self.run_dir / f"serving-{number}.cells", self.layout)

    async def get(self, path: str, *, at: str | None = None, **headers: str) -> tuple[int, str]:
        url = f"http://{at or self.observers}{path}"
        async with aiohttp.ClientSession(trust_env=False) as session, session.get(url, headers=headers) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def a_control(workers: list[str] | None = None, **settings: Any) -> AsyncIterator[Control]:
    with tempfile.TemporaryDirectory(prefix="ridgeline-test-") as folder:
        control = Control(Path(folder), workers=workers or ["http://127.0.0.1:9"], **settings)
        await control.start()
        try:
            yield control
            if control.process.returncode is None:
                assert await control.end() == 0
            assert "Traceback" not in control.errors
            assert WORKER_KEY not in control.errors
        finally:
            control.leave_alone()
            with suppress(ProcessLookupError):
                control.process.kill()
            await control.process.wait()


@asynccontextmanager
async def a_worker(*, is_well: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
    async def health(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {WORKER_KEY}"
        return web.Response(status=200 if is_well() else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=PAGE)

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float | None:
    """The value of the one sample with at least these labels; None when there is none."""
    found = [number for (other, having), number in samples(text).items() if other == name and labels.items() <= having]
    assert len(found) <= 1
    return found[0] if found else None


async def test_figures_of_all_processes_are_merged() -> None:
    """A scrape sums what the serving processes counted, as their files appear, and adds what control knows itself."""
    async with a_worker() as url, a_control([url]) as control:
        assert await control.get("/readyz") == (503, "no serving process is up\n")
        assert await control.get("/livez") == (200, "ok\n")
        pool = control.layout.pool_base(0) + slot("ridgeline_prompt_tokens_total")
        in_flight = control.layout.worker_base(0) + slot("ridgeline_in_flight_requests")
        for number, tokens in ((0, 100), (1, 23)):
            cells = control.serving(number)
            cells.values[pool] = tokens
            cells.values[in_flight] = 2
            cells.close()

        assert (await control.get("/readyz"))[0] == 200
        await control.is_probed()
        mapped = control.cells()
        await eventually(lambda: not isnan(mapped.values[slot("ridgeline_control_lag_seconds")]))
        mapped.close()
        _, text = await control.get("/metrics")
        assert value(text, "ridgeline_prompt_tokens_total", pool="default") == 123
        assert value(text, "ridgeline_in_flight_requests") == 4
        assert value(text, "ridgeline_worker_up") == 1
        assert value(text, "ridgeline_worker_running_requests") == 3
        assert value(text, "ridgeline_worker_waiting_requests") == 2
        assert value(text, "ridgeline_worker_kv_usage_ratio") is None  # the worker does not say
        assert value(text, "ridgeline_scrape_failures_total") == 0
        assert value(text, "ridgeline_control_lag_seconds") is not None
        assert value(text, "ridgeline_build_info") == 1


async def test_every_family_is_exposed_on_both_listeners() -> None:
    """Plain text and OpenMetrics parse strictly and have every family of the catalogue; the admin listener has them too."""
    async with a_control() as control:
        control.serving(0).close()
        _, text = await control.get("/metrics")
        _, admin = await control.get("/metrics", at=control.admin)
        accept = "application/openmetrics-text; version=1.0.0"
        _, strict = await control.get("/metrics", Accept=accept)

    families = {family.name for family in text_string_to_metric_families(text)}
    assert families == {family.name.removesuffix("_total") for family in EXPOSED}
    assert families == {family.name for family in text_string_to_metric_families(admin)}
    assert families == {family.name for family in openmetrics.text_string_to_metric_families(strict)}


async def test_damaged_file_of_a_serving_process_does_not_harm_a_scrape() -> None:
    """A file that is empty, cut or foreign counts as no process; the others are still exposed."""
    async with a_control() as control:
        cells = control.serving(0)
        cells.values[control.layout.pool_base(0) + slot("ridgeline_prompt_tokens_total")] = 5
        cells.close()
        other = control.run_dir / "serving-1.cells"
        for content in (b"", b"RDGLCELL", b"x" * 100_000):
            other.write_bytes(content)
            _, text = await control.get("/metrics")
            assert value(text, "ridgeline_prompt_tokens_total") == 5


async def test_records_are_logged_and_shown() -> None:
    """Each record becomes one line of the log; the newest hundred are shown to administrators only, newest first."""
    async with a_control() as control:
        sender = RecordSender(control.run_dir / "records.sock")
        for number in range(150):
            sender.put(RequestRecord(request_id=f"r-{number}", ended_unix_seconds=1_700_000_000.5, outcome=Outcome.OK))
        await sender.close(2)
        await eventually(lambda: control.log.read_bytes().count(b"\n") == 150)

        status, text = await control.get("/api/records", at=control.admin)
        assert status == 200
        assert [record["request_id"] for record in json.loads(text)] == [f"r-{number}" for number in range(149, 49, -1)]
        assert (await control.get("/api/records"))[0] == 404

        lines = [json.loads(line) for line in control.log.read_text().splitlines()]
        assert [line["request_id"] for line in lines] == [f"r-{number}" for number in range(150)]
        assert lines[0]["time"] == "2023-11-14T22:13:20.500Z"


async def test_state_of_the_workers() -> None:
    """The state names pools and workers with their load, without any secret, and to administrators only."""
    async with a_worker() as url, a_control([url]) as control:
        cells = control.serving(0)
        cells.values[control.layout.worker_base(0) + slot("ridgeline_in_flight_requests")] = 7
        cells.close()
        await control.is_probed()
        status, text = await control.get("/api/state", at=control.admin)
        assert (await control.get("/api/state"))[0] == 404

    assert status == 200
    assert WORKER_KEY not in text
    assert "ab" * 32 not in text
    state = json.loads(text)
    assert state["serving_processes"] == 1
    (pool,) = state["pools"]
    (worker,) = pool["workers"]
    assert (pool["model"], pool["pool"]) == ("tiny", "default")
    assert worker["url"] == url
    assert (worker["is_up"], worker["in_flight_requests"]) == (True, 7)
    assert (worker["running_requests"], worker["waiting_requests"], worker["kv_usage_ratio"]) == (3, 2, None)


async def test_one_line_tells_of_a_worker_that_is_down() -> None:
    """A worker's verdict is published and told once on standard error."""
    async with a_worker(is_well=lambda: False) as url, a_control([url]) as control:
        name = control.topology.workers[0].name
        await eventually(lambda: f"WARNING worker {name} is down: its health check answered 503\n" in control.errors)
        cells = control.cells()
        assert cells.values[control.layout.worker_base(0) + slot("ridgeline_worker_up")] == 0.0
        cells.close()
        assert control.errors.count("\n") == 1


async def test_what_was_sent_before_the_end_is_logged() -> None:
    """SIGTERM that comes with records still in the socket loses none of them."""
    async with a_control() as control:
        sender = RecordSender(control.run_dir / "records.sock")
        for number in range(500):
            sender.put(RequestRecord(request_id=str(number), ended_unix_seconds=0.0))
        await sender.close(2)
        assert await control.end() == 0
        assert control.log.read_bytes().count(b"\n") == 500


async def test_restart_goes_on_counting() -> None:
    """A control process that was killed leaves a socket and cells behind; the next one takes both over."""
    async with a_control() as control:
        failures = control.layout.worker_base(0) + slot("ridgeline_scrape_failures_total")
        cells = control.cells()
        await eventually(lambda: cells.values[failures] >= 1)
        before = cells.values[failures]
        control.process.kill()
        await control.process.wait()
        control.leave_alone()

        await control.start()

        assert cells.values[failures] >= before
        cells.close()
        sender = RecordSender(control.run_dir / "records.sock")
        sender.put(RequestRecord(request_id="r", ended_unix_seconds=0.0))
        await sender.close(2)
        assert sender.dropped == 0


async def test_ends_when_the_supervisor_is_gone() -> None:
    """The end of the pipe ends the process, as SIGTERM does."""
    async with a_control() as control:
        control.leave_alone()

        assert await control.ended() == 0


async def test_hangup_is_ignored() -> None:
    """SIGHUP does not end it."""
    async with a_control() as control:
        control.process.send_signal(signal.SIGHUP)

        assert (await control.get("/livez"))[0] == 200


async def test_address_in_use_is_one_line_and_a_configuration_fault() -> None:
    """The process ends with 78, which the supervisor does not answer with a restart."""
    async with a_control() as first:
        with tempfile.TemporaryDirectory(prefix="ridgeline-test-") as folder:
            second = Control(Path(folder), workers=["http://127.0.0.1:9"])
            config = yaml.safe_load(second._config.read_text())
            second._config.write_text(yaml.safe_dump({**config, "admin_listen": first.admin}))
            await second.start()
            assert await second.ended() == 78
            second.leave_alone()
            said = f"ERROR cannot listen on {first.admin} (admin_listen): Address already in use; end the program that"
            assert said in second.errors
            assert second.errors.count("\n") == 1


async def test_log_that_cannot_be_opened_is_a_configuration_fault() -> None:
    """The text names the file and the reason."""
    async with a_control(log="/proc/none/log") as control:
        assert await control.ended() == 78
        assert "ERROR cannot open the request log /proc/none/log: No such file or directory\n" in control.errors


async def test_too_many_connections_do_not_starve_the_probes() -> None:
    """Connections far beyond the bound of a listener are closed; it serves again once the others have gone."""
    async with a_control() as control:
        host, port = control.observers.split(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(600)]
        await eventually(lambda: sum(reader.at_eof() for reader, _ in held) >= 200)
        assert sum(not reader.at_eof() for reader, _ in held) >= 256
        for _, writer in held:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in held), return_exceptions=True)

        async with asyncio.timeout(5):
            while True:
                with suppress(aiohttp.ClientError):
                    if await control.get("/livez") == (200, "ok\n"):
                        break
                await asyncio.sleep(0.01)
