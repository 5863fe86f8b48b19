"""Holds a memory budget against what a running worker says of its cache, and tells what differs.

vLLM tells its cache settings as the labels of ``vllm:cache_config_info``; a label may be "None".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from roofline.capacity.memory import MemoryBudget

TOLERANCE_RATIO = 0.10  # the reserve is an estimate: a gibibyte of it is a few percent of most caches
_NATIVE_NAMES = {"auto", "bfloat16", "float16", "bf16", "fp16", "half"}


class FindingCode(StrEnum):
    """What was found; a few of them, so that they may become labels."""

    AGREES = "agrees"
    FEWER_TOKENS = "fewer_tokens"
    MORE_TOKENS = "more_tokens"
    CACHE_DTYPE = "cache_dtype"
    UTILIZATION = "utilization"
    FIXED_SIZE = "fixed_size"
    NOT_TOLD = "not_told"
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference between theory and worker. ``ratio`` is worker / theory where there is one."""

    code: FindingCode
    text: str
    ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """What a worker says of its cache; ``None`` where it does not say."""

    num_gpu_blocks: int | None = None  # of all data-parallel engines together
    block_size: int | None = None  # tokens
    gpu_memory_utilization: float | None = None
    cache_dtype: str | None = None
    kv_cache_size_tokens: int | None = None  # of one engine, for sequences of the longest length; not in older versions
    kv_cache_memory_bytes: int | None = None  # set by hand, per GPU
    num_gpu_blocks_override: int | None = None

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> CacheSettings:
        """From the labels of ``vllm:cache_config_info``. A label that is missing, "None" or no number counts as not said."""
        return cls(
            num_gpu_blocks=_whole(labels, "num_gpu_blocks"),
            block_size=_whole(labels, "block_size"),
            gpu_memory_utilization=_number(labels, "gpu_memory_utilization"),
            cache_dtype=_text(labels, "cache_dtype"),
            kv_cache_size_tokens=_whole(labels, "kv_cache_size_tokens"),
            kv_cache_memory_bytes=_whole(labels, "kv_cache_memory_bytes"),
            num_gpu_blocks_override=_whole(labels, "num_gpu_blocks_override"),
        )


def check_against_worker(
    budget: MemoryBudget, worker: CacheSettings, *, max_model_tokens: int | None = None
) -> tuple[Finding, ...]:
    """What the worker's cache says about the budget, most telling first; never empty.

    Tokens are compared at the worker's own utilization, or at the size it was given by hand. ``max_model_tokens`` is its
    --max-model-len, which matters for models with windows or recurrent states.
    """
    findings = []
    kv_bytes = budget.kv_bytes
    told_utilization = worker.gpu_memory_utilization
    if worker.num_gpu_blocks_override is not None:
        text = f"the number of blocks was set by hand to {worker.num_gpu_blocks_override} (--num-gpu-blocks-override)"
        return (Finding(code=FindingCode.FIXED_SIZE, text=text), *_dtype_findings(budget, worker))
    if worker.kv_cache_memory_bytes is not None:
        kv_bytes = float(worker.kv_cache_memory_bytes)
        text = f"the cache was set by hand to {worker.kv_cache_memory_bytes} bytes per GPU; the utilization does not count"
        findings.append(Finding(code=FindingCode.FIXED_SIZE, text=text, ratio=_ratio(kv_bytes, budget.kv_bytes)))
    elif told_utilization is not None and told_utilization != budget.settings.utilization_ratio:
        kv_bytes = max(0.0, kv_bytes + (told_utilization - budget.settings.utilization_ratio) * budget.device_bytes)
        text = (
            f"the worker may use {told_utilization:.2f} of the memory, the budget says {budget.settings.utilization_ratio:.2f}"
        )
        ratio = told_utilization / budget.settings.utilization_ratio
        findings.append(Finding(code=FindingCode.UTILIZATION, text=text, ratio=ratio))
    dtype_findings = _dtype_findings(budget, worker)
    if dtype_findings:  # tokens of another width cannot be compared
        return (*dtype_findings, *findings)
    return (_token_finding(budget, worker, kv_bytes, max_model_tokens), *findings)


def _token_finding(budget: MemoryBudget, worker: CacheSettings, kv_bytes: float, max_model_tokens: int | None) -> Finding:
    told = _engine_tokens(budget, worker)
    if told is None:
        missing = "num_gpu_blocks" if worker.num_gpu_blocks is None else "block_size"
        return Finding(code=FindingCode.NOT_TOLD, text=f"the worker does not tell {missing}, so its cache cannot be checked")
    if not budget.rank.grows_evenly and worker.kv_cache_size_tokens is None:
        text = (
            "blocks of several kinds of layers share one pool, so blocks x block size is not the capacity;"
            " newer versions tell kv_cache_size_tokens"
        )
        return Finding(code=FindingCode.NOT_COMPARABLE, text=text)
    length = max_model_tokens or budget.deployment.shape.max_context_tokens or told
    wanted = kv_bytes / budget.sequence_bytes(length) * length
    ratio = _ratio(told, wanted)
    if ratio is None:
        text = f"the worker holds {told} tokens, by this budget nothing is left for a cache: weights are narrower than said"
        return Finding(code=FindingCode.MORE_TOKENS, text=text)
    numbers = f"{told} tokens in one engine, {wanted:.0f} by this budget ({ratio:.2f} of it)"
    if ratio < 1 - TOLERANCE_RATIO:
        text = (
            f"{numbers}: something else takes memory (another process, vision or draft models, LoRA, larger"
            " --max-num-batched-tokens or --max-num-seqs), or weights are wider than said"
        )
        return Finding(code=FindingCode.FEWER_TOKENS, text=text, ratio=ratio)
    if ratio > 1 + TOLERANCE_RATIO:
        text = f"{numbers}: weights or cache are narrower than said, or more GPUs share the model"
        return Finding(code=FindingCode.MORE_TOKENS, text=text, ratio=ratio)
    return Finding(code=FindingCode.AGREES, text=numbers, ratio=ratio)


def _engine_tokens(budget: MemoryBudget, worker: CacheSettings) -> int | None:
    if worker.kv_cache_size_tokens is not None:
        return worker.kv_cache_size_tokens
    if worker.num_gpu_blocks is None or worker.block_size is None:
        return None
    return worker.num_gpu_blocks * worker.block_size // budget.deployment.parallelism.data


def _dtype_findings(budget: MemoryBudget, worker: CacheSettings) -> tuple[Finding, ...]:
    told, assumed = worker.cache_dtype, budget.deployment.kv.name
    if (
        told is None
        or told == assumed
        or {told, assumed} <= _NATIVE_NAMES
        or (told.startswith("fp8") and assumed.startswith("fp8"))
    ):
        return ()
    text = f"the worker stores its cache as {told}, the budget assumes {assumed}: make the budget again with that"
    return (Finding(code=FindingCode.CACHE_DTYPE, text=text),)


def _ratio(told: float, wanted: float) -> float | None:
    return told / wanted if wanted > 0 else None


def _text(labels: Mapping[str, str], name: str) -> str | None:
    value = labels.get(name)
    return None if value in (None, "", "None") else value


def _number(labels: Mapping[str, str], name: str) -> float | None:
    try:
        return float(_text(labels, name) or "")
    except ValueError:
        return None


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    number = _number(labels, name)
    return int(number) if number is not None and number.is_integer() else None
