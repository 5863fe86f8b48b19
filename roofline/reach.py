"""Which earlier tokens attention looks at: counts of pairs and of cache reads, in closed form.

Positions count from 0; the token at position p attends to itself and to the p tokens before it, as far as its layer reaches.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a layer looks. ``tokens`` includes the token itself; ``None``: to the beginning.

    With ``is_chunked`` the reach starts anew at every multiple of ``tokens`` instead of sliding along.
    """

    tokens: int | None = None
    is_chunked: bool = False

    def pairs(self, past: int, new: int) -> float:
        """Pairs of a query and a token it attends to, for ``new`` tokens that follow ``past`` ones. Causal mask, exact."""
        end = past + new
        if self.tokens is None:
            return new * (past + end + 1) / 2
        return self._pairs_below(end, self.tokens) - self._pairs_below(past, self.tokens)

    def reads(self, past: int, new: int, steps: int) -> float:
        """Cached tokens read when ``new`` tokens follow ``past`` ones in ``steps`` equal steps, summed over the steps.

        Each step reads what its first token reaches of the tokens before the step.
        """
        part = new / steps
        reach = self.tokens
        if reach is None:
            return steps * past + part * steps * (steps - 1) / 2
        if self.is_chunked:
            if steps == new:  # one by one: what they attend to but themselves
                return self.pairs(past, new) - new
            return sum((past + step * part) % reach for step in range(steps))
        growing = min(steps, max(0, int((reach - 1 - past) // part) + 1)) if part > 0 else steps
        return growing * past + part * growing * (growing - 1) / 2 + (steps - growing) * (reach - 1)

    def _pairs_below(self, position: int, reach: int) -> float:
        if self.is_chunked:
            whole, rest = divmod(position, reach)
            return whole * (reach * (reach + 1) / 2) + rest * (rest + 1) / 2
        if position <= reach:
            return position * (position + 1) / 2
        return reach * (reach + 1) / 2 + (position - reach) * reach


EVERYTHING = Reach()
