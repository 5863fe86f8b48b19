"""The compose file as `docker compose` itself reads it, and the configurations that its services get as their own tools do."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.settings import load_config
from proxy.supervisor import CONTROL_END_SECONDS, KILL_MARGIN_SECONDS
from tests.deploy.dockerfile import ROOT

pytestmark = pytest.mark.integration

FOLDER = ROOT / "deploy/compose"


@cache
def compose() -> tuple[str, ...]:
    """The command, from the cache or the machine's own; deploy/setup/compose.sh sees to it."""
    cached = ROOT / ".cache/docker-compose/docker-compose"
    for command in ((str(cached),), ("docker", "compose")):
        if shutil.which(command[0]) and not subprocess.run([*command, "version"], check=False, capture_output=True).returncode:
            return command
    pytest.skip("docker compose cannot be had")  # a failure under REQUIRE_REAL=1


def read(**environ: str) -> subprocess.CompletedProcess[str]:
    command = [*compose(), "-f", str(FOLDER / "compose.yaml"), "config", "--format", "json"]
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environ}, check=False, capture_output=True, text=True)


def services() -> dict[str, Any]:
    done = read(GRAFANA_PASSWORD="of-the-test")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def test_compose_takes_the_file_and_asks_for_the_password():
    """No password has a default, and nothing else has to be set."""
    missing = read()

    assert services()
    assert missing.returncode != 0
    assert "GRAFANA_PASSWORD" in missing.stderr


def test_every_service_is_confined_and_says_how_it_is():
    """Read-only root, no capabilities; ports on loopback only; the collector's image has nothing to ask it with."""
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", [])), name
        has_check = "healthcheck" in service or service["image"] == "ridgeline"  # that of the image
        assert has_check or name == "collector", name


def test_no_check_is_quoted_wrongly_by_podman_compose():
    """It joins the words of a CMD with quotes that a space or a quote in one breaks; CMD-SHELL it hands on whole."""
    for name, service in services().items():
        form, *words = service.get("healthcheck", {}).get("test") or ["NONE"]
        assert form != "CMD" or not [word for word in words if set(word) & set(" '\"();")], name


def test_what_is_mounted_is_there():
    """What is missing would become an empty folder."""
    found = services()
    mounts = [mount for service in found.values() for mount in service.get("volumes", []) if mount["type"] == "bind"]

    assert len(mounts) >= 7
    for source in {Path(mount["source"]) for mount in mounts}:
        assert source.is_file() or any(source.iterdir()), source


def test_the_gateway_gets_a_configuration_whose_workers_are_services():
    """Its time to drain fits the time that compose gives it, and the addresses fit the ports."""
    found = services()
    config = load_config(FOLDER / "ridgeline.yaml", {})

    workers = [worker.url for model in config.models for pool in model.pools for worker in pool.workers]
    assert {f"http://{name}:8000" for name in found if name.startswith(("short-", "long-"))} == set(workers)
    grace = found["gateway"]["stop_grace_period"]
    needed = config.limits.drain_seconds + KILL_MARGIN_SECONDS + CONTROL_END_SECONDS
    assert {"1m15s": 75.0}[grace] >= needed
    (port,) = found["gateway"]["ports"]
    assert config.listen == f"0.0.0.0:{port['target']}"
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scraped == [f"gateway:{config.observe_listen.rpartition(':')[2]}"]
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    receiver = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert config.tracing.otlp_endpoint == f"http://collector:{receiver.rpartition(':')[2]}"


@pytest.mark.parametrize(
    ("tool", "arguments", "file"),
    [("promtool", ["check", "config"], "prometheus.yml"), ("amtool", ["check-config"], "alertmanager.yml")],
)
def test_prometheus_and_alertmanager_take_theirs(tool, arguments, file):
    """By their own tools."""
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is not installed")  # a failure under REQUIRE_REAL=1

    done = subprocess.run([found, *arguments, str(FOLDER / file)], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
