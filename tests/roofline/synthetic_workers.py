"""Workers whose losses are known: what they answer is the expected time, with noise, and with requests that got stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import exp, log
from random import Random

from roofline.calibration.calibration import Calibration, CalibrationKey
from roofline.calibration.sample import Sample, decode_sample, prefill_sample
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES, Losses
from roofline.limits import Surroundings, decode_limit, prefill_limit
from roofline.shape import Attention
from tests.roofline.shapes import a_gpu, a_shape

DEFAULTS = DEFAULT_LOSSES["vllm"]
_EIGHT_BILLION = a_shape(
    layers=32,
    hidden=4096,
    attention=42_000_000,
    ffn=176_000_000,
    head=525_000_000,
    mixer=Attention(heads=32, kv_heads=8, qk_head_dim=128, v_head_dim=128),
)
_GPU = a_gpu(flop_per_second=989e12, bytes_per_second=3.35e12, link_bytes_per_second=450e9)
ONE_GPU = Deployment(_EIGHT_BILLION, _GPU)
FOUR_GPUS = Deployment(_EIGHT_BILLION, _GPU, parallelism=Parallelism(tensor=4))
KEY = CalibrationKey.of(ONE_GPU, engine="vllm", engine_version="0.11.0")


def losses_off_by(compute: float = 1.0, memory: float = 1.0, layer: float = 1.0, request_seconds: float = 0.0) -> Losses:
    """The defaults times these factors, and an overhead per request."""
    return replace(
        DEFAULTS,
        compute_efficiency_ratio=DEFAULTS.compute_efficiency_ratio * compute,
        memory_efficiency_ratio=DEFAULTS.memory_efficiency_ratio * memory,
        layer_overhead_seconds=DEFAULTS.layer_overhead_seconds * layer,
        parallel_layer_overhead_seconds=DEFAULTS.parallel_layer_overhead_seconds * layer,
        request_overhead_seconds=request_seconds,
    )


@dataclass(frozen=True)
class Request:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    around: Surroundings


def mixed_request(random: Random) -> Request:
    """Prompts of 50 to 50,000 tokens, batches of 1 to 64 sequences, contexts of 200 to 8,000 tokens."""
    prompt = round(exp(random.uniform(log(50), log(50_000))))
    around = Surroundings(
        running=random.choice((0.0, random.uniform(1, 64))),
        context_tokens=round(exp(random.uniform(log(200), log(8_000)))),
        chunk_tokens=8192,
    )
    return Request(prompt, random.choice((0, 0, prompt // 2)), 100, around)


def same_request(_: Random) -> Request:
    """Always the same."""
    return Request(1000, 0, 100, Surroundings(running=8, context_tokens=1000, chunk_tokens=8192))


@dataclass
class SyntheticWorker:
    losses: Losses
    random: Random
    deployment: Deployment = ONE_GPU
    spread: float = 0.2  # of the lognormal noise
    outliers: float = 0.25  # share of requests that take 3 to 10 times as long
    slowness: float = 1.0

    known: dict[Request, tuple[Sample, Sample]] = field(default_factory=dict)  # without noise

    def samples(self, request: Request) -> Iterator[Sample]:
        """What a request tells: its TTFT and its TPOT."""
        if request not in self.known:
            self.known[request] = self._ideal_samples(request)
        for sample in self.known[request]:
            yield Sample(sample.figure, sample.parts, sample.measured_seconds * self._noise())

    def _ideal_samples(self, request: Request) -> tuple[Sample, Sample]:
        prompt, around = request.prompt_tokens, request.around
        ttft, tpot = self.ideal(request, self.losses)
        return (
            prefill_sample(
                self.deployment,
                prompt_tokens=prompt,
                cached_tokens=request.cached_tokens,
                around=around,
                measured_seconds=ttft,
            ),
            decode_sample(
                self.deployment,
                context_tokens=prompt,
                completion_tokens=request.completion_tokens,
                around=around,
                measured_seconds=tpot,
            ),
        )

    def ideal(self, request: Request, losses: Losses) -> tuple[float, float]:
        """TTFT and TPOT that the limits expect with these losses."""
        ttft = prefill_limit(
            self.deployment,
            losses,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            around=request.around,
        )
        tpot = decode_limit(
            self.deployment,
            losses,
            context_tokens=request.prompt_tokens,
            completion_tokens=request.completion_tokens,
            around=request.around,
        )
        return ttft.expected_seconds, tpot.expected_seconds

    def _noise(self) -> float:
        stuck = self.random.uniform(3, 10) if self.random.random() < self.outliers else 1.0
        return self.slowness * stuck * exp(self.random.gauss(0.0, self.spread))


def calibrated(
    worker: SyntheticWorker,
    requests: int,
    request: Callable[[Random], Request] = mixed_request,
    key: CalibrationKey = KEY,
) -> Calibration:
    """A calibration that has seen so many requests of the worker."""
    calibration = Calibration(key, DEFAULTS)
    for _ in range(requests):
        for sample in worker.samples(request(worker.random)):
            calibration.add(sample)
    return calibration
