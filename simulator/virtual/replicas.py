"""Several gateways before one simulated fleet: each knows what it has in flight itself, and of the others what workers say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from routing.policy import Decision, Reason, Snapshot, choose
from routing.ring import rings_of
from routing.topology import Model
from simulator.arrivals import Arrival
from simulator.draws import Draws
from simulator.engine.engine import Engine
from simulator.virtual.fleet import Record, Run
from simulator.virtual.gauges import Gauges
from simulator.virtual.routing import demand_of
from simulator.virtual.served import Served

_LOOKS_EVERY = 50  # requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run. Lists are by the place of the request in ``served``."""

    served: list[Served]
    replicas: list[int]  # by which gateway it came
    reasons: list[Reason | None]  # None: it was refused
    peaks: list[float]  # tokens in flight of the fullest worker over the mean, looked at now and then; none while idle


def simulate_replicas(
    engines: Sequence[Engine],
    arrivals: Iterable[Arrival],
    model: Model,
    *,
    replicas: int,
    seed: int = 0,
    reads_gauges: bool = True,
) -> Outcome:
    """Serve all arrivals by fresh engines, each request by a gateway drawn at random, as a balancer of connections does.

    The indices of the model's workers are those of the engines. Without ``reads_gauges`` each gateway knows nothing but what it
    has sent itself. ``ValueError`` without a replica.
    """
    if replicas < 1:
        raise ValueError(f"there has to be at least 1 replica, got {replicas}")
    run = _ReplicatedRun(engines, model, replicas, seed, reads_gauges)
    served = run.through(list(arrivals), [])
    return Outcome(served=served, replicas=run.chosen, reasons=run.reasons, peaks=run.peaks)


class _View:
    """What one gateway knows: its own requests, and what the workers' gauges say of those of others."""

    __slots__ = ("gauges", "in_flight", "load_tokens", "turn")

    def __init__(self, model: Model, engines: int, turn: int, draws: Draws | None) -> None:
        self.in_flight = [0] * engines
        self.load_tokens = [0] * engines
        self.turn = turn
        self.gauges = None if draws is None else Gauges(model, self.in_flight, self.load_tokens, draws)


class _ReplicatedRun(Run):
    """A run whose choices are made by several."""

    def __init__(self, engines: Sequence[Engine], model: Model, replicas: int, seed: int, reads_gauges: bool) -> None:
        super().__init__(engines, lambda arrival, fleet: None, skips_ahead=True, gap_bounds=None, tell=None)
        self.chosen: list[int] = []
        self.reasons: list[Reason | None] = []
        self.peaks: list[float] = []
        self._model = model
        self._rings = rings_of(model.pools)
        turns = Draws(seed, "turns")
        self._views = [
            _View(
                model,
                len(engines),
                turns.below(2**32) if number else 0,
                Draws(seed, f"gauges {number}") if reads_gauges and replicas > 1 else None,
            )
            for number in range(replicas)
        ]
        self._is_up = [1.0] * len(engines)
        self._draws = Draws(seed, "replicas")
        self._read_at = 0.0  # nobody asks a worker before

    def _read(self) -> None:
        """Let gateways ask workers as often as they should have since anything happened: nothing has changed in between."""
        now = self._fleet.now
        if now < self._read_at:
            return
        gauges = [view.gauges for view in self._views if view.gauges is not None]
        for each in gauges:
            each.read(self._fleet.in_flight, now)
        self._read_at = min((each.next_at for each in gauges), default=inf)

    def _route(self, arrival: Arrival, now: float) -> None:
        self._read()
        record = self._note(arrival, now)
        if record.number % _LOOKS_EVERY == 0:
            self._look()
        replica = self._draws.below(len(self._views))
        self.chosen.append(replica)
        view = self._views[replica]
        snapshot = Snapshot(
            is_up=self._is_up,
            load_tokens=view.load_tokens,
            turn=view.turn,
            in_flight=view.in_flight,
            rings=self._rings,
            crowded={} if view.gauges is None else view.gauges.crowded(now),
        )
        decision = choose(self._model, demand_of(arrival), snapshot)
        view.turn += 1
        if not isinstance(decision, Decision):
            self.reasons.append(None)
            return
        self.reasons.append(decision.reason)
        worker = decision.worker.index
        view.in_flight[worker] += 1
        view.load_tokens[worker] += record.load_tokens
        if view.gauges is not None:
            view.gauges.note(record.load_tokens)
        self._send(record, worker, now)

    def _gone(self, record: Record) -> None:
        self._read()
        super()._gone(record)
        view = self._views[self.chosen[record.number]]
        view.in_flight[record.worker] -= 1
        view.load_tokens[record.worker] -= record.load_tokens

    def _look(self) -> None:
        loads = self._fleet.load_tokens
        total = sum(loads)
        if total:
            self.peaks.append(max(loads) * len(loads) / total)
