"""The head of a sheet: the three numbers to compute first, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.planning.columns import Column
from proxy.planning.line import Line, Section, what_if
from roofline.limits import Limit
from roofline.plan.load import Load
from roofline.plan.plan import Plan
from roofline.plan.words import both_sizes, decimal_size, flop_text, given_time, three_digits, time_text


def in_short(column: Column) -> Section:
    """Prefill FLOP, decode bytes, cache bytes, and the load that is recommended."""
    plan = column.plan
    prefill, decode, workload = plan.prefill, plan.decode, plan.question.workload
    total = workload.total_tokens
    cached = f" ({prefill.new_tokens:,} of {workload.prompt_tokens:,} tokens)" if prefill.cached_tokens else ""
    lines = [
        Line(label="prefill work", value=flop_text(prefill.limit.flop), how=f"for one prompt{cached}"),
        _expected("TTFT, alone", prefill.limit),
        Line(label="decode traffic", value=decimal_size(decode.alone.bytes), how="for one token of one request"),
        _expected("TPOT, alone", decode.alone),
        Line(
            label="KV cache of a request",
            value=both_sizes(plan.kv.sequence_bytes(total)),
            how=f"{total:,} tokens; room for {plan.max_concurrency:,} at once",
        ),
    ]
    if plan.load is not None:
        lines += _recommended(plan, plan.load)
    return Section(title=f"In short{what_if(plan)}", lines=tuple(lines))


def _expected(label: str, limit: Limit) -> Line:
    return Line(
        label=label, value=time_text(limit.expected_seconds), how=f"expected; never below {time_text(limit.floor_seconds)}"
    )


def _recommended(plan: Plan, load: Load) -> Iterator[Line]:
    planned = load.planned
    if planned is None:
        yield Line(label="recommended at once", value="0", how="a request alone misses the target of TPOT")
        return
    target = plan.question.targets.tpot_seconds
    kept = "" if target is None else f", target {given_time(target)}"
    how = "" if planned.tpot_seconds is None else f"TPOT there {time_text(planned.tpot_seconds)}{kept}"
    yield Line(label="recommended at once", value=f"{planned.concurrency:,.0f}", how=how)
    how = f"of output; {three_digits(planned.rate_per_second)} requests/s"
    yield Line(label="throughput there", value=f"{planned.tokens_per_second:,.0f} tokens/s", how=how)
