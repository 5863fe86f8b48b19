"""What is configured, as plain values: models, their pools, their workers, and the limits that hold for each.

Built once from a validated configuration and never changed; a reload builds a new one. Serving and control processes build
it from the same file and therefore agree on every index, which is what lets them share arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNKNOWN_MODEL = "unknown"
NO_POOL = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one request. ``None`` means no bound. Seconds and bytes."""

    body_bytes: int = 64 * 1024 * 1024  # largest request body; above it 413
    held_body_bytes: int = 1024 * 1024 * 1024  # bodies of all requests under way in one serving process; beyond it 503
    connect_seconds: float = 5.0  # making a connection to a worker
    first_byte_seconds: float = 600.0  # request sent -> first body byte of the answer
    token_gap_seconds: float = 120.0  # between two events that are no comments
    write_seconds: float = 60.0  # how long a client may take no byte while bytes wait for it
    total_seconds: float | None = None  # fully received -> answer complete
    head_hold_seconds: float = 15.0  # how long the head of an answer is held back for its first event
    drain_seconds: float = 120.0  # SIGTERM -> running requests are ended
    drain_grace_seconds: float = 5.0  # SIGTERM -> no new connections; not ready meanwhile, so that balancers notice
    worker_idle_seconds: float = 4.0  # how long an unused connection to a worker is kept
    request_head_seconds: float = 30.0  # first byte of a request head -> its end
    request_body_seconds: float = 300.0  # end of the head -> end of the body
    client_idle_seconds: float = 75.0  # between two requests on a client's connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """How much a pool's workers are given at once, and who may wait for them. Seconds and bytes; counts per serving process."""

    max_requests_per_worker: int | None = None  # None: derived, if that is wanted and possible
    max_tokens_per_worker: int | None = None  # prompts and output budgets together; None: the same
    derives: bool = True  # take caps from the limits model where none is configured
    queue_requests: int = 256  # how many may wait for the pool; 0: nobody
    queue_bytes: int = 256 * 1024 * 1024  # bodies of those that wait for the pool
    queue_seconds: float = 30.0  # how long one may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One vLLM server, known by its base URL."""

    index: int  # position in `Topology.workers`
    name: str  # label in metrics and records; unique among all workers
    url: str  # normalised base: scheme, host, port and path, no trailing slash and no /v1
    host: str  # without brackets
    port: int
    base_path: str  # "" or "/sub/path"
    authority: str  # for the Host header, with brackets for IPv6
    is_draining: bool = False  # gets no new requests; those it has go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers that can stand in for each other."""

    index: int  # position in `Topology.pools`
    model: str
    name: str
    workers: tuple[Worker, ...]
    policy: str = "least-load"
    max_total_tokens: int | None = None  # prompt + output budget that the pool accepts
    asks_usage: bool = True  # ask workers for usage in streams that did not, and take it out again
    worker_key: str | None = field(default=None, repr=False)  # sent as Bearer to the workers
    limits: Limits = field(default_factory=Limits)
    admission: Admission = field(default_factory=Admission)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What clients ask for by name, and the pools that serve it, smallest range first."""

    index: int  # position in `Topology.models`
    name: str
    aliases: tuple[str, ...]
    pools: tuple[Pool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key by name; only the SHA-256 of its text is known."""

    index: int  # position in `Topology.keys`
    name: str
    sha256: bytes = field(repr=False)  # 32 bytes
    models: frozenset[str] | None = None  # model names it may use; None: all
    priority: str = "normal"  # in a queue: one of `routing.admission_queue.SHARES`
    weight: float = 1.0  # its share of a queue beside other keys of its priority; above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How requests are followed beyond their own record."""

    sample_ratio: float | None = None  # share of the traces that begin here which are sampled, 0 to 1; None: no tracing
    chain_header: str | None = None  # lower case; requests with equal values of it belong to one call chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything a serving process routes by. The flat tuples are in index order."""

    models: tuple[Model, ...]
    pools: tuple[Pool, ...]
    workers: tuple[Worker, ...]
    keys: tuple[Key, ...] = ()
    limits: Limits = field(default_factory=Limits)
    following: Following = field(default_factory=Following)

    @property
    def routes(self) -> tuple[tuple[str, str], ...]:
        """Every (model, pool) that a request can be counted under: nothing known, model known, pool chosen."""
        return (
            (UNKNOWN_MODEL, NO_POOL),
            *((model.name, NO_POOL) for model in self.models),
            *((pool.model, pool.name) for pool in self.pools),
        )


def assemble(models: tuple[Model, ...], keys: tuple[Key, ...], limits: Limits, following: Following | None = None) -> Topology:
    """The topology of these models, whose pools and workers carry indices from 0 in the order in which they come."""
    pools = tuple(pool for model in models for pool in model.pools)
    workers = tuple(worker for pool in pools for worker in pool.workers)
    return Topology(models=models, pools=pools, workers=workers, keys=keys, limits=limits, following=following or Following())
