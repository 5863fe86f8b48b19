"""What `ridgeline doctor` has seen, as plain values, and how answers of workers and of the gateway are read.

Nothing here asks anyone. Texts that a worker chose are cut and made printable before they go any further.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Any, TypeVar

import msgspec

_MOST_CHARACTERS = 80
_SAMPLE = re.compile(rb"^(vllm:\w+)[{ ]", re.MULTILINE)
_PREFIX_CACHING = re.compile(rb'^vllm:cache_config_info\{[^\n]*\benable_prefix_caching="(\w+)"', re.MULTILINE)
_RELEASE = re.compile(r"v?(\d+)\.(\d+)")
_OLDEST_RELEASE = (0, 8)  # what is lower comes from a build without tags and says nothing

T = TypeVar("T")


class Failure(Enum):
    """Why there is no answer."""

    UNRESOLVED = auto()  # no address for the host name
    REFUSED = auto()
    UNREACHABLE = auto()  # no route, or no connection in time
    SILENT = auto()  # connected, and no whole answer in time
    UNTRUSTED = auto()  # no TLS, or a certificate that is not trusted
    BROKEN = auto()  # connected, and what came is no HTTP, ends early or is too long
    NOT_ASKED = auto()  # the time for all of it was over, or an earlier question had no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer, whole."""

    status: int
    body: bytes = b""
    date: str | None = None  # the Date header
    at: float = 0.0  # Unix seconds here when the head came

    @property
    def clock_offset_seconds(self) -> float | None:
        """How far the sender's clock is ahead of ours, to about a second; None when it does not say."""
        try:
            return parsedate_to_datetime(self.date or "").timestamp() - self.at
        except ValueError:
            return None


Reply = Answer | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusAsked:
    """Where a worker's GPUs are told of, and how many it should have."""

    url: str  # of an exporter's page
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()  # that pick them
    gpus_per_worker: int | None = None  # None: not configured


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One worker to look at, and what it is used for."""

    worker: str
    url: str
    model: str  # the name that requests carry
    pool: str
    aliases: tuple[str, ...] = ()
    max_total_tokens: int | None = None
    health_path: str = "/health"  # that says whether it is well
    has_key: bool | None = False  # a worker_key is sent; None: not known, and none is sent here
    gpus: GpusAsked | None = None  # None: no exporter is configured


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A worker and its replies."""

    target: Target
    health: Reply = Failure.NOT_ASKED
    version: Reply = Failure.NOT_ASKED
    models: Reply = Failure.NOT_ASKED
    metrics: Reply = Failure.NOT_ASKED
    gpus: Reply = Failure.NOT_ASKED  # the page of the exporter
    completion: Reply | None = None  # one token was asked for; None: it was not


class ListedModel(msgspec.Struct, frozen=True):
    """An entry of a worker's model list."""

    id: str
    root: str | None = None
    parent: str | None = None  # the base model of an adapter
    max_model_len: int | None = None


class WorkerState(msgspec.Struct, frozen=True):
    """What the gateway says of a worker."""

    worker: str
    url: str
    is_up: bool | None = None
    is_draining: bool = False


class PoolState(msgspec.Struct, frozen=True):
    """What the gateway says of a pool."""

    model: str
    pool: str
    workers: tuple[WorkerState, ...]
    max_total_tokens: int | None = None


class GatewayState(msgspec.Struct, frozen=True):
    """The gateway's own state."""

    version: str
    serving_processes: int
    pools: tuple[PoolState, ...]
    log_lines_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySeen:
    """The gateway's replies on its three listeners."""

    livez: Reply = Failure.NOT_ASKED  # from a serving process, on `listen`
    readyz: Reply = Failure.NOT_ASKED  # from control, on `observe_listen`
    state: Reply = Failure.NOT_ASKED  # from control, on `admin_listen`

    @property
    def serves(self) -> bool:
        """Whether a serving process answers."""
        return isinstance(self.livez, Answer) and self.livez.body == b"ok\n"

    @property
    def is_observable(self) -> bool:
        """Whether control answers observers."""
        return isinstance(self.readyz, Answer) and self.readyz.body in (b"ok\n", b"no serving process is up\n")

    @property
    def is_running(self) -> bool:
        """Whether any part of a gateway answers."""
        return self.serves or self.is_observable or read_state(self.state) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSeen:
    """A listener of a gateway that is not running: could it be had?"""

    setting: str
    address: str
    fault: str | None = None  # the system's words; None: it can be had
    is_in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was looked at."""

    workers: tuple[WorkerSeen, ...] = ()
    gateway: GatewaySeen = GatewaySeen()
    listeners: tuple[ListenerSeen, ...] = ()  # empty while a gateway runs
    has_configuration: bool = True
    unseen_pools: tuple[str, ...] = ()  # whose workers only a running gateway knows
    empty_pools: tuple[str, ...] = ()  # for which a running gateway has found nobody
    warnings: tuple[str, ...] = ()  # of the configuration
    file_limit: int = 1 << 20  # descriptors a process may have at most
    proxy_variables: tuple[str, ...] = ()  # names of variables that make other programs use a proxy
    drain_seconds: float | None = None
    ending_seconds: float = 0.0  # what ending takes beyond draining, at most
    grace_seconds: float | None = None  # from SIGTERM to SIGKILL, as told; None: not told


def targets_of(state: GatewayState, *, with_draining: bool = True) -> tuple[Target, ...]:
    """The workers of a running gateway. Their keys and aliases are not part of its state."""
    return tuple(
        Target(
            worker=worker.worker,
            url=worker.url,
            model=pool.model,
            pool=pool.pool,
            max_total_tokens=pool.max_total_tokens,
            has_key=None,
        )
        for pool in state.pools
        for worker in pool.workers
        if with_draining or not worker.is_draining
    )


def read_state(reply: Reply) -> GatewayState | None:
    """The state of a gateway; None when it is none."""
    return _decoded(reply, GatewayState)


def read_version(reply: Reply) -> str | None:
    """The vLLM version on a version page; None when it is none."""
    page = _decoded(reply, _VersionPage)
    return plain(page.version) if page else None


def read_models(reply: Reply) -> tuple[ListedModel, ...] | None:
    """The models on a worker's list, names as they came; None when it is no list."""
    page = _decoded(reply, _ModelsPage)
    return page.data if page else None


def read_completion(reply: Reply) -> tuple[bool, bool] | None:
    """Whether a completion tells its prompt token details, and its own times; None when it is no completion with usage."""
    body = _decoded(reply, _Completion)
    return (body.usage.prompt_tokens_details is not None, body.metrics is not None) if body else None


def read_families(reply: Reply) -> frozenset[str] | None:
    """The names after ``vllm:`` of the samples on a metrics page, maybe none; None when there is no page."""
    if not isinstance(reply, Answer) or reply.status != 200:
        return None
    return frozenset(name.decode().removeprefix("vllm:") for name in _SAMPLE.findall(reply.body))


def read_prefix_caching(reply: Reply) -> bool | None:
    """Whether a worker caches prefixes, from its metrics page; None when that does not say."""
    values = set(_PREFIX_CACHING.findall(reply.body)) if isinstance(reply, Answer) else set()
    return None if not values <= {b"True", b"False"} or not values else values == {b"True"}


def read_release(version: str | None) -> tuple[int, int] | None:
    """Major and minor number of a vLLM version; None when it does not say."""
    found = _RELEASE.match(version or "")
    release = (int(found[1]), int(found[2])) if found else None
    return release if release and release >= _OLDEST_RELEASE else None


def plain(text: str) -> str:
    """A text of somebody else's, fit for a terminal and a line."""
    shown = "".join(character if character.isprintable() else "?" for character in text[: _MOST_CHARACTERS + 1])
    return shown if len(shown) <= _MOST_CHARACTERS else shown[: _MOST_CHARACTERS - 1] + "…"


def listing(names: Iterable[str], most: int = 5) -> str:
    """The first of these names, and how many more there are."""
    shown = [plain(name) for name in names]
    rest = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {rest} more" if rest > 0 else "")


class _VersionPage(msgspec.Struct):
    version: str


class _ModelsPage(msgspec.Struct):
    data: tuple[ListedModel, ...]


class _Usage(msgspec.Struct):
    prompt_tokens_details: dict[str, Any] | None = None


class _Completion(msgspec.Struct):
    usage: _Usage
    metrics: dict[str, Any] | None = None


def _decoded(reply: Reply, kind: type[T]) -> T | None:
    if not isinstance(reply, Answer) or reply.status != 200:
        return None
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None
