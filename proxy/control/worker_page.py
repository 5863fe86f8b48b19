"""What a worker's pages say, read from their bytes: its load from `/metrics`, its version from `/version`.

A page has a thousand lines, of which six families matter; whatever it holds, the worst is an unknown figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, nan

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What a worker's metrics page says of its load, over all its engines. ``None``: it does not say, or no number."""

    running: float | None
    waiting: float | None
    kv_usage_ratio: float | None  # the largest of the engines, 0 to 1
    started_unix_seconds: float | None = None  # when its API server's process began, by the worker's own clock
    kv_tokens: float | None = None  # that its KV cache holds, over all its engines


def scan_page(page: bytes) -> WorkerFigures | None:
    """Return the figures on a vLLM metrics page; ``None`` when it is cut off or has none of them.

    Only the lines asked for are looked at: a page has a thousand.
    """
    if not page.endswith(b"\n"):
        return None
    running = _known(sum, _samples(page, b"vllm:num_requests_running"))
    waiting = _known(sum, _samples(page, b"vllm:num_requests_waiting"))
    usage = _samples(page, b"vllm:kv_cache_usage_perc") or _samples(page, b"vllm:gpu_cache_usage_perc")  # name before 0.11
    kv_usage_ratio = _known(max, usage)
    if running is None and waiting is None and kv_usage_ratio is None:
        return None
    started = _known(max, _samples(page, b"process_start_time_seconds"))
    return WorkerFigures(
        running=running,
        waiting=waiting,
        kv_usage_ratio=kv_usage_ratio,
        started_unix_seconds=started,
        kv_tokens=_kv_tokens(page),
    )


_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")


def read_version(page: bytes) -> str | None:
    """The version that vLLM's page of that name has; ``None`` when it is no such page."""
    try:
        found = msgspec.json.decode(page, type=dict[str, msgspec.Raw]).get("version")
        version = None if found is None else msgspec.json.decode(found, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return version if version is not None and _VERSION.fullmatch(version) else None


_CACHE_SIZE = re.compile(rb'[{,](kv_cache_size_tokens|num_gpu_blocks|block_size)="(\d{1,15})"')


def _kv_tokens(page: bytes) -> float | None:
    """The size of the cache from its settings, of which there is a line for each engine. ``None`` if one does not say it."""
    total = 0
    for line in _lines(page, b"vllm:cache_config_info{"):
        found = {name: int(digits) for name, digits in _CACHE_SIZE.findall(line)}
        # Where layers keep different things, blocks do not tell what fits: newer versions say it in tokens.
        tokens = found.get(b"kv_cache_size_tokens") or found.get(b"num_gpu_blocks", 0) * found.get(b"block_size", 0)
        if not tokens:
            return None
        total += tokens
    return float(total) or None


def _lines(page: bytes, start: bytes) -> Iterator[bytes]:
    at = page.find(b"\n" + start)
    while at >= 0:
        end = page.find(b"\n", at + 1)
        yield page[at + 1 : end]
        at = page.find(b"\n" + start, end)


def _samples(page: bytes, name: bytes) -> list[float]:
    values: list[float] = []
    start = page.find(name)
    while start >= 0:
        end = page.find(b"\n", start)
        behind = start + len(name)
        if (start == 0 or page[start - 1 : start] == b"\n") and page[behind : behind + 1] in (b"{", b" "):
            text = page[behind:end]
            value, *_ = (text.rpartition(b"}")[2] if text.startswith(b"{") else text).split() or [
                b""
            ]  # a time stamp may follow
            try:
                values.append(float(value))
            except ValueError:
                values.append(nan)
        start = page.find(name, end)
    return values


def _known(merge: Callable[[list[float]], float], values: list[float]) -> float | None:
    if not values or not all(0 <= value < inf for value in values):
        return None
    return float(merge(values))
