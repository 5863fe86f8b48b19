"""Where boards and panels link to: each other, with time and variables kept, and the runbooks of alerts."""

from __future__ import annotations

import re

RUNBOOKS_URL = "https://github.com/ridgeline/ridgeline/blob/main/docs/runbooks"
"""The folder with a page for each alert; the one place to change for a copy of your own."""

TAG = "ridgeline"
"""What all boards bear, so that each lists the others."""

ON_CALL, WORKER, CACHE, LENGTHS, LIMITS, KEYS, GATEWAY = (
    f"ridgeline-{name}" for name in ("on-call", "worker", "cache", "long-context", "limits", "keys", "gateway")
)
BOARD_OF_LABEL = {"worker": WORKER, "pool": LIMITS, "key": KEYS}
"""The board that has the details of what a label names."""

SEARCH: dict[str, tuple[str, ...]] = {WORKER: ("model", "pool"), LIMITS: ("model",), KEYS: ()}
"""Variables of the board that a link from a table's row sets from the row beside its own."""


def board_link(label: str) -> str:
    """A link from a table's cell with this label to the board of its details."""
    board = BOARD_OF_LABEL[label]
    row = "".join(f"&var-{name}=${{__data.fields.{name}}}" for name in SEARCH[board])
    return f"/d/{board}?${{datasource:queryparam}}&var-{label}=${{__value.raw}}{row}&${{__url_time_range}}"


def runbook_url(alert: str) -> str:
    """The page that tells what to do about an alert."""
    return f"{RUNBOOKS_URL}/{kebab(alert)}.md"


def kebab(alert: str) -> str:
    """An alert's name as the name of its page: ``RidgelineTtftBurn`` is ``ridgeline-ttft-burn``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", alert).lower()
