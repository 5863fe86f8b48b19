"""How proxies are found, placed and told apart."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.proxies import GATEWAY, Proxy, ProxyStartError, another_gateway, find_proxies, new_place, running
from proxy.config.settings import load_config
from proxy.supervisor import commands


def the_gateway(processes: int = 1) -> Proxy:
    found, _ = find_proxies([GATEWAY], None, processes)
    return found[0]


def test_the_configuration_of_the_gateway_is_valid(tmp_path: Path) -> None:
    """What the benchmark writes is a configuration without faults, and the command names it."""
    place = new_place(tmp_path)

    command = the_gateway(processes=2).command(place)

    config = load_config(tmp_path / "ridgeline.yaml", {})
    assert config.listen == f"127.0.0.1:{place.port}"
    assert config.log.path == str(tmp_path / "requests.jsonl")
    assert command[-4:] == ["--config", str(tmp_path / "ridgeline.yaml"), "--processes", "2"]


def test_the_processes_of_the_gateway_are_told_apart() -> None:
    """The command lines that the supervisor really uses are recognised; a process without a part is the proxy's own."""
    children = commands(Path("c.yaml"), Path("run"), [3, 5], 4)
    roles = [the_gateway().role_of(" ".join(child.arguments)) for child in children]

    assert sorted(roles) == ["control", "serving", "serving"]
    assert the_gateway().role_of("python -m proxy.supervisor --config c.yaml") == "supervisor"
    assert the_gateway().role_of("nginx: worker process") == GATEWAY


def test_a_missing_router_is_named(tmp_path: Path) -> None:
    """A router is taken from the folder that is given first; what is nowhere is named as missing."""
    program = tmp_path / "sglang-router"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    found, missing = find_proxies(["sglang-router", "no-such-router"], tmp_path, 1)

    assert [proxy.name for proxy in found] == ["sglang-router"]
    assert missing == ["no-such-router"]
    assert found[0].command(new_place(tmp_path))[:2] == [str(program), "launch"]


def test_ports_of_a_place_differ(tmp_path: Path) -> None:
    """The ports of one place are four different ones."""
    place = new_place(tmp_path)

    assert len({place.port, place.worker_port, *place.spare_ports}) == 4


def test_a_proxy_that_ends_at_once_is_an_error_with_its_words(tmp_path: Path) -> None:
    """A proxy that does not come up is reported with its exit code and what it wrote last."""
    proxy = Proxy(name="broken", version="", command=lambda place: ["/bin/sh", "-c", "echo no such worker >&2; exit 3"])

    with (
        pytest.raises(ProxyStartError, match="code 3: no such worker"),
        running(proxy, new_place(tmp_path), min(os.sched_getaffinity(0))),
    ):
        pass


def test_the_gateway_is_also_run_by_another_python(tmp_path: Path) -> None:
    """It has the name it was given, its own interpreter and modules, and none of the folder it is started from."""
    also = another_gateway(f"other={sys.executable},{tmp_path}")

    assert also.name == "other"
    assert also.command(new_place(tmp_path))[:4] == [sys.executable, "-m", "proxy.cli", "serve"]
    assert also.environ["PYTHONPATH"] == str(tmp_path)
    assert also.is_elsewhere


@pytest.mark.parametrize("spec", ["other", "=python3", "nginx=python3", "other=no-such-python"])
def test_another_gateway_needs_a_name_and_a_python(spec: str) -> None:
    """A name of another proxy would be mistaken for it; what is wrong is said with an example."""
    with pytest.raises(ValueError, match="a name of its own and a Python"):
        another_gateway(spec)


def test_litellm_is_given_the_worker_and_nothing_to_fetch(tmp_path: Path) -> None:
    """It gets few requests, each of which takes it long, and stays offline."""
    program = tmp_path / "litellm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    (litellm,), _ = find_proxies(["litellm"], tmp_path, 1)
    place = new_place(tmp_path)
    litellm.command(place)

    (model,) = yaml.safe_load((tmp_path / "litellm.yaml").read_text())["model_list"]
    assert model["litellm_params"]["api_base"] == f"http://127.0.0.1:{place.worker_port}/v1"
    assert litellm.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert 0 < litellm.share < 1
