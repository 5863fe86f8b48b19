"""Notices that the configuration has changed, and puts it in force if it is whole: all of it or nothing.

SIGHUP asks for it; so does other content behind the path, which is how mounted ConfigMaps change, once it has been the same
for two looks: a file may be half written. A bad file is reported once and changes nothing. The last good text is kept in the
run directory, so that a control process that is started again goes on with it, whatever lies at the path by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from math import isnan
from pathlib import Path

from proxy.config.file import read_text
from proxy.config.settings import Config, ConfigError, parse_config, warnings_of
from proxy.config.wiring import build_topology
from proxy.control.fleet import Fleet
from proxy.discovery.finder import Finder
from telemetry.layout import slot

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_KEPT = "config.kept"
_OK = slot("ridgeline_reloads_total", result="ok")
_FAILED = slot("ridgeline_reloads_total", result="failed")
_REFUSED = slot("ridgeline_configuration_refused")
_AT_START_ONLY = (
    "listen",
    "observe_listen",
    "admin_listen",
    "log",
    "tracing",
    "chains",
    "calibration",
    "quotas",
    "tls",
    "observe_tls",
    "admin_tls",
)


def first_config(path: Path, environ: Mapping[str, str], run_dir: Path) -> tuple[Config, str]:
    """The configuration to start with, and its text: the last good one of this gateway, or what lies at the path.

    Raises `ConfigError`.
    """
    kept = run_dir / _KEPT
    with suppress(OSError, UnicodeDecodeError, ConfigError):
        text = kept.read_text(encoding="utf-8")
        return parse_config(text, environ, str(path)), text
    text = read_text(path)
    config = parse_config(text, environ, str(path))
    keep_config(run_dir, text)
    return config, text


def keep_config(run_dir: Path, text: str) -> None:
    """Keep a good text. It may hold keys, and lies where only the gateway's own user can read. Raises OSError."""
    fresh = run_dir / f"{_KEPT}.new"
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(run_dir / _KEPT)


class Reloader:
    """One per control process. `run` looks at the file until cancelled; `asked` makes it read the file at once.

    ``text`` is what ``config`` was read from, when the file may have changed since; good texts are kept in ``run_dir``, and
    ``on_config`` is called with each configuration that has come into force.
    """

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        config: Config,
        fleet: Fleet,
        *,
        text: str | None = None,
        run_dir: Path | None = None,
        on_config: Callable[[Config], None] | None = None,
        finder: Finder | None = None,
    ) -> None:
        self._finder = finder
        self.asked = asyncio.Event()
        self._path = path
        self._environ = environ
        self._at_start = self._told = config
        self._fleet = fleet
        self._run_dir = run_dir
        self._on_config = on_config
        if isnan(fleet.cells.values[_REFUSED]):  # else an earlier control process knew
            fleet.cells.values[_REFUSED] = 0.0
        self._seen = self._fingerprint() if text is None else sha256(text.encode()).digest()

    def __repr__(self) -> str:
        return f"<Reloader {self._path}>"

    @property
    def config(self) -> Config:
        """What was last read and is in force, but for what takes effect at the start only."""
        return self._told

    async def run(self) -> None:
        """Look every second, and whenever asked."""
        last_look = self._seen
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.asked.wait()
            fingerprint = self._fingerprint()
            is_settled = fingerprint == last_look
            last_look = fingerprint
            # A file that is away for a moment is being replaced.
            if self.asked.is_set() or (fingerprint is not None and fingerprint != self._seen and is_settled):
                self.asked.clear()
                self._seen = fingerprint
                self.reload()

    def reload(self) -> bool:
        """Read the file and put it in force; False if it is bad, and then nothing has changed."""
        try:
            text = read_text(self._path)
            config = parse_config(text, self._environ, str(self._path))
            # What begins in serving processes has to fit what control does with it, which was settled at the start.
            settled = {name: getattr(self._at_start, name) for name in ("tracing", "chains", "quotas", "tls")}
            self._fleet.reload(build_topology(config.model_copy(update=settled), self._path.parent))
            if self._finder is not None:
                self._finder.follow(config, self._fleet.found)
            if self._run_dir is not None:
                keep_config(self._run_dir, text)
        except ConfigError as error:
            _log.error("the configuration was not reloaded, the old one stays in force:\n%s", error)
        except OSError as error:
            _log.error("the configuration was not reloaded, the old one stays in force: %s", error.strerror)
        else:
            self._tell(config)
            if self._on_config is not None:
                self._on_config(config)
            self._fleet.cells.values[_OK] += 1
            self._fleet.cells.values[_REFUSED] = 0.0
            return True
        self._fleet.cells.values[_FAILED] += 1
        self._fleet.cells.values[_REFUSED] = 1.0
        return False

    def _tell(self, config: Config) -> None:
        _log.info("configuration reloaded: %d workers", len(self._fleet.topology.workers))
        for name in _AT_START_ONLY:
            value = getattr(config, name)
            if value not in (getattr(self._at_start, name), getattr(self._told, name)):
                _log.warning("%s is not the one in force; that takes effect at the next start", name)
        self._told = config
        for warning in warnings_of(config):
            _log.warning("%s", warning)

    def _fingerprint(self) -> bytes | None:
        try:
            return sha256(self._path.read_bytes()).digest()
        except OSError:
            return None
