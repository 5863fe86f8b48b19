"""Section 0 of a sheet: what was assumed, and where it is from."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.planning.columns import Column
from proxy.planning.line import Line, Section
from roofline.plan.plan import Plan
from roofline.plan.question import Origin
from roofline.plan.words import byte_rate, flop_rate, given_time, time_text, whole_or_tenth
from roofline.precision import Precision
from roofline.shape import Attention, LatentAttention, Mixer, ModelShape, Recurrence


def facts(column: Column) -> Section:
    """Model, GPU, request, engine, targets: all that the figures below follow from."""
    plan = column.plan
    return Section(
        title="0 What was assumed",
        lines=(*_model(column), *_gpu(plan), *_request(column), *_engine(column), _targets(column)),
    )


def _model(column: Column) -> Iterator[Line]:
    shape, deployment = column.plan.deployment.shape, column.plan.deployment
    longest = shape.max_context_tokens
    context = "" if longest is None else f", context up to {longest:,}"
    how = f"{shape.layers} layers, hidden size {shape.hidden_size:,}, vocabulary {shape.vocabulary_size:,}{context}"
    mixers = mixer_layers(shape)
    yield Line(label="model", value=shape.name, how=how, source=column.model.source)
    yield Line(
        label="attention",
        value=" + ".join(dict.fromkeys(_kind(mixer) for mixer in mixers)),
        how="; ".join(_heads(mixer, layers) for mixer, layers in mixers.items()),
        source=column.model.source,
    )
    yield Line(label="weights in", value=deployment.weights.name, how=column.weights_from)
    kv = deployment.kv
    is_native = kv.bytes_each == shape.native.bytes_each and not kv.is_packed_latent
    yield Line(
        label="KV cache in",
        value=column.kv_dtype,
        how="the model's own format" if is_native else f"{kv.bytes_each:g} bytes a number",
    )


def mixer_layers(shape: ModelShape) -> dict[Mixer, int]:
    """Attention of each kind and in how many layers it is."""
    layers: dict[Mixer, int] = {}
    for group in shape.groups:
        if group.mixer is not None:
            layers[group.mixer] = layers.get(group.mixer, 0) + len(group.layers)
    return layers


def _kind(mixer: Mixer) -> str:
    match mixer:
        case Recurrence():
            return "recurrent"
        case LatentAttention():
            return "MLA" if mixer.index_top_tokens is None else "sparse MLA"
        case Attention():
            kind = "MHA" if mixer.kv_heads == mixer.heads else "MQA" if mixer.kv_heads == 1 else "GQA"
            return kind if mixer.window_tokens is None else f"{kind} window {mixer.window_tokens:,}"


def _heads(mixer: Mixer, layers: int) -> str:
    match mixer:
        case Attention():
            size = (
                f"{mixer.qk_head_dim}" if mixer.qk_head_dim == mixer.v_head_dim else f"{mixer.qk_head_dim}/{mixer.v_head_dim}"
            )
            window = "" if mixer.window_tokens is None else f", window {mixer.window_tokens:,}"
            return f"{layers} layers: {mixer.heads} heads on {mixer.kv_heads} KV heads of {size}{window}"
        case LatentAttention():
            return f"{layers} layers: {mixer.heads} heads on one latent of {mixer.latent_dim} + {mixer.rope_head_dim}"
        case Recurrence():
            return f"{layers} layers with a state of {mixer.state_elements:,} numbers"


def _gpu(plan: Plan) -> Iterator[Line]:
    gpu, sharing = plan.deployment.gpu, plan.deployment.parallelism
    peaks = [f"{flop_rate(gpu.peak(math))} {math.value}" for math in _formats(plan)]
    memory = gpu.memory_bytes or gpu.driver_memory_bytes
    certainty = f"peaks {gpu.peaks_certainty.value}, bandwidth {gpu.bandwidth_certainty.value} certainty"
    yield Line(
        label="GPU",
        value=f"{sharing.gpus} x {gpu.id}",
        how=f"each {', '.join(peaks)} dense, {byte_rate(gpu.memory_bytes_per_second)}"
        + (f", {memory / 1e9:g} GB" if memory else ""),
        source=f"{gpu.source}; {certainty}",
    )
    if sharing.gpus > 1:
        parts = [
            f"{name} {size}"
            for name, size in (("tensor", sharing.tensor), ("pipeline", sharing.pipeline), ("data", sharing.data))
            if size > 1
        ]
        yield Line(
            label="shared by",
            value=" x ".join(parts) + (", experts whole" if sharing.expert else ""),
            how=_link(plan),
        )


def _formats(plan: Plan) -> list[Precision]:
    """Formats that weights are multiplied in, the one with most weights first."""
    sizes: dict[Precision, float] = {}
    for term in plan.deployment.weight_terms:
        if term.flop_per_use:
            math = plan.deployment.gpu.math(term.width.math)
            sizes[math] = sizes.get(math, 0.0) + term.parameters
    return sorted(sizes, key=lambda math: -sizes[math])


def _link(plan: Plan) -> str:
    gpu = plan.deployment.gpu
    if gpu.link_bytes_per_second:
        return f"link {byte_rate(gpu.link_bytes_per_second)} in each direction"
    if gpu.pcie_bytes_per_second:
        return f"over PCIe, {byte_rate(gpu.pcie_bytes_per_second)} in each direction"
    return "how fast they exchange results is not known"


def _request(column: Column) -> Iterator[Line]:
    plan, workload = column.plan, column.plan.question.workload
    guessed = [name for name in ("prompt", "output") if f"{name}_tokens" in column.assumed]
    yield Line(
        label="request",
        value=f"{workload.prompt_tokens:,} + {workload.completion_tokens:,} tokens",
        how="prompt + output" + (f" ({' and '.join(guessed)} assumed)" if guessed else ""),
    )
    if workload.max_completion_tokens is not None:
        how = "memory is kept for it; times are for the mean"
        yield Line(label="longest output", value=f"{workload.max_completion_tokens:,} tokens", how=how)
    if workload.cached_tokens:
        share = workload.cached_tokens / workload.prompt_tokens
        yield Line(
            label="found in the cache",
            value=f"{workload.cached_tokens:,} tokens",
            how=f"{share:.0%} of the prompt; memory is planned as if nothing were shared",
        )
    found = plan.load.at_rate if plan.load else None
    rate = f"{plan.question.rate_per_second or 0.0:g} requests a second"
    served = f"what {rate} lead to (section 7)"
    origins = {
        Origin.GIVEN: "given",
        Origin.RATE: served if found and found.steady else f"as many as may run: {rate} are more than it serves (section 7)",
        Origin.ASSUMED: "assumed: a request alone; say --concurrency or --rate",
    }
    yield Line(label="at once", value=_requests(plan.concurrency), how=origins[plan.origin])


def _engine(column: Column) -> Iterator[Line]:
    losses, budget = column.plan.question.losses, column.plan.budget
    off = "" if losses.error_ratio is None else f"; expected times are off by {losses.error_ratio:.0%} on average"
    exchange = time_text(losses.parallel_layer_overhead_seconds)
    yield Line(
        label="engine",
        value=column.engine,
        how=(
            f"reaches {losses.compute_efficiency_ratio:.0%} of peak compute and {losses.memory_efficiency_ratio:.0%} of "
            f"bandwidth; {time_text(losses.layer_overhead_seconds)} a layer and step, {exchange} more over several GPUs{off}"
        ),
        source=losses.source,
    )
    limits, data = budget.reserve.limits, column.plan.deployment.parallelism.data
    each = f" on each of {data} ranks" if data > 1 else ""
    for label, value, option, name in (
        ("tokens in a step, at most", limits.batched_tokens, "--max-num-batched-tokens", "batched_tokens"),
        ("requests running, at most", limits.sequences, "--max-num-seqs", "sequences"),
    ):
        is_default = name in column.assumed
        yield Line(label=label, value=f"{value:,}", how=option + each + (": vLLM's default for this GPU" if is_default else ""))


def _targets(column: Column) -> Line:
    targets = column.plan.question.targets
    parts = [
        f"{name} up to {given_time(seconds)}"
        for name, seconds in (("TTFT", targets.ttft_seconds), ("TPOT", targets.tpot_seconds))
        if seconds is not None
    ]
    is_assumed = {"target", "ttft_target", "tpot_target"} <= column.assumed
    return Line(
        label="targets",
        value=targets.name,
        how=(", ".join(parts) or "none for latency") + (" (assumed: --target chat)" if is_assumed else ""),
        source=targets.source,
    )


def _requests(count: float) -> str:
    return "1 request" if count == 1.0 else f"{whole_or_tenth(count)} requests"
