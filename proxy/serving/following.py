"""How a serving process goes over to the topology that control has published: in steps, so that no stream waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from proxy.published import TopologyReader
from routing.ring import Ring
from routing.topology import Topology

_PAUSE_SECONDS = 0.002  # between two steps, for what has arrived meanwhile


class TopologyFollower:
    """One per serving process. The rings of a new topology are made first, bit by bit; then it is adopted, at once.

    ``prepare`` begins to make the rings, and ``adopt`` puts topology and rings in force. Where few workers are new there is one
    step, and the look at it does it all.
    """

    def __init__(
        self,
        run_dir: Path,
        loop: asyncio.AbstractEventLoop,
        prepare: Callable[[Topology], Iterator[dict[int, Ring] | None]],
        adopt: Callable[[Topology, dict[int, Ring]], None],
    ) -> None:
        self._news = TopologyReader(run_dir)
        self._loop = loop
        self._prepare = prepare
        self._adopt = adopt
        self._steps: Iterator[dict[int, Ring] | None] | None = None  # to the newest topology

    def __repr__(self) -> str:
        return f"<TopologyFollower by {self._news}>"

    def look(self) -> None:
        """Begin to follow if there is news; an earlier topology that is not in force yet never will be.

        What goes wrong is raised, here or to the loop, and tried again at the next look.
        """
        topology = self._news.read_news()
        if topology is not None:
            self._steps = self._prepare(topology)
            self._step(topology, self._steps)

    def _step(self, topology: Topology, steps: Iterator[dict[int, Ring] | None]) -> None:
        if steps is not self._steps:
            return
        try:
            rings = next(steps)
            if rings is None:
                self._loop.call_later(_PAUSE_SECONDS, self._step, topology, steps)
            else:
                self._adopt(topology, rings)
        except Exception:
            self._news.forget()
            raise
