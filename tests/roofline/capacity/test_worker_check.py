"""A budget against what a worker says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.capacity.memory import MemoryBudget, MemorySettings, memory_budget
from roofline.capacity.worker_check import CacheSettings, Finding, FindingCode, check_against_worker
from tests.roofline.workers import a_worker

# As vLLM 0.32 told it; parts that matter here.
LABELS = {
    "block_size": "128",
    "cache_dtype": "auto",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "kv_cache_max_concurrency": "64.0",
    "kv_cache_memory_bytes": "1073741824",
    "kv_cache_size_tokens": "2097152",
    "num_gpu_blocks": "16384",
    "num_gpu_blocks_override": "None",
    "sliding_window": "None",
}


@pytest.fixture(scope="module")
def budget() -> MemoryBudget:
    return memory_budget(a_worker("Llama-3.1-8B", "h100-sxm"))


def a_worker_with(budget: MemoryBudget, share: float, **settings: object) -> CacheSettings:
    """A worker whose cache is so large a share of the budget's."""
    blocks = int(budget.tokens() * share) // 16
    told = CacheSettings(num_gpu_blocks=blocks, block_size=16, gpu_memory_utilization=0.92, cache_dtype="auto")
    return replace(told, **settings)


def codes(findings: tuple[Finding, ...]) -> list[FindingCode]:
    return [finding.code for finding in findings]


def test_labels_are_read() -> None:
    """Numbers become numbers; "None" and what is missing was not said."""
    assert CacheSettings.from_labels(LABELS) == CacheSettings(
        num_gpu_blocks=16384,
        block_size=128,
        gpu_memory_utilization=0.92,
        cache_dtype="auto",
        kv_cache_size_tokens=2097152,
        kv_cache_memory_bytes=1073741824,
    )
    assert CacheSettings.from_labels({"num_gpu_blocks": "None", "block_size": "sixteen", "cache_dtype": ""}) == CacheSettings()
    assert CacheSettings.from_labels({"num_gpu_blocks": "inf", "block_size": "nan"}) == CacheSettings()


@pytest.mark.parametrize(
    ("share", "code"),
    [
        (1.0, FindingCode.AGREES),
        (0.91, FindingCode.AGREES),
        (1.09, FindingCode.AGREES),
        (0.89, FindingCode.FEWER_TOKENS),
        (1.11, FindingCode.MORE_TOKENS),
    ],
)
def test_tokens_are_compared(budget: MemoryBudget, share: float, code: FindingCode) -> None:
    """A tenth more or less is the reserve's uncertainty; beyond, something is not as assumed."""
    (finding,) = check_against_worker(budget, a_worker_with(budget, share))

    assert finding.code is code
    assert finding.ratio == pytest.approx(share, rel=1e-3)


def test_newer_workers_say_their_tokens(budget: MemoryBudget) -> None:
    """kv_cache_size_tokens counts before blocks x block size."""
    worker = a_worker_with(budget, 0.2, kv_cache_size_tokens=budget.tokens())

    assert codes(check_against_worker(budget, worker)) == [FindingCode.AGREES]


def test_another_utilization_is_told_and_allowed_for(budget: MemoryBudget) -> None:
    """A worker that may use less is compared at what it may use, and the difference is a finding of its own."""
    settings = MemorySettings(utilization_ratio=0.5)
    smaller = memory_budget(budget.deployment, settings)
    worker = replace(a_worker_with(smaller, 1.0), gpu_memory_utilization=0.5)

    findings = check_against_worker(budget, worker)

    assert codes(findings) == [FindingCode.AGREES, FindingCode.UTILIZATION]
    assert findings[0].ratio == pytest.approx(1.0, rel=1e-3)
    assert findings[1].ratio == pytest.approx(0.5 / 0.92)


def test_a_cache_of_another_width_is_not_compared(budget: MemoryBudget) -> None:
    """Twice the tokens in half the width are no surprise, so only the width is told."""
    findings = check_against_worker(budget, a_worker_with(budget, 2.0, cache_dtype="fp8_e4m3"))

    assert codes(findings) == [FindingCode.CACHE_DTYPE]
    assert "fp8_e4m3" in findings[0].text


@pytest.mark.parametrize(("assumed", "told"), [("auto", "bfloat16"), ("fp8", "fp8_e4m3"), ("fp8", "fp8")])
def test_other_words_for_the_same_width_agree(assumed: str, told: str) -> None:
    """ "auto" is the model's own format, and all fp8 formats take one byte."""
    budget = memory_budget(a_worker("Llama-3.1-8B", "h100-sxm", kv=assumed))

    assert codes(check_against_worker(budget, a_worker_with(budget, 1.0, cache_dtype=told))) == [FindingCode.AGREES]


def test_a_size_set_by_hand_is_what_counts(budget: MemoryBudget) -> None:
    """With --kv-cache-memory-bytes the tokens are held against those bytes, not against the utilization."""
    worker = a_worker_with(budget, 1.0, kv_cache_memory_bytes=131_072 * 16_000, num_gpu_blocks=1_000)

    findings = check_against_worker(budget, worker)

    assert codes(findings) == [FindingCode.AGREES, FindingCode.FIXED_SIZE]
    assert findings[0].ratio == pytest.approx(1.0)


def test_blocks_set_by_hand_say_nothing(budget: MemoryBudget) -> None:
    """--num-gpu-blocks-override makes a comparison pointless."""
    findings = check_against_worker(budget, a_worker_with(budget, 0.1, num_gpu_blocks_override=512))

    assert codes(findings) == [FindingCode.FIXED_SIZE]


@pytest.mark.parametrize(("missing", "named"), [("num_gpu_blocks", "num_gpu_blocks"), ("block_size", "block_size")])
def test_what_is_not_told_cannot_be_checked(budget: MemoryBudget, missing: str, named: str) -> None:
    """A worker whose labels say "None" is no fault, and the finding names what is missing."""
    findings = check_against_worker(budget, a_worker_with(budget, 1.0, **{missing: None}))

    assert codes(findings) == [FindingCode.NOT_TOLD]
    assert named in findings[0].text


def test_blocks_of_hybrid_models_are_not_tokens() -> None:
    """Where layers with windows share a pool of blocks, only kv_cache_size_tokens can be compared."""
    budget = memory_budget(a_worker("gpt-oss-20b", "h100-sxm", weights="mxfp4-experts"))
    blocks = CacheSettings(num_gpu_blocks=100_000, block_size=16)
    tokens = replace(blocks, kv_cache_size_tokens=budget.tokens(131_072))

    assert codes(check_against_worker(budget, blocks)) == [FindingCode.NOT_COMPARABLE]
    assert codes(check_against_worker(budget, tokens, max_model_tokens=131_072)) == [FindingCode.AGREES]


def test_blocks_are_those_of_all_data_parallel_engines() -> None:
    """num_gpu_blocks is a sum over engines, kv_cache_size_tokens is of one."""
    budget = memory_budget(a_worker("Llama-3.1-8B", "h100-sxm", data=4))
    by_blocks = CacheSettings(num_gpu_blocks=budget.tokens() // 16, block_size=16)
    by_tokens = CacheSettings(kv_cache_size_tokens=budget.tokens() // 4)

    assert codes(check_against_worker(budget, by_blocks)) == [FindingCode.AGREES]
    assert codes(check_against_worker(budget, by_tokens)) == [FindingCode.AGREES]


def test_a_worker_that_runs_what_cannot_fit() -> None:
    """If nothing should be left and something is, the weights are not what was said."""
    budget = memory_budget(a_worker("Llama-3.1-70B", "h100-sxm"))
    (finding,) = check_against_worker(budget, CacheSettings(num_gpu_blocks=1_000, block_size=16))

    assert finding.code is FindingCode.MORE_TOKENS
    assert finding.ratio is None
