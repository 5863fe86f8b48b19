"""How long an engine step takes on a GPU, from a few constants that suit a demo.

The constants are demo constants for a dense model of about 8 billion parameters in 16 bits on one GPU. They have the right
order of magnitude and are no facts about anyone's hardware: never judge a measurement by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.timing import ConstantTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoGpu:
    """What a step costs and how much KV cache there is."""

    step_seconds: float  # every step: weights read once, launches, scheduling
    prefill_seconds_per_token: float  # each prompt token computed in the step
    context_seconds_per_token: float  # each token of KV cache that the step's sequences read
    kv_tokens: int  # capacity of the KV cache

    @property
    def timer(self) -> ConstantTimer:
        """What times steps by these constants."""
        return ConstantTimer(
            step_seconds=self.step_seconds,
            prefill_seconds_per_token=self.prefill_seconds_per_token,
            context_seconds_per_token=self.context_seconds_per_token,
        )


DEMO_GPUS: dict[str, DemoGpu] = {
    "a100-sxm4-80gb": DemoGpu(
        step_seconds=0.0105, prefill_seconds_per_token=85e-6, context_seconds_per_token=80e-9, kv_tokens=420_000
    ),
    "h100-sxm": DemoGpu(
        step_seconds=0.0070, prefill_seconds_per_token=32e-6, context_seconds_per_token=48e-9, kv_tokens=420_000
    ),
    "h200-sxm": DemoGpu(
        step_seconds=0.0052, prefill_seconds_per_token=31e-6, context_seconds_per_token=34e-9, kv_tokens=850_000
    ),
    "l40s": DemoGpu(step_seconds=0.0230, prefill_seconds_per_token=90e-6, context_seconds_per_token=190e-9, kv_tokens=190_000),
}


def gpu_by_name(name: str) -> DemoGpu:
    """The constants of one GPU. ``ValueError``, listing the known names, if there is none of this name."""
    try:
        return DEMO_GPUS[name]
    except KeyError:
        known = ", ".join(sorted(DEMO_GPUS))
        raise ValueError(f"unknown GPU {name!r}; the simulated worker knows {known}") from None
