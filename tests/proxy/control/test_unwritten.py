"""What control cannot write is told once, and known until it can be written again."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from proxy.control.unwritten import CALIBRATIONS, RUN_DIRECTORY, Unwritten


def test_a_file_is_told_once_until_it_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    """Each by itself."""
    caplog.set_level(logging.INFO)
    unwritten, full = Unwritten(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(3):
        unwritten.failed(CALIBRATIONS, "calibrations could not be kept", full)
    assert CALIBRATIONS in unwritten
    assert RUN_DIRECTORY not in unwritten
    for _ in range(2):
        unwritten.went_well(CALIBRATIONS)
    assert CALIBRATIONS not in unwritten

    assert caplog.messages == [
        "calibrations could not be kept: No space left on device; it is tried again, and told no more until it goes well",
        "the calibrations can be written again",
    ]
