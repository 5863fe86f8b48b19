"""What requests ask of a worker: lengths of prompts and completions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests alike, by their mean lengths. ``ValueError`` for lengths that cannot be.

    ``max_completion_tokens`` is how long a completion may get: memory must be kept for it. ``None``: not longer than the mean.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    max_completion_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.completion_tokens < 1:
            raise ValueError(
                f"prompt and completion have at least one token, not {self.prompt_tokens}, {self.completion_tokens}"
            )
        if not 0 <= self.cached_tokens <= self.prompt_tokens:
            raise ValueError(f"cached tokens are part of the prompt's {self.prompt_tokens}, not {self.cached_tokens}")
        if self.max_completion_tokens is not None and self.max_completion_tokens < self.completion_tokens:
            raise ValueError(
                f"the longest completion is {self.max_completion_tokens}, less than {self.completion_tokens}, the mean"
            )

    @property
    def total_tokens(self) -> int:
        """Prompt and longest completion: what the cache must have room for."""
        return self.prompt_tokens + (self.max_completion_tokens or self.completion_tokens)

    @property
    def mean_context_tokens(self) -> int:
        """Length of a sequence half way through its completion."""
        return self.prompt_tokens + self.completion_tokens // 2
