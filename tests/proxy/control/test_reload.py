"""A configuration that has changed is put in force whole, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from proxy.config.settings import load_config
from proxy.config.wiring import build_topology
from proxy.control.fleet import Fleet
from proxy.control.reload import Reloader
from telemetry.layout import slot
from tests.proxy.fleets import a_file, eventually, names, running_fleet

TWO = {"default": ["w-0", "w-1"]}
THREE = {"default": ["w-0", "w-1", "w-2"]}


class Scene:
    def __init__(self, path: Path, fleet: Fleet, reloader: Reloader) -> None:
        self.path = path
        self.fleet = fleet
        self.reloader = reloader

    @property
    def counts(self) -> tuple[float, float]:
        """Reloads that went well, and those that did not."""
        ok, failed = (self.fleet.cells.values[slot("ridgeline_reloads_total", result=result)] for result in ("ok", "failed"))
        return ok, failed

    @property
    def is_refused(self) -> float:
        return self.fleet.cells.values[slot("ridgeline_configuration_refused")]


@asynccontextmanager
async def a_scene(folder: Path, text: str | None = None, **environ: str) -> AsyncIterator[Scene]:
    path = folder / "gateway.yaml"
    path.write_text(text or a_file(TWO))
    run_dir = folder / "run"
    run_dir.mkdir()
    config = load_config(path, environ)
    async with running_fleet(run_dir, build_topology(config)) as fleet:
        yield Scene(path, fleet, Reloader(path, environ, config, fleet))


@pytest.fixture
async def scene(tmp_path) -> AsyncIterator[Scene]:
    async with a_scene(tmp_path) as scene:
        yield scene


async def test_a_good_file_is_put_in_force(scene):
    """Its workers are those of the fleet, and it is counted."""
    scene.path.write_text(a_file(THREE))

    assert scene.reloader.reload() is True

    assert names(scene.fleet.topology) == ["w-0", "w-1", "w-2"]
    assert scene.counts == (1, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"models: [",
        b"models: []",
        b"[" * 5000,
        a_file(THREE, wokers=1).encode(),
        a_file(THREE, limits={"connect_seconds": -1}).encode(),
        a_file(THREE, worker_key="${NOT_SET}").encode(),
        a_file(THREE).encode()[:60],
        a_file({"default": ["w-0", "w-0"]}).encode(),
    ],
)
async def test_a_bad_file_changes_nothing(scene, content, caplog):
    """Whatever is wrong with it, the old one stays in force, one failure is counted, and the reason is told."""
    before = scene.fleet.topology
    scene.path.write_bytes(content)

    assert scene.reloader.reload() is False

    assert scene.fleet.topology is before
    assert scene.counts == (0, 1)
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "the old one stays in force" in record.getMessage()
    assert str(scene.path) in record.getMessage()


async def test_a_file_that_is_gone_changes_nothing(scene, caplog):
    """Asked to read it all the same, it says that there is none."""
    scene.path.unlink()

    assert scene.reloader.reload() is False

    assert names(scene.fleet.topology) == ["w-0", "w-1"]
    assert "No such file" in caplog.text


async def test_a_mended_file_is_put_in_force(scene):
    """A failure leaves nothing behind that would keep the next file out; until then it shows that an older one is in force."""
    assert scene.is_refused == 0
    scene.path.write_text("models: [")
    scene.reloader.reload()
    assert scene.is_refused == 1
    scene.path.write_text(a_file(THREE))

    assert scene.reloader.reload() is True

    assert scene.counts == (1, 1)
    assert scene.is_refused == 0
    assert names(scene.fleet.topology) == ["w-0", "w-1", "w-2"]


async def test_settings_of_the_start_are_told_apart(scene, caplog):
    """Listeners and the log cannot change while running; the rest of the file is in force, and each is named once."""
    caplog.set_level(logging.INFO)
    scene.path.write_text(a_file(THREE, listen="127.0.0.1:9999", log={"path": "/elsewhere"}))

    scene.reloader.reload()
    scene.reloader.reload()

    told = [record.getMessage() for record in caplog.records if "takes effect at the next start" in record.getMessage()]
    assert [text.split()[0] for text in told] == ["listen", "log"]
    assert names(scene.fleet.topology) == ["w-0", "w-1", "w-2"]


async def test_the_environment_is_that_of_the_start(tmp_path):
    """References are filled in from it at every reload."""
    async with a_scene(tmp_path, KEY="s3cret") as scene:
        scene.path.write_text(a_file(TWO, key="${KEY}"))

        scene.reloader.reload()

        assert scene.fleet.topology.pools[0].worker_key == "s3cret"


async def test_no_secret_is_told(scene, caplog):
    """Neither a good nor a bad file puts a worker's key or a key's hash on standard error."""
    caplog.set_level(logging.DEBUG)
    for broken in ({}, {"keys_": 1}):
        scene.path.write_text(a_file(THREE, key="s3cret", keys=("a",), **broken))
        scene.reloader.reload()

    assert scene.counts == (1, 1)
    assert "s3cret" not in caplog.text
    assert f"{1:064x}" not in caplog.text


async def test_a_topology_that_cannot_be_published_is_a_failure(scene, tmp_path, caplog):
    """When memory is short the old configuration stays in force as a whole, and the reload is tried again when asked."""
    (tmp_path / "run" / "topology.msgpack.new").mkdir()
    scene.path.write_text(a_file(THREE))
    assert scene.reloader.reload() is False
    assert names(scene.fleet.topology) == ["w-0", "w-1"]
    assert scene.counts == (0, 1)

    (tmp_path / "run" / "topology.msgpack.new").rmdir()

    assert scene.reloader.reload() is True
    assert scene.counts == (1, 1)


async def test_asked_it_reads_at_once(scene):
    """It does not wait for the next look, and each time it is asked counts, also when the file is the same."""
    task = asyncio.create_task(scene.reloader.run())
    for asked in (1, 2):
        scene.reloader.asked.set()
        await eventually(lambda asked=asked: scene.counts[0] == asked, 1.0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    assert scene.counts == (2, 0)


async def test_tracing_stays_as_it_was_at_the_start(scene, caplog):
    """Serving processes go on with what control is ready for; the operator is told, and the rest is put in force."""
    scene.path.write_text(a_file(THREE) + "tracing: {otlp_endpoint: 'http://c:4318'}\nchains: {header: x-session-id}\n")

    with caplog.at_level(logging.WARNING):
        assert scene.reloader.reload() is True

    assert names(scene.fleet.topology) == ["w-0", "w-1", "w-2"]
    assert (scene.fleet.topology.following.sample_ratio, scene.fleet.topology.following.chain_header) == (None, None)
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if text.startswith(("tracing is", "chains is"))] == [
        "tracing is not the one in force; that takes effect at the next start",
        "chains is not the one in force; that takes effect at the next start",
    ]
