"""What a request asks of a worker, as far as routing goes: made once from its body, looked at by every choice."""

from __future__ import annotations

import msgspec

from routing.estimate import Prompt, TokenEstimate

ASSUMED_OUTPUT_TOKENS = 1024
"""Output budget of a request that declares none, while nothing better is known."""

_MOST_LOAD_TOKENS = 2**40
"""More than any worker holds. Loads are sums of floats, which have to come back to exactly 0: these are exact to 2**53."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """One request's tokens, and what ties it to a worker. Tokens are counts; ``None`` is not declared or not known."""

    estimate: TokenEstimate
    max_tokens: int | None = None  # the output limit that the client declared
    expected_output_tokens: int | None = None  # what is learned of requests like it; None: nothing yet
    affinity: int | None = None  # hash of the leading part of the prompt, the same in every replica
    session: int | None = None  # hash of what names its session
    prompt: Prompt | None = None  # what the estimate was made from
    guess: int | None = None  # the first estimate of a prompt that has been counted since
    batch_tokens: int | None = (
        None  # likely tokens of all prompts of a batch, of which `estimate` is the longest; None: no batch
    )
    sequences: int = 1  # that the worker generates: prompts times n

    @property
    def output_tokens(self) -> int:
        """The output budget that a pool is chosen for, and that counts as load."""
        declared, learned = self.max_tokens, self.expected_output_tokens
        if declared is None:
            return ASSUMED_OUTPUT_TOKENS if learned is None else learned
        return declared if learned is None or declared < learned else learned

    @property
    def total_tokens(self) -> int:
        """Prompt and output budget together, which is what a worker has to hold; of a batch, of its longest."""
        return self.estimate.tokens + self.output_tokens

    @property
    def least_tokens(self) -> int:
        """The least that a worker has to hold; it refuses a prompt whose declared output has no room behind it."""
        return self.estimate.least + (self.max_tokens or 0)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens that the worker will report, likely: of all prompts of a batch, before they were counted exactly."""
        if self.batch_tokens is not None:
            return self.batch_tokens
        return self.estimate.tokens if self.guess is None else self.guess

    @property
    def load_tokens(self) -> int:
        """What the request adds to a worker's load: all prompts, and the output budget of every sequence, as far as can be."""
        if self.sequences == 1:
            return self.estimate.tokens + self.output_tokens
        prompts = self.estimate.tokens if self.batch_tokens is None else self.batch_tokens
        return min(prompts + self.output_tokens * self.sequences, _MOST_LOAD_TOKENS)
