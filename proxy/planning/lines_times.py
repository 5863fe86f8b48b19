"""Sections 4 and 6 of a sheet: TPOT from bandwidth, and the whole answer."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.planning.columns import Column
from proxy.planning.line import ENGINE_FIT, Line, Section, theory, what_if
from proxy.planning.lines_rates import EXPECTED, bandwidth, overheads, peak
from roofline.plan.plan import Plan
from roofline.plan.words import byte_rate, decimal_size, flop_rate, flop_text, three_digits, time_text, whole_or_tenth


def decode(column: Column) -> Section:
    """Section 4."""
    return Section(title=f"4 Decode: a token after the first{what_if(column.plan)}", lines=tuple(_decode(column.plan)))


def answer(column: Column) -> Section:
    """Section 6."""
    return Section(title=f"6 The whole answer{what_if(column.plan)}", lines=tuple(_answer(column.plan)))


def _decode(plan: Plan) -> Iterator[Line]:
    decode, gpu = plan.decode, plan.deployment.gpu
    weights, cached = decode.least_weight_bytes, decode.least_cache_bytes
    yield Line(
        label="read for one request",
        value=decimal_size(weights + cached),
        how=(
            f"{decimal_size(weights)} weights{_least_experts(plan)} + {decimal_size(cached)} cache at "
            f"{decode.context_tokens:,} tokens"
        ),
        formula="weights that a token passes + cache half way through the output",
        source=theory("Decode"),
    )
    alone = decode.alone
    how = f"{decimal_size(alone.bytes)} / {bandwidth(plan, alone.bytes, alone.floor_seconds)}"
    if alone.binds == "compute":
        how = f"{flop_text(alone.flop)} / {peak(plan, alone.flop, alone.floor_seconds)}"
    yield Line(
        label="TPOT floor",
        value=time_text(alone.floor_seconds),
        how=f"{how}; nothing is faster",
        formula="max(bytes / bandwidth, FLOP / peak)",
        source=theory("Bound"),
    )
    yield Line(
        label="TPOT expected, alone",
        value=time_text(alone.expected_seconds),
        how=_step(plan, 1.0),
        formula=EXPECTED,
        source=ENGINE_FIT,
    )
    yield Line(label="  tokens a second", value=f"{1.0 / alone.expected_seconds:,.1f}", how="1 / TPOT", formula="1 / TPOT")
    if plan.running > 1.0:
        yield from _batch(plan)
    ridge = plan.deployment.ridge_flop_per_byte
    yield Line(
        label="ridge point",
        value=f"{ridge:,.0f} FLOP/byte",
        how=f"{flop_rate(ridge * gpu.memory_bytes_per_second)} / {byte_rate(gpu.memory_bytes_per_second)}",
        formula="peak / bandwidth, of the format most weights are multiplied in",
        source=theory("Ridge point"),
    )
    intensity = decode.intensity_flop_per_byte
    binds = decode.batch.binds if decode.running == 1.0 else ("memory" if intensity < ridge else "compute")
    yield Line(
        label="intensity of a step",
        value=f"{three_digits(intensity)} FLOP/byte",
        how=f"{'below' if intensity < ridge else 'above'} the ridge: {binds} binds",
        formula="FLOP / bytes",
    )
    yield from _batches(plan)


def _least_experts(plan: Plan) -> str:
    return " (chosen experts only)" if plan.deployment.rates.experts else ""


def _step(plan: Plan, running: float) -> str:
    """The sum that the expected time of a decode step is."""
    parts = plan.decode.alone_parts if running == 1.0 else plan.decode.parts
    losses = plan.question.losses
    memory = parts.weights_seconds + parts.cache_seconds
    if parts.compute_seconds > memory:
        busy = parts.compute_seconds * losses.compute_efficiency_ratio
        text = f"computing {time_text(busy)} / {losses.compute_efficiency_ratio:g}"
    else:
        moved = memory * losses.memory_efficiency_ratio * plan.deployment.rates.rank_bytes_per_second
        bare = plan.decode.weight_bytes + plan.decode.cache_bytes if running > 1.0 else plan.decode.alone.bytes
        copies = " with copies" if moved > 1.01 * bare else ""
        ranks = " of one rank" if plan.deployment.parallelism.data > 1 else ""
        rate = bandwidth(plan, moved, memory * losses.memory_efficiency_ratio).strip("()")
        text = f"{decimal_size(moved)}{copies}{ranks} / ({losses.memory_efficiency_ratio:g} x {rate})"
    return text + overheads(plan, 1, parts.exchange_seconds)


def _batch(plan: Plan) -> Iterator[Line]:
    decode = plan.decode
    experts = ", experts as chosen evenly" if plan.deployment.rates.experts else ""
    running = whole_or_tenth(plan.running)
    each = decimal_size(decode.cache_bytes / plan.running)
    yield Line(
        label="read by the batch",
        value=decimal_size(decode.weight_bytes + decode.cache_bytes),
        how=f"{decimal_size(decode.weight_bytes)} weights{experts} + {running} x {each} cache",
        formula="weights once + cache of each",
        source=theory("Decode"),
    )
    yield Line(
        label="TPOT reference, batch",
        value=time_text(decode.batch.reference_seconds),
        how=_reference(plan),
        formula="the floor of the batch that runs",
        source=theory("Bound"),
    )
    yield Line(
        label="TPOT expected, batch",
        value=time_text(decode.batch.expected_seconds),
        how=_step(plan, plan.running) + "; without prefills in between",
        formula=EXPECTED,
        source=ENGINE_FIT,
    )


def _reference(plan: Plan) -> str:
    """What the reference of the batch is the quotient of."""
    decode, seconds = plan.decode, plan.decode.batch.reference_seconds
    moved = decode.weight_bytes + decode.cache_bytes
    if plan.deployment.parallelism.data > 1:
        moved = seconds * plan.deployment.rates.rank_bytes_per_second
        return f"{decimal_size(moved)} of one rank / {bandwidth(plan, moved, seconds)}"
    if seconds > 1.001 * moved / plan.deployment.rates.bytes_per_second:
        return f"{flop_text(decode.flop)} / {peak(plan, decode.flop, seconds)}"
    return f"{decimal_size(moved)} / {bandwidth(plan, moved, seconds)}"


def _batches(plan: Plan) -> Iterator[Line]:
    ridge, bend = plan.decode.ridge_batch, plan.knee
    if ridge is not None:
        with_cache = "never, as each brings its cache" if bend.ridge_batch is None else f"{bend.ridge_batch:,.0f}"
        yield Line(
            label="batch at the ridge",
            value=f"{ridge:,.0f} requests",
            how=f"cache aside; with {bend.context_tokens:,} tokens of cache each: {with_cache}",
            formula="reading all weights once / multiplying them for one token",
            source=theory("Ridge point"),
        )
    parts = bend.parts
    yield Line(
        label="knee",
        value=f"{bend.batch:,.0f} requests",
        how=(
            f"weights and launches {time_text(parts.shared_seconds)} = {bend.batch:,.0f} x {time_text(parts.own_seconds)}, "
            f"cache and arithmetic of each at {bend.context_tokens:,} tokens; {bend.binds} bends it"
        ),
        formula="shared time of a step / time each request adds: there, TPOT is twice that of a lone request",
        source=theory("The knee"),
    )
    yield Line(
        label="knee by context",
        value=", ".join(f"{found.batch:,.0f}" for found in plan.knees),
        how="at " + ", ".join(f"{found.context_tokens:,}" for found in plan.knees) + " tokens",
        formula="the same; longer contexts bend earlier",
        source=theory("The knee"),
    )


def _answer(plan: Plan) -> Iterator[Line]:
    tokens = plan.question.workload.completion_tokens
    ttft, tpot = plan.prefill.limit.expected_seconds, plan.decode.alone.expected_seconds
    yield Line(
        label="whole answer, alone",
        value=time_text(plan.alone_e2e_seconds),
        how=f"{time_text(ttft)} + {tokens - 1:,} x {time_text(tpot)}",
        formula="TTFT + (output - 1) x TPOT: the prefill makes the first token",
    )
    latency = plan.latency
    if latency is None or latency.running == 1.0:
        return
    wait = latency.wait_seconds
    yield Line(
        label="TTFT under load",
        value="grows without end" if latency.ttft_seconds is None else time_text(latency.ttft_seconds),
        how=f"{time_text(latency.prefill_seconds)} beside {whole_or_tenth(max(0.0, latency.running - 1.0))} others"
        + (f" + {time_text(wait)} mean wait behind other prefills" if wait else ""),
        formula="prefill with the others decoding + M/D/1 wait",
        source=theory("Little's law"),
    )
    if latency.tpot_seconds is not None and latency.step_seconds is not None:
        yield Line(
            label="TPOT under load",
            value=time_text(latency.tpot_seconds),
            how=f"step {time_text(latency.step_seconds)} + prefills of others {time_text(latency.interference_seconds or 0.0)}",
            formula="step + others at once / (output - 1) x prefill",
            source=theory("Little's law"),
        )
        yield Line(label="  tokens a second, each", value=f"{latency.user_tokens_per_second or 0.0:,.1f}", how="1 / TPOT")
    if latency.e2e_seconds is not None:
        yield Line(label="whole answer under load", value=time_text(latency.e2e_seconds), how="the same sum")
    each = latency.tokens_per_second / plan.deployment.parallelism.gpus
    yield Line(
        label="throughput",
        value=f"{latency.tokens_per_second:,.0f} tokens/s",
        how=f"output of one worker; {each:,.0f} a GPU; {latency.requests_per_second:,.3g} requests/s",
        formula="requests at once x output / whole answer",
    )
