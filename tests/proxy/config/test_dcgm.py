"""Where GPUs are told of: what may be written, and what is said of mistakes."""

from __future__ import annotations

import pytest

from proxy.config.dcgm import DcgmSource
from proxy.config.settings import ConfigError, parse_config

POOL = """\
models:
  - name: m
    pools:
      - name: p
        workers: [http://127.0.0.1:8000]
        dcgm: {dcgm}
"""


def problem_of(dcgm: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(POOL.replace("{dcgm}", dcgm), {}, "file.yaml")
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(
    ("dcgm", "path", "words"),
    [
        ('{url: "http://{hostname}:9400/metrics"}', "dcgm.url", ("{hostname}", "{host} or {worker}")),
        ('{url: "{host}:9400/metrics"}', "dcgm.url", ("is no http or https URL", "http://{host}:9400/metrics")),
        ('{url: "http://{host}:9400"}', "dcgm.url", ("has no path", "/metrics")),
        ('{url: "http://{host}:0/metrics"}', "dcgm.url", ("is no http or https URL",)),
        ('{url: "http://me:secret@{host}:9400/metrics"}', "dcgm.url", ("has a user name or password", "leave them out")),
        ("{labels: {gpu: 0}}", "dcgm.url", ("missing",)),
        ('{url: "http://h:9400/metrics", labels: {"gpu id": 0}}', "dcgm.labels", ("is no name of a label", "UUID")),
        ('{url: "http://h:9400/metrics", labels: {gpu: []}}', "dcgm.labels.gpu", ("give at least one",)),
        ('{url: "http://h:9400/metrics", labels: {gpu: true}}', "dcgm.labels.gpu", ()),
        ('{url: "http://h:9400/metrics", labels: {Hostname: "{node}"}}', "dcgm.labels.Hostname", ("{node}", "{host}")),
        ('{url: "http://h:9400/metrics", label: {gpu: 0}}', "dcgm.label", ("labels",)),
    ],
)
def test_a_mistake_is_named(dcgm: str, path: str, words: tuple[str, ...]) -> None:
    """Where it stands, what is wrong and what would be right; a password is in no message."""
    problem = problem_of(dcgm)

    assert path in problem
    assert all(word in problem for word in words), problem
    assert "secret" not in problem


def test_one_value_stands_for_a_list_and_a_number_for_its_text() -> None:
    """As people write them."""
    text = POOL.replace("{dcgm}", '{url: "http://{host}:9400/metrics", labels: {gpu: 0, UUID: [a, b], pod: "x-{worker}"}}')
    dcgm = parse_config(text, {}, "file.yaml").models[0].pools[0].dcgm

    assert dcgm is not None
    assert dcgm.of("w", "10.0.0.1") == DcgmSource(
        "http://10.0.0.1:9400/metrics", (("gpu", ("0",)), ("UUID", ("a", "b")), ("pod", ("x-w",)))
    )
