"""PromQL as functions: each returns an expression for the models, pools and workers that are chosen on the board.

A denominator is never 0: where nothing was asked a share does not exist, and the panel says so.
"""

from __future__ import annotations

from telemetry.exposition import bound_text

ROUTE = 'model=~"$model",pool=~"$pool"'
"""Selector for families kept per model and pool."""

WORKER = f'{ROUTE},worker=~"$worker"'
"""Selector for families kept per worker."""

KEY = 'key=~"$key"'
"""Selector for families kept per API key."""

INTERVAL = "$__rate_interval"


def series(name: str, selector: str = ROUTE, *more: str) -> str:
    """The samples of a gauge, or the counter inside a rate; ``more`` are further matchers."""
    matchers = ",".join(part for part in (selector, *more) if part)
    return f"{name}{{{matchers}}}" if matchers else name


def rate(name: str, selector: str = ROUTE, *more: str, window: str = INTERVAL, offset: str = "") -> str:
    """Growth of a counter per second; with ``offset`` (a duration) as it was so long ago."""
    return f"rate({series(name, selector, *more)}[{window}]{f' offset {offset}' if offset else ''})"


def total(inner: str, *by: str) -> str:
    """Sum over everything but the labels ``by``."""
    return f"sum by ({', '.join(by)}) ({inner})" if by else f"sum({inner})"


def per_minute(name: str, *by: str, selector: str = ROUTE, more: tuple[str, ...] = ()) -> str:
    """How often a counter rose, per minute."""
    return f"{total(rate(name, selector, *more), *by)} * 60"


def present(inner: str) -> str:
    """Only the series that are above 0: of a dozen kinds the legend then has those that there are."""
    return f"{inner} > 0"


def share(part: str, whole: str) -> str:
    """``part`` of ``whole``; does not exist where there is no whole."""
    return f"{part} / ({whole} > 0)"


def quantile(at: float, family: str, *by: str, selector: str = ROUTE, more: tuple[str, ...] = ()) -> str:
    """Value below which this share of a histogram's observations lies; not a number without any."""
    return f"histogram_quantile({at:g}, {total(rate(f'{family}_bucket', selector, *more), *by, 'le')})"


def mean(family: str, *by: str, selector: str = ROUTE, more: tuple[str, ...] = ()) -> str:
    """Sum over count of a histogram."""
    return share(total(rate(f"{family}_sum", selector, *more), *by), total(rate(f"{family}_count", selector, *more), *by))


def share_upto(bound: float, family: str, *by: str, selector: str = ROUTE, more: tuple[str, ...] = ()) -> str:
    """Share of a histogram's observations of at most ``bound``, which is one of its bounds."""
    below = total(rate(f"{family}_bucket", selector, f'le="{bound_text(float(bound))}"', *more), *by)
    return share(below, total(rate(f"{family}_count", selector, *more), *by))


def share_above(bound: float, family: str, *by: str, selector: str = ROUTE, more: tuple[str, ...] = ()) -> str:
    """Share of a histogram's observations above ``bound``, which is one of its bounds."""
    return f"1 - {share_upto(bound, family, *by, selector=selector, more=more)}"


def hit_share(*by: str) -> str:
    """Share of prompt tokens that came from the workers' prefix caches, of the requests where it is known."""
    return share(
        total(rate("ridgeline_cached_tokens_total"), *by), total(rate("ridgeline_cache_known_prompt_tokens_total"), *by)
    )


def failed_share(*by: str) -> str:
    """Share of requests that failed and not by their client's doing."""
    return share(
        total(rate("ridgeline_requests_total", ROUTE, f'outcome!~"{"|".join(NOT_FAILED)}"'), *by),
        total(rate("ridgeline_requests_total"), *by),
    )


NOT_FAILED = ("ok", "client_error", "client_gone", "rejected", "worker_busy")
"""Outcomes that are no failure of gateway or worker; refusals have panels of their own."""
