"""Addresses as people write them, made one: base URLs of workers, and host:port of listeners.

Nothing here resolves names. A text that may hold a password (user part or query of a URL) is never quoted in an error.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from proxy.config.errors import RefusedError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HOST_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_ENDPOINTS = ("/chat/completions", "/completions", "/models", "/responses", "/health", "/metrics")
_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "write it like http://10.0.0.11:8000"
_LISTEN_EXAMPLE = 'write it like 0.0.0.0:8080, 127.0.0.1:8080 or "[::]:8080"'


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUrl:
    """The base URL of a worker in its one normal form."""

    host: str  # lower case, IPv6 without brackets
    port: int
    base_path: str  # "" or "/sub/path"
    scheme: str = "http"  # or "https"

    @property
    def authority(self) -> str:
        """For the Host header: with brackets for IPv6, and the port unless it is the scheme's own."""
        host = _bracketed(self.host)
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Scheme, authority and path, without a slash or ``/v1`` at the end."""
        return f"{self.scheme}://{self.authority}{self.base_path}"

    @property
    def default_name(self) -> str:
        """What a worker is called when the file gives it no name: ``host:port`` and the path, if any."""
        return f"{_bracketed(self.host)}:{self.port}{self.base_path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where a listener binds."""

    host: str  # IPv6 without brackets
    port: int  # 1 to 65535

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach it."""
        return self.host == "localhost" or (_is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback)

    def overlaps(self, other: ListenAddress) -> bool:
        """Tell whether both cannot be bound at once: same port, and the same host or one that includes it."""
        mine, theirs = ({"localhost": "127.0.0.1", "0.0.0.0": "", "::": ""}.get(host, host) for host in (self.host, other.host))  # noqa: S104 (compared, not bound)
        return self.port == other.port and (mine == theirs or not mine or not theirs)


def parse_worker_url(text: str) -> WorkerUrl:
    """Return the normal form of a worker's base URL. Raises `RefusedError` for anything but ``http[s]://host[:port][/path]``."""
    if not text:
        raise RefusedError("the worker URL is empty", _EXAMPLE)
    if any(not "!" <= character <= "~" for character in text):
        raise RefusedError("the worker URL holds a blank or a character outside ASCII", _EXAMPLE)
    found = _SCHEME.fullmatch(text)
    if not found:
        raise RefusedError("the worker URL has no scheme", "begin it with http://, as in http://10.0.0.11:8000")
    scheme, rest = found.group(1).lower(), found.group(2)
    if scheme not in _PORTS:
        raise RefusedError(f"the worker URL has the scheme {scheme}", _EXAMPLE)
    if "?" in rest or "#" in rest:
        raise RefusedError("the worker URL has a query or a fragment", "give the base URL only; a key goes into worker_key")
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        raise RefusedError("the worker URL has a user or password in it", "put the worker's key into worker_key")
    host, port = _split_worker_authority(authority, _PORTS[scheme])
    return WorkerUrl(host=host, port=port, base_path=_base_path(slash + path), scheme=scheme)


def parse_listen_address(text: str) -> ListenAddress:
    """Return host and port of a listener. Raises `RefusedError`, also for a missing host or port."""
    host, colon, port = text.rpartition(":")
    if not colon and text.isdecimal():
        raise RefusedError("the address is a port without a host", f"write 0.0.0.0:{text} or 127.0.0.1:{text}")
    if not host and colon:
        raise RefusedError("the address has no host", f"write 0.0.0.0:{port or 8080} to listen everywhere")
    if not colon or text.endswith("]") or "://" in text or "/" in text:
        raise RefusedError("the address is not host:port", _LISTEN_EXAMPLE)
    if host == "*":
        raise RefusedError("`*` is no host", f'write 0.0.0.0:{port} or "[::]:{port}" to listen everywhere')
    return ListenAddress(host=_host(host, _LISTEN_EXAMPLE), port=_port(port, _LISTEN_EXAMPLE))


def _split_worker_authority(authority: str, default_port: int) -> tuple[str, int]:
    if "%" in authority:
        raise RefusedError("the worker URL has an IPv6 zone (%)", "use an address without a zone, or a host name")
    if authority.startswith("["):
        host, closing, port = authority.partition("]")
        if not closing:
            raise RefusedError("the worker URL has [ without ]", "write it like http://[fd00::1]:8000")
        if port and not port.startswith(":"):
            raise RefusedError("the worker URL has something between ] and the port", "write it like http://[fd00::1]:8000")
        return _host(host + "]", _EXAMPLE), _port(port[1:], _EXAMPLE) if port else default_port
    host, colon, port = authority.rpartition(":")
    if not colon:
        return _host(authority, _EXAMPLE), default_port
    if ":" not in host:
        return _host(host, _EXAMPLE), _port(port, _EXAMPLE)
    # IPv6 without brackets: fine as long as there is only one way to read it
    whole, with_port = _is_ipv6(authority), _is_ipv6(host) and port.isdecimal()
    if whole and with_port:
        raise RefusedError(
            "the worker URL has an IPv6 address without brackets, and its last part may be a port",
            f"write http://[{host}]:{port} or http://[{authority}]",
        )
    if not whole and not with_port:
        raise RefusedError("the worker URL has more than one colon and no IPv6 address", _EXAMPLE)
    return (_host(authority, _EXAMPLE), default_port) if whole else (_host(host, _EXAMPLE), _port(port, _EXAMPLE))


def _base_path(path: str) -> str:
    path = path.rstrip("/")
    if path == "/v1" or path.endswith("/v1"):
        path = path.removesuffix("/v1").rstrip("/")
    if path.endswith(_ENDPOINTS):
        raise RefusedError("the worker URL names an endpoint", "give the base URL, without the endpoint and without /v1")
    if not _PATH.fullmatch(path) or any(part in ("", ".", "..") for part in path.split("/")[1:]):
        wrong = "the path of the worker URL has empty parts, dots or characters that need %-escapes"
        raise RefusedError(wrong, "write it like /sub/path")
    return path


def _host(text: str, example: str) -> str:
    """Return a host in normal form; IPv6 with or without brackets comes back without."""
    if "%" in text:
        raise RefusedError("the address has an IPv6 zone (%)", "use an address without a zone")
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _is_ipv6(bare):
        return ipaddress.ip_address(bare).compressed
    if bare != text:
        raise RefusedError("there is no IPv6 address between the brackets", 'write it like "[fd00::1]:8000"')
    if _is_ip(text):
        return text
    labels = text.removesuffix(".").split(".")
    if len(text) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise RefusedError("the host is neither an IP address nor a host name", example)
    if labels[-1].isdecimal():
        raise RefusedError("the host looks like an IPv4 address and is none", "write four numbers from 0 to 255")
    return text.lower()


def _port(text: str, example: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise RefusedError("the port is not a number", example)
    if len(text) > 5 or not 1 <= int(text) <= 65535:
        raise RefusedError("the port is out of range", "use a port from 1 to 65535")
    return int(text)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    return ":" in text and _is_ip(text)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
