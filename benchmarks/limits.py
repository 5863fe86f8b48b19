"""What the limits of one request cost: ``python -m benchmarks.limits``.

The whole model is computed once a record by the control process (floor, reference and expected of TTFT and TPOT); the closed
form is what a serving process may evaluate for a worker while a request waits. The least of many repeats, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass

from roofline.closed_form import closed_form
from roofline.deployment import Deployment, Parallelism
from roofline.expected import DEFAULT_LOSSES
from roofline.gpus import GPUS
from roofline.limits import Surroundings, decode_limit, prefill_limit
from roofline.models.known import find_shape

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3", "qwen3-next-80b-a3b-instruct")
_LOSSES = DEFAULT_LOSSES["vllm"]
_CALLS = 300  # of one repeat, so that a repeat fits between two interruptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCosts:
    """Microseconds of one model."""

    model: str
    record_us: float  # prefill and decode limits of one record
    closed_prefill_us: float
    closed_decode_us: float


def measure(model: str, repeats: int = 200) -> LimitCosts:
    """The costs for one model on two GPUs, beside 17 other sequences, with the prompt in two chunks."""
    deployment = Deployment(find_shape(model), GPUS["h200-sxm"], parallelism=Parallelism(tensor=2))
    around = Surroundings(running=17, context_tokens=3_000, chunk_tokens=2_048)
    form = closed_form(deployment, _LOSSES)

    def record() -> None:
        prefill_limit(deployment, _LOSSES, prompt_tokens=5_000, cached_tokens=1_000, around=around)
        decode_limit(deployment, _LOSSES, context_tokens=5_000, completion_tokens=300, around=around)

    return LimitCosts(
        model=model,
        record_us=_least_us(record, repeats),
        closed_prefill_us=_least_us(lambda: form.prefill_seconds(4_000, 1_000, 17, 51_000), repeats),
        closed_decode_us=_least_us(lambda: form.decode_seconds(17, 51_000), repeats),
    )


def _least_us(call: Callable[[], object], repeats: int) -> float:
    return min(timeit.repeat(call, number=_CALLS, repeat=repeats)) / _CALLS * 1e6


def main() -> None:
    """Print the costs of every model, one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--repeats", type=int, default=200, help="repeats of 300 calls, of which the fastest counts")
    arguments = parser.parse_args()
    for model in MODELS:
        costs = measure(model, arguments.repeats)
        line = json.dumps(asdict(costs)) if arguments.json else _line(costs)
        sys.stdout.write(line + "\n")


def _line(costs: LimitCosts) -> str:
    closed = f"closed form {costs.closed_prefill_us:.2f} us prefill, {costs.closed_decode_us:.2f} us decode"
    return f"{costs.model:30} {costs.record_us:6.1f} us a record; {closed}"


if __name__ == "__main__":
    main()
