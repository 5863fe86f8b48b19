"""The layout holds: import arrows, a pure core, modules of readable length, and nothing named that belongs elsewhere."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.architecture import ARROWS, arrow_faults, core_of, is_core, purity_faults, serving_path_faults, text_faults

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 450
MOST_LINES_OF_TESTS = 700  # tables of cases, which tell one story
TOP_LEVEL = {
    *("pyproject.toml", "setup.py", "Makefile", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"),
    *(".gitignore", ".gitattributes", ".dockerignore", ".ci"),
    *("proxy", "routing", "telemetry", "roofline", "simulator", "dashboards", "grafana"),
    *("deploy", "tests", "benchmarks", "docs", "examples"),
}


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is part of the project: tracked, or new and not ignored; without git, everything not hidden."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
        listed = [name for name in listed if not any(part[0] == "." or part.endswith(".egg-info") for part in Path(name).parts)]
    return tuple(path for name in sorted(set(listed)) if name and (path := ROOT / name).is_file())


def module_sources() -> dict[str, str]:
    """The packages' modules by dotted name; a package by its own."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
        for path in project_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ARROWS
    }


def packages() -> set[str]:
    return {".".join(path.relative_to(ROOT).parts[:-1]) for path in project_files() if path.name == "__init__.py"}


def test_imports_follow_the_arrows() -> None:
    """No package imports one that stands above or beside it, and none imports the tests or the benchmarks."""
    sources = module_sources()
    known = packages()

    assert [fault for name, text in sources.items() for fault in arrow_faults(name, text, is_package=name in known)] == []


def test_the_serving_path_stands_alone() -> None:
    """What serves imports nothing of configuration, control or admin, and these only names of it."""
    sources = {name: text for name, text in module_sources().items() if name.startswith("proxy.")}
    known = packages()

    assert any(name.startswith("proxy.upstream.") for name in sources), "the rule no longer finds the serving path"
    assert [f for name, text in sources.items() for f in serving_path_faults(name, text, is_package=name in known)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("proxy.serving.state", "from proxy.config.settings import Config"),
        ("proxy.serving.state", "from proxy import config"),
        ("proxy.wire.framing", "from ..serving import client"),
        ("proxy.upstream.load", "def late():\n    import proxy.control.fleet"),
        ("proxy.control.fleet", "from proxy.upstream.load import Loads"),
        ("proxy.admin.routes", "from proxy.serving import client"),
    ],
)
def test_a_tie_to_the_serving_path_is_found(module: str, source: str) -> None:
    """The check sees imports in both directions, at any depth and in every form."""
    assert len(serving_path_faults(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("proxy.serving.state", "from proxy.published import Reader\nfrom proxy.wire import answers\nimport telemetry.meter"),
        ("proxy.control.tracing_sinks", "from proxy.serving.endpoints import Endpoints\nfrom proxy.config import wiring"),
        ("proxy.supervisor", "from proxy import rundir"),
    ],
)
def test_what_the_serving_path_shares_is_let_through(module: str, source: str) -> None:
    """What all processes share, and what paths and headers are called, are no ties."""
    assert serving_path_faults(module, source) == []


def test_the_core_is_pure() -> None:
    """Decisions do no I/O, read no clock, do not log and do not wait, and neither does anything they import."""
    sources = module_sources()
    core = core_of(sources)

    assert {"routing.topology", "telemetry.record"} <= core.keys(), "the rule no longer finds the core"
    assert [f"{fault} ({core[name]})" for name in core for fault in purity_faults(name, sources[name])] == []


def test_modules_stay_readable() -> None:
    """No module is longer than the length at which it has to be split."""
    modules = [path for path in project_files() if path.suffix == ".py"]
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in modules}

    assert {
        str(path): lines
        for path, lines in lengths.items()
        if lines > (MOST_LINES_OF_TESTS if path.parts[0] == "tests" else MOST_LINES)
    } == {}


def test_nothing_names_what_belongs_elsewhere() -> None:
    """No text file names a path of some machine, a registry's host, a working list, or what looks like a key."""
    faults = []
    for path in project_files():
        content = path.read_bytes()
        if b"\0" not in content:
            faults += text_faults(str(path.relative_to(ROOT)), content.decode(errors="replace"))

    assert faults == []


def test_the_top_level_is_as_agreed() -> None:
    """Nothing stands at the top of the repository but what the layout names."""
    assert {path.relative_to(ROOT).parts[0] for path in project_files()} - TOP_LEVEL == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("routing.policy", "from telemetry.record import Outcome"),
        ("routing.policy", "import roofline.gpus"),
        ("roofline.floor", "from routing import topology"),
        ("telemetry.meter", "def late():\n    import proxy.serving.client"),
        ("telemetry.meter", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from simulator import wire"),
        ("simulator.app", "from ..proxy import config"),
        ("simulator.app", "import dashboards"),
        ("dashboards.page", "from importlib import import_module\nimport_module('simulator.engine.engine')"),
        ("proxy.serving.process", "from tests.http1 import Message"),
    ],
)
def test_an_import_against_the_arrows_is_found(module: str, source: str) -> None:
    """The check sees imports at any depth, relative ones, those for types only, and those by name."""
    assert len(arrow_faults(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("proxy.serving.process", "import telemetry.meter, routing.policy, simulator.app, dashboards, roofline"),
        ("telemetry.meter", "from . import sse\nfrom .record import Outcome\nfrom routing.topology import Pool"),
        ("telemetry.sinks.jsonlog", "from ..record import Outcome"),
        ("simulator.app", "import asyncio, msgspec"),
    ],
)
def test_an_import_along_the_arrows_is_let_through(module: str, source: str) -> None:
    """Imports downwards, within a package, and of libraries are no fault."""
    assert arrow_faults(module, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import os.path",
        "from time import monotonic",
        "import logging",
        "def late():\n    from aiohttp import web",
        "from prometheus_client import Counter",
        "import opentelemetry.trace",
        "import socket",
        "import threading",
        "import mmap",
        "from random import choice",
        "import random\nrandom.shuffle([])",
        "from pathlib import Path",
        "import pathlib\npathlib.Path('x')",
        "open('x')",
        "print('x')",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now(None)",
        "async def f(): ...",
        "count = 0\ndef f():\n    global count\n    count += 1",
    ],
)
def test_impurity_is_found(source: str) -> None:
    """Each way in which a decision could touch the outside is seen."""
    assert len(purity_faults("routing.policy", source)) == 1


def test_purity_is_let_through() -> None:
    """Arithmetic, parsing, dates as values and a generator that is passed in are no fault."""
    source = """
import math, random
from datetime import datetime
from pathlib import PurePosixPath
from random import Random
from urllib.parse import urlsplit
def f(rng: random.Random, other: Random) -> datetime:
    return datetime.fromtimestamp(rng.random())
"""

    assert purity_faults("routing.policy", source) == []


def test_the_core_is_closed_under_imports() -> None:
    """A module that a core module imports has to be pure as well, however it is imported."""
    sources = {
        "telemetry": "",
        "telemetry.meter": "from telemetry import cells",
        "telemetry.cells": "import mmap",
        "simulator.engine.engine": "from simulator.engine.prefix import Block",
        "simulator.engine.prefix": "",
        "simulator.app": "",
    }

    core = core_of(sources)

    assert core["telemetry.cells"] == "imported by telemetry.meter"
    assert core["simulator.engine.prefix"] == "imported by simulator.engine.engine"
    assert "simulator.app" not in core


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("routing", True),
        ("routing.policy", True),
        ("roofline.floor", True),
        ("telemetry.meter", True),
        ("telemetry.cells", False),
        ("telemetry.sinks", False),
        ("telemetry.reference", False),
        ("telemetry.sinks.jsonlog", False),
        ("telemetry.cellsize", True),
        ("simulator.engine.engine", True),
        ("simulator.app", False),
        ("proxy.serving.process", False),
    ],
)
def test_what_counts_as_core(module: str, *, expected: bool) -> None:
    """The decision packages are core but for the named modules that do their I/O."""
    assert is_core(module) is expected


@pytest.mark.parametrize(
    "text",
    [
        "cd /wo" + "rk/main",
        "`/ro" + "ot/.cache`",
        "see ../sha" + "red/design.md",
        "index-url = https://py" + "pi.org/simple",
        "# case B0" + "17",
        "fixes iss" + "ue #12",
        "key: sk" + "-abcdefghijklmnopqrstuv",
    ],
)
def test_a_forbidden_name_is_found(text: str) -> None:
    """Each kind of name that must not be in the project is seen."""
    assert len(text_faults("x.md", text)) == 1


@pytest.mark.parametrize(
    "text", ["frame" + "wo" + "rk/main", "shared memory", "sk-test", "an issue with 3 causes", "~/wo" + "rk/x"]
)
def test_an_innocent_text_is_let_through(text: str) -> None:
    """Words that only resemble a forbidden name are no fault."""
    assert text_faults("x.md", text) == []
