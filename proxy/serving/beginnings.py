"""What a serving process tells control about how requests begin: the family of each, and a sketch of those that are new."""

from __future__ import annotations

from collections import OrderedDict

from routing.sketch import Beginning, Sketch, family_of, sketch_of
from routing.system_prompt import system_prompt_of

MOST_KNOWN = 4096
SKETCHES_PER_SECOND = 5.0
"""A sketch takes up to a millisecond: so many are made at most, whatever comes. What was left out is made up for later."""
_AT_ONCE = 10.0


class Beginnings:
    """One per serving process; remembers which families control has had a sketch of."""

    __slots__ = ("_allowed", "_at", "_known")

    def __init__(self) -> None:
        self._known: OrderedDict[int, None] = OrderedDict()
        self._allowed = _AT_ONCE
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<Beginnings, {len(self._known)} known>"

    def find(self, leading: bytes, system: bytes, now: float, *, is_salted: bool) -> Beginning | None:
        """The beginning of a request with these raw values; ``None`` without a system prompt that is worth a cache."""
        text = system_prompt_of(leading, system)
        if text is None:
            return None
        family = family_of(text)
        known = self._known
        if family in known:
            known.move_to_end(family)
            return Beginning(family, len(text), None, is_salted)
        return Beginning(family, len(text), self._sketch(family, text, now), is_salted)

    def _sketch(self, family: int, text: bytes, now: float) -> Sketch | None:
        self._allowed = min(_AT_ONCE, self._allowed + (now - self._at) * SKETCHES_PER_SECOND)
        self._at = now
        if self._allowed < 1.0:
            return None
        self._allowed -= 1.0
        self._known[family] = None
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return sketch_of(text)
