"""What could be changed about a worker, one thing at a time from where it stands, and what each would give.

The table does not say what a remedy costs in quality: whatever stores numbers in fewer bits has to be tried on the same
prompts before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from roofline.capacity.host_memory import weight_offload_cost
from roofline.capacity.memory import memory_budget
from roofline.capacity.rank_memory import BLOCK_TOKENS
from roofline.capacity.splits import splits_evenly, tensor_sizes
from roofline.capacity.standing import Situation, Standing, standing
from roofline.deployment import Deployment, Parallelism
from roofline.kv_cache import KvWidth, kv_width
from roofline.precision import Precision
from roofline.quantization import WeightScheme, named_scheme
from roofline.shape import Attention, LayerGroup, ModelShape

_QUALITY = "compare the output on the same prompts before and after"
_NOTICEABLE_RATIO = 0.95  # what saves less is not worth a row


class RemedyCode(StrEnum):
    """What is changed."""

    WEIGHTS_FP8 = "weights_fp8"
    WEIGHTS_INT8 = "weights_int8"
    WEIGHTS_INT4 = "weights_int4"
    KV_FP8 = "kv_fp8"
    SMALLER_BATCH = "smaller_batch"
    SHORTER_LIMIT = "shorter_limit"
    TENSOR_PARALLEL = "tensor_parallel"
    PREFIX_SHARING = "prefix_sharing"
    WINDOW = "window"
    OFFLOAD = "offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change: what it would give here, or why it would give nothing."""

    code: RemedyCode
    title: str
    after: Standing | None
    reason: str | None  # why it does not apply
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyTable:
    """Where a worker stands, and what each change alone would give."""

    before: Standing
    rows: tuple[Remedy, ...]

    def row(self, code: RemedyCode) -> Remedy:
        """The row of one change."""
        return next(row for row in self.rows if row.code is code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    title: str
    situation: Situation | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    step_seconds: float = 0.0  # added to every step


def remedies(situation: Situation, *, shared_ratio: float = 0.5, window_tokens: int = 4096) -> RemedyTable:
    """All remedies for this situation.

    Assumed for two of them: ``shared_ratio`` of the prompts could be made the same for all, and every second layer of a model
    like this could attend to ``window_tokens`` only. ``ValueError`` for a share outside of (0, 1) or an empty window.
    """
    if not 0.0 < shared_ratio < 1.0 or window_tokens < 1:
        raise ValueError(f"a share lies between 0 and 1 and a window has a token, not {shared_ratio} and {window_tokens}")
    before = standing(situation)
    changes: dict[RemedyCode, Callable[[], _Change]] = {
        RemedyCode.WEIGHTS_FP8: lambda: _weights(situation, "fp8", Precision.FP8),
        RemedyCode.WEIGHTS_INT8: lambda: _weights(situation, "int8", Precision.INT8),
        RemedyCode.WEIGHTS_INT4: lambda: _weights(situation, "int4", None),
        RemedyCode.KV_FP8: lambda: _kv_fp8(situation),
        RemedyCode.SMALLER_BATCH: lambda: _smaller_batch(situation, before),
        RemedyCode.SHORTER_LIMIT: lambda: _shorter_limit(situation),
        RemedyCode.TENSOR_PARALLEL: lambda: _tensor_parallel(situation),
        RemedyCode.PREFIX_SHARING: lambda: _prefix_sharing(situation, shared_ratio),
        RemedyCode.WINDOW: lambda: _window(situation, window_tokens),
        RemedyCode.OFFLOAD: lambda: _offload(situation, before),
    }
    return RemedyTable(before=before, rows=tuple(_remedy(code, change()) for code, change in changes.items()))


def _remedy(code: RemedyCode, change: _Change) -> Remedy:
    after = None
    if change.situation is not None:
        after = standing(change.situation, added_step_seconds=change.step_seconds)
    return Remedy(code=code, title=change.title, after=after, reason=change.reason, notes=change.notes)


def _weights(situation: Situation, name: str, math: Precision | None) -> _Change:
    title = f"weights in {name}"
    deployment = situation.deployment
    changed = _varied(deployment, weights=named_scheme(name, deployment.shape.native))
    if changed.weight_bytes > _NOTICEABLE_RATIO * deployment.weight_bytes:
        return _Change(title=title, reason=f"weights are {deployment.weights.name} already: nothing to save")
    notes = [_QUALITY]
    if math is None:
        notes.append("weights are widened before they are multiplied: prefill does not get faster")
    elif math not in deployment.gpu.dense_flop_per_second:
        notes.append(f"{deployment.gpu.id} has no {math.value} arithmetic: memory is saved, but prefill does not get faster")
    return _Change(title=title, situation=replace(situation, deployment=changed), notes=tuple(notes))


def _kv_fp8(situation: Situation) -> _Change:
    title = "cache in fp8"
    deployment = situation.deployment
    changed = _varied(deployment, kv=kv_width("fp8", deployment.shape))
    if changed.kv_bytes_per_token > _NOTICEABLE_RATIO * deployment.kv_bytes_per_token:
        return _Change(title=title, reason=f"the cache is {deployment.kv.name} already: nothing to save")
    notes = [_QUALITY]
    if Precision.FP8 not in deployment.gpu.dense_flop_per_second:
        notes.append(f"{deployment.gpu.id} has no fp8 arithmetic: the cache is widened as it is read")
    return _Change(title=title, situation=replace(situation, deployment=changed), notes=tuple(notes))


def _smaller_batch(situation: Situation, before: Standing) -> _Change:
    title = "half as many requests at once"
    if before.batch is None or before.batch < 2:
        return _Change(title=title, reason="there are no two requests at once")
    note = "the other half waits: limit them by --max-num-seqs, or spread them over more workers"
    return _Change(title=title, situation=replace(situation, concurrency=float(before.batch // 2)), notes=(note,))


def _shorter_limit(situation: Situation) -> _Change:
    title = "half the longest completion"
    workload = situation.workload
    if (workload.max_completion_tokens or 0) <= workload.completion_tokens:
        return _Change(title=title, reason="memory is kept for the mean completion only: there is no longer limit to cut")
    longest = max(workload.completion_tokens, (workload.max_completion_tokens or 0) // 2)
    shorter = replace(workload, max_completion_tokens=longest)
    note = f"completions of more than {longest} tokens are cut: send max_tokens, set --max-model-len"
    return _Change(title=title, situation=replace(situation, workload=shorter), notes=(note,))


def _tensor_parallel(situation: Situation) -> _Change:
    deployment = situation.deployment
    sharing = deployment.parallelism
    tensor = 2 * sharing.tensor
    title = f"tensor parallelism over {tensor} GPUs"
    if not splits_evenly(deployment.shape, tensor):
        possible = ", ".join(map(str, tensor_sizes(deployment.shape)))
        return _Change(title=title, reason=f"heads and layers divide by {possible} only")
    notes = ["twice the GPUs: compare with two workers of the size that there is"]
    heads = min((term.kv_heads for term in deployment.attention_terms), default=tensor)
    if tensor > heads:
        notes.append(f"the cache can be split over {heads} at most: more GPUs hold copies, and gain the room of weights only")
    if not deployment.gpu.link_bytes_per_second:
        notes.append("no link between the GPUs is known: results are exchanged over PCIe")
    changed = _varied(deployment, parallelism=replace(sharing, tensor=tensor))
    return _Change(title=title, situation=replace(situation, deployment=changed), notes=tuple(notes))


def _prefix_sharing(situation: Situation, shared_ratio: float) -> _Change:
    title = f"the first {shared_ratio:.0%} of all prompts alike"
    workload = situation.workload
    shared = int(workload.prompt_tokens * shared_ratio) // BLOCK_TOKENS * BLOCK_TOKENS
    if shared <= max(situation.shared_tokens, workload.cached_tokens):
        return _Change(title=title, reason="as much is found in the prefix cache already, or it is less than a block")
    changed = replace(situation, workload=replace(workload, cached_tokens=shared), shared_tokens=shared)
    notes = [
        "prompts must agree token by token from the first on: fixed parts first, nothing that changes (dates, ids) before them",
        "decoding reads the shared part for every sequence all the same, unless the engine uses cascade attention",
    ]
    return _Change(title=title, situation=changed, notes=tuple(notes))


def _window(situation: Situation, window_tokens: int) -> _Change:
    title = f"a window of {window_tokens} tokens in every second layer"
    deployment = situation.deployment
    shape = windowed(deployment.shape, window_tokens)
    if shape is None or situation.workload.total_tokens <= window_tokens:
        return _Change(title=title, reason="no layer would keep fewer tokens than it does")
    changed = Deployment(
        shape, deployment.gpu, weights=deployment.weights, kv=deployment.kv, parallelism=deployment.parallelism
    )
    note = "another model: one has to be trained that way (Gemma, gpt-oss and Mistral are)"
    return _Change(title=title, situation=replace(situation, deployment=changed), notes=(note, _QUALITY))


def _offload(situation: Situation, before: Standing) -> _Change:
    title = "weights that do not fit in the host's memory"
    if not before.missing_bytes and before.max_concurrency:
        return _Change(title=title, reason="the weights fit: offloading would only slow every step")
    settings = situation.settings
    deployment = situation.deployment
    room = memory_budget(deployment, settings).sequence_bytes(situation.workload.total_tokens)
    moved = before.missing_bytes + room
    cost = weight_offload_cost(deployment.gpu, moved)
    if cost is None:
        return _Change(title=title, reason=f"how fast {deployment.gpu.id} reads the host's memory is not known")
    offloading = replace(settings, offloaded_bytes=settings.offloaded_bytes + moved)
    note = f"{moved / 1e9:.1f} GB per GPU cross the bus in every step: {cost.seconds * 1e3:.0f} ms, none of it taken as hidden"
    changed = replace(situation, settings=offloading)
    return _Change(title=title, situation=changed, notes=(note,), step_seconds=cost.seconds)


def windowed(shape: ModelShape, window_tokens: int) -> ModelShape | None:
    """The shape with a window in every second of the layers that attend to everything; ``None`` if there are none."""
    groups: list[LayerGroup] = []
    found = 0
    for group in shape.groups:
        mixer = group.mixer
        if not isinstance(mixer, Attention) or mixer.window_tokens is not None:
            groups.append(group)
            continue
        narrow = tuple(layer for place, layer in enumerate(group.layers) if (found + place) % 2 == 0)
        wide = tuple(layer for place, layer in enumerate(group.layers) if (found + place) % 2)
        found += len(group.layers)
        if narrow:
            groups.append(replace(group, layers=narrow, mixer=replace(mixer, window_tokens=window_tokens)))
        if wide:
            groups.append(replace(group, layers=wide))
    return replace(shape, groups=tuple(groups)) if found else None


def _varied(
    deployment: Deployment,
    *,
    weights: WeightScheme | None = None,
    kv: KvWidth | None = None,
    parallelism: Parallelism | None = None,
) -> Deployment:
    return Deployment(
        deployment.shape,
        deployment.gpu,
        weights=weights or deployment.weights,
        kv=kv or deployment.kv,
        parallelism=parallelism or deployment.parallelism,
    )
