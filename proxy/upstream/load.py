"""What every worker has to do, as all serving processes know it, and which workers are up.

The figures live in shared arrays: this process writes its own, reads those of its peers and of control. A peer that has not
started yet adds nothing; without control every worker counts as up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from proxy.rundir import CONTROL_CELLS, serving_cells
from proxy.upstream.ledger import Ledger, Stay
from routing.admission import Caps, caps_of
from routing.demand import Demand
from routing.guidance import NO_GUIDANCE, Guidance
from routing.health import EJECTED, Condition, FleetHealth
from routing.hedging import Withheld
from routing.policy import ELSEWHERE, Decision, Snapshot
from routing.ranks import choose_rank
from routing.ring import Ring, rings_in_steps, rings_of
from routing.topology import Pool, Topology, Worker
from telemetry.catalog import Scope
from telemetry.cells import Cells, map_cells
from telemetry.labels import LABELS
from telemetry.layout import Layout, offset, slot
from telemetry.record import HedgeResult

_IN_FLIGHT = offset("ridgeline_in_flight_requests")
_IN_FLIGHT_TOKENS = offset("ridgeline_in_flight_tokens")
_FURTHER = offset("ridgeline_in_flight_further_sequences")
_RESTARTS = offset("ridgeline_worker_restarts_total")
_CROWDING = offset("ridgeline_worker_crowding_tokens")
_CROWDING_AT = slot("ridgeline_crowding_at_seconds")
_CROWDING_SECONDS = 5.0  # control looks every second; what it said before it went away is soon wrong
_CONDITION = offset("ridgeline_worker_condition")
_EJECTED = offset("ridgeline_worker_ejected")
_RETRIES_REFUSED = offset("ridgeline_retries_refused_total")
_QUEUED = offset("ridgeline_queued_requests")
_HEDGES = {result: slot("ridgeline_hedges_total", result=result) for result in HedgeResult}
_HEDGES_WITHHELD = {reason: slot("ridgeline_hedges_withheld_total", reason=reason) for reason in Withheld}
_WASTED_SECONDS = offset("ridgeline_hedge_wasted_seconds_total")
_WASTED_PROMPT_TOKENS = offset("ridgeline_hedge_wasted_prompt_tokens_total")
_WAITING = offset("ridgeline_worker_waiting_requests")
_ATTEMPTS = {result: slot("ridgeline_attempts_total", result=result) for result in LABELS["result"]}
_ROUTES = {
    (policy, reason): slot("ridgeline_routes_total", policy=policy, reason=reason)
    for policy in LABELS["policy"]
    for reason in LABELS["ridgeline_routes_total.reason"]
}


class _Sum(Sequence[float]):
    """One figure per worker, added up over processes; looked up live."""

    __slots__ = ("views",)

    def __init__(self, views: list[memoryview[float]]) -> None:
        self.views = views

    def __getitem__(self, index: int) -> float:  # type: ignore[override]  # never sliced
        return sum([view[index] for view in self.views])

    def __len__(self) -> int:
        return len(self.views[0])


class Block:
    """Where a worker's figures are. Who has begun work there ends it there, wherever the block has gone meanwhile."""

    __slots__ = ("base", "is_live", "pool", "pool_base", "rank_tokens")

    def __init__(self, base: int, pool: tuple[str, str], pool_base: int) -> None:
        self.base = base
        self.pool_base = pool_base  # where the figures of its pool are
        self.pool = pool  # model and pool
        self.is_live = True  # the worker is still in the topology
        self.rank_tokens: list[float] = []  # in flight from this process, of each data-parallel rank that was ever used

    def enter_rank(self, ranks: int, demand: Demand, tokens: int) -> int:
        """Choose one of so many ranks for a request and count it there; give the rank back to `leave_rank`."""
        while len(self.rank_tokens) < ranks:
            self.rank_tokens.append(0.0)
        rank = choose_rank(self.rank_tokens[:ranks], demand)
        self.rank_tokens[rank] += tokens
        return rank

    def leave_rank(self, rank: int, tokens: int) -> None:
        """The request is over."""
        self.rank_tokens[rank] -= tokens


class WorkerLoads:
    """In-flight work of this process, and the view of all of it."""

    __slots__ = (
        "_blocks",
        "_control",
        "_layout",
        "_number",
        "_peer_values",
        "_peers",
        "_pool_bases",
        "_processes",
        "_requests",
        "_restarts",
        "_rings",
        "_run_dir",
        "_tokens",
        "_topology",
        "_turn",
        "_values",
        "caps",
        "crowded",
        "guidance",
        "health",
        "is_up",
        "ledger",
        "on_end",
    )

    def __init__(
        self,
        values: memoryview[float],
        layout: Layout,
        topology: Topology,
        run_dir: Path,
        number: int,
        processes: int,
        first_turn: int = 0,
    ) -> None:
        """``first_turn`` should be drawn at random: processes and gateways that begin alike choose in step with each other."""
        self._run_dir = run_dir
        self._number = number
        self._processes = processes
        self.guidance = NO_GUIDANCE
        self.health = FleetHealth(topology)
        self.caps: Caps | None = None
        self.on_end: Callable[[tuple[str, str]], None] | None = (
            None  # told when a worker has less to do; None: nobody waits for that
        )
        self._turn = first_turn
        self._blocks: dict[tuple[str, str, str], Block] = {}  # by model, pool and worker, as cells are
        self._topology = topology
        self._rings: dict[int, Ring] = {}  # by pool index
        self._restarts: tuple[list[float], Topology | None] = [], None  # of the workers, and those of which topology
        self.adopt(values, layout, topology, rings_of(topology.pools))

    def rings_for(self, topology: Topology) -> Iterator[dict[int, Ring] | None]:
        """Make the rings of another topology of those that there are, in steps: see `rings_in_steps`."""
        rings = {(pool.model, pool.name): self._rings[pool.index] for pool in self._topology.pools if pool.index in self._rings}
        return rings_in_steps(topology.pools, rings)

    def adopt(self, values: memoryview[float], layout: Layout, topology: Topology, rings: dict[int, Ring]) -> None:
        """Go on with another topology, its rings, and this process's array for it.

        What is in flight goes on counting where it can.
        """
        self._values = values
        self._layout = layout
        self.health.adopt(topology)
        self._topology = topology
        self.caps = caps_of(topology, self.guidance)
        before, self._blocks = self._blocks, {}
        pool_bases = {(pool.model, pool.name): layout.pool_base(pool.index) for pool in topology.pools}
        for name, base in zip(layout.names.workers, layout.blocks(Scope.WORKER), strict=True):
            pool_base = pool_bases[name[:2]]
            block = self._blocks[name] = before.pop(name) if name in before else Block(base, name[:2], pool_base)
            block.base, block.pool_base = base, pool_base
        for gone in before.values():
            gone.is_live = False
        self._pool_bases = pool_bases
        self._rings = rings
        self._tokens: memoryview[float] | _Sum = self._by_worker(values, _IN_FLIGHT_TOKENS)
        self._requests: memoryview[float] | _Sum = self._by_worker(values, _IN_FLIGHT)
        self.ledger = Ledger(values)
        self.crowded: dict[int, float] = {}  # until it is looked at for this topology
        self.is_up: Sequence[float] = [1.0] * len(topology.workers)  # by control: 1 up, 0 down, NaN not known yet
        self._control: Cells | None = None
        self._peer_values: list[memoryview[float]] = []
        self._peers: dict[int, Cells | None] = {peer: None for peer in range(self._processes) if peer != self._number}
        self.look_around()

    def _by_worker(self, values: memoryview[float], cell: int) -> memoryview[float]:
        blocks = self._layout.blocks(Scope.WORKER)
        return values[blocks.start + cell : blocks.stop : blocks.step]

    def snapshot(self, *, is_retry: bool = False) -> Snapshot:
        """What a decision may look at, now. A retry takes no turn, or a dead worker would get every second one of two."""
        if not is_retry:
            self._turn += 1
        health = self.health
        return Snapshot(
            self.is_up,
            self._tokens,
            self._turn,
            self._requests,
            self.guidance,
            self._rings,
            health.share,
            health.avoided,
            health.busy,
            self.caps,
            self.crowded,
        )

    def follow(self, guidance: Guidance) -> None:
        """Route by other guidance from now on."""
        self.guidance = guidance
        self.caps = caps_of(self._topology, guidance)

    def begin(self, decision: Decision, tokens: int, further: int = 0, block: Block | None = None) -> Block:
        """A request goes to a worker and adds to its load; give the block back to `end`.

        ``further`` are the sequences beyond one that it is to the worker; ``block`` is the worker's, where `enter` has just
        found it, else None.
        """
        if block is None:
            pool = decision.pool
            block = self._blocks[pool.model, pool.name, decision.worker.name]
        base = block.base
        values = self._values
        values[base + _IN_FLIGHT] += 1.0
        values[base + _IN_FLIGHT_TOKENS] += tokens
        if further:
            values[base + _FURTHER] += further
        decided = decision.pool_reason if decision.pool_reason in ELSEWHERE else decision.reason
        values[block.pool_base + _ROUTES[decision.policy, decided]] += 1.0
        return block

    def enter(self, decision: Decision, prompt_tokens: int, now: float) -> Stay:
        """Enter a request into its worker's ledger; call it just before `begin`, and `ledger.remove` just before `end`."""
        pool = decision.pool
        return self.ledger.add(self._blocks[pool.model, pool.name, decision.worker.name], prompt_tokens, now)

    def end(self, block: Block, tokens: int, result: str, further: int = 0) -> None:
        """The worker has no more to do with it; ``result`` is the attempt's label. A removed worker has no figures."""
        if not block.is_live:
            return
        base = block.base
        values = self._values
        values[base + _IN_FLIGHT] -= 1.0
        values[base + _IN_FLIGHT_TOKENS] -= tokens
        if further:
            values[base + _FURTHER] -= further
        values[base + _ATTEMPTS[result]] += 1.0
        if self.on_end is not None:
            self.on_end(block.pool)

    def set_queued(self, model: str, pool: str, requests: int) -> None:
        """Say how many requests wait for a pool in this process. A removed pool has no figures."""
        base = self._pool_bases.get((model, pool))
        if base is not None:
            self._values[base + _QUEUED] = requests

    @property
    def peer_values(self) -> list[memoryview[float]]:
        """The arrays of the other serving processes."""
        return self._peer_values

    @property
    def control_values(self) -> memoryview[float] | None:
        """The array of the control process; None before it has one."""
        return None if self._control is None else self._control.values

    @property
    def has_peers(self) -> bool:
        """Whether there are other serving processes."""
        return bool(self._peer_values)

    def queued_elsewhere(self, model: str, pool: str) -> float:
        """How many wait for it in the other serving processes."""
        base = self._pool_bases.get((model, pool))
        return 0.0 if base is None else sum([values[base + _QUEUED] for values in self._peer_values])

    def count_attempt(self, block: Block, result: str) -> None:
        """An attempt that came to nothing, while the request stays with its worker."""
        if block.is_live:
            self._values[block.base + _ATTEMPTS[result]] += 1.0

    def look_at_health(self, now: float) -> None:
        """Bring the view of the workers' health up to date, with what the other processes see, and show them this one's."""
        foreign: set[int] = set()
        for peer in self._peers.values():
            if peer is not None:
                conditions = self._by_worker(peer.values, _CONDITION)
                foreign.update(index for index, condition in enumerate(conditions) if condition in EJECTED)
        health, values = self.health, self._values
        health.look(now, self.is_up, foreign)
        for (_, _, name), base in zip(self._layout.names.workers, self._layout.blocks(Scope.WORKER), strict=True):
            condition = health.condition(health.workers[name])
            values[base + _CONDITION] = condition
            values[base + _EJECTED] = condition in (Condition.ERRORS, Condition.SILENCE)

    def look_at_crowding(self, now: float) -> None:
        """Take over what control says of workers that have more than their share by all gateways."""
        control = self._control
        if control is None or not now - control.values[_CROWDING_AT] <= _CROWDING_SECONDS:  # NaN before the first look
            self.crowded = {}
            return
        above = self._by_worker(control.values, _CROWDING)
        self.crowded = {index: tokens for index, tokens in enumerate(above) if tokens > 0.0}

    def restarted(self) -> list[Worker]:
        """The workers that control has seen restart since this was last asked; none at first, and none across a reload."""
        if self._control is None:
            return []
        before, topology = self._restarts
        counts = list(self._by_worker(self._control.values, _RESTARTS))
        self._restarts = counts, self._topology
        if topology is not self._topology or before == counts:
            return []
        pairs = zip(self._topology.workers, before, counts, strict=True)
        return [worker for worker, earlier, count in pairs if count > earlier]

    def count_refused_retry(self, pool: Pool) -> None:
        """A request of this pool is not tried again: too many are."""
        base = self._pool_bases.get((pool.model, pool.name))
        if base is not None:
            self._values[base + _RETRIES_REFUSED] += 1.0

    def count_hedge(self, pool: Pool, result: HedgeResult, wasted_seconds: float, wasted_prompt_tokens: int) -> None:
        """A request was sent to a second worker of this pool as well, and this came of it. Seconds of one worker."""
        base = self._pool_bases.get((pool.model, pool.name))
        if base is not None:
            values = self._values
            values[base + _HEDGES[result]] += 1.0
            values[base + _WASTED_SECONDS] += wasted_seconds
            values[base + _WASTED_PROMPT_TOKENS] += wasted_prompt_tokens

    def count_withheld_hedge(self, pool: Pool, reason: Withheld) -> None:
        """A request of this pool was late and was not sent to a second worker."""
        base = self._pool_bases.get((pool.model, pool.name))
        if base is not None:
            self._values[base + _HEDGES_WITHHELD[reason]] += 1.0

    def in_flight(self, worker: Worker) -> float:
        """Requests that the gateway has at a worker of the topology in force, or at another one now in its place."""
        return self._requests[worker.index] if worker.index < len(self._requests) else 0.0

    def with_queues(self, pool: Pool) -> set[int]:
        """Indices of the pool's workers that had requests waiting when control last read their metrics."""
        if self._control is None:
            return set()
        waiting = self._by_worker(self._control.values, _WAITING)
        return {worker.index for worker in pool.workers if waiting[worker.index] > 0.0}

    def look_around(self) -> None:
        """Map arrays of processes that have appeared since. Cheap when there is nothing to find."""
        if self._control is None:
            self._control = map_cells(self._run_dir / CONTROL_CELLS, self._layout)
            if self._control is not None:
                self.is_up = self._by_worker(self._control.values, offset("ridgeline_worker_up"))
        for peer, cells in self._peers.items():
            if cells is None:
                found = map_cells(serving_cells(self._run_dir, peer), self._layout)
                if found is not None:
                    self._peers[peer] = found
                    self._peer_values.append(found.values)
                    self._tokens = _with(self._tokens, self._by_worker(found.values, _IN_FLIGHT_TOKENS))
                    self.ledger = self.ledger.with_peer(found.values)
                    self._requests = _with(self._requests, self._by_worker(found.values, _IN_FLIGHT))


def _with(views: memoryview[float] | _Sum, view: memoryview[float]) -> _Sum:
    return _Sum([*(views.views if isinstance(views, _Sum) else [views]), view])
