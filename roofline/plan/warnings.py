"""What stands against a plan, what binds first at the top: memory, load, latency, settings, then doubtful facts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from roofline.capacity.chunking import SMALLEST_CHUNK_TOKENS, ChunkLimit
from roofline.gpu import Certainty
from roofline.plan.plan import Plan
from roofline.plan.warning import PlanWarning, WarningCode, note, warning
from roofline.plan.warnings_load import load_warnings, reserve_notes
from roofline.plan.warnings_memory import memory_warnings
from roofline.plan.words import several, time_text

_ORDER = {code: place for place, code in enumerate(WarningCode)}
_MEANING = {
    Certainty.MEDIUM: "one source, or sources that differ",
    Certainty.LOW: "derived, or from a third party",
}


def warnings_of(plan: Plan) -> tuple[PlanWarning, ...]:
    """All that stands against the plan, in the order of `WarningCode`."""
    found = chain(
        memory_warnings(plan),
        load_warnings(plan),
        _chunk_size(plan),
        _formats(plan),
        _link(plan),
        _facts(plan),
        reserve_notes(plan),
    )
    return tuple(sorted(found, key=lambda told: _ORDER[told.code]))


def _chunk_size(plan: Plan) -> Iterator[PlanWarning]:
    most = plan.budget.reserve.limits.batched_tokens
    advice = plan.chunk
    setting = f"--max-num-batched-tokens {advice.budget_tokens}"
    if most < SMALLEST_CHUNK_TOKENS:
        text = f"steps of at most {several(most, 'token')} do not fill the matrix units, and each reads all weights again"
        yield warning(WarningCode.CHUNK_SIZE, text, setting)
        return
    chunk = min(plan.prefill.new_tokens, most)
    is_felt = plan.question.targets.jitter_ratio is not None  # batch jobs feel nothing
    if (
        plan.load is None
        or not is_felt
        or advice.batch <= 1
        or chunk <= advice.chunk_tokens
        or advice.limited_by is ChunkLimit.LARGEST
    ):
        return
    too_long = " (though even that step is too long: fewer prompts at once)" if advice.limited_by is ChunkLimit.SMALLEST else ""
    yield warning(
        WarningCode.CHUNK_SIZE,
        f"a step with {chunk:,} prompt tokens holds up the {advice.batch:,.0f} requests that decode for more than "
        f"{time_text(advice.limit_seconds)}, which is felt as a stall",
        setting + too_long,
    )


def _formats(plan: Plan) -> Iterator[PlanWarning]:
    gpu = plan.deployment.gpu
    wanted = {term.width.math for term in plan.deployment.weight_terms if term.flop_per_use}
    for math in sorted(wanted - set(gpu.dense_flop_per_second)):
        text = f"{gpu.id} has no {math.value} arithmetic: weights are widened, and multiplied in {gpu.math(math).value}"
        yield note(WarningCode.NO_HARDWARE_PATH, text)


def _link(plan: Plan) -> Iterator[PlanWarning]:
    gpu = plan.deployment.gpu
    if not plan.deployment.rates.exchanges or gpu.link_bytes_per_second:
        return
    if gpu.pcie_bytes_per_second:
        why = "has no link between GPUs" if gpu.link_bytes_per_second == 0 else "has no link whose speed is known"
        text = f"{gpu.id} {why}: results are exchanged over PCIe, which long prompts feel most"
        yield note(WarningCode.UNKNOWN_LINK, text)
    else:
        text = f"how fast {gpu.id} exchanges results is not known: that part is taken as nothing, and real times are longer"
        yield warning(WarningCode.UNKNOWN_LINK, text, "describe the GPU with link=... in bytes a second of one direction")


def _facts(plan: Plan) -> Iterator[PlanWarning]:
    gpu, losses = plan.deployment.gpu, plan.question.losses
    for what, certainty in (("peaks", gpu.peaks_certainty), ("bandwidth", gpu.bandwidth_certainty)):
        if certainty is not Certainty.HIGH:
            text = f"{what} of {gpu.id}: {certainty.value} certainty ({_MEANING[certainty]})"
            yield note(WarningCode.UNSURE_GPU, text)
    if losses.source.startswith("constants of vLLM"):
        error_ratio = losses.error_ratio or 0.0
        text = f"losses of this engine are those of vLLM, not fitted: expected times are off by {error_ratio:.0%} on average"
        yield note(WarningCode.UNFITTED_ENGINE, text)
