"""What is configured, as plain values: models, their pools, their workers, and the limits that hold for each.

Built once from a validated configuration and never changed; a reload builds a new one. Serving and control processes build
it from the same file and therefore agree on every index, which is what lets them share arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from routing.quota import Quota, QuotaSharing

UNKNOWN_MODEL = "unknown"
NO_POOL = "none"
# Of cl100k_base, which most encodings since share but for a detail.
TIKTOKEN_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


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
    gateways: int = 1  # that share the workers; each gives them its part of a cap
    queue_requests: int = 256  # how many may wait for the pool; 0: nobody
    queue_bytes: int = 256 * 1024 * 1024  # bodies of those that wait for the pool
    queue_seconds: float = 30.0  # how long one may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedging:
    """When a stream that has had nothing from its worker is sent to a second one as well. Both ``after_`` None: never."""

    after_seconds: float | None = None  # so long after the worker was asked
    after_quantile: float | None = None  # or as long as this share of prompts of its length waits at most, 0.5 to 0.999
    budget_ratio: float = 0.05  # of the pool's streams, above 0 and at most 1: no more are sent twice

    @property
    def is_on(self) -> bool:
        """Whether anything is ever sent twice."""
        return self.after_seconds is not None or self.after_quantile is not None


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
    source: str = "config"  # who named it: config, admin, or how it was found (file, dns, srv, kubernetes)
    data_parallel_ranks: int = 1  # above 1: requests name one of them

    @property
    def is_tls(self) -> bool:
        """Whether it is spoken to by TLS."""
        return self.url.startswith("https:")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Whole paths of what a listener shows."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTls:
    """How a worker with an https URL is trusted; whole paths."""

    ca: str | None = None  # None: the system's
    verifies: bool = True
    server_name: str | None = None  # None: the URL's host
    certificate: str | None = None  # shown to the worker
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers that can stand in for each other."""

    index: int  # position in `Topology.pools`
    model: str
    name: str
    workers: tuple[Worker, ...]
    policy: str = "prefix-affinity"
    max_total_tokens: int | None = None  # prompt + output budget that the pool accepts
    overflow_to: str | None = None  # pool of the same model that gets what no worker here can take now
    borrows_from: str | None = None  # pool of the same model whose idle workers help while all of these are busy
    borrow_below_ratio: float = 0.0  # a worker there helps while its load is at most this share of the least load here
    session_header: str | None = None  # lower case; names the session of a request, for the policy `session`
    asks_usage: bool = True  # ask workers for usage in streams that did not, and take it out again
    worker_key: str | None = field(default=None, repr=False)  # sent as Bearer to the workers
    health_path: str = "/health"  # that says by 200 whether a worker is well
    worker_tls: WorkerTls = field(default_factory=WorkerTls)
    prefill: str | None = None  # stage of the same model that computes prompts for this pool, by name; None: it does so itself
    prefill_seconds: float = 60.0  # how long the stage may take; then the pool computes the prompt
    prefill_above_tokens: int = 0  # prompts with fewer likely tokens are not worth the way
    finds_workers: bool = False  # they are found while the gateway runs; there may be none
    limits: Limits = field(default_factory=Limits)
    admission: Admission = field(default_factory=Admission)
    hedging: Hedging = field(default_factory=Hedging)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """Where a model's prompts are counted exactly; one of the three is given."""

    file: str | None = None  # path of a tokenizer.json
    tiktoken: str | None = None  # path of the ranks of a tiktoken encoding
    pattern: str = TIKTOKEN_PATTERN  # by which that encoding splits texts
    is_worker: bool = False  # by a worker's /tokenize
    timeout_seconds: float = 0.5  # then the request goes on with its estimate
    most_bytes: int = 4 * 1024 * 1024  # of text; what is longer is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What clients ask for by name, and the pools that serve it, smallest range first."""

    index: int  # position in `Topology.models`
    name: str
    aliases: tuple[str, ...]
    pools: tuple[Pool, ...]
    stages: tuple[Pool, ...] = ()  # that compute prompts for pools and are chosen by no request; indices follow those of pools
    image_tokens: int = 1024  # what each image of a prompt is estimated at
    audio_tokens: int = 1024  # the same for audio
    output_quantile: float | None = 0.99  # of the outputs seen: the output budget that is learned; None: as declared
    tokenizer: TokenizerSource | None = None  # how prompts are counted exactly; None: they are not

    @property
    def is_simple(self) -> bool:
        """Whether the length of a prompt decides nothing."""
        return len(self.pools) == 1 and self.pools[0].max_total_tokens is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key by name; only the SHA-256 of its text is known."""

    index: int  # position in `Topology.keys`
    name: str
    sha256: bytes = field(repr=False)  # 32 bytes
    models: frozenset[str] | None = None  # model names it may use; None: all
    priority: str = "normal"  # in a queue: one of `routing.admission_queue.SHARES`
    weight: float = 1.0  # its share of a queue beside other keys of its priority; above 0
    next_sha256: bytes | None = field(default=None, repr=False)  # of a second text that is valid too, while one is replaced
    quota: Quota | None = None  # None: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How requests are followed beyond their own record."""

    sample_ratio: float | None = None  # share of the traces that begin here which are sampled, 0 to 1; None: no tracing
    chain_header: str | None = None  # lower case; requests with equal values of it belong to one call chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """When a request goes to a second worker because the first one failed before any byte of its answer was passed on."""

    max_attempts: int = 3  # workers that are asked for one request; 1: nothing is tried again
    budget_ratio: float = 0.2  # share of the requests of the last ten seconds that may be sent once more, 0 and above
    budget_per_second: float = 2.0  # so many more, for every serving process
    backoff_seconds: float = 0.25  # before the third worker is asked when two were busy; at most, and doubled for each more


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """When a worker gets no new requests because of how it did with earlier ones."""

    failures_in_row: int = 5  # requests it failed one after another; a connection that cannot be made is enough alone
    failure_ratio: float = 0.5  # of the requests of the last half minute, 0 to 1, once there are enough
    failure_ratio_requests: int = 20  # enough
    silence_seconds: float = 30.0  # that all running requests of a worker send nothing although they should
    ejection_seconds: float = 5.0  # out for so long at first; grows each time that it fails soon again
    max_ejection_seconds: float = 300.0
    max_ejected_ratio: float = 0.5  # of a pool's workers, 0 to 1; more are never left out at once
    slow_start_seconds: float = 30.0  # after which a worker that came back has its whole share again; 0: at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything a serving process routes by. The flat tuples are in index order."""

    models: tuple[Model, ...]
    pools: tuple[Pool, ...]
    workers: tuple[Worker, ...]
    keys: tuple[Key, ...] = ()
    limits: Limits = field(default_factory=Limits)
    following: Following = field(default_factory=Following)
    retries: Retries = field(default_factory=Retries)
    health: HealthRules = field(default_factory=HealthRules)
    quota_sharing: QuotaSharing | None = None  # None: limits are for this gateway alone
    tls: TlsFiles | None = None  # of the clients' listener; None: plain
    is_settled: bool = True  # False: some pool's workers have not been looked up yet since the gateway started

    @property
    def routes(self) -> tuple[tuple[str, str], ...]:
        """Every (model, pool) that a request can be counted under: nothing known, model known, pool chosen."""
        return (
            (UNKNOWN_MODEL, NO_POOL),
            *((model.name, NO_POOL) for model in self.models),
            *((pool.model, pool.name) for pool in self.pools),
        )

    def with_models(self, models: tuple[Model, ...]) -> Topology:
        """The same with other pools and workers, which get indices of their own."""
        whole = assemble(models, self.keys, self.limits)
        return replace(self, models=whole.models, pools=whole.pools, workers=whole.workers)


def assemble(
    models: tuple[Model, ...],
    keys: tuple[Key, ...],
    limits: Limits,
    following: Following | None = None,
    *,
    retries: Retries | None = None,
    health: HealthRules | None = None,
    quota_sharing: QuotaSharing | None = None,
    tls: TlsFiles | None = None,
) -> Topology:
    """The topology of these models, whose pools and workers carry indices from 0 in the order in which they come."""
    pools = tuple(pool for model in models for pool in (*model.pools, *model.stages))
    workers = tuple(worker for pool in pools for worker in pool.workers)
    return Topology(
        models=models,
        pools=pools,
        workers=workers,
        keys=keys,
        limits=limits,
        following=following or Following(),
        retries=retries or Retries(),
        health=health or HealthRules(),
        quota_sharing=quota_sharing,
        tls=tls,
    )
