"""What control could not write when it tried last: a full or read-only disk is told once, shown, and tried again."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)

CALIBRATIONS, RUN_DIRECTORY, LOG = "calibrations", "run_directory", "log"


class Unwritten:
    """One per control process. Whoever writes says how that went, by the label of `ridgeline_unwritten_files`."""

    def __init__(self) -> None:
        self._files: set[str] = set()

    def __repr__(self) -> str:
        return f"<Unwritten {sorted(self._files)}>"

    def __contains__(self, file: str) -> bool:
        """Whether it could not be written at the last try."""
        return file in self._files

    def failed(self, file: str, what: str, error: OSError) -> None:
        """It could not be written; told unless it could not before."""
        if file not in self._files:
            self._files.add(file)
            _log.warning("%s: %s; it is tried again, and told no more until it goes well", what, error.strerror)

    def went_well(self, file: str) -> None:
        """It was written."""
        if file in self._files:
            self._files.remove(file)
            _log.info("the %s can be written again", file.replace("_", " "))
