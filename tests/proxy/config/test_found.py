"""Settings of workers that are found while the gateway runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from proxy.config.found import FoundWorkersConfig, split_nameserver
from proxy.config.reference import schema_text
from proxy.config.settings import ConfigError, parse_config
from tests.proxy.fleets import a_config


def found(text: str) -> FoundWorkersConfig:
    (model,) = parse_config(f"models: [{{name: m, workers: {text}}}]", {}, "test").models
    settings = model.pools_in_force[0].finds_workers
    assert settings is not None
    return settings


def problem(text: str) -> str:
    """What is wrong, and there is nothing else."""
    with pytest.raises(ConfigError) as refused:
        found(text)
    (one,) = refused.value.problems
    return f"{one.path}: {one.wrong}; {one.right}"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("{file: workers.yaml}", "file"),
        ("{dns: vllm-long.default.svc, port: 8000}", "dns"),
        ("{dns: Vllm_1.example., port: 8000, family: ipv4, nameserver: 10.96.0.10}", "dns"),
        ("{srv: _http._tcp.vllm.default.svc, nameserver: '[fd00::1]:5353'}", "srv"),
        ("{kubernetes: {service: vllm}}", "kubernetes"),
        ("{kubernetes: {service: vllm}, scheme: https}", "kubernetes"),
        ("{kubernetes: {service: vllm, namespace: team-a, port: http}}", "kubernetes"),
        ("{kubernetes: {service: vllm, port: 8000, api: 'https://10.0.0.1:6443/', token_file: t, ca_file: c}}", "kubernetes"),
    ],
)
def test_forms(text: str, source: str) -> None:
    """Each way to find workers, in a model and in a pool."""
    assert found(text).source == source
    config = parse_config(f"models: [{{name: m, pools: [{{name: p, workers: {text}}}]}}]", {}, "test")
    assert config.models[0].pools[0].finds_workers == found(text)
    assert config.models[0].pools[0].listed_workers == ()


def test_values_have_one_form() -> None:
    """Names in small letters, numbers as numbers, an API without a slash at its end."""
    settings = found("{kubernetes: {service: vllm, port: '8000', api: 'http://127.0.0.1:8001/'}}").kubernetes
    assert settings is not None
    assert (settings.port, settings.api) == (8000, "http://127.0.0.1:8001")
    assert found("{dns: VLLM.Example, port: 1}").dns == "vllm.example"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{}", "models[0].workers: does not say by what workers are found; give one of file, dns, srv, kubernetes"),
        ("{dns: a, port: 1, file: b}", "models[0].workers: names file and dns at once"),
        ("{dns: a}", "models[0].workers: has `dns` without `port`"),
        ("{file: a, port: 8000}", "models[0].workers: has `port`, which `file` does not use; leave it out"),
        ("{kubernetes: {service: a}, port: 8000}", "which `kubernetes` does not use; put the port into `kubernetes`"),
        ("{file: a, scheme: https}", "has `scheme`, which `file` does not use; write the scheme into the URLs of the file"),
        ("{dns: a, port: 1, scheme: ftp}", "models[0].workers.scheme: must be `http` or `https`"),
        ("{srv: a, port: 8000}", "has `port`, which `srv` does not use"),
        ("{srv: a, family: ipv4}", "has `family`, which `srv` does not use"),
        ("{file: a, nameserver: 10.0.0.1}", "has `nameserver`, which `file` does not use"),
        ("{dns: 'http://a', port: 1}", "models[0].workers.dns: is no bare name"),
        ("{dns: 'a:8000', port: 1}", "models[0].workers.dns: is no bare name"),
        ("{dns: 10.0.0.1, port: 1}", "models[0].workers.dns: is an address, which need not be looked up"),
        ("{dns: 'a b', port: 1}", "models[0].workers.dns: is no name that DNS could know"),
        ("{dns: a..b, port: 1}", "models[0].workers.dns: is no name that DNS could know"),
        ("{dns: a, port: 0}", "models[0].workers.port: must be at least 1"),
        ("{dns: a, port: 70000}", "models[0].workers.port: must be at most 65535"),
        ("{dns: a, port: yes}", "models[0].workers.port: is a boolean"),
        ("{dns: a, port: 1, family: v4}", "models[0].workers.family: must be `all`, `ipv4` or `ipv6`"),
        ("{dns: a, port: 1, nameserver: dns.example}", "models[0].workers.nameserver: is no address of a name server"),
        ("{dns: a, port: 1, nameserver: '10.0.0.1:0'}", "models[0].workers.nameserver: has a port out of range"),
        ("{dns: a, prt: 1}", "models[0].workers.prt: `prt` is not a known key here; did you mean `port`?"),
        ("{kubernetes: {}}", "models[0].workers.kubernetes.service: is missing; add it: Name of the service"),
        ("{kubernetes: {servce: a, service: b}}", "models[0].workers.kubernetes.servce: `servce` is not a known key"),
        ("{kubernetes: {service: Team/a}}", "models[0].workers.kubernetes.service: is no name of Kubernetes"),
        ("{kubernetes: {service: a, port: yes}}", "models[0].workers.kubernetes.port: is neither a number nor a name"),
        ("{kubernetes: {service: a, port: 0}}", "models[0].workers.kubernetes.port: is out of range"),
        ("{kubernetes: {service: a, port: Http_1}}", "models[0].workers.kubernetes.port: is no name of a port"),
        ("{kubernetes: {service: a, api: 'ftp://x'}}", "models[0].workers.kubernetes.api: is no URL of an API server"),
        ("{kubernetes: {service: a, api: 'http://u:p@x'}}", "models[0].workers.kubernetes.api: is no URL of an API server"),
        ("{file: a, drain_seconds: -1}", "models[0].workers.drain_seconds: must be at least 0"),
    ],
)
def test_mistakes(text: str, wrong: str) -> None:
    """One problem for each, at its place, with what would be right."""
    assert wrong in problem(text)


def test_a_list_is_judged_as_before() -> None:
    """Paths into it have nothing of the other form."""
    assert "models[0].workers[0].nme: `nme` is not a known key" in problem("[{url: 'http://a', nme: b}]")
    assert a_config({"default": ["w-0"]}).models[0].pools_in_force[0].finds_workers is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", ("10.0.0.1", 53)),
        ("10.0.0.1:5353", ("10.0.0.1", 5353)),
        ("fd00::1", ("fd00::1", 53)),
        ("[fd00::1]", ("fd00::1", 53)),
        ("[fd00::1]:5353", ("fd00::1", 5353)),
        ("10.0.0.1:x", ("10.0.0.1", 0)),
        ("10.0.0.1:123456", ("10.0.0.1", 0)),
    ],
)
def test_name_servers(text: str, expected: tuple[str, int]) -> None:
    """Address and port, in the forms that people write."""
    assert split_nameserver(text) == expected


def test_editors_know_both_forms() -> None:
    """The schema has the list and the mapping."""
    schema = json.loads(schema_text())
    forms = schema["$defs"]["PoolConfig"]["properties"]["workers"]["oneOf"]
    assert {form.get("type", form.get("$ref")) for form in forms} == {"array", "#/$defs/FoundWorkersConfig"}
    assert yaml.safe_load(schema_text())["$defs"]["KubernetesConfig"]["required"] == ["service"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{dns: vllm.example., port: 8000, scheme: https}", "vllm.example"),
        ("{dns: vllm.example, port: 8000}", None),
        ("{srv: _https._tcp.vllm.example, scheme: https}", None),
        ("{kubernetes: {service: vllm, namespace: team-a}, scheme: https}", "vllm.team-a.svc"),
        ("{kubernetes: {service: vllm}, scheme: https}", "vllm.of-the-pod.svc"),
    ],
)
def test_the_name_that_certificates_of_found_workers_have(text: str, name: str | None, tmp_path: Path) -> None:
    """What was looked up, as workers are found by address. Targets of SRV records have names of their own."""
    (tmp_path / "namespace").write_text("of-the-pod\n")

    assert found(text).certificate_name(tmp_path) == name
