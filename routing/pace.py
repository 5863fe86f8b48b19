"""How slow a worker usually is, from what its requests took: what a limit on its silence has to allow for."""

from __future__ import annotations

LEAST_PROMPT_TOKENS = 500
"""Of a shorter prompt the time to first token says more about waiting and fixed costs than about the pace."""
NEEDED = 20
"""Samples before anything is said."""
_RISE = 1.02  # by which the pace rises with each sample above it


class LowestUsual:
    """The lower edge of positive samples: falls to a low one at once, and rises again in the course of a few dozen."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def __repr__(self) -> str:
        return f"<LowestUsual {self.value:.4g} of {self.count}>"

    def add(self, sample: float) -> None:
        """Take one in; what is not above 0 is no sample."""
        if sample > 0:
            self.value = min(sample, self.value * _RISE) if self.count else sample
            self.count += 1

    @property
    def known(self) -> float | None:
        """Two digits of it, so that it changes seldom; None while there are too few."""
        return float(f"{self.value:.2g}") if self.count >= NEEDED else None


class WorkerPace:
    """Prompt tokens a second until the first token, and tokens a second of one answer."""

    __slots__ = ("decode", "prefill")

    def __init__(self) -> None:
        self.prefill = LowestUsual()
        self.decode = LowestUsual()

    def __repr__(self) -> str:
        return f"<WorkerPace {self.prefill!r} {self.decode!r}>"

    def take(
        self, prompt_tokens: int | None, cached_tokens: int | None, ttft_seconds: float | None, tpot_seconds: float | None
    ) -> None:
        """Learn from one stream; None for what is not known of it."""
        if prompt_tokens is not None and ttft_seconds:
            computed = prompt_tokens - (cached_tokens or 0)
            if computed >= LEAST_PROMPT_TOKENS:
                self.prefill.add(computed / ttft_seconds)
        if tpot_seconds:
            self.decode.add(1 / tpot_seconds)
