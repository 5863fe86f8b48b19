"""A plan for programs. docs/reference/plan-json.md says what each key means; a test compares the two."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.planning.columns import Column
from proxy.planning.json_load import capacity_of, latency_of
from roofline.capacity.standing import Standing
from roofline.plan.plan import Plan, remedies_of
from roofline.plan.times import PrefillTimes
from roofline.plan.warnings import warnings_of

SCHEMA = 1
Json = dict[str, object]


def document_of(columns: Sequence[Column]) -> Json:
    """One plan as an object; several as ``{"schema": 1, "plans": [...]}`` of such objects."""
    plans = [plan_of(column) for column in columns]
    return plans[0] if len(plans) == 1 else {"schema": SCHEMA, "plans": plans}


def plan_of(column: Column) -> Json:
    """One worker."""
    plan = column.plan
    workload = plan.question.workload
    return {
        "schema": SCHEMA,
        "title": column.title,
        "works": plan.works,
        "model": _model(column),
        "gpu": _gpu(plan),
        "gpus": plan.deployment.parallelism.gpus,
        "parallelism": _parallelism(plan),
        "request": {
            "prompt_tokens": workload.prompt_tokens,
            "output_tokens": workload.completion_tokens,
            "max_output_tokens": workload.max_completion_tokens or workload.completion_tokens,
            "cached_tokens": workload.cached_tokens,
            "total_tokens": workload.total_tokens,
        },
        "concurrency": plan.concurrency,
        "concurrency_origin": plan.origin.value,
        "running": plan.running,
        "rate_per_second": plan.question.rate_per_second,
        "workers": plan.question.workers,
        "engine": _engine(column),
        "targets": _targets(plan),
        "weights_bytes": plan.deployment.weight_bytes,
        "kv_bytes_per_token": plan.deployment.kv_bytes_per_token,
        "kv_bytes_per_request": plan.kv.sequence_bytes(workload.total_tokens),
        "memory": _memory(plan),
        "decode": _decode(plan),
        "ridge_flop_per_byte": plan.deployment.ridge_flop_per_byte,
        "ridge_batch": plan.decode.ridge_batch,
        "knee": [{"context_tokens": found.context_tokens, "batch": found.batch} for found in (plan.knee, *plan.knees)],
        "prefill": _prefill(plan.prefill),
        "prefill_cold": None if plan.prefill_cold is None else _prefill(plan.prefill_cold),
        "latency": latency_of(plan),
        "kv_capacity_tokens": plan.kv_capacity_tokens,
        "max_concurrency": plan.max_concurrency,
        "capacity": None if plan.load is None else capacity_of(plan, plan.load),
        "prefill_decode": {
            "batch": plan.phases.decode_batch,
            "prefill_seconds": plan.phases.prefill_seconds,
            "decode_seconds": plan.phases.decode_seconds,
            "decode_per_prefill_ratio": plan.phases.decode_per_prefill_ratio,
        },
        "chunk": {
            "tokens": plan.chunk.chunk_tokens,
            "budget_tokens": plan.chunk.budget_tokens,
            "limited_by": plan.chunk.limited_by.value,
            "batch": plan.chunk.batch,
            "step_seconds": plan.chunk.step_seconds,
            "limit_seconds": plan.chunk.limit_seconds,
        },
        "remedies": _remedies(plan),
        "warnings": [
            {"code": told.code.value, "severity": told.severity.value, "text": told.text, "remedy": told.remedy}
            for told in warnings_of(plan)
        ],
    }


def _model(column: Column) -> Json:
    shape = column.plan.deployment.shape
    return {
        "name": shape.name,
        "source": column.model.source,
        "layers": shape.layers,
        "parameters": shape.parameters(),
        "active_parameters": shape.active_parameters,
        "max_context_tokens": shape.max_context_tokens,
        "weight_dtype": column.plan.deployment.weights.name,
        "weight_dtype_from": column.weights_from,
        "kv_dtype": column.kv_dtype,
    }


def _gpu(plan: Plan) -> Json:
    gpu = plan.deployment.gpu
    return {
        "id": gpu.id,
        "source": gpu.source,
        "memory_bytes": gpu.memory_bytes,
        "memory_bytes_per_second": gpu.memory_bytes_per_second,
        "peak_flop_per_second": plan.deployment.ridge_flop_per_byte * gpu.memory_bytes_per_second,
        "link_bytes_per_second": gpu.link_bytes_per_second,
        "peaks_certainty": gpu.peaks_certainty.value,
        "bandwidth_certainty": gpu.bandwidth_certainty.value,
    }


def _parallelism(plan: Plan) -> Json:
    sharing = plan.deployment.parallelism
    return {"tensor": sharing.tensor, "pipeline": sharing.pipeline, "data": sharing.data, "expert": sharing.expert}


def _engine(column: Column) -> Json:
    losses, limits = column.plan.question.losses, column.plan.budget.reserve.limits
    return {
        "name": column.engine,
        "compute_efficiency_ratio": losses.compute_efficiency_ratio,
        "memory_efficiency_ratio": losses.memory_efficiency_ratio,
        "layer_overhead_seconds": losses.layer_overhead_seconds,
        "parallel_layer_overhead_seconds": losses.parallel_layer_overhead_seconds,
        "error_ratio": losses.error_ratio,
        "source": losses.source,
        "max_batched_tokens": limits.batched_tokens,
        "max_sequences": limits.sequences,
    }


def _targets(plan: Plan) -> Json:
    targets = plan.question.targets
    return {"name": targets.name, "ttft_seconds": targets.ttft_seconds, "tpot_seconds": targets.tpot_seconds}


def _memory(plan: Plan) -> Json:
    budget = plan.budget
    return {
        "fits": budget.fits,
        "device_bytes": budget.device_bytes,
        "usable_bytes": budget.usable_bytes,
        "weights_bytes": budget.weight_bytes,
        "reserve_bytes": budget.reserve.total_bytes,
        "kv_bytes": budget.kv_bytes,
        "kv_share_ratio": budget.kv_share_ratio,
        "missing_bytes": budget.missing_bytes,
        "request_bytes": budget.sequence_bytes(plan.question.workload.total_tokens),
        "gpus_that_fit": plan.deployment.parallelism.gpus if plan.load else _gpus(plan),
    }


def _gpus(plan: Plan) -> int | None:
    return None if plan.smallest is None else plan.smallest.deployment.parallelism.gpus


def _decode(plan: Plan) -> Json:
    decode = plan.decode
    return {
        "context_tokens": decode.context_tokens,
        "batch": decode.running,
        "floor_seconds": decode.batch.floor_seconds,
        "reference_seconds": decode.batch.reference_seconds,
        "expected_seconds": decode.batch.expected_seconds,
        "alone_expected_seconds": decode.alone.expected_seconds,
        "flop": decode.flop,
        "weights_bytes": decode.weight_bytes,
        "cache_bytes": decode.cache_bytes,
        "intensity_flop_per_byte": decode.intensity_flop_per_byte,
        "binds": "compute"
        if decode.parts.compute_seconds > decode.parts.weights_seconds + decode.parts.cache_seconds
        else "memory",
        "floor_bytes": decode.alone.bytes,
        "floor_flop": decode.alone.flop,
        "floor_binds": decode.alone.binds,
    }


def _prefill(times: PrefillTimes) -> Json:
    return {
        "new_tokens": times.new_tokens,
        "cached_tokens": times.cached_tokens,
        "flop": times.limit.flop,
        "linear_flop": times.linear_flop,
        "attention_flop": times.attention_flop,
        "head_flop": times.head_flop,
        "bytes": times.limit.bytes,
        "intensity_flop_per_byte": times.intensity_flop_per_byte,
        "floor_seconds": times.limit.floor_seconds,
        "reference_seconds": times.limit.reference_seconds,
        "expected_seconds": times.limit.expected_seconds,
        "binds": times.limit.binds,
        "steps": times.steps,
    }


def _remedies(plan: Plan) -> list[Json]:
    table = remedies_of(plan)
    rows: list[Json] = [
        {"code": "as_it_is", "title": "as it is", "reason": None, "notes": [], "after": _standing(table.before)}
    ]
    for row in table.rows:
        after = None if row.after is None else _standing(row.after)
        rows.append(
            {"code": row.code.value, "title": row.title, "reason": row.reason, "notes": list(row.notes), "after": after}
        )
    return rows


def _standing(standing: Standing) -> Json:
    return {
        "gpus": standing.gpus,
        "weights_bytes": standing.weight_bytes,
        "missing_bytes": standing.missing_bytes,
        "kv_capacity_tokens": standing.kv_capacity_tokens,
        "hard_concurrency": standing.max_concurrency,
        "batch": standing.batch,
        "ttft_seconds": standing.ttft_seconds,
        "tpot_seconds": standing.tpot_seconds,
        "tokens_per_second": standing.tokens_per_second,
    }
