"""A worker's metrics page: the figures that the gateway picks are those of Prometheus' own parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf

from prometheus_client.parser import text_string_to_metric_families

from proxy.control.worker_page import WorkerFigures, scan_page
from tests.fuzz.inputs import put_together, take_apart

WORDS = (
    *(b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    *(b"process_start_time_seconds", b"vllm:cache_config_info{", b'kv_cache_size_tokens="', b'num_gpu_blocks="', b"{", b"} "),
    *(
        b'block_size="16"',
        b'engine="0"',
        b"# HELP ",
        b"# TYPE ",
        b"\n",
        b" 1.0\n",
        b"NaN",
        b"+Inf",
        b"1e3",
        b"-1",
        b'\\"',
        b"_1",
    ),
)
LONGEST = 800
_NAMES = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "started_unix_seconds": ("process_start_time_seconds",),
}

_PAGE = re.compile(rb'(?:(?:#[^\r\n]*|[\w:]+(?:\{(?:[\w]+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? [-+.\w]+(?: [0-9]+)?)?\n)*')


def check(data: bytes, scan: Callable[[bytes], WorkerFigures | None] = scan_page) -> None:
    """Sums and largest values of the samples of each name, and nothing where one of them is no figure."""
    page = b"".join(take_apart(data)[1])
    found = scan(page)
    if found is not None:
        for figure in (found.running, found.waiting, found.kv_usage_ratio, found.started_unix_seconds, found.kv_tokens):
            assert figure is None or 0 <= figure < inf
    samples = _samples(page)
    if samples is None or not _PAGE.fullmatch(page):  # not in the plainest form, where readers may differ
        return
    expected = {figure: _merged(figure, samples) for figure in _NAMES}
    if any(expected[figure] is not None for figure in ("running", "waiting", "kv_usage_ratio")):
        assert found is not None
        assert {figure: getattr(found, figure) for figure in _NAMES} == expected
    else:
        assert found is None


def _samples(page: bytes) -> dict[str, list[float]] | None:
    """The values of each name; None if it is no page."""
    found: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(float(sample.value))
    except (ValueError, IndexError, KeyError):
        return None
    return found


def _merged(figure: str, samples: dict[str, list[float]]) -> float | None:
    values = next((samples[name] for name in _NAMES[figure] if name in samples), [])
    if not values or not all(0 <= value < inf for value in values):
        return None
    return sum(values) if figure in ("running", "waiting") else max(values)


def seeds() -> list[bytes]:
    """Pages of several versions, whole and broken."""
    page = (
        b"# HELP vllm:num_requests_running Number\n# TYPE vllm:num_requests_running gauge\n"
        b'vllm:num_requests_running{engine="0",model_name="a\\"}b"} 3.0\nvllm:num_requests_running{engine="1"} 2\n'
        b'vllm:num_requests_waiting{engine="0"} 0.0\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",enable_prefix_caching="True"} 1.0\n'
        b"process_start_time_seconds 1.7e+09\n"
    )
    old = page.replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc").replace(b" 3.0", b" NaN")
    other = b'vllm:cache_config_info{kv_cache_size_tokens="1000"} 1.0\nvllm:num_requests_waiting 5 1700000000000\n'
    return [put_together(each) for each in (page, old, other, page + other, page[:-5], b"<html></html>\n")]
