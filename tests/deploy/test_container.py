"""What the image is made of, by its files; tests/integration/test_installed.py does its steps."""

from __future__ import annotations

import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import ROOT, last, stages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(name: str) -> dict[str, str]:
    """Versions by canonical name; every one must have its hashes."""
    pins = re.split(r"\n(?=\S)", (ROOT / "deploy/container" / name).read_text())
    found = {}
    for pin in pins:
        if match := re.match(r"([a-z0-9.-]+)==([^\s;]+)", pin):
            assert "--hash=sha256:" in pin, f"{match[1]} has no hash"
            found[canonicalize_name(match[1])] = match[2]
    return found


def test_the_lock_has_everything_that_the_project_asks_for():
    """Otherwise deploy/container/lock.sh writes it anew."""
    pins = locked("requirements.lock")

    for text in [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["counting"],
        *PROJECT["optional-dependencies"]["quotas"],
    ]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), text
    build = locked("build.lock")
    assert Requirement("setuptools>=77").specifier.contains(build["setuptools"])
    assert Requirement("Cython>=3.1").specifier.contains(build["cython"])


def test_floors_that_avoid_an_advisory_are_those_that_are_told():
    """The table in the threat model, what may be installed, and what the image has."""
    rows = re.findall(r"^\| ([A-Za-z0-9]+) \| ([0-9.]+) \| .*\|$", (ROOT / "docs/threat-model.md").read_text(), re.MULTILINE)
    extras = PROJECT["optional-dependencies"]
    wanted = [Requirement(text) for text in (*PROJECT["dependencies"], *extras["counting"], *extras["quotas"])]
    floors = {canonicalize_name(each.name): str(each.specifier) for each in wanted}
    pins = locked("requirements.lock")

    assert {"aiohttp", "requests", "urllib3", "PyYAML"} <= {name for name, _ in rows}
    for name, floor in rows:
        assert floors[canonicalize_name(name)] == f">={floor}", name
        assert Requirement(f"x>={floor}").specifier.contains(pins[canonicalize_name(name)]), name


def test_the_image_runs_as_nobody_in_particular_and_needs_no_shell():
    """Commands in their JSON forms; a numeric user, so that runAsNonRoot can be checked."""
    *_, final = stages()

    assert last(final, "USER").rest == "10001:10001"
    assert last(final, "ENTRYPOINT").command == ["ridgeline"]
    assert last(final, "CMD").command[0] == "serve"
    assert last(final, "HEALTHCHECK").command[0] == "python"
    assert not [each for each in final if each.word == "RUN"]


def test_every_package_is_in_the_image_and_let_through_to_the_engine():
    """Those of the wheel; .dockerignore names what may be copied."""
    find = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    build = stages()[0]
    copied = {source for each in build if each.word == "COPY" for source in each.sources}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert {name.rstrip("*") for name in find["include"]} <= copied
    for source in copied:
        assert source in allowed or f"{source.rpartition('/')[0]}/*.lock" in allowed, source


def test_the_version_is_that_of_the_project_everywhere():
    """It is written in pyproject.toml, and the chart has to follow."""
    chart = yaml.safe_load((ROOT / "deploy/helm/ridgeline/Chart.yaml").read_text())

    assert chart["appVersion"] == PROJECT["version"]
