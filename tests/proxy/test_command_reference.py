"""The page of the commands says what their `--help` says."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from proxy.command_reference import PAGE, page_text

SECTIONS = dict(re.findall(r"## ridgeline (\S+)\n(.*?)(?=\n## |\Z)", page_text(), re.DOTALL))


def test_page_is_up_to_date():
    """After a change of a command run `make fix`."""
    assert PAGE.read_text(encoding="utf-8") == page_text()


def test_every_command_is_told():
    """As many as the command itself lists."""
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output

    assert set(SECTIONS) == set(re.findall(r"^│ (\w[\w-]*) ", told, re.MULTILINE))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_option_of_a_command_is_told(name: str):
    """None is missing on the page, and none is there that `--help` does not know."""
    told = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    spelled = re.findall(r"^\| `(--[a-z-]+)", SECTIONS[name], re.MULTILINE)

    assert sorted({*spelled, "--help"}) == sorted(set(re.findall(r"^│ [* ]*(--[a-z-]+)", told, re.MULTILINE)))
