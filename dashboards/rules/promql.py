"""Pieces that expressions are put together from. Everything is per model and pool unless it says otherwise."""

from __future__ import annotations

from telemetry.exposition import bound_text

POOL = "model, pool"
WORKER = "model, pool, worker"


def number(value: float) -> str:
    """A threshold as it is written: whole numbers without a point."""
    return f"{value:.10g}"


def rate(series: str, window: str, by: str = POOL) -> str:
    """Per second, over all gateways."""
    return f"sum by ({by}) (rate({series}[{window}]))"


def increase(series: str, window: str, by: str = POOL) -> str:
    """In the window, over all gateways."""
    return f"sum by ({by}) (increase({series}[{window}]))"


def share(part: str, whole: str, window: str, by: str = POOL) -> str:
    """Part over whole; nothing where there is no traffic."""
    return f"{rate(part, window, by)} / ({rate(whole, window, by)} > 0)"


def share_above(histogram: str, bound: float, window: str) -> str:
    """Share of observations above one of the histogram's bounds, exact; nothing where there is no traffic."""
    return f"1 - {share_upto(histogram, bound, window)}"


def share_upto(histogram: str, bound: float, window: str) -> str:
    """Share of observations up to one of the histogram's bounds, that included."""
    return share(f'{histogram}_bucket{{le="{bound_text(bound)}"}}', f"{histogram}_count", window)


def quantile(which: float, histogram: str, window: str) -> str:
    """A quantile, as exact as the bounds are close."""
    return f"histogram_quantile({number(which)}, {rate(f'{histogram}_bucket', window, by=f'{POOL}, le')})"
