"""The README and the how-to pages: every command is understood, every configuration valid, and whatever is not run says why."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
import typer
import yaml

from proxy.cli import app
from proxy.config.settings import parse_config
from proxy.discovery.file import read_workers
from simulator.worker import app as simulate
from tests.certificates import Authority
from tests.pages import COMMANDS, Block, block, blocks

RUNS = Path(__file__).parent / "integration" / "test_commands_of_pages.py"
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

# What is not run, by page and first line: no part of it can be had here, or it is run by the test that is named.
NOT_RUN = {
    ("README", "make demo"): "what newcomers do, and what runs this test",
    ("cost", "deploy/setup/debian.sh"): "twenty minutes on a machine of one's own",
    ("simulator", "make compare-vllm"): "four minutes on a machine of one's own",
    ("container", "docker build"): "wants an engine for images; `make image-check` does it, and tests/deploy has the parts",
    ("container", "make image-check"): "the same",
    ("container", "GRAFANA_PASSWORD"): "the same; docker compose itself reads the file in test_compose.py",
    ("kubernetes", "kubectl create"): "there is no cluster; the chart with these values is rendered in tests/deploy",
    ("systemd", "python3 -m venv"): "writes to /opt and /etc; test_systemd.py verifies the unit and takes its steps",
    ("move-in", "ridgeline serve"): "test_importing.py serves with that configuration",
    ("move-in", "$ ridgeline import litellm"): "wants the reader's own files; test_importing.py converts and serves each kind",
    ("prefill-apart", "vllm serve"): "wants GPUs",
    ("probe", "ridgeline probe http://127.0.0.1:8000  "): "minutes; test_probe.py probes in a short form",
    ("probe", "$ ridgeline probe"): "two minutes; tests/simulator/test_experiments_recover.py holds such figures",
    ("probe", "python -m benchmarks.load_tools"): "installs two other load tools, and takes minutes",
    ("probe", "ridgeline probe http://10.0.0.11"): "minutes; test_probe.py writes calibrations",
    ("simulate-a-worker", "ridgeline simulate --model my-model"): "wants the reader's own file; tests/simulator/test_how_to.py",
    ("simulate-a-worker", "curl -X PUT"): "tests/simulator/test_how_to.py sends each",
}
# Configurations that are not the gateway's.
FOREIGN = {("behind-a-proxy", "route:"): "Envoy's", ("find-workers", "apiVersion:"): "the cluster's; see tests/deploy"}


def is_listed(one: Block, listed: Iterable[tuple[str, str]]) -> bool:
    return one in [block(page, first) for page, first in listed]


def commands_of(one: Block) -> list[list[str]]:
    """Every call of the product in this block, as words."""
    lines = [line.strip().removeprefix(".venv/bin/") for text in one.commands for line in re.split(r"\||;|&&", text)]
    calls = [line.removesuffix("&") for line in lines if line.startswith("ridgeline ")]
    words = [shlex.split(call, comments=True) for call in calls]
    return [each for each in words if not set("$…") & set("".join(each))]


@pytest.mark.parametrize("words", [words for one in blocks() if one.language in COMMANDS for words in commands_of(one)])
def test_every_command_is_understood(words: list[str]):
    """Also those that are not run here: the command exists, its options do, and their values are of the right kind."""
    group = simulate if words[1] == "simulate" else app
    command = typer.main.get_command(group)
    if group is app:
        command = command.commands[words[1]]

    assert command.make_context(words[1], words[2:]).params


def test_every_block_of_commands_is_run_or_says_why_not():
    """A new block gets a test, or a line among those that cannot be run here; a line without its block goes."""
    source = RUNS.read_text()
    run = re.findall(r'run_here\("([\w-]+)", "([^"]+)"\)', source)
    shells = [one for one in blocks() if one.language in COMMANDS]

    assert [(one.page, one.first) for one in shells if is_listed(one, run) == is_listed(one, NOT_RUN)] == []
    assert all(block(*each) for each in FOREIGN)


@pytest.mark.parametrize(
    "one", [pytest.param(one, id=f"{one.page}-{one.first[:20]}") for one in blocks() if one.language == "yaml"]
)
def test_every_configuration_is_a_valid_one(one: Block, tmp_path: Path):
    """Whole or as a part of one; digests that a page cuts short are written out, and the files that it names are there."""
    if is_listed(one, FOREIGN):
        assert list(yaml.safe_load_all(one.text))
        return
    text = re.sub(r"\b([0-9a-f]{6})…", rf"\g<1>{DIGEST[6:]}", one.text)
    text = text.replace("OLD_SHA256", DIGEST).replace("NEW_SHA256", DIGEST[::-1])
    given = yaml.safe_load(text)
    if text.startswith(" "):  # as it stands within a pool
        given = {"models": [{"name": "m", "pools": [{"name": "p", "workers": ["http://127.0.0.1:1"], **given}]}]}
    if isinstance(given, list):
        assert len(read_workers(text.encode())) == len(given)
        return
    whole = {"models": [{"name": "m", "workers": ["http://127.0.0.1:1"]}], **given}
    for model in whole["models"]:
        if not {"pools", "workers"} & set(model):
            model["workers"] = ["http://127.0.0.1:1"]
    certificate, key = Authority(tmp_path, "workers-ca").issue("tls", "localhost")
    (tmp_path / "gateway.crt").write_bytes(certificate.read_bytes())
    (tmp_path / "gateway.key").write_bytes(key.read_bytes())
    environ = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "redis://127.0.0.1:6379/0")

    assert parse_config(yaml.safe_dump(whole), environ, str(tmp_path / "gateway.yaml")).models
