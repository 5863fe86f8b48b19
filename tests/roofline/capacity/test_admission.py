"""Caps of a worker from its cache and its knee."""

from __future__ import annotations

import pytest

from roofline.capacity.admission import FILL_RATIO, KNEE_RATIO, cap_requests, cap_tokens
from roofline.capacity.knee import knee
from roofline.expected import DEFAULT_LOSSES
from tests.roofline.workers import a_worker

VLLM = DEFAULT_LOSSES["vllm"]
LLAMA = a_worker("Llama-3.1-8B", "h100-sxm")


def test_tokens_fill_the_cache_by_what_requests_take_on_average() -> None:
    """Requests whose budgets overstate their contexts twofold may have budgets of twice the cache, less the headroom."""
    assert cap_tokens(100_000, 1.0) == pytest.approx(100_000 * FILL_RATIO)
    assert cap_tokens(100_000, 2.0) == pytest.approx(200_000 * FILL_RATIO)


@pytest.mark.parametrize("context", [256, 4_096, 65_536])
def test_requests_follow_the_knee(context: int) -> None:
    """They are no constant: a longer context bends throughput at fewer requests."""
    assert cap_requests(LLAMA, VLLM, context) == pytest.approx(KNEE_RATIO * knee(LLAMA, VLLM, context).batch)


def test_there_is_a_cap_for_no_context_at_all() -> None:
    """Requests without tokens are taken for the shortest."""
    assert cap_requests(LLAMA, VLLM, 0) == cap_requests(LLAMA, VLLM, 1)
