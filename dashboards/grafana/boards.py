"""All boards."""

from __future__ import annotations

from collections.abc import Mapping

from dashboards.grafana import cache, capacity, gateway, keys, long_context, on_call, worker
from dashboards.grafana.values import Board

BOARDS: tuple[Board, ...] = (
    on_call.board(),
    worker.board(),
    cache.board(),
    long_context.board(),
    capacity.board(),
    keys.board(),
    gateway.board(),
)


def panel_path(alert: str, chosen: Mapping[str, str]) -> str:
    """Path in Grafana of the panel that shows an alert's reason, with these values of variables chosen, by name.

    Of several boards that have one it is the first that knows the most of the variables; those that it lacks are left out.
    LookupError where no panel shows the alert.
    """

    def known(board: Board) -> list[str]:
        return [name for name in chosen if name in {variable.name for variable in board.variables}]

    able = [board for board in BOARDS if any(alert in panel.alerts for panel in board.panels)]
    if not able:
        raise LookupError(f"no panel shows the reason of {alert}")
    board = max(able, key=lambda one: len(known(one)))
    number = next(number for number, panel in enumerate(board.panels, 1) if alert in panel.alerts)
    return f"/d/{board.uid}?viewPanel={number}" + "".join(f"&var-{name}={chosen[name]}" for name in known(board))
