"""Warnings of a plan about memory: what does not fit, and what fits too tightly."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.capacity.memory import KV_SHARE_MINIMUM_RATIO
from roofline.plan.plan import Plan
from roofline.plan.warning import PlanWarning, WarningCode, error, warning
from roofline.plan.words import gigabytes, percent, several


def memory_warnings(plan: Plan) -> Iterator[PlanWarning]:
    """Whether weights, one request and the CUDA context fit, and whether enough is left for the cache."""
    budget, total = plan.budget, plan.question.workload.total_tokens
    if budget.missing_bytes:
        needed = budget.weight_bytes + budget.reserve.total_bytes
        yield error(
            WarningCode.DOES_NOT_FIT,
            f"does not fit: weights and reserve are {gigabytes(needed)} for each GPU, usable {gigabytes(budget.usable_bytes)}",
            _what_holds_it(plan),
        )
    if plan.exceeds_context:
        longest = plan.deployment.shape.max_context_tokens
        text = f"a request of {total:,} tokens is longer than the {longest:,} that the model allows"
        yield error(WarningCode.CONTEXT_TOO_LONG, text, "fewer prompt or output tokens, or a model with a longer context")
    if plan.load is None and not budget.missing_bytes:
        yield error(
            WarningCode.REQUEST_DOES_NOT_FIT,
            f"not one request fits: its cache needs {gigabytes(budget.sequence_bytes(total))} on each GPU, "
            f"{gigabytes(budget.kv_bytes)} are left",
            _what_holds_it(plan),
        )
    if not budget.leaves_room_for_context:
        yield warning(
            WarningCode.NO_ROOM_FOR_CUDA_CONTEXT,
            f"a utilization of {budget.settings.utilization_ratio:g} leaves {gigabytes(budget.outside_bytes)} "
            "for the CUDA context, which takes about 0.5 GiB",
            "a lower --gpu-memory-utilization",
        )
    if plan.load is not None and not budget.has_kv_reserve:
        yield warning(
            WarningCode.KV_RESERVE,
            f"the cache has {percent(budget.kv_share_ratio)} of the GPU's memory, less than {KV_SHARE_MINIMUM_RATIO:.0%}: "
            "a few long requests fill it, and others are preempted",
            "more GPUs, narrower weights, or a narrower cache",
        )


def _what_holds_it(plan: Plan) -> str:
    if plan.smallest is None:
        return f"no number of {plan.deployment.gpu.id} up to 128 holds it: narrower weights, or GPUs with more memory"
    sharing = plan.smallest.deployment.parallelism
    stages = f", {sharing.pipeline} pipeline stages" if sharing.pipeline > 1 else ""
    return f"{several(sharing.gpus, 'GPU')} would hold it (tensor parallel {sharing.tensor}{stages}), or narrower weights"
