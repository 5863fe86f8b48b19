"""TLS: what listeners show, and how workers are trusted. Contexts follow their files without ending a connection."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from time import monotonic as clock

from proxy.config.errors import RefusedError
from routing.topology import TlsFiles, WorkerTls

HANDSHAKE_SECONDS = 10.0
"""For a client's handshake, at most; then its connection ends. Serving gives it no longer than a request's head."""
SHUTDOWN_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_Seen = tuple[tuple[int, int, int] | None, ...]


def read_certificate(files: TlsFiles) -> ssl.SSLContext:
    """A server's context with these files. Raises `RefusedError` for files that cannot be read, used, or do not match."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, files.certificate, files.key)
    return context


def worker_context(settings: WorkerTls) -> ssl.SSLContext:
    """A client's context for workers. Raises `RefusedError` for files that cannot be read or used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not settings.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is None:
        context.load_default_certs()
    else:
        _readable(settings.ca)
        try:
            context.load_verify_locations(settings.ca)
        except (ssl.SSLError, OSError):
            raise RefusedError(f"{settings.ca} holds no certificate in PEM", "name a file with the CA's certificate") from None
    if settings.certificate is not None and settings.key is not None:
        _load(context, settings.certificate, settings.key)
    return context


def why_untrusted(error: OSError) -> str | None:
    """Why a worker's certificate was not trusted, in the library's words; None if it was something else."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {(error.reason or 'handshake failed').replace('_', ' ').lower()}"
    return None


class ListenerTls:
    """The context of one listener, made from its files and renewed when they change.

    Connections keep what they began with. Files that have become bad leave the old certificate, and ``on_fault`` is told
    once. Raises `RefusedError` at the start.
    """

    def __init__(self, files: TlsFiles, on_fault: Callable[[str], None] | None = None) -> None:
        self.files = files
        self._seen = _state_of(files)
        self.context = read_certificate(files)
        self._on_fault = on_fault

    def __repr__(self) -> str:
        return f"<ListenerTls {self.files.certificate}>"

    def look(self, files: TlsFiles | None = None) -> bool:
        """Whether another certificate is shown from now on. With ``files`` it is looked for there."""
        if files is not None:
            self.files = files
        seen = _state_of(self.files)
        if seen == self._seen:
            return False
        try:
            read_certificate(self.files)  # as a whole first: the one in use must not get half of a bad pair
            _load(self.context, self.files.certificate, self.files.key)
        except RefusedError as error:
            if self._on_fault is not None:
                self._on_fault(f"{error.wrong}; {error.right}. The certificate that was read before stays")
            self._seen = seen
            return False
        self._seen = seen
        return True


class WorkerContexts:
    """Contexts for workers by their settings, made when first needed and again when files have changed. One per process."""

    def __init__(self) -> None:
        self._known: dict[WorkerTls, tuple[ssl.SSLContext, _Seen, float]] = {}

    def __repr__(self) -> str:
        return f"<WorkerContexts, {len(self._known)}>"

    def find(self, settings: WorkerTls) -> ssl.SSLContext:
        """The context of these settings. Raises OSError when its files cannot be used and never could."""
        now = clock()
        known = self._known.get(settings)
        if known is not None and now - known[2] < _LOOK_SECONDS:
            return known[0]
        seen = _state_of(settings)
        if known is not None and known[1] == seen:
            self._known[settings] = (known[0], seen, now)
            return known[0]
        try:
            context = worker_context(settings)
        except RefusedError as error:
            if known is None:
                raise OSError(error.wrong) from None
            context = known[0]
        self._known[settings] = (context, seen, now)
        return context


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _readable(certificate)
    _readable(key)
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # never ask for one at a terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise RefusedError(f"the key {key} is not that of {certificate}", "name the two files of one pair") from None
        what = f"{certificate} and {key} are no certificate and key in PEM"
        raise RefusedError(
            what, "name a certificate chain, its own certificate first, and its key without a password"
        ) from None
    except (OSError, ValueError):
        raise RefusedError(f"{key} needs a password or is no key", "name a key without a password") from None


def _readable(file: str) -> None:
    try:
        with Path(file).open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise RefusedError(f"{file} cannot be read: {error.strerror}", "name a file in PEM that this user may read") from None


def _state_of(settings: TlsFiles | WorkerTls) -> _Seen:
    """What changes when a file is replaced, also by a link that is swapped."""
    names = [settings.certificate, settings.key, settings.ca if isinstance(settings, WorkerTls) else None]
    return tuple(None if name is None else _stamp(name) for name in names)


def _stamp(name: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(name)  # noqa: PTH116 -- four times cheaper, and done twice a second
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
