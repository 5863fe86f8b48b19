"""Section 5 of a sheet: TTFT from compute, cold, and beside it with what is cached."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.planning.columns import Column
from proxy.planning.line import ENGINE_FIT, Line, Section, theory, what_if
from proxy.planning.lines_rates import EXPECTED, bandwidth, overheads, peak
from roofline.plan.plan import Plan
from roofline.plan.times import PrefillTimes
from roofline.plan.words import decimal_size, flop_text, short, time_text
from roofline.shape import LatentAttention


def prefill(column: Column) -> Section:
    """Section 5: cold, and beside it with what is cached."""
    plan = column.plan
    if plan.prefill_cold is None:
        lines = tuple(_prefill(plan, plan.prefill, ""))
    else:
        lines = (*_prefill(plan, plan.prefill_cold, ", cold"), *_prefill(plan, plan.prefill, ", warm"))
    return Section(
        title=f"5 Prefill: the first token, without queue and network{what_if(plan)}", lines=(*lines, *_crossing(plan))
    )


def _prefill(plan: Plan, times: PrefillTimes, state: str) -> Iterator[Line]:
    deployment = plan.deployment
    token_flop = times.linear_flop / times.new_tokens
    on_top = f" on {times.cached_tokens:,} cached ones" if times.cached_tokens else ""
    yield Line(
        label=f"linear FLOP{state}",
        value=flop_text(times.linear_flop),
        how=f"2 x {short(token_flop / 2)} x {times.new_tokens:,} tokens{on_top}",
        formula="2 x parameters a token passes, without embedding and head x tokens",
        source=theory("Matrices"),
    )
    yield Line(
        label=f"attention FLOP{state}",
        value=flop_text(times.attention_flop),
        how=_attention(plan, times),
        formula="causal pairs x work per pair: 2 x heads x (key size + value size) x layers",
        source=theory("Attention"),
    )
    yield Line(
        label=f"all FLOP{state}",
        value=flop_text(times.limit.flop),
        how=f"and {flop_text(times.head_flop)} of the output head, for the last position only",
        formula="linear + attention + head",
    )
    stages = deployment.parallelism.pipeline
    split = f" / {stages} stages" if stages > 1 and times.new_tokens > 1 else ""
    if times.least.binds == "compute":
        how = f"{flop_text(times.least.flop)} / {peak(plan, times.least.flop, times.least.compute_seconds)}{split}"
        how += f"; reading takes {time_text(times.least.memory_seconds)}"
    else:
        how = f"{decimal_size(times.least.bytes)} / {bandwidth(plan, times.least.bytes, times.least.memory_seconds)}{split}"
        how += f"; computing takes {time_text(times.least.compute_seconds)}"
    yield Line(
        label=f"TTFT floor{state}",
        value=time_text(times.limit.floor_seconds),
        how=f"{how}: {times.least.binds} binds",
        formula="max(FLOP / peak, bytes / bandwidth)",
        source=theory("Bound"),
    )
    if times.limit.reference_seconds > 1.001 * times.limit.floor_seconds:
        yield Line(
            label=f"TTFT reference{state}",
            value=time_text(times.limit.reference_seconds),
            how=_reference(plan, times),
            formula="the floor with the engine's chunks and the experts that are expected",
            source=theory("Chunks"),
        )
    yield Line(
        label=f"TTFT expected{state}",
        value=time_text(times.limit.expected_seconds),
        how=_expected(plan, times),
        formula=EXPECTED,
        source=ENGINE_FIT,
    )


def _attention(plan: Plan, times: PrefillTimes) -> str:
    terms = plan.deployment.attention_terms
    past, new = times.cached_tokens, times.new_tokens
    is_plain = len(terms) == 1 and terms[0].absorbed_flop_per_pair is None and not plan.deployment.state_bytes
    if is_plain:
        pairs = terms[0].reach.pairs(past, new)
        return f"{short(pairs)} causal pairs x {short(terms[0].flop_per_pair)}"
    if any(isinstance(group.mixer, LatentAttention) for group in plan.deployment.shape.groups):
        return (
            f"causal; keys and values expanded or not, whichever is less; {times.attention_flop / times.limit.flop:.1%} of all"
        )
    kinds = "windows counted" if plan.kv.windows else "recurrent layers included"
    return f"causal, {kinds}; {times.attention_flop / times.limit.flop:.1%} of all"


def _reference(plan: Plan, times: PrefillTimes) -> str:
    done = times.reference
    steps = f"{times.steps} steps, " if times.steps > 1 else ""
    if done.binds == "memory":
        experts = "experts of all tokens" if plan.deployment.rates.experts else "weights"
        return f"{steps}{decimal_size(done.bytes)} / {bandwidth(plan, done.bytes, done.memory_seconds)}: {experts} are read"
    return f"{steps}{flop_text(done.flop)} / {peak(plan, done.flop, done.compute_seconds)}"


def _expected(plan: Plan, times: PrefillTimes) -> str:
    losses, done = plan.question.losses, times.reference
    compute = done.compute_seconds / losses.compute_efficiency_ratio
    memory = done.rank_memory_seconds / losses.memory_efficiency_ratio
    if compute >= memory:
        text = f"{time_text(done.compute_seconds)} / {losses.compute_efficiency_ratio:g}"
    else:
        text = f"reading {time_text(done.rank_memory_seconds)} / {losses.memory_efficiency_ratio:g}"
    return text + overheads(plan, times.steps, times.expected.exchange_seconds)


def _crossing(plan: Plan) -> Iterator[Line]:
    terms = plan.deployment.attention_terms
    growing = sum(term.flop_per_pair for term in terms if term.reach.tokens is None)
    if growing:
        token_flop = plan.deployment.rates.token_flop
        yield Line(
            label="attention = linear at",
            value=f"{2 * token_flop / growing:,.0f} tokens",
            how=f"2 x {short(token_flop)} / {short(growing)} per pair; from there TTFT grows with the square",
            formula="2 x linear FLOP a token / attention FLOP a pair (causal)",
            source=theory("Attention"),
        )
