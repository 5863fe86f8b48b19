"""The listeners of the control process, and the certificates that they show."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

from proxy.config.errors import RefusedError
from proxy.config.tls import ListenerTlsConfig, listener_files
from proxy.control.starting import CannotStartError
from proxy.listener import listen_fault, open_listener
from proxy.tls import ListenerTls

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


def listen(setting: str, address: str) -> socket.socket:
    """The listener of a setting. Raises CannotStartError."""
    try:
        return open_listener(address)
    except OSError as error:
        raise CannotStartError(listen_fault(setting, address, error)) from error


def tls_of(setting: str, tls: ListenerTlsConfig | None, folder: Path) -> ListenerTls | None:
    """What the listener of a setting shows; ``None``: it speaks no TLS. Raises CannotStartError."""
    files = listener_files(tls, folder)
    if files is None:
        return None
    try:
        return ListenerTls(files, lambda text: _log.error("%s: %s", setting, text))
    except RefusedError as error:
        raise CannotStartError(f"{setting}: {error.wrong}; {error.right}") from error


async def watch_certificates(shown: list[ListenerTls]) -> None:
    """Renew what this process's listeners show; of the clients' it only tells."""
    while shown:
        await asyncio.sleep(_LOOK_SECONDS)
        for tls in shown:
            if tls.look():
                _log.info("the certificate %s is shown from now on", tls.files.certificate)
