"""Contexts for TLS: what is refused, and how they follow their files."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from proxy.config.errors import RefusedError
from proxy.config.settings import ConfigError, parse_config, warnings_of
from proxy.tls import ListenerTls, WorkerContexts, read_certificate, worker_context
from routing.topology import TlsFiles, WorkerTls
from tests.certificates import Authority


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files(pair: tuple[Path, Path]) -> TlsFiles:
    return TlsFiles(certificate=str(pair[0]), key=str(pair[1]))


def shown_by(server: ssl.SSLContext, ca: Authority, **settings: object) -> object:
    """What a client that trusts the CA gets from a server with this context, in memory. Raises SSLError."""
    client = worker_context(WorkerTls(ca=str(ca.file), **settings))  # type: ignore[arg-type]
    ends = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(1)]
    (to_server, to_client) = ends[0]
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for side in (one, other):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return one.getpeercert(), one.version()


def test_a_certificate_is_shown(ca):
    """By TLS 1.2 or newer."""
    context = read_certificate(files(ca.issue("a")))

    certificate, version = shown_by(context, ca)

    assert version in ("TLSv1.2", "TLSv1.3")
    assert ("DNS", "localhost") in certificate["subjectAltName"]
    assert context.minimum_version == worker_context(WorkerTls()).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("certificate", "key", "wrong"),
    [
        ("none.crt", "a.key", "none.crt cannot be read: No such file or directory"),
        ("a.crt", "none.key", "none.key cannot be read"),
        ("a.crt", "b.key", "b.key is not that of"),
        ("text", "a.key", "are no certificate and key in PEM"),
        ("a.crt", "text", "are no certificate and key in PEM"),
        ("a.crt", "locked.key", "are no certificate and key in PEM"),
        ("", "a.key", "cannot be read: Is a directory"),
    ],
)
def test_bad_files_are_told_apart(ca, tmp_path, certificate, key, wrong):
    """The text names the file and what is wrong with it; a key with a password asks nobody for one."""
    ca.issue("a")
    ca.issue("b")
    (tmp_path / "text").write_text("hello")
    mark, text = "ENCRYPTED PRIVATE KEY-----", "MIIBvTBXBgkqhkiG9w0BBQ0wSjApBgkqhkiG9w0BBQww"
    (tmp_path / "locked.key").write_text(f"-----BEGIN {mark}\n{text}\n-----END {mark}\n")

    with pytest.raises(RefusedError) as caught:
        read_certificate(TlsFiles(certificate=str(tmp_path / certificate), key=str(tmp_path / key)))

    assert wrong in caught.value.wrong


def test_a_listener_follows_its_files(ca, tmp_path):
    """A new pair is shown to whoever comes next; half of one, or a bad one, leaves the old and is told once."""
    told: list[str] = []
    first = files(ca.issue("a", "localhost", "first.example"))
    tls = ListenerTls(first, told.append)
    names = lambda: [name for _, name in shown_by(tls.context, ca)[0]["subjectAltName"]]  # noqa: E731
    assert names() == ["localhost", "first.example"]
    assert not tls.look()

    ca.issue("b", "localhost", "second.example")
    (tmp_path / "b.crt").replace(tmp_path / "a.crt")  # the key is still the old one
    assert not tls.look()
    assert not tls.look()
    assert names() == ["localhost", "first.example"]
    assert len(told) == 1
    assert "is not that of" in told[0]

    (tmp_path / "b.key").replace(tmp_path / "a.key")
    assert tls.look()
    assert names() == ["localhost", "second.example"]

    (tmp_path / "a.crt").unlink()
    assert not tls.look()
    assert names() == ["localhost", "second.example"]


def test_contexts_for_workers_are_made_once(ca):
    """And bad files are an error of the connection."""
    contexts = WorkerContexts()
    settings = WorkerTls(ca=str(ca.file))
    assert contexts.find(settings) is contexts.find(WorkerTls(ca=str(ca.file)))
    assert contexts.find(settings) is not contexts.find(WorkerTls())
    with pytest.raises(OSError, match="cannot be read"):
        contexts.find(WorkerTls(ca="/nowhere.pem"))


def problems(text: str, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"{text}\nmodels: [{{name: m, workers: [https://a]}}]", {}, str(folder / "g.yaml"))
    return [str(problem) for problem in caught.value.problems]


def test_the_configuration_looks_at_the_files(ca, tmp_path):
    """From the folder of the configuration; before anything starts, or is changed."""
    ca.issue("a")
    parse_config(
        "tls: {certificate: a.crt, key: a.key}\nworker_tls: {ca: ca.pem, server_name: w.example}\n"
        "models: [{name: m, workers: [https://a]}]",
        {},
        str(tmp_path / "g.yaml"),
    )
    assert "line 1, tls: " in problems("tls: {certificate: b.crt, key: a.key}", tmp_path)[0]
    assert "cannot be read" in problems("observe_tls: {certificate: b.crt, key: a.key}", tmp_path)[0]
    assert "no certificate in PEM" in problems("worker_tls: {ca: a.key}", tmp_path)[0]
    assert "only one of" in problems("worker_tls: {certificate: a.crt}", tmp_path)[0]
    assert "beside what is to be verified" in problems("worker_tls: {verify: false, ca: ca.pem}", tmp_path)[0]


def test_not_to_verify_warns():
    """Overall, or for a pool."""
    text = "listen: 127.0.0.1:1\nmodels: [{name: m, pools: [{name: p, workers: [https://a], worker_tls: {verify: false}}]}]"
    (warning,) = warnings_of(parse_config(text, {}, "f"))
    assert warning.startswith("models[0].pools[0].worker_tls.verify is false")
    (warning,) = warnings_of(
        parse_config("listen: 127.0.0.1:1\nworker_tls: {verify: false}\nmodels: [{name: m, workers: [https://a]}]", {}, "f")
    )
    assert warning.startswith("worker_tls.verify is false")
