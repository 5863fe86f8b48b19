"""Speculative decoding: which drafts are accepted, drawn and counted."""

from __future__ import annotations

from simulator.draws import Draws
from simulator.engine.values import Speculation, Totals


class Acceptance:
    """Says how many tokens each step of a sequence keeps: the drafts up to the first that is refused, and one more."""

    __slots__ = ("_draws", "_foreseen", "_ratio", "_totals", "drafts")

    def __init__(self, speculation: Speculation | None, draws: Draws, totals: Totals) -> None:
        self.drafts = 0 if speculation is None else speculation.drafts  # most of a step
        self._ratio = 0.0 if speculation is None else speculation.acceptance_ratio
        self._draws = draws
        self._totals = totals
        self._foreseen: list[int] = []  # tokens kept by the sequences of the step in flight, the last one first
        totals.accepted_by_position = [0] * self.drafts

    def __repr__(self) -> str:
        return f"<Acceptance of {self.drafts} drafts, {self._ratio} each>"

    def tokens(self, left: int) -> int:
        """Tokens that a step computes for a sequence with so many left to generate: drafts to verify, and one more."""
        return 1 + self.drafts if left > self.drafts else left

    def kept(self, tokens: int) -> int:
        """What is kept of so many, as was foreseen or is drawn now, and counted."""
        if tokens == 1:
            if self._foreseen:
                self._foreseen.pop()
            return 1
        kept = self._foreseen.pop() if self._foreseen else 1 + self._draws.streak(self._ratio, tokens - 1)
        totals = self._totals
        totals.drafts += 1
        totals.drafted_tokens += tokens - 1
        totals.accepted_tokens += kept - 1
        for position in range(kept - 1):
            totals.accepted_by_position[position] += 1
        return kept

    def drawn(self, lefts: list[int]) -> list[int]:
        """What a step keeps for each of these; not counted yet."""
        streak, ratio, drafts = self._draws.streak, self._ratio, self.drafts
        return [1 + streak(ratio, drafts if left > drafts else left - 1) for left in lefts]

    def foresee(self, kept: list[int]) -> None:
        """Have the sequences of the step in flight keep these, which were drawn for them."""
        self._foreseen = kept[::-1]

    def count(self, steps: int, drafted: int, by_accepted: list[int]) -> None:
        """Book steps of sequences, by how many drafts they accepted: 0, 1 …"""
        totals = self._totals
        totals.drafts += steps
        totals.drafted_tokens += drafted
        more = 0
        for accepted in range(len(by_accepted) - 1, 0, -1):
            more += by_accepted[accepted]
            totals.accepted_by_position[accepted - 1] += more
            totals.accepted_tokens += more
