"""How rates and sums of times are written in a sheet."""

from __future__ import annotations

from roofline.plan.plan import Plan
from roofline.plan.words import byte_rate, flop_rate, time_text

_NEAR = 0.005  # of a GPU
EXPECTED = "max(compute / efficiency, memory / efficiency) + steps x layers x overhead + exchange"


def bandwidth(plan: Plan, moved: float, seconds: float) -> str:
    """The rate at which some bytes are moved at best, by the GPUs that share them."""
    gpu = plan.deployment.gpu
    count = moved / seconds / gpu.memory_bytes_per_second
    rate = byte_rate(gpu.memory_bytes_per_second)
    if abs(count - 1.0) < _NEAR:
        return rate
    return (
        f"({round(count)} x {rate})"
        if abs(count - round(count)) < _NEAR
        else f"({count:.2f} x {rate}, ranks share experts only)"
    )


def peak(plan: Plan, flop: float, seconds: float) -> str:
    """The rate at which some work is computed at best, on one of the GPUs."""
    count, gpu = plan.deployment.rates.rank_gpus, plan.deployment.gpu  # all of them, but for ranks of experts
    rate = flop / seconds / count
    is_mixed = all(abs(rate / peak - 1.0) > 1e-3 for peak in gpu.dense_flop_per_second.values())
    text = flop_rate(rate) + (" over all formats" if is_mixed else "")
    return text if count == 1 else f"({count} x {text})"


def overheads(plan: Plan, steps: int, exchange: float) -> str:
    """What comes on top of compute or memory: launches of each layer and step, and exchange between GPUs."""
    losses = plan.question.losses
    each = time_text(losses.layer_overhead_seconds)
    if plan.deployment.rates.exchanges:
        each = f"({each} + {time_text(losses.parallel_layer_overhead_seconds)})"
    count = f"{steps} steps x " if steps > 1 else ""
    text = f" + {count}{plan.deployment.shape.layers} layers x {each}"
    return text + (f" + exchange {time_text(exchange)}" if exchange else "")
