"""Lines for people on standard error: start, stop, a child that died, a worker whose health changed.

Standard library without `logging`, because the supervisor uses it and stays small.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

_STANDARD_ERROR = 2


def notice(level: str, text: str) -> None:
    """Write one line: time in UTC, level, text. Further lines of the text are indented.

    A line is lost rather than waited for when nobody reads the other end.
    """
    now = time.time()
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    line = f"{moment}.{int(now % 1 * 1000):03d}Z {level} {text}".replace("\n", "\n    ") + "\n"
    with suppress(OSError):
        poll = select.poll()
        poll.register(_STANDARD_ERROR, select.POLLOUT)
        if poll.poll(0):
            os.write(_STANDARD_ERROR, line.encode("utf-8", "backslashreplace"))
