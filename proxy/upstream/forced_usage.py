"""Workers that send usage to everybody, but in the last event only, which cannot be told from a worker that was asked.

vLLM from 0.11 on can be started so (`--enable-force-include-usage`); later versions put usage into every event, which shows by
itself. So of each run of a worker whose version leaves it open, one stream goes without the question, and its end tells. Such
workers are never asked then: their counts come anyway, and the event belongs to the stream.
"""

from __future__ import annotations

from collections.abc import Mapping

from routing.guidance import WorkerGuidance


class ForcedUsage:
    """Of one serving process, by the workers' names. Call `follow` with each guidance."""

    __slots__ = ("_is_forced", "_runs", "unasked")

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}  # what leaves it open, which is another one after each start of a worker
        self._is_forced: dict[str, bool] = {}  # of those that have been tried
        self.unasked: set[str] = set()  # workers whose next stream is not asked for usage

    def __repr__(self) -> str:
        return f"<ForcedUsage {len(self.unasked)} unasked, {sum(self._is_forced.values())} forced>"

    def follow(self, workers: Mapping[str, WorkerGuidance]) -> None:
        """Forget what is known of workers that have been started again or are gone."""
        runs = {name: each.usage_trial for name, each in workers.items() if each.usage_trial is not None}
        if runs == self._runs:
            return
        kept = {name for name, run in runs.items() if self._runs.get(name) == run}
        self._is_forced = {name: is_forced for name, is_forced in self._is_forced.items() if name in kept}
        # One that is being tried is in neither, and comes back when that is over.
        self.unasked = {name for name in self.unasked if name in kept} | (runs.keys() - kept)
        self._runs = runs

    def begins(self, name: str) -> bool:
        """A stream goes to this worker without the question; whether it is the one that tells. To be followed by `ends`."""
        if name in self._is_forced:
            return False
        self.unasked.discard(name)
        return True

    def ends(self, name: str, is_forced: bool | None) -> None:
        """What the stream has told; ``None`` if it did not come to its end, and another has to tell."""
        if name not in self._runs:
            return
        if is_forced is not None:
            self._is_forced[name] = is_forced
        if is_forced is not False:
            self.unasked.add(name)
