"""`ridgeline check`: every value in force and where it came from."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from proxy.config.settings import read_config
from proxy.config.shown import check_file, settings_in_force

TEXT = """\
listen: 127.0.0.1:8080
models:
  - name: m
    pools:
      - name: p
        workers:
          - http://${HOST}:8000
          - {name: b, url: "http://b:8000"}
        limits: {connect_seconds: 1}
worker_key: ${KEY}
keys: [{name: k, sha256: "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"}]
limits:
  write_seconds: 7
tracing: {headers: {api-key: hunter2}}
"""
ENVIRON = {"HOST": "10.0.0.1", "KEY": "hunter2"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(TEXT)
    return path


def run(path, environ=ENVIRON, as_json=False):
    output = io.StringIO()
    status = check_file(path, environ, as_json=as_json, console=Console(file=output))
    return status, output.getvalue()


@pytest.mark.parametrize(
    ("path", "value", "source"),
    [
        ("listen", "127.0.0.1:8080", "line 1"),
        ("observe_listen", "0.0.0.0:8082", "default"),
        ("models[0].pools[0].workers[0].url", "http://10.0.0.1:8000", "line 7, $HOST"),
        ("models[0].pools[0].workers[0].name", "10.0.0.1:8000", "from the URL"),
        ("models[0].pools[0].workers[1].name", "b", "line 8"),
        ("models[0].pools[0].policy", "prefix-affinity", "default"),
        ("models[0].pools[0].max_total_tokens", "-", "default"),
        ("models[0].pools[0].worker_key", "(set)", "worker_key, line 10, $KEY"),
        ("models[0].pools[0].limits.connect_seconds", "1", "line 9"),
        ("models[0].pools[0].limits.write_seconds", "7", "limits.write_seconds, line 13"),
        ("models[0].pools[0].limits.total_seconds", "-", "limits.total_seconds, default"),
        ("worker_key", "(set)", "line 10, $KEY"),
        ("keys[0].name", "k", "line 11"),
        ("keys[0].sha256", "(set)", "line 11"),
        ("limits.body_bytes", "67108864", "default"),
        ("log.path", "-", "default"),
        ("tracing.headers", '{"api-key": "(set)"}', "line 14"),
        ("tracing.sample_ratio", "0.01", "default"),
    ],
)
def test_where_values_come_from(path, value, source):
    """Each value in force has its source: a line, a variable, the overall setting, or the default."""
    settings = {setting.path: setting for setting in settings_in_force(*read_config(TEXT, ENVIRON, "f"))}
    assert (value, source) == (settings[path].value, settings[path].source)


def test_the_table(file):
    """A valid file prints its settings and its verdict, returns 0, and shows no secret."""
    status, output = run(file)
    assert status == 0
    assert "models[0].pools[0].workers[0].url" in output
    assert "[0]" in output
    assert output.endswith("file.yaml is valid\n")
    assert "hunter2" not in output
    assert "0f0f" not in output


def test_json(file):
    """For programs the same comes as JSON."""
    status, output = run(file, as_json=True)
    report = json.loads(output)
    assert status == 0
    assert report["valid"] is True
    assert {"path": "listen", "value": "127.0.0.1:8080", "source": "line 1"} in report["settings"]
    assert report["warnings"] == []
    assert "hunter2" not in output


def test_problems(file, capsys):
    """Problems go to standard error, or into the JSON, and the status is 2."""
    status, output = run(file, environ={})
    assert (status, output) == (2, "")
    assert "line 10, worker_key: needs the environment variable KEY" in capsys.readouterr().err
    status, output = run(file, environ={}, as_json=True)
    report = json.loads(output)
    assert (status, report["valid"]) == (2, False)
    assert {"models[0].pools[0].workers[0]", "worker_key"} == {problem["path"] for problem in report["problems"]}


def test_warnings_are_printed(tmp_path):
    """Warnings come after the table and do not change the status."""
    path = tmp_path / "file.yaml"
    path.write_text("models: [{name: m, workers: [http://a]}]\n")
    status, output = run(path)
    assert status == 0
    assert "warning: listen is 0.0.0.0:8080" in output


def test_a_missing_file():
    """A file that is not there is a problem like any other."""
    assert run(Path("/nonexistent/file.yaml"))[0] == 2


def test_ways_to_find_workers_are_shown_and_not_gone():
    """What the file says and what is in force besides, without settings of the other ways; nothing is looked up."""
    text = """models:
  - {name: a, workers: {dns: no-such-host.invalid, port: 8000}}
  - {name: b, workers: {kubernetes: {service: vllm, port: http}}}
  - {name: c, workers: {file: /nowhere/workers.yaml}}
"""
    settings = {setting.path: setting for setting in settings_in_force(*read_config(text, {}, "test"))}

    assert settings["models[0].workers.dns"].value == "no-such-host.invalid"
    assert settings["models[0].workers.dns"].source == "line 2"
    assert settings["models[0].workers.family"].value == "all"
    assert settings["models[0].workers.drain_seconds"].source == "default"
    assert "models[0].workers.file" not in settings
    assert settings["models[1].workers.kubernetes.service"].value == "vllm"
    assert settings["models[1].workers.kubernetes.namespace"].value == "-"
    assert "models[1].workers.family" not in settings
    assert settings["models[2].workers.file"].source == "line 4"
