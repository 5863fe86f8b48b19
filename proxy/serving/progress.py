"""What is known of a request so far: all that its deadlines and its record are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from routing.topology import Limits
from telemetry.record import CountResult, Phase

if TYPE_CHECKING:
    from proxy.serving.client import ClientConnection
    from proxy.serving.dispatch import Prepared
    from proxy.serving.endpoints import Endpoint
    from proxy.serving.exchange import Exchange
    from proxy.serving.quotas import Charge
    from proxy.serving.state import ServingState
    from proxy.upstream.connections import WorkerConnection
    from proxy.upstream.hedge import Hedge
    from proxy.upstream.ledger import Stay
    from proxy.upstream.prefill_leg import Leg
    from proxy.upstream.relay import Relay
    from proxy.wire.framing import AnswerHead
    from proxy.wire.request_head import RequestHead
    from proxy.wire.tracing import SampledTrace
    from routing.admission_queue import Waiting
    from routing.policy import Decision
    from routing.topology import Key, Pool
    from telemetry.measurements import Measurements


@dataclass(slots=True, eq=False, repr=False)
class Progress:
    """A request and what has become of it. Instants (``_at``) are monotonic seconds, ``None`` until they happen."""

    state: ServingState
    client: ClientConnection
    head: RequestHead
    endpoint: Endpoint
    started_at: float  # first byte of the request
    request_id: str = field(init=False)
    trace: SampledTrace | None = field(init=False)
    limits: Limits = field(init=False)
    hedge: ClassVar[Hedge | None] = None  # the attempt at a second worker; a field where such are made
    key: Key | None = None
    phase: Phase = Phase.UPLOAD
    ended: bool = False
    received_at: float | None = None
    request_bytes: int = 0
    held_bytes: int = 0  # of its body, counted against the bound for all
    answer_bytes: int = 0  # of the answer's body, as the worker sent it
    prepared: Prepared | None = None
    decision: Decision | None = None
    attempts: int = 0
    leg: Leg | None = None  # at the prefill stage of its pool
    connection: WorkerConnection | None = None
    stay: Stay | None = None  # at the worker of the decision; of one that was left it is kept for the record
    connect_seconds: float = 0.0
    waiting: Waiting[Exchange] | None = None  # its place in the queue for a worker
    queued_for: Pool | None = None  # whose queue it is or was in
    queue_seconds: float = 0.0
    charge: Charge | None = None  # to the quota of its key
    sent_at: float | None = None
    asks_usage: bool = False  # on the gateway's own account, in what was sent last
    answer: AnswerHead | None = None
    relay: Relay | None = None
    first_body_at: float | None = None
    write_seconds: float | None = None  # from the arrival of the bytes that let the head go to their being written
    last_data_at: float | None = None
    found: Measurements | None = None
    fault: str | None = None  # what was wrong with the worker's answer
    is_head_sent: bool = False
    is_held: bool = False  # there is an answer and its head has not gone out
    status: int | None = None
    count_result: CountResult | None = None  # of counting the prompt exactly
    count_seconds: float | None = None
    own_seconds: float = 0.0  # the gateway's own work before the request was sent
    paused_at: float | None = None
    resumed_at: float | None = None
    client_wait_seconds: float = 0.0

    def __post_init__(self) -> None:
        state, head = self.state, self.head
        self.request_id = head.request_id or state.new_request_id()
        self.trace = None if state.tracer is None else state.tracer.begin(head)
        self.limits = state.topology.limits

    def __repr__(self) -> str:
        worker = self.decision.worker.name if self.decision else "no worker"
        return f"<Exchange {self.request_id} {'ended' if self.ended else self.phase.value}, {worker}>"
