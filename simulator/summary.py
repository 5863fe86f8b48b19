"""One line about a gateway, read from its own metrics page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_REQUESTS = "ridgeline_requests_total"
_CACHED = "ridgeline_cached_tokens_total"
_CACHE_KNOWN = "ridgeline_cache_known_prompt_tokens_total"
_TTFT = "ridgeline_ttft_seconds"
_TPOT = "ridgeline_tpot_seconds"
NAMES = frozenset({_REQUESTS, _CACHED, _CACHE_KNOWN, _TTFT, _TPOT})
"""The families that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Sums over all pools and workers since the gateway started."""

    requests: float = 0
    cached_tokens: float = 0
    cache_known_prompt_tokens: float = 0
    ttft_seconds: float = 0
    ttft_count: float = 0
    tpot_seconds: float = 0
    tpot_count: float = 0


def read_page(page: str) -> Reading:
    """The sums on a metrics page; 0 for what is not on it. ``ValueError`` if it is no metrics page."""
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            sums[sample.name] += sample.value  # type: ignore[assignment]  # Counter's values are typed int
    return Reading(
        requests=sums[_REQUESTS],
        cached_tokens=sums[_CACHED],
        cache_known_prompt_tokens=sums[_CACHE_KNOWN],
        ttft_seconds=sums[f"{_TTFT}_sum"],
        ttft_count=sums[f"{_TTFT}_count"],
        tpot_seconds=sums[f"{_TPOT}_sum"],
        tpot_count=sums[f"{_TPOT}_count"],
    )


def summary_line(now: Reading, before: Reading) -> str:
    """Requests so far and since ``before``; the means and the hit share are of the time since ``before``."""
    ttft = _quotient(now.ttft_seconds - before.ttft_seconds, now.ttft_count - before.ttft_count)
    tpot = _quotient(now.tpot_seconds - before.tpot_seconds, now.tpot_count - before.tpot_count)
    known = now.cache_known_prompt_tokens - before.cache_known_prompt_tokens
    hit = _quotient(now.cached_tokens - before.cached_tokens, known)
    return "   ".join(
        (
            f"requests {now.requests:.0f} (+{now.requests - before.requests:.0f})",
            f"mean ttft {'-' if ttft is None else f'{ttft * 1000:.0f} ms'}",
            f"mean tpot {'-' if tpot is None else f'{tpot * 1000:.1f} ms'}",
            f"cache hits {'-' if hit is None else f'{hit:.0%} of prompt tokens'}",
        )
    )


def _quotient(total: float, count: float) -> float | None:
    return total / count if count > 0 else None
