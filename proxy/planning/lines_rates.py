"""How rates and sums of times are written in a sheet."""

from __future__ import annotations

from roofline.plan.plan import Plan
from roofline.plan.words import byte_rate, flop_rate, time_text

EXPECTED = "max(compute / efficiency, memory / efficiency) + steps x layers x overhead + exchange"


def bandwidth(plan: Plan) -> str:
    """All GPUs that work at once."""
    count, rate = plan.deployment.parallelism.at_once, byte_rate(plan.deployment.gpu.memory_bytes_per_second)
    return rate if count == 1 else f"({count} x {rate})"


def peak(plan: Plan, flop: float, seconds: float) -> str:
    """The rate at which some work is computed at best, on one of the GPUs."""
    count, gpu = plan.deployment.parallelism.at_once, plan.deployment.gpu
    rate = flop / seconds / count
    is_mixed = all(abs(rate / peak - 1.0) > 1e-3 for peak in gpu.dense_flop_per_second.values())
    text = flop_rate(rate) + (" over all formats" if is_mixed else "")
    return text if count == 1 else f"({count} x {text})"


def overheads(plan: Plan, steps: int, exchange: float) -> str:
    """What comes on top of compute or memory: launches of each layer and step, and exchange between GPUs."""
    losses = plan.question.losses
    each = time_text(losses.layer_overhead_seconds)
    if plan.deployment.parallelism.at_once > 1:
        each = f"({each} + {time_text(losses.parallel_layer_overhead_seconds)})"
    count = f"{steps} steps x " if steps > 1 else ""
    text = f" + {count}{plan.deployment.shape.layers} layers x {each}"
    return text + (f" + exchange {time_text(exchange)}" if exchange else "")
