"""Sections 1 to 3 of a sheet: weights, the cache of one request, and how both share a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.planning.columns import Column
from proxy.planning.line import CONFIG, ESTIMATE, Line, Section
from proxy.planning.lines_facts import mixer_layers
from roofline.capacity.host_memory import host_memory
from roofline.capacity.memory import KV_SHARE_MINIMUM_RATIO
from roofline.capacity.rank_memory import mtp_bytes
from roofline.kv_cache import KvWidth
from roofline.plan.plan import Plan
from roofline.plan.words import both_sizes, decimal_size, gigabytes, percent, short
from roofline.shape import Attention, LatentAttention, WeightKind

_PARTS = {
    WeightKind.EMBEDDING: "embedding",
    WeightKind.HEAD: "output head",
    WeightKind.ATTENTION: "attention",
    WeightKind.INDEXER: "attention",
    WeightKind.MIXER: "linear attention",
    WeightKind.FFN: "feed-forward",
    WeightKind.SHARED_EXPERT: "shared experts",
    WeightKind.EXPERT: "routed experts",
    WeightKind.ROUTER: "routers, norms",
    WeightKind.VECTOR: "routers, norms",
}


def weights(column: Column) -> Section:
    """Section 1."""
    return Section(title="1 Weights", lines=tuple(_weights(column.plan)))


def cache(column: Column) -> Section:
    """Section 2."""
    return Section(title="2 KV cache of one request", lines=tuple(_cache(column.plan)))


def memory(column: Column) -> Section:
    """Section 3."""
    return Section(title="3 Memory of one GPU, times concurrency", lines=tuple(_memory(column.plan)))


def _weights(plan: Plan) -> Iterator[Line]:
    shape, deployment = plan.deployment.shape, plan.deployment
    total, active = shape.parameters(), shape.active_parameters
    how = f"{short(active)} of them pass a token ({active / total:.0%})" if active < total else "all of them pass every token"
    yield Line(label="parameters", value=short(total), how=how, source=CONFIG)
    parts: dict[str, list[tuple[float, float, str]]] = {}
    for term in deployment.weight_terms:
        if not (shape.is_tied and term.kind is WeightKind.HEAD):
            parts.setdefault(_PARTS[term.kind], []).append((term.parameters, term.bytes, term.width.name))
    for part, found in parts.items():
        yield Line(
            label=f"  {part}",
            value=decimal_size(sum(size for _, size, _ in found)),
            how=" + ".join(f"{short(count)} x {size / count:.4g} bytes ({name})" for count, size, name in found if count),
            formula="parameters x bytes each, scales included",
            source=CONFIG,
        )
    if shape.is_tied:
        yield Line(label="  output head", value="none", how="the embedding serves as head too: stored once, read every step")
    yield Line(
        label="all weights",
        value=both_sizes(deployment.weight_bytes),
        how=f"{deployment.weight_bytes / total:.2f} bytes a parameter on average",
        formula="sum of the above",
    )
    if deployment.parallelism.gpus > 1:
        how = f"the fullest of {deployment.parallelism.gpus} GPUs: what cannot be split is held several times"
        yield Line(label="on each GPU", value=both_sizes(plan.budget.rank.weight_bytes), how=how, source="vLLM's way to split")
    if shape.mtp_parameters:
        how = f"{short(shape.mtp_parameters)} parameters of multi-token prediction, loaded for speculative decoding only"
        yield Line(label="left out", value=decimal_size(mtp_bytes(deployment) * deployment.parallelism.at_once), how=how)


def _cache(plan: Plan) -> Iterator[Line]:
    deployment, kv, workload = plan.deployment, plan.kv, plan.question.workload
    grows = kv.full_bytes_per_token + kv.index_bytes_per_token
    yield Line(
        label="one token",
        value=both_sizes(grows + kv.sliding_bytes_per_token),
        how=" + ".join(_per_token(plan)) or "no layer keeps every token",
        formula="2 (keys, values) x layers x KV heads x head size x bytes each",
        source=CONFIG,
    )
    if kv.windows:
        how = " + ".join(
            f"{decimal_size(window.bytes_per_token)} a token in the last {window.tokens:,}" for window in kv.windows
        )
        limit = sum(window.bytes_per_token * window.tokens for window in kv.windows)
        yield Line(
            label="windows, at most", value=both_sizes(limit), how=how, formula="layers with a window stop growing at it"
        )
    if kv.state_bytes_per_sequence:
        how = "recurrent layers, whatever the length; fp32"
        yield Line(label="states", value=both_sizes(kv.state_bytes_per_sequence), how=how, source=CONFIG)
    total = workload.total_tokens
    yield Line(
        label="one request",
        value=both_sizes(kv.sequence_bytes(total)),
        how=f"{total:,} tokens: {workload.prompt_tokens:,} prompt + {total - workload.prompt_tokens:,} output at most",
        formula="bytes a token x (prompt + longest output)" + (", windows and states added" if kv.windows else ""),
    )
    sharing = deployment.parallelism
    if sharing.gpus > 1:
        split = plan.budget.sequence_bytes(total)
        how = f"in blocks of {plan.budget.settings.block_tokens} tokens; {_copies(plan)}"
        yield Line(label="of it on each GPU", value=both_sizes(split), how=how, source="vLLM's way to split")
    if grows:
        fixed = kv.sequence_bytes(0)
        tokens = (deployment.weight_bytes - fixed) / grows
        how = (
            f"{decimal_size(deployment.weight_bytes)} / {decimal_size(grows)}: from there a step reads more cache than weights"
        )
        yield Line(
            label="as large as all weights", value=f"{tokens:,.0f} tokens", how=how, formula="weights / cache of a token"
        )


def _per_token(plan: Plan) -> Iterator[str]:
    kv: KvWidth = plan.deployment.kv
    for mixer, layers in mixer_layers(plan.deployment.shape).items():
        if isinstance(mixer, LatentAttention):
            each = kv.bytes_per_token(mixer) + kv.index_bytes_per_token(mixer)
            if kv.is_packed_latent or mixer.index_head_dim:
                yield f"{layers} layers x {each:,.0f} bytes"
            else:
                yield f"{layers} layers x ({mixer.latent_dim} + {mixer.rope_head_dim}) x {kv.bytes_each:g} bytes"
        elif isinstance(mixer, Attention):
            if kv.head_scale_bytes or mixer.qk_head_dim != mixer.v_head_dim:
                yield f"{layers} layers x {kv.bytes_per_token(mixer):,.0f} bytes"
            else:
                yield f"2 x {layers} layers x {mixer.kv_heads} KV heads x {mixer.qk_head_dim} x {kv.bytes_each:g} bytes"


def _copies(plan: Plan) -> str:
    tensor = plan.deployment.parallelism.tensor
    heads = min((term.kv_heads for term in plan.deployment.attention_terms), default=tensor)
    if tensor > heads:
        return f"split over {heads} of {tensor} GPUs, the others hold copies" if heads > 1 else "every GPU holds all of it"
    return f"split over {tensor} GPUs" if tensor > 1 else "not split"


def _memory(plan: Plan) -> Iterator[Line]:
    budget, total = plan.budget, plan.question.workload.total_tokens
    reserve, utilization = budget.reserve, budget.settings.utilization_ratio
    sold = plan.deployment.gpu.memory_bytes
    how = budget.device_source + (f"; sold as {sold / 1e9:g} GB" if sold else "")
    yield Line(label="device", value=both_sizes(budget.device_bytes), how=how, source=plan.deployment.gpu.source)
    yield Line(
        label="usable",
        value=both_sizes(budget.usable_bytes),
        how=f"x {utilization:g} (--gpu-memory-utilization)",
        formula="device x utilization",
    )
    yield Line(label="- weights", value=both_sizes(budget.weight_bytes), how="section 1")
    yield Line(
        label="- reserve",
        value=both_sizes(reserve.total_bytes),
        how=(
            f"activations {gigabytes(reserve.activation_bytes)}, {reserve.graphs} CUDA graphs "
            f"{gigabytes(reserve.graph_bytes)}, runtime {gigabytes(reserve.runtime_bytes)}; rule of thumb 2-6 GB"
        ),
        formula="one step of the most tokens + graphs + runtime",
        source=ESTIMATE,
    )
    yield Line(
        label="left for the cache",
        value=both_sizes(budget.kv_bytes),
        how=f"{percent(budget.kv_share_ratio)} of the device; at least {KV_SHARE_MINIMUM_RATIO:.0%} is healthy",
        formula="usable - weights - reserve",
    )
    if budget.missing_bytes:
        yield Line(label="missing", value=both_sizes(budget.missing_bytes), how="on each GPU; does not fit")
    need = budget.sequence_bytes(total)
    data = plan.deployment.parallelism.data
    each = plan.concurrency / data
    share = f"{percent(each * need / budget.kv_bytes)} of what is left" if budget.kv_bytes else "nothing is left"
    ranks = f" on each of {data} ranks" if data > 1 else ""
    yield Line(
        label="requests at once need",
        value=both_sizes(each * need),
        how=f"{each:,.4g}{ranks} x {gigabytes(need) if need >= 1e9 else decimal_size(need)}: {share}",
        formula="requests at once x cache of one request on this GPU",
    )
    host = host_memory(plan.deployment)
    yield Line(
        label="host memory",
        value=decimal_size(host.needed_bytes),
        how=f"processes; {decimal_size(host.comfortable_bytes)} lets the checkpoint stay in the page cache",
        source=ESTIMATE,
    )
