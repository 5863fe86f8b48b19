"""Sections 7 and 8 of a sheet: capacity, and what could be changed."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.planning.columns import Column
from proxy.planning.line import Line, Section, theory
from roofline.capacity.ceilings import Capacity, CapacityLimit
from roofline.capacity.chunking import ChunkLimit
from roofline.capacity.queueing import Steady
from roofline.capacity.remedies import Remedy, RemedyCode
from roofline.capacity.standing import Standing
from roofline.plan.load import Load
from roofline.plan.plan import Plan, remedies_of
from roofline.plan.question import Origin
from roofline.plan.words import gigabytes, several, three_digits, time_text, whole_or_tenth

_CEILINGS = {
    CapacityLimit.KV_CACHE: ("  KV cache", "requests with their longest output that the cache holds"),
    CapacityLimit.TPOT_TARGET: ("  TPOT target", "requests at which TPOT, prefills in, reaches the target"),
    CapacityLimit.MAX_SEQUENCES: ("  --max-num-seqs", "what the engine lets run"),
    CapacityLimit.KNEE: ("  knee", "beyond it more requests bring little"),
}
_CHANGES = {  # the same for all workers, so that they stand side by side
    RemedyCode.WEIGHTS_FP8: "weights in fp8",
    RemedyCode.WEIGHTS_INT8: "weights in int8",
    RemedyCode.WEIGHTS_INT4: "weights in int4",
    RemedyCode.KV_FP8: "KV cache in fp8",
    RemedyCode.SMALLER_BATCH: "half as many at once",
    RemedyCode.SHORTER_LIMIT: "half the longest output",
    RemedyCode.TENSOR_PARALLEL: "twice the tensor parallel",
    RemedyCode.PREFIX_SHARING: "half the prompt shared",
    RemedyCode.WINDOW: "windows in half the layers",
    RemedyCode.OFFLOAD: "offload to host memory",
}
_CHUNK_LIMITS = {
    ChunkLimit.JITTER: "larger ones are felt as stalls",
    ChunkLimit.LARGEST: "the largest of 512 to 2,048",
    ChunkLimit.SMALLEST: "the smallest of 512 to 2,048, and still felt",
}


def load(column: Column) -> Section:
    """Section 7."""
    plan = column.plan
    cold = ", prefix cache cold" if plan.question.workload.cached_tokens else ""
    lines = (
        tuple(_load(plan, plan.load))
        if plan.load
        else (Line(label="requests at once, at most", value="0", how="not one fits"),)
    )
    return Section(title=f"7 Capacity of one worker{cold}", lines=lines)


def changes(column: Column) -> Section:
    """Section 8."""
    plan = column.plan
    table = remedies_of(plan)
    before = table.before
    lines = [Line(label="as it is", value=_standing(before), how=_basis(plan, before))]
    for row in table.rows:
        value = "-" if row.after is None else _standing(row.after)
        how = row.reason or "; ".join((*_what(row), *row.notes))
        lines.append(Line(label=_CHANGES[row.code], value=value, how=how))
    return Section(title="8 What each change alone would give", lines=tuple(lines))


def _what(row: Remedy) -> Iterator[str]:
    """The numbers of a change whose label has none."""
    if row.code is RemedyCode.TENSOR_PARALLEL and row.after is not None:
        yield f"over {row.after.situation.deployment.parallelism.tensor}; {several(row.after.gpus, 'GPU')} in all"
    elif row.code in (RemedyCode.PREFIX_SHARING, RemedyCode.WINDOW):
        yield row.title


def _load(plan: Plan, load: Load) -> Iterator[Line]:
    found, total = load.capacity, plan.question.workload.total_tokens
    yield Line(
        label="KV cache holds",
        value=f"{plan.kv_capacity_tokens:,} tokens",
        how=f"{gigabytes(plan.budget.kv_bytes)} a GPU, in blocks of {plan.budget.settings.block_tokens} tokens",
        formula="bytes left for the cache / bytes of a token on a GPU",
    )
    yield Line(
        label="requests at once, at most",
        value=f"{plan.max_concurrency:,}",
        how=f"of {total:,} tokens (prompt + longest output), in whole blocks",
        formula="tokens / (prompt + longest output)",
    )
    yield from _ceilings(found)
    if load.planned is not None:
        yield from _planned(load, load.planned)
    yield Line(
        label="saturates at",
        value=f"{three_digits(load.saturation.rate_per_second)} requests/s",
        how=_steady(load.saturation) + ", whatever the latency",
        formula="the highest rate at any number of requests that may run",
        source=theory("Little's law"),
    )
    if load.warm_saturation is not None:
        how = _steady(load.warm_saturation) + "; do not plan with it: caches are cold after a restart"
        yield Line(
            label="  with a warm cache", value=f"{three_digits(load.warm_saturation.rate_per_second)} requests/s", how=how
        )
    if plan.question.rate_per_second is not None:
        yield from _at_rate(plan, load)
    yield from _phases(plan)


def _ceilings(found: Capacity) -> Iterator[Line]:
    for ceiling in found.ceilings:
        label, how = _CEILINGS[ceiling.limit]
        first = "; reached first" if ceiling.limit is found.binds else ""
        yield Line(label=label, value=f"{ceiling.sequences:,.0f}", how=how + first)
    if found.ceiling(CapacityLimit.KNEE) is None:
        how = "told, no limit here: beyond it throughput still rises, ever more slowly (section 4)"
        yield Line(label="  knee", value=f"{found.knee.batch:,.0f}", how=how)
    yield Line(
        label="plan with at most",
        value=f"{found.max_concurrency:,}",
        how=f"{found.hard_ratio:.0%} of the lowest, {found.theoretical_sequences:,.0f}: lengths vary, prefills come in bursts",
        formula=f"{found.hard_ratio:.0%} x lowest ceiling",
    )
    yield Line(
        label="recommended",
        value=f"{found.recommended_concurrency:,}",
        how=f"{found.recommended_ratio:.0%} of the lowest",
        formula=f"{found.recommended_ratio:.0%} x lowest ceiling",
    )


def _planned(load: Load, planned: Steady) -> Iterator[Line]:
    yield Line(
        label="  serves",
        value=f"{three_digits(planned.rate_per_second)} requests/s",
        how=_steady(planned),
        formula="Little: requests at once / whole answer, both at this load",
        source=theory("Little's law"),
    )
    each = planned.tokens_per_second / load.capacity.budget.deployment.parallelism.gpus
    yield Line(
        label="  throughput",
        value=f"{planned.tokens_per_second:,.0f} tokens/s",
        how=f"output; {each:,.0f} a GPU; prefills take {planned.prefill_busy_ratio:.0%} of the time",
    )


def _steady(steady: Steady) -> str:
    tpot = "" if steady.tpot_seconds is None else f", TPOT {time_text(steady.tpot_seconds)}"
    answer = time_text(steady.e2e_seconds)
    return f"{whole_or_tenth(steady.concurrency)} at once, TTFT {time_text(steady.ttft_seconds)}{tpot}, answer {answer}"


def _at_rate(plan: Plan, load: Load) -> Iterator[Line]:
    rate, workers = plan.question.rate_per_second or 0.0, plan.question.workers
    each = f"{rate / workers:,.3g} requests/s"
    found = load.at_rate
    steady = found.steady if found else None
    over = f" on each of {workers} workers" if workers > 1 else ""
    if steady is None:
        value, how = "no end", f"{each}{over} are more than it serves: the queue grows"
    else:
        value = f"{whole_or_tenth(steady.concurrency)} at once"
        how = f"{each}{over} x {time_text(steady.e2e_seconds)} an answer takes at this very load"
    formula = "Little's law, solved for itself: requests = rate x answer(requests)"
    yield Line(label="at the rate given", value=value, how=how, formula=formula, source=theory("Little's law"))
    gpus = plan.deployment.parallelism.gpus
    needed = load.workers_needed
    how = "no number of workers keeps the targets" if load.planned is None else ""
    if needed is not None and load.planned is not None:
        each = f"{three_digits(load.planned.rate_per_second)} requests/s"
        how = f"{rate:,.3g} / {each} at the recommended load; {several(needed * gpus, 'GPU')}"
    value = "-" if needed is None else several(needed, "worker")
    yield Line(label="needed for the rate", value=value, how=how, formula="rate / rate at the recommended load, rounded up")


def _phases(plan: Plan) -> Iterator[Line]:
    phases, chunk = plan.phases, plan.chunk
    yield Line(
        label="prefill : decode",
        value=f"1 : {phases.decode_per_prefill_ratio:,.1f}",
        how=f"GPU time of a request: {time_text(phases.prefill_seconds)} to {time_text(phases.decode_seconds)} "
        f"in a batch of {phases.decode_batch:,.0f}; instances of each kind if phases are split",
        formula="prefill alone : (output - 1) x step / batch",
        source=theory("Memory and capacity"),
    )
    prompts = "a prompt" if chunk.steps_per_prompt == 1 else f"a prompt in {chunk.steps_per_prompt} steps"
    yield Line(
        label="chunk of a prefill",
        value=f"{chunk.chunk_tokens:,} tokens",
        how=(
            f"{_CHUNK_LIMITS[chunk.limited_by]}; {prompts}, steps of {time_text(chunk.step_seconds)} beside "
            f"{chunk.batch:,.0f} requests, up to {time_text(chunk.limit_seconds)} is smooth; "
            f"--max-num-batched-tokens {chunk.budget_tokens}"
        ),
        formula="largest chunk whose step stays below 1.5 x (usual step, or TPOT target)",
        source=theory("Chunks"),
    )


def _standing(standing: Standing) -> str:
    if standing.missing_bytes:
        return "does not fit"
    if standing.batch is None or standing.tokens_per_second is None:
        return "serves none"
    tpot = "" if standing.tpot_seconds is None else f", TPOT {time_text(standing.tpot_seconds)}"
    most = "" if standing.batch == standing.max_concurrency else f" (of {standing.max_concurrency:,} at most)"
    return f"{whole_or_tenth(standing.batch)} at once{most}{tpot}, {standing.tokens_per_second:,.0f} tokens/s"


def _basis(plan: Plan, before: Standing) -> str:
    if before.batch is None:
        return "no request can be served"
    if plan.origin is Origin.ASSUMED:
        return "as many at once as may be planned with (80 %), and TPOT and throughput there; then one change at a time"
    return "the requests asked for, of the most to plan with (80 %); then one change at a time"
