"""All boards."""

from __future__ import annotations

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
