"""Worked numbers that introductory texts print, out of the product's own functions; better answers where they are too simple.

`tests/data/facts/README.md` says what the fields of a check mean. No formula is evaluated here: each number is asked of the
product, for a model and a GPU of the sizes that the check states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roofline.bound import bound
from roofline.capacity.bisection import crossing
from roofline.capacity.ceilings import phase_ratio
from roofline.capacity.chains import Call, ChainTime, chain_on
from roofline.capacity.decode_parts import decode_parts
from roofline.capacity.knee import knee
from roofline.capacity.memory import memory_budget
from roofline.capacity.queueing import Service
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment
from roofline.expected import Losses, expected
from roofline.gpu import Gpu
from roofline.gpus import GPUS
from roofline.kv_cache import kv_bytes
from roofline.limits import e2e_seconds, prefill_limit
from roofline.models.known import find_shape
from roofline.precision import BF16, FP8, FP16, FP32, INT8, Precision, Width
from roofline.quantization import named_scheme
from roofline.quantization.widths import integer
from roofline.shape import Attention, ModelShape, WeightKind
from roofline.work import Span, work
from tests.facts import facts_in
from tests.roofline.shapes import a_gpu, a_shape

CHECKS: dict[str, dict[str, Any]] = {check["id"]: check for check in facts_in("published-arithmetic.yaml")["checks"]}
Inputs = dict[str, Any]
SCORES = "attention scores"


def losses(*, compute: float = 1.0, memory: float = 1.0, request_seconds: float = 0.0) -> Losses:
    return Losses(
        compute_efficiency_ratio=compute,
        memory_efficiency_ratio=memory,
        layer_overhead_seconds=0.0,
        parallel_layer_overhead_seconds=0.0,
        request_overhead_seconds=request_seconds,
    )


PERFECT = losses()


def dense(
    parameters: float,
    *,
    peak: float = 300e12,
    bandwidth: float = 2e12,
    layers: int = 1,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 128,
    width: Width = BF16,
) -> Deployment:
    """A model of so many parameters that every token passes, with attention if there are heads."""
    mixer = Attention(heads=heads, kv_heads=kv_heads or heads, qk_head_dim=head_dim, v_head_dim=head_dim) if heads else None
    peaks = dict.fromkeys((Precision.BF16, Precision.FP32), peak)
    shape = a_shape(
        layers=layers, attention=0, ffn=int(parameters) // layers, head=0, mixer=mixer, native=width, scheme=named(width)
    )
    return Deployment(shape, a_gpu(peaks=peaks, bytes_per_second=bandwidth))


def named(width: Width) -> Any:
    return named_scheme("auto", width)


def of_step(seconds: float) -> Deployment:
    """One whose decode step takes so long."""
    return dense(seconds * 1e12 / BF16.bytes_each, bandwidth=1e12)


def llama_7b(i: Inputs) -> Deployment:
    """32 layers and 32 heads of 128, with the parameters of the check (none: only its attention matters)."""
    return dense(i.get("P", 32), layers=i["L"], heads=i["d"] // 128)


def cache_of(i: Inputs) -> ModelShape:
    """A model that caches what the check says."""
    return dense(i["L"], layers=i["L"], heads=32, kv_heads=i["h"], head_dim=i["d"], width={2: FP16}[i["b"]]).shape


def llama_8b(gpu: Gpu) -> Deployment:
    return Deployment(find_shape("llama-3.1-8b"), gpu)


def linear_flop(deployment: Deployment, prompt: int) -> float:
    return sum(operator.flop for operator in work(deployment, [Span(0, prompt)]).operators if operator.name != SCORES)


def causal_flop(deployment: Deployment, prompt: int) -> float:
    return sum(operator.flop for operator in work(deployment, [Span(0, prompt)]).operators if operator.name == SCORES)


def square_flop(deployment: Deployment, prompt: int) -> float:
    """As if every token attended to every other, those to come as well."""
    return deployment.attention_terms[0].flop_per_pair * prompt**2


def prefill_flop(deployment: Deployment, prompt: int, cached: int = 0) -> float:
    return prefill_limit(deployment, PERFECT, prompt_tokens=prompt, cached_tokens=cached).flop


def step_seconds(deployment: Deployment) -> float:
    return bound(work(deployment, [Span(1, 1)]), deployment.gpu).seconds


def tokens_per_second(deployment: Deployment, batch: float = 1.0) -> float:
    return decode_parts(deployment, PERFECT, batch=batch, context_tokens=1).tokens_per_second


def intensity(deployment: Deployment, *, new: int = 1, count: int = 1) -> float:
    return work(deployment, [Span(0, new, count)]).intensity_flop_per_byte


def cached_read(i: Inputs) -> float:
    """Cache that a decode step touches when its contexts, the new token included, are so long."""
    heads = dense(i["L"], layers=i["L"], heads=32, kv_heads=i["h"], head_dim=i["d"])
    operators = work(heads, [Span(i["S"] - 1, 1, i["B"])]).operators
    return sum(operator.bytes for operator in operators if operator.name == SCORES)


def crossover_tokens(deployment: Deployment) -> float:
    """Prompt length from which attention takes more FLOP than all matrices."""
    return crossing(lambda prompt: causal_flop(deployment, int(prompt)) > linear_flop(deployment, int(prompt)), 1.0, 1e6)


def agents(i: Inputs) -> ChainTime:
    """Three calls of 1000, 1500 and 2000 prompt and 200, 300 and 500 completion tokens, 20 ms a token."""
    calls = [
        Call(prompt_tokens=prompt, completion_tokens=completion)
        for prompt, completion in ((1000, 200), (1500, 300), (2000, 500))
    ]
    deployment = dense(i.get("P", 7e9), peak=i.get("peak", 300e12), bandwidth=14e9 / 0.02)
    return chain_on(deployment, losses(compute=i.get("mfu", 0.4)), calls)


def phases(i: Inputs, batch: float) -> float:
    workload = Workload(prompt_tokens=i["S"], completion_tokens=i["T"])
    deployment = llama_8b(a_gpu(flop_per_second=i["peak"], bytes_per_second=i["bw"]))
    ratio = phase_ratio(deployment, losses(compute=i["mfu"], memory=i["eta"]), workload, decode_batch=batch)
    return ratio.decode_per_prefill_ratio


def memory_share(i: Inputs) -> float:
    """Weights and 20 sequences of 4096 tokens as a share of the device."""
    shape = dense(7e9, layers=32, heads=32, kv_heads=8).shape
    budget = memory_budget(Deployment(shape, a_gpu(memory_bytes=i["cap"])))
    return (budget.weight_bytes + 20 * budget.sequence_bytes(4096)) / budget.device_bytes


def little(i: Inputs) -> float:
    """Requests of 501 tokens, 20 ms for each after the first, whatever the batch: no cache, hardly any arithmetic."""
    service = Service(
        deployment=of_step(i["w"] / 500),
        losses=PERFECT,
        workload=Workload(prompt_tokens=1, completion_tokens=501),
        prefills_elsewhere=True,
    )
    steady = service.at_rate(i["lam"]).steady
    assert steady is not None
    return steady.concurrency


ANSWERS: dict[str, Callable[[Inputs], float]] = {
    "s1-prefill-linear-flops": lambda i: prefill_flop(dense(i["P"]), i["S"]),
    "s1-prefill-ideal-seconds": lambda i: bound(work(dense(i["P"]), [Span(0, i["S"])]), a_gpu(bytes_per_second=2e12)).seconds,
    "s1-prefill-mfu40-seconds": lambda i: expected(dense(i["P"]), [Span(0, i["S"])], losses(compute=i["mfu"])).seconds,
    "s1-attn-flops-2048": lambda i: square_flop(llama_7b(i), i["S"]),
    "s1-linear-flops-32768": lambda i: prefill_flop(dense(i["P"]), i["S"]),
    "s1-attn-flops-32768": lambda i: square_flop(llama_7b(i), i["S"]),
    "s1-linear-growth": lambda i: prefill_flop(dense(7e9), i["b"]) / prefill_flop(dense(7e9), i["a"]),
    "s1-attn-growth": lambda i: (
        square_flop(llama_7b({"L": 32, "d": 4096}), i["b"]) / square_flop(llama_7b({"L": 32, "d": 4096}), i["a"])
    ),
    "s1-attn-overtakes": lambda i: square_flop(llama_7b(i), i["S"]) / linear_flop(llama_7b(i), i["S"]),
    "s1-ttft-8k-to-32k": lambda i: (
        prefill_limit(llama_7b(i), PERFECT, prompt_tokens=i["b"]).floor_seconds
        / prefill_limit(llama_7b(i), PERFECT, prompt_tokens=i["a"]).floor_seconds
    ),
    "s1-score-matrix": lambda i: i["S"] ** 2 * FP16.bytes_each,  # of no product function: engines keep no such matrix
    "s1-kv-per-token-mha": lambda i: kv_bytes(cache_of(i), 1),
    "s1-kv-4096-mha": lambda i: kv_bytes(cache_of(i), i["S"]),
    "s1-kv-batch32-mha": lambda i: i["B"] * kv_bytes(cache_of(i), i["S"]),
    "s1-decode-intensity-b1": lambda i: intensity(dense(i["P"])),
    "s1-decode-intensity-batch": lambda i: intensity(dense(7e9), count=i["B"]),
    "s1-ridge": lambda i: a_gpu(flop_per_second=i["peak"], bytes_per_second=i["bw"]).ridge_flop_per_byte(Precision.BF16),
    "s1-batch-at-ridge": lambda i: knee(dense(7e9, peak=i["ridge"] * 2e12), PERFECT, 1).ridge_batch or 0.0,
    "s1-decode-ideal": lambda i: step_seconds(dense(i["P"], bandwidth=i["bw"])),
    "s1-decode-tok-s-fast": lambda i: tokens_per_second(of_step(i["t"])),
    "s1-decode-tok-s-slow": lambda i: tokens_per_second(of_step(i["t"])),
    "s1-kv-read-32k-b16": cached_read,
    "s1-kv-per-token-gqa": lambda i: kv_bytes(cache_of(i), 1),
    "s1-kv-4k-gqa": lambda i: kv_bytes(cache_of(i), i["S"]),
    "s1-kv-128k-gqa": lambda i: kv_bytes(cache_of(i), i["S"]),
    "s1-kv-equals-weights": lambda i: (
        (model := dense(i["W"] / 2, layers=32, heads=32, kv_heads=8)).weight_bytes / model.kv_bytes_per_token
    ),
    "s1-prefix-hit-rate": lambda i: (
        1 - prefill_flop(dense(7e9), i["a"] + i["b"], cached=i["a"]) / prefill_flop(dense(7e9), i["a"] + i["b"])
    ),
    "s1-prefix-ttft-share": lambda i: (
        prefill_flop(dense(7e9), i["a"] + i["b"], cached=i["a"]) / prefill_flop(dense(7e9), i["a"] + i["b"])
    ),
    "s1-prompt-cut": lambda i: 1 - prefill_flop(dense(7e9), i["b"]) / prefill_flop(dense(7e9), i["a"]),
    "s1-cache-loss": lambda i: prefill_flop(dense(7e9), 2000) / prefill_flop(dense(7e9), 2000, cached=int(2000 * i["h"])),
    "s1-maxtokens-peak": lambda i: i["kv_prompt"] * grown(i),
    "s1-ttft-500-4000": lambda i: prefill_flop(dense(7e9), i["b"]) / prefill_flop(dense(7e9), i["a"]),
    "s1-pd-ratio-batch4": lambda i: phases(i, i["B"]),
    "s2-weights-7b": lambda i: dense(i["P"]).weight_bytes,
    "s2-weights-13b": lambda i: dense(i["P"]).weight_bytes,
    "s2-weights-70b": lambda i: dense(i["P"]).weight_bytes,
    "s2-bytes-fp32": lambda _: FP32.bytes_each,
    "s2-bytes-fp16": lambda _: FP16.bytes_each,
    "s2-bytes-bf16": lambda _: BF16.bytes_each,
    "s2-bytes-fp8": lambda _: FP8.bytes_each,
    "s2-bytes-int8": lambda _: INT8.bytes_each,
    "s2-bytes-int4": lambda _: integer(4, None, Precision.BF16, native=BF16).bytes_each,
    "s2-total-flops": lambda i: (
        work(dense(i["P"]), [Span(0, i["i"])]).flop + work(dense(i["P"]), [Span(i["i"], i["o"], steps=i["o"])]).flop
    ),
    "s2-step-1tb": lambda i: step_seconds(dense(i["w"] / 2, bandwidth=i["bw"])),
    "s2-rate-1tb": lambda i: tokens_per_second(dense(i["w"] / 2, bandwidth=i["bw"])),
    "s2-step-500": lambda i: step_seconds(dense(i["w"] / 2, bandwidth=i["bw"])),
    "s2-rate-500": lambda i: tokens_per_second(dense(i["w"] / 2, bandwidth=i["bw"])),
    "s2-intensity-decode": lambda i: intensity(dense(i["N"])),
    "s2-intensity-prefill": lambda i: intensity(dense(i["N"]), new=i["T"]),
    "s2-ridge": lambda i: a_gpu(flop_per_second=i["peak"], bytes_per_second=i["bw"]).ridge_flop_per_byte(Precision.BF16),
    "s2-kv-per-token": lambda i: kv_bytes(cache_of(i), 1),
    "s2-kv-8192": lambda i: kv_bytes(cache_of(i), i["S"]),
    "s2-kv-batch4": lambda i: i["B"] * kv_bytes(cache_of(i), i["S"]),
    "s2-kv-batch8": lambda i: i["B"] * kv_bytes(cache_of(i), i["S"]),
    "s2-latency": lambda i: e2e_seconds(i["ttft"], i["tpot"], i["n"] + 1),  # as printed: one token too many
    "s2-service-time": lambda i: e2e_seconds(1 / i["r"], 1 / i["r"], i["n"]),  # the first token taken as quick as the others
    "s2-little": little,
    "s2-kv-20x4096": lambda i: i["n"] * kv_bytes(dense(32, layers=32, heads=32, kv_heads=8).shape, i["S"]),
    "s2-fit-24gb": memory_share,
    "s2-batch8-per-user": lambda i: tokens_per_second(of_step(i["n"] / i["t"]), i["n"]) / i["n"],
    "s2-chain-input": lambda i: agents({}).prompt_tokens,
    "s2-chain-output": lambda i: agents({}).completion_tokens,
    "s2-chain-latency": lambda i: agents(i).latency_seconds,
}


def grown(i: Inputs) -> float:
    """Cache with the longest completion over cache of the prompt."""
    workload = Workload(prompt_tokens=i["S"], completion_tokens=1, max_completion_tokens=i["T"])
    shape = dense(32, layers=32, heads=32, kv_heads=8).shape
    return kv_bytes(shape, workload.total_tokens) / kv_bytes(shape, workload.prompt_tokens)


# Where the product counts more exactly than the formula of the check, by how much the two differ.
FINER = {
    "s1-ttft-8k-to-32k": 1e-4,  # a token attends to itself too: S (S + 1) / 2 pairs
    "s1-pd-ratio-batch4": 1e-2,  # the first of the completion's tokens comes with the prefill; its FLOP are not rounded
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_product_gives_the_number(name: str) -> None:
    """What the product computes is the exact value, and the printed one within its tolerance, unless that is known as wrong."""
    check = CHECKS[name]
    value = ANSWERS[name](check["inputs"])

    assert value == pytest.approx(check["exact"], rel=FINER.get(name, 1e-6))
    is_near = value == pytest.approx(check["published"], rel=max(check["rel_tolerance"], 1e-9))
    assert is_near is check["published_within_tolerance"]
    assert is_near is not (check["verdict"] == "wrong")


def test_every_number_has_an_answer() -> None:
    """The table covers all checks, no more and no fewer."""
    assert ANSWERS.keys() == CHECKS.keys()


# What a correct tool says where a check is too simple: the product's answer and the figure it has to give.
H100_LIKE = a_gpu(flop_per_second=300e12, bytes_per_second=2e12)
PHASES: Inputs = CHECKS["s1-pd-ratio-batch4"]["inputs"]
RATIO_32K = {"P": 7e9, "L": 32, "d": 4096}
CACHE_32K = {"B": 16, "L": 32, "S": 32768, "d": 128}


def warm_share(uncached: int, cached: int) -> float:
    """Floor of TTFT with a prefix hit over the one without."""
    model = llama_8b(H100_LIKE)
    warm = prefill_limit(model, PERFECT, prompt_tokens=cached + uncached, cached_tokens=cached)
    return warm.floor_seconds / prefill_limit(model, PERFECT, prompt_tokens=cached + uncached).floor_seconds


def loss_factor(fixed_ratio: float) -> float:
    """TTFT without a hit over that with 85 %, a fixed part of so much of the cold arithmetic included."""
    model = dense(7e9)
    fixed = fixed_ratio * prefill_limit(model, PERFECT, prompt_tokens=20_000).floor_seconds
    slower = losses(request_seconds=fixed)
    warm = prefill_limit(model, slower, prompt_tokens=20_000, cached_tokens=17_000)
    return prefill_limit(model, slower, prompt_tokens=20_000).expected_seconds / warm.expected_seconds


def ridge_batch(width: Width) -> float:
    return knee(dense(7e9, width=width), PERFECT, 1).ridge_batch or 0.0


def settled_concurrency() -> float:
    """2 requests a second of 500 tokens, decoded by an 8B model on 165 TFLOP/s and 1008 GB/s that reach 70 %."""
    service = Service(
        deployment=llama_8b(a_gpu(flop_per_second=165e12, bytes_per_second=1008e9)),
        losses=losses(compute=0.7, memory=0.7),
        workload=Workload(prompt_tokens=3846 - 250, completion_tokens=500),
        prefills_elsewhere=True,
    )
    steady = service.at_rate(2.0).steady
    assert steady is not None
    return steady.concurrency


BETTER: dict[str, list[tuple[Callable[[], float], float, float]]] = {
    "s1-attn-flops-2048": [(lambda: causal_flop(llama_7b(RATIO_32K), 2048), 1.100e12, 1e-3)],
    "s1-attn-overtakes": [
        (lambda: causal_flop(llama_7b(RATIO_32K), 32768) / linear_flop(llama_7b(RATIO_32K), 32768), 0.614, 1e-3),
        (lambda: crossover_tokens(llama_7b(RATIO_32K)), 53_406, 1e-4),
        (lambda: crossover_tokens(Deployment(find_shape("llama-2-7b"), H100_LIKE)), 49_500, 3e-3),
        (lambda: crossover_tokens(llama_8b(H100_LIKE)), 53_300, 2e-3),
    ],
    "s1-batch-at-ridge": [
        (lambda: ridge_batch(BF16), 150, 1e-9),
        (lambda: ridge_batch(integer(8, None, Precision.BF16, native=BF16)), 75, 1e-9),
    ],
    "s1-kv-read-32k-b16": [
        (lambda: cached_read({**CACHE_32K, "h": 8}), 64 * 2**30, 1e-9),
        (lambda: cached_read({**CACHE_32K, "h": 32}), 256 * 2**30, 1e-9),
        (lambda: cached_read({**CACHE_32K, "h": 1}), 8 * 2**30, 1e-9),
    ],
    "s1-prefix-ttft-share": [(lambda: warm_share(100, 1500), 0.099, 5e-3)],
    "s1-cache-loss": [(lambda: loss_factor(0.0), 1 / 0.15, 1e-9), (lambda: loss_factor(0.1333), 4.0, 1e-3)],
    "s1-pd-ratio-batch4": [(lambda: phases(PHASES, 16), 0.7, 0.05), (lambda: phases(PHASES, 32), 0.4, 0.1)],
    "s2-latency": [(lambda: e2e_seconds(0.5, 0.02, 500), 10.48, 1e-9)],
    "s2-little": [(settled_concurrency, 73, 0.02)],
}


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, answers in BETTER.items() for place in range(len(answers))]
)
def test_where_a_number_is_too_simple_the_product_says_better(name: str, place: int) -> None:
    """The product's answer is the one that a correct tool gives."""
    answer, wanted, tolerance = BETTER[name][place]

    assert answer() == pytest.approx(wanted, rel=tolerance)


def test_every_doubtful_number_has_a_better_answer() -> None:
    """All checks whose verdict is wrong, loose or inconsistent are answered, and all that say what a tool should give."""
    doubtful = {
        name
        for name, check in CHECKS.items()
        if check["verdict"] in ("wrong", "loose", "inconsistent") or "tool_should_give" in check
    }

    assert doubtful <= BETTER.keys()


def test_compute_does_not_constrain_at_a_few_tens() -> None:
    """With a ridge of 150 FLOP per byte a step of 16-bit weights is bound by memory up to a batch of 150, cache or not."""
    model = dense(7e9)

    assert [bound(work(model, [Span(0, 1, batch)]), model.gpu).binds for batch in (16, 60, 149, 151)] == [
        *["memory"] * 3,
        "compute",
    ]


def test_twenty_sequences_do_not_fit_beside_8b_in_24_gb() -> None:
    """Weights and 20 sequences of 4096 tokens are more than 24 GB before anything else; the budget says how many do fit."""
    budget = memory_budget(llama_8b(GPUS["rtx-4090"]))

    assert budget.weight_bytes + 20 * budget.sequence_bytes(4096) > 24e9
    assert 0 < budget.sequences(4096) < 20


def test_scales_come_on_top_of_narrow_numbers() -> None:
    """Groups of 128 four-bit numbers share a 16-bit scale, so that half a byte becomes 0.516."""
    width = named_scheme("int4-g128", BF16).width("model.layers.0.mlp.up_proj")

    assert width.bytes_each == pytest.approx(0.5 + 2 / 128)


def test_head_and_embedding_count_for_what_they_do() -> None:
    """Of Llama-3.1-8B's 8.03e9 parameters a decode step reads all but the embedding, of which it looks up a row."""
    model = llama_8b(H100_LIKE)
    read = sum(operator.bytes for operator in work(model, [Span(0, 1)]).operators if operator.name != SCORES)

    assert read == 15_009_849_344 == model.weight_bytes - 2 * model.shape.parameters(WeightKind.EMBEDDING)
