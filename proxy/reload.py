"""Notices that the configuration has changed, and puts it in force if it is whole: all of it or nothing.

SIGHUP asks for it; so does other content behind the path, which is how mounted ConfigMaps change. A bad file is reported once
and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from proxy.config import Config, ConfigError, load_config, warnings_of
from proxy.fleet import Fleet
from proxy.wiring import build_topology
from telemetry.layout import slot

_log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
_OK = slot("ridgeline_reloads_total", result="ok")
_FAILED = slot("ridgeline_reloads_total", result="failed")
_AT_START_ONLY = ("listen", "observe_listen", "admin_listen", "log")


class Reloader:
    """One per control process. `run` looks at the file until cancelled; `asked` makes it read the file at once."""

    def __init__(self, path: Path, environ: Mapping[str, str], config: Config, fleet: Fleet) -> None:
        self.asked = asyncio.Event()
        self._path = path
        self._environ = environ
        self._config = config
        self._fleet = fleet
        self._seen = self._fingerprint()

    def __repr__(self) -> str:
        return f"<Reloader {self._path}>"

    async def run(self) -> None:
        """Look every two seconds, and whenever asked."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.asked.wait()
            except TimeoutError:
                fingerprint = self._fingerprint()
                # A file that is away for a moment is being replaced.
                if fingerprint is None or fingerprint == self._seen:
                    continue
            self.asked.clear()
            self._seen = self._fingerprint()
            self.reload()

    def reload(self) -> bool:
        """Read the file and put it in force; False if it is bad, and then nothing has changed."""
        try:
            config = load_config(self._path, self._environ)
            self._fleet.reload(build_topology(config))
        except ConfigError as error:
            _log.error("the configuration was not reloaded, the old one stays in force:\n%s", error)
        except OSError as error:
            _log.error("the configuration was not reloaded, the old one stays in force: %s", error.strerror)
        else:
            self._tell(config)
            self._config = config
            self._fleet.cells.values[_OK] += 1
            return True
        self._fleet.cells.values[_FAILED] += 1
        return False

    def _tell(self, config: Config) -> None:
        _log.info("configuration reloaded: %d workers", len(self._fleet.topology.workers))
        for name in _AT_START_ONLY:
            if getattr(config, name) != getattr(self._config, name):
                _log.warning("%s has changed; that takes effect at the next start", name)
        for warning in warnings_of(config):
            _log.warning("%s", warning)

    def _fingerprint(self) -> bytes | None:
        try:
            return sha256(self._path.read_bytes()).digest()
        except OSError:
            return None
