"""An HTTP session that no receiver can hold up or fill: a deadline on each whole exchange, and a bound on the answer.

The timeouts of `requests` are for each read, so a receiver that sends a byte now and then would never meet one, and all of an
answer is kept. To be imported in the thread of an outbox only: `requests` takes its time.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

DEADLINE_SECONDS = 10.0
MOST_ANSWER_BYTES = 64 * 1024
_READ_BYTES = 8192


class BoundedSession(requests.Session):
    """Goes to the receiver directly and nowhere else, whatever the environment says for others. For one thread, but `close`."""

    def __init__(self, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        super().__init__()
        self.trust_env = False  # no proxies, and no passwords from ~/.netrc
        self._deadline_seconds = deadline_seconds
        self._sockets = _Sockets()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(self._sockets))

    def send(self, request: requests.PreparedRequest, **settings: Any) -> requests.Response:
        """Send, and read all of the answer that may be read. Raises `requests.RequestException`."""
        seconds = self._deadline_seconds
        if isinstance(settings.get("timeout"), int | float):
            seconds = min(seconds, settings["timeout"])
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self._sockets.cut()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchange(request, settings)
            if is_late.is_set():  # a head that ends in the middle passes for a whole one
                raise requests.ConnectionError("the answer was cut short")
            return answer
        except (requests.RequestException, HTTPError, OSError) as error:
            self._sockets.cut()
            if is_late.is_set():
                raise requests.RequestException(f"no whole answer within {seconds:.0f} s") from error
            if isinstance(error, requests.RequestException):
                raise
            raise requests.ConnectionError(str(error)) from error
        finally:
            timer.cancel()

    def _exchange(self, request: requests.PreparedRequest, settings: dict[str, Any]) -> requests.Response:
        answer = super().send(request, **{**settings, "stream": True, "allow_redirects": False})
        if 300 <= answer.status_code < 400:
            raise requests.TooManyRedirects(f"the receiver answers {answer.status_code}, and redirects are not followed")
        body = b""
        for piece in answer.raw.stream(_READ_BYTES, decode_content=False):
            body += piece
            if len(body) > MOST_ANSWER_BYTES:
                raise requests.RequestException(f"the answer is over {MOST_ANSWER_BYTES} bytes")
        answer._content = body  # where `requests` itself keeps what it has read
        answer._content_consumed = True
        return answer

    def close(self) -> None:
        """Also end what is under way, in whichever thread."""
        self._sockets.cut()
        super().close()


class _Sockets:
    """Doubles of a session's open sockets: only through a double can one be ended in the middle of its TLS handshake."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    def watch(self, connected: socket.socket) -> None:
        """A connection was made; a session has one at a time, so an older one is over."""
        self.cut()
        with self._lock:
            self._open.append(connected.dup())

    def cut(self) -> None:
        """End all, and let them go."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):  # it had ended
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._open.clear()


class _Adapter(HTTPAdapter):
    def __init__(self, sockets: _Sockets) -> None:
        self._sockets = sockets
        super().__init__()

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **settings: Any) -> None:
        sockets = self._sockets

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                made = super()._new_conn()
                sockets.watch(made)
                return made

        class Secure(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                made = super()._new_conn()
                sockets.watch(made)
                return made

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        self.poolmanager = PoolManager(num_pools=connections, maxsize=maxsize, block=block, **settings)
        self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
