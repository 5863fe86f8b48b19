"""What is read from a worker's pages, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.control.worker_page import WorkerFigures, read_version, scan_page

PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
"""


def a_cache_line(engine: int, **labels: object) -> bytes:
    """The settings of one engine's cache, as the page has them."""
    text = ",".join(f'{name}="{value}"' for name, value in {"engine": engine, **labels}.items())
    return b"vllm:cache_config_info{" + text.encode() + b"} 1.0\n"


def test_page_of_one_engine() -> None:
    """The three figures are found, and not mistaken for names they are the start of."""
    assert scan_page(PAGE) == WorkerFigures(running=3.0, waiting=2.0, kv_usage_ratio=0.25)


def test_page_of_several_engines() -> None:
    """Requests are summed over the engines of a worker; of their KV caches the fullest counts."""
    second = PAGE.replace(b'engine="0"', b'engine="1"').replace(b"} 0.25", b"} 0.75")

    assert scan_page(PAGE + second) == WorkerFigures(running=6.0, waiting=4.0, kv_usage_ratio=0.75)


def test_page_of_old_versions() -> None:
    """The old name of the KV usage is read where the new one is missing, and not added to it where both are there."""
    old = b'vllm:gpu_cache_usage_perc{model_name="tiny"} 0.5\n'

    assert scan_page(old) == WorkerFigures(running=None, waiting=None, kv_usage_ratio=0.5)
    assert scan_page(PAGE + old) == scan_page(PAGE)


@pytest.mark.parametrize(
    ("line", "running"),
    [
        (b"vllm:num_requests_running 4\n", 4.0),
        (b'vllm:num_requests_running{a="} 9 {"} 4 1700000000000\r\n', 4.0),
        (b"vllm:num_requests_running{} 1e2\n", 100.0),
        (b"vllm:num_requests_running{} 0\n", 0.0),
        (b"vllm:num_requests_running{} NaN\n", None),
        (b"vllm:num_requests_running{} +Inf\n", None),
        (b"vllm:num_requests_running{} -1\n", None),
        (b"vllm:num_requests_running{} \n", None),
        (b"vllm:num_requests_running{\n", None),
        (b"vllm:num_requests_running{} four\n", None),
        (b'vllm:num_requests_running{engine="0"} 4\nvllm:num_requests_running{engine="1"} NaN\n', None),
        (b"# vllm:num_requests_running 4\n", None),
        (b'vllm:num_requests_running 4 and{engine="0"} 5\n', 4.0),
    ],
)
def test_lines_of_a_page(line: bytes, running: float | None) -> None:
    """A value is taken only where it is a number that a count can be; a sum with an unknown part is unknown."""
    figures = scan_page(line + b"vllm:num_requests_waiting 1\n")

    assert figures is not None
    assert figures.running == running


@pytest.mark.parametrize(
    "page",
    [b"", b"\n", b"<html><body>vllm:num_requests_running 4</body></html>\n", PAGE[:-20], b"\xff\xfe\x00\n", b"python_info 1\n"],
)
def test_what_is_no_page(page: bytes) -> None:
    """A page that was cut, or has none of the figures, is a failed scrape and not a row of zeros."""
    assert scan_page(page) is None


@pytest.mark.parametrize(
    ("page", "version"),
    [
        (b'{"version":"0.32.0"}', "0.32.0"),
        (b'{"version": "0.11.1rc2.dev12+g1a2b3c.cu129", "more": {}}', "0.11.1rc2.dev12+g1a2b3c.cu129"),
        (b'{"version": 11}', None),
        (b'{"version": "with blanks"}', None),
        (b'{"version": "' + b"9" * 65 + b'"}', None),
        (b'["0.32.0"]', None),
        (b"0.32.0", None),
        (b'{"version": "\xff"}', None),
        (b"", None),
    ],
)
def test_what_a_version_page_says(page: bytes, version: str | None) -> None:
    """A version is a short word without blanks; whatever else comes is none."""
    assert read_version(page) == version


@pytest.mark.parametrize(
    ("lines", "tokens"),
    [
        (a_cache_line(0, block_size=16, num_gpu_blocks=1000), 16_000.0),
        (a_cache_line(0, block_size=16, num_gpu_blocks=1000) + a_cache_line(1, block_size=16, num_gpu_blocks=500), 24_000.0),
        (a_cache_line(0, block_size=16, kv_cache_size_tokens=20_000, num_gpu_blocks=1000), 20_000.0),
        (a_cache_line(0, block_size=16, user_specified_block_size=8, num_gpu_blocks="None"), None),
        (a_cache_line(0, block_size=16, num_gpu_blocks=1000) + a_cache_line(1, block_size=16), None),
        (a_cache_line(0, block_size=16, num_gpu_blocks=0), None),
        (b"# TYPE vllm:cache_config_info gauge\n", None),
    ],
)
def test_the_size_of_the_cache_is_read(lines: bytes, tokens: float | None) -> None:
    """Tokens over all engines, as the page says itself or as blocks of so many; unknown where one engine does not tell."""
    figures = scan_page(PAGE + lines)

    assert figures is not None
    assert figures.kv_tokens == tokens


def test_the_size_of_the_cache_of_a_real_page() -> None:
    """A captured page of vLLM 0.32 has 2,097,152 tokens in 16,384 blocks of 128."""
    page = (Path(__file__).parents[2] / "data/metrics/vllm-0.32.0.txt").read_bytes()

    figures = scan_page(page if page.endswith(b"\n") else page + b"\n")

    assert figures is not None
    assert figures.kv_tokens == 2_097_152.0
