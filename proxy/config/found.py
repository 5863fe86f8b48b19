"""Settings of workers that are found while the gateway runs, in place of a list of them."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from proxy.config.errors import RefusedError
from proxy.config.values import SecondsOrZero, Section, Text

SOURCES = ("file", "dns", "srv", "kubernetes")
DNS_PORT = 53
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts what a pod needs to speak with its API server."""
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PORT_NAME = re.compile(r"[a-z0-9-]*[a-z][a-z0-9-]*")
_MOST_PORT = 65535


def _dns_name(text: str) -> str:
    if "://" in text or ":" in text:
        raise RefusedError("is no bare name", "write the name alone, such as vllm.default.svc, and the port as `port`")
    labels = text.removesuffix(".").split(".")
    if len(text) > 253 or not all(_DNS_LABEL.fullmatch(label) for label in labels):
        raise RefusedError("is no name that DNS could know", "write it like vllm.default.svc")
    if labels[-1].isdecimal():
        raise RefusedError("is an address, which need not be looked up", "list the URL: [http://10.0.0.11:8000]")
    return text.lower()


def _kubernetes_name(text: str) -> str:
    if not _KUBERNETES_NAME.fullmatch(text):
        right = "write the bare name: up to 63 small letters, digits and hyphens; a namespace goes into `namespace`"
        raise RefusedError("is no name of Kubernetes", right)
    return text


def _slice_port(value: object) -> object:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RefusedError("is neither a number nor a name", "write 8000, or the name that the service gives the port")
    if isinstance(value, int) and not 1 <= value <= _MOST_PORT:
        raise RefusedError("is out of range", f"use a port from 1 to {_MOST_PORT}")
    if isinstance(value, str) and (len(value) > 63 or not _PORT_NAME.fullmatch(value)):
        raise RefusedError("is no name of a port", "write the name that the service gives the port, such as http")
    return value


def _nameserver(text: str) -> str:
    host, port = split_nameserver(text)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise RefusedError("is no address of a name server", "write it like 10.96.0.10 or 10.96.0.10:53") from None
    if not 1 <= port <= _MOST_PORT:
        raise RefusedError("has a port out of range", f"use a port from 1 to {_MOST_PORT}")
    return text


def split_nameserver(text: str) -> tuple[str, int]:
    """Address and port; 0 for a port that is none. IPv6 with a port is in brackets."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    return host, (int(port) if port.isdecimal() and len(port) < 6 else 0) if port else DNS_PORT


def _api_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_good = urlsplit(""), False
    if not is_good or "@" in parts.netloc or parts.query or parts.fragment:
        raise RefusedError("is no URL of an API server", "write it like https://10.96.0.1:443 or http://127.0.0.1:8001")
    return text.rstrip("/")


def _not_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise RefusedError("is a boolean", "write a number")
    return value


KubernetesName = Annotated[str, AfterValidator(_kubernetes_name)]
DnsName = Annotated[str, AfterValidator(_dns_name)]
Port = Annotated[int, Field(ge=1, le=_MOST_PORT), BeforeValidator(_not_boolean)]


def _port_schema(schema: dict[str, Any]) -> None:
    schema |= {"anyOf": [{"type": "integer", "minimum": 1, "maximum": _MOST_PORT}, {"type": "string"}, {"type": "null"}]}


class KubernetesConfig(Section):
    """Endpoints of a Kubernetes service, as its EndpointSlices tell them."""

    service: KubernetesName = Field(description="Name of the service; headless or not, its endpoints are what is used.")
    namespace: KubernetesName | None = Field(
        default=None, description="Namespace of the service; when absent that of the pod which the gateway runs in."
    )
    port: Annotated[int | str, BeforeValidator(_slice_port)] | None = Field(
        default=None,
        description="Port of the pods: its number, or the name that the service gives it; absent: the only one.",
        json_schema_extra=_port_schema,
    )
    api: Annotated[str, AfterValidator(_api_url)] | None = Field(
        default=None, description="URL of the API server; when absent that which Kubernetes tells every pod."
    )
    token_file: Text | None = Field(
        default=None,
        description="File with the token for the API server, read anew for each call; when absent that of the pod's account.",
    )
    ca_file: Text | None = Field(
        default=None,
        description="Certificates that the API server's is checked with, PEM; when absent those of the pod's account.",
    )


def namespace_of(settings: KubernetesConfig, account: Path = ACCOUNT) -> str:
    """The namespace of the service: as configured, else that of the pod which the gateway runs in."""
    if settings.namespace is not None:
        return settings.namespace
    with suppress(OSError, UnicodeDecodeError):
        return (account / "namespace").read_text().strip() or "default"
    return "default"


class FoundWorkersConfig(Section):
    """Workers that are found while the gateway runs. Exactly one of `file`, `dns`, `srv` and `kubernetes` says by what."""

    file: Text | None = Field(
        default=None,
        description=(
            "A YAML or JSON file with a list of URLs or of `{name: …, url: …}`, read again when its content changes. "
            "A relative path begins at the folder of the configuration."
        ),
    )
    dns: DnsName | None = Field(
        default=None,
        description="A name all of whose A and AAAA records are workers, looked up again when they expire. Needs `port`.",
    )
    srv: DnsName | None = Field(default=None, description="A name whose SRV records of the first priority are workers.")
    kubernetes: KubernetesConfig | None = Field(default=None, description="A service of Kubernetes.")
    port: Port | None = Field(default=None, description="Port of the workers that `dns` finds.")
    scheme: Literal["http", "https"] = Field(
        default="http",
        description=(
            "How workers that `dns`, `srv` or `kubernetes` finds are spoken to. `https`: as `worker_tls` says; without a "
            "`server_name` there, their certificate has to have the name that was looked up, the target of its SRV record, or "
            "SERVICE.NAMESPACE.svc. A file has the scheme in its URLs."
        ),
    )
    family: Literal["all", "ipv4", "ipv6"] = Field(
        default="all",
        description=(
            "Which addresses of `dns` are workers: `ipv4`, `ipv6` or `all`. A worker with one of each counts twice under `all`."
        ),
    )
    nameserver: Annotated[str, AfterValidator(_nameserver)] | None = Field(
        default=None,
        description="Address of the name server that `dns` and `srv` ask, with a port if not 53; absent: as the system says.",
    )
    drain_seconds: SecondsOrZero = Field(
        default=600,
        description=(
            "Seconds a worker that is not found any more is still shown and counted while it has requests, which go on "
            "after that, too."
        ),
    )

    @model_validator(mode="after")
    def _one_source(self) -> FoundWorkersConfig:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            wrong = f"names {' and '.join(given)} at once" if given else "does not say by what workers are found"
            raise RefusedError(wrong, f"give one of {', '.join(SOURCES)}, or a list of URLs")
        if self.dns is not None and self.port is None:
            raise RefusedError("has `dns` without `port`", "add the port of the workers: {dns: NAME, port: 8000}")
        extra = [
            name
            for name, wanted in (
                ("port", "dns"),
                ("family", "dns"),
                ("nameserver", "dns or srv"),
                ("scheme", "dns or srv or kubernetes"),
            )
            if name in self.model_fields_set and self.source_setting not in wanted.split(" or ")
        ]
        if extra:
            right = "put the port into `kubernetes`" if "port" in extra and self.kubernetes else "leave it out"
            right = "write the scheme into the URLs of the file" if "scheme" in extra else right
            raise RefusedError(f"has `{extra[0]}`, which `{self.source_setting}` does not use", right)
        return self

    @property
    def source_setting(self) -> str:
        """The name of the one setting that says by what workers are found."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    @property
    def source(self) -> str:
        """The label of what finds them."""
        return self.source_setting

    def certificate_name(self, account: Path = ACCOUNT) -> str | None:
        """The name that the certificates of all found workers have, unless another is configured; None: each its host's."""
        if self.scheme == "http":
            return None
        if self.dns is not None:
            return self.dns.removesuffix(".")
        if self.kubernetes is not None:
            return f"{self.kubernetes.service}.{namespace_of(self.kubernetes, account)}.svc"
        return None
