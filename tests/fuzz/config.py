"""A configuration file: any text is a configuration or a list of problems that show no secret, and YAML means what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from proxy.config.errors import ConfigError, Problem
from proxy.config.file import Document, parse_document
from proxy.config.settings import read_config
from tests.fuzz.inputs import put_together, take_apart

WORDS = (
    *(b"models:", b"- name: m", b"workers: [http://a:1]", b"pools:", b"${KEY}", b"$${", b"&a ", b"*a", b"<<: *a", b"!!int "),
    *(b"listen: 1.2.3.4:5", b"keys:", b"sha256: ", b"limits:", b"connect_seconds: 1", b"~", b"null", b"1:30", b"010", b"0x1f"),
    *(b"true", b"yes", b"2024-01-01", b".nan", b".inf", b"|\n", b">-\n", b"---\n", b"? ", b": ", b"\n  ", b"\t", b'"', b"'"),
    *(b"worker_key: ${KEY}", b"admin_token: ${KEY}", b"tls: {certificate: a, key: b}", b"{", b"}", b"[", b"]", b"#", b"\n"),
)
LONGEST = 800
SECRET = "hunter2-is-nobodys-key"
_SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Parse = Callable[[str, Mapping[str, str], str], tuple[Document, list[Problem]]]


def check(data: bytes, parse: _Parse = parse_document) -> None:
    """Only `ConfigError`, with problems at lines of the file; without a problem the values are those of plain YAML."""
    choices, pieces = take_apart(data)
    text = b"".join(pieces).decode("utf-8", "replace")
    try:
        document, problems = parse(text, {"KEY": SECRET}, "file")
    except ConfigError as error:
        _check_problems(error.problems, text)
        return
    _check_problems(problems, text)
    if not problems and "${" not in text:
        _compare(document.tree, _plain(text))
    if choices & 1:
        try:
            read_config(text, {"KEY": SECRET}, "file")
        except ConfigError as error:
            _check_problems(error.problems, text)


def _check_problems(problems: Any, text: str) -> None:
    lines = len(text.splitlines()) + 1
    for problem in problems:
        assert problem.wrong
        assert problem.right
        assert problem.line is None or 1 <= problem.line <= lines
        assert SECRET not in str(problem)


def _plain(text: str) -> Any:
    """What YAML's own safe loader makes of it, with dates and `=` as text. It is known to be YAML by now."""
    loader = _SAFE(text)
    texts = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")  # a lone `=` is the second
    loader.yaml_constructors = {**loader.yaml_constructors, **dict.fromkeys(texts, loader.__class__.construct_yaml_str)}
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _compare(found: Any, plain: Any) -> None:
    if isinstance(plain, dict):
        assert isinstance(found, dict)
        assert list(found) == list(plain) or set(found) == set(plain)
        for name, value in plain.items():
            _compare(found[name], value)
    elif isinstance(plain, list):
        assert isinstance(found, list)
        assert len(found) == len(plain)
        for one, other in zip(found, plain, strict=True):
            _compare(one, other)
    else:
        assert type(found) is type(plain)
        assert found == plain or found != found


def seeds() -> list[bytes]:
    """Small configurations and YAML's traps."""
    small = b"listen: 127.0.0.1:8080\nmodels:\n  - {name: m, workers: [http://127.0.0.1:8000]}\n"
    large = (
        b"listen: 0.0.0.0:8080\nmodels:\n  - name: m\n    pools:\n      - name: short\n        max_total_tokens: 16384\n"
        b"        gpu: h100-sxm\n        workers: [http://a:1, http://[::1]:2]\nworker_key: ${KEY}\n"
        b"keys:\n  - {name: a, sha256: 9f86d0, models: [m]}\nlimits: {connect_seconds: 5, total_seconds: null}\n"
    )
    traps = (
        b"a: &x {b: 1, c: [1, 2]}\nd: *x\ne: {<<: *x, b: 2}\n",
        b"a: 010\nb: 1:30\nc: 2024-01-01\nd: yes\ne: .nan\nf: 1_000\n",
        b"a: |\n  x\n  y\nb: >-\n  z\nc: 'it''s'\nd: \"\\u00e9\\x41\"\n",
        b"a: 1\na: 2\n? [b]\n: 3\n!!python/name:os.system x: 1\n",
        b"a: &a [*a]\n",
        b"--- a: 1\n--- b: 2\n",
    )
    return [put_together(text, (), choices) for text in (small, large, *traps) for choices in (0, 1)]
