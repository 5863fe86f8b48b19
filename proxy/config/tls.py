"""Sections of the configuration about TLS, and whether their files can be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field

from proxy.config.errors import KeyPath, RefusedError
from proxy.config.file import Document
from proxy.config.values import HostName, Section, Text
from proxy.tls import read_certificate, worker_context
from routing.topology import TlsFiles, WorkerTls

LISTENERS_TLS = ("tls", "observe_tls", "admin_tls")


class ListenerTlsConfig(Section):
    """What a listener shows, TLS 1.2 or newer. Files are read again when they change; running streams go on."""

    certificate: Text = Field(
        description="File with the certificate and its chain in PEM, from the folder of this file; its own certificate first."
    )
    key: Text = Field(description="File with its key in PEM, without a password.")


class WorkerTlsConfig(Section):
    """How workers with an https URL are trusted. Files are read again when they change."""

    ca: Text | None = Field(
        default=None, description="File with the CA's certificate in PEM, from the folder of this file; absent: the system's."
    )
    verify: bool = Field(
        default=True, description="Check the certificate and its name. false: anybody on the way can be the worker."
    )
    server_name: HostName | None = Field(
        default=None, description="Name that the certificate has, where that is not the URL's host; also sent as SNI."
    )
    certificate: Text | None = Field(default=None, description="File with a certificate to show to workers, in PEM.")
    key: Text | None = Field(default=None, description="File with its key in PEM, without a password.")


def listener_files(settings: ListenerTlsConfig | None, folder: Path) -> TlsFiles | None:
    """The files with their whole paths; None: no TLS."""
    if settings is None:
        return None
    return TlsFiles(certificate=str(folder / settings.certificate), key=str(folder / settings.key))


def worker_tls(settings: WorkerTlsConfig, folder: Path) -> WorkerTls:
    """The settings with whole paths."""

    def whole(name: str | None) -> str | None:
        return None if name is None else str(folder / name)

    return WorkerTls(
        ca=whole(settings.ca),
        verifies=settings.verify,
        server_name=settings.server_name,
        certificate=whole(settings.certificate),
        key=whole(settings.key),
    )


def tls_problems(document: Document) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield what is wrong with files and pairs of settings; values of the wrong type are left to the schema."""
    tree, folder = document.tree, Path(document.source).parent
    for name in LISTENERS_TLS:
        section = tree.get(name)
        if isinstance(section, dict) and all(isinstance(section.get(key), str) for key in ("certificate", "key")):
            try:
                read_certificate(
                    TlsFiles(certificate=str(folder / str(section["certificate"])), key=str(folder / str(section["key"])))
                )
            except RefusedError as error:
                yield (name,), error.wrong, error.right
    sections: list[tuple[KeyPath, object]] = [(("worker_tls",), tree.get("worker_tls"))]
    models = tree.get("models")
    for at, model in enumerate(models if isinstance(models, list) else []):
        pools = model.get("pools") if isinstance(model, dict) else None
        for index, pool in enumerate(pools if isinstance(pools, list) else []):
            if isinstance(pool, dict):
                sections.append((("models", at, "pools", index, "worker_tls"), pool.get("worker_tls")))
    for path, settings in sections:
        if isinstance(settings, dict):
            yield from ((path, *problem) for problem in _of_workers(settings, folder))


def _of_workers(section: Mapping[str, object], folder: Path) -> Iterator[tuple[str, str]]:
    texts = {name: value for name, value in section.items() if isinstance(value, str)}
    if ("certificate" in section) != ("key" in section):
        yield "has only one of `certificate` and `key`", "name both, or neither"
        return
    if section.get("verify") is False and ("ca" in section or "server_name" in section):
        yield "has `verify: false` beside what is to be verified", "leave verify out, or ca and server_name"
        return
    try:
        known = {name: str(folder / texts[name]) for name in ("ca", "certificate", "key") if name in texts}
        worker_context(WorkerTls(ca=known.get("ca"), certificate=known.get("certificate"), key=known.get("key")))
    except RefusedError as error:
        yield error.wrong, error.right
