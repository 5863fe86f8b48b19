"""What the control process opens at its start beside its listeners, and why it may not start."""

from __future__ import annotations

from proxy.config.sections import SharedQuotasConfig
from proxy.control.leasing import LimitStore
from proxy.notices import notice
from telemetry.sinks.jsonlog import JsonLog


class CannotStartError(Exception):
    """A setting names something that cannot be opened; the text says which and why."""


def open_log(path: str) -> JsonLog:
    """The request log; faults of it are told. Raises CannotStartError."""
    try:
        return JsonLog(path, on_fault=lambda text: notice("ERROR", text))
    except OSError as error:
        raise CannotStartError(f"cannot open the request log {path}: {error.strerror}") from error


def open_store(settings: SharedQuotasConfig) -> LimitStore | None:
    """Where quotas are shared with other gateways; ``None``: they are not. Raises CannotStartError."""
    if settings.store is None:
        return None
    from proxy.control.redis_limits import RedisLimits  # noqa: PLC0415 -- an extra

    try:
        return RedisLimits(settings.store.get_secret_value())
    except ImportError as error:
        raise CannotStartError("quotas.store needs more packages: pip install 'ridgeline[quotas]'") from error
