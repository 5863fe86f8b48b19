"""EndpointSlices of Kubernetes as values: a list of them, the events of a watch, and the workers they come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

import msgspec

from proxy.config.worker_url import WorkerUrl
from proxy.discovery.found import FoundWorker, SourceError, checked

MAX_LINE_BYTES = 8 * 1024 * 1024  # a slice of 1,000 endpoints has some 500 kB
_MOST_PORT = 65535
_FAMILIES = {"IPv4": 0, "IPv6": 1}  # in order of preference; anything else are names, which are not for us


class Conditions(msgspec.Struct, frozen=True):
    """What is known of an endpoint; None: unknown, which the API defines as the better answer."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Reference(msgspec.Struct, frozen=True):
    """What the endpoint is, as a rule a pod."""

    kind: str = ""
    name: str = ""


class Endpoint(msgspec.Struct, frozen=True):
    """One or more addresses of the same thing."""

    addresses: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    targetRef: Reference | None = None  # noqa: N815 -- as the API has it


class Port(msgspec.Struct, frozen=True):
    """One port of all endpoints of the slice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class Meta(msgspec.Struct, frozen=True):
    """Metadata of an object or a list."""

    name: str = ""
    resourceVersion: str = ""  # noqa: N815
    continue_: str | None = msgspec.field(default=None, name="continue")


class Slice(msgspec.Struct, frozen=True):
    """A part of a service's endpoints."""

    metadata: Meta
    addressType: str = ""  # noqa: N815
    endpoints: tuple[Endpoint, ...] | None = ()
    ports: tuple[Port, ...] | None = ()


class SliceList(msgspec.Struct, frozen=True):
    """A page of a list."""

    metadata: Meta
    items: tuple[Slice, ...] | None = ()


class Status(msgspec.Struct, frozen=True):
    """Why the API server does not do what it was asked."""

    code: int = 0
    reason: str | None = None
    message: str | None = None


class Event(msgspec.Struct, frozen=True):
    """A line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the object that it is about."""

    type: str
    object: msgspec.Raw


read_list = msgspec.json.Decoder(SliceList).decode
read_event = msgspec.json.Decoder(Event).decode
read_slice = msgspec.json.Decoder(Slice).decode
read_status = msgspec.json.Decoder(Status).decode


class Lines:
    """Cuts what arrives into lines, wherever it was cut before."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now, without ends and empty ones. Raises `SourceError` for one that has no end."""
        *lines, self._held = (self._held + data).split(b"\n")
        yield from (line for line in lines if line.strip())
        if len(self._held) > MAX_LINE_BYTES:
            raise SourceError("a line of the watch is too long")


def workers_of(slices: Iterable[Slice], port: int | str | None, scheme: str = "http") -> tuple[FoundWorker, ...]:
    """The workers that the slices of one service come to.

    Ready endpoints take requests; those that end and still serve are draining; others are left out. A pod that is in several
    slices, as happens for moments and always with two address families, is one worker; the best of what is said of it holds.
    Raises `SourceError` when endpoints have no such port, or too many workers come out.
    """
    ranked: list[tuple[tuple[bool, int, str], FoundWorker]] = []
    misses: list[str] = []
    for each in slices:
        if each.addressType not in _FAMILIES or not each.endpoints:
            continue
        number = _port_of(each, port)
        if number is None:
            misses.append(", ".join(f"{offered.name or 'unnamed'} ({offered.port})" for offered in each.ports or ()) or "none")
            continue
        for endpoint in each.endpoints:
            is_draining = _is_draining(endpoint.conditions)
            if is_draining is not None and endpoint.addresses:
                worker = _worker(endpoint, number, scheme, is_draining=is_draining)
                ranked.append(((is_draining, _FAMILIES[each.addressType], each.metadata.name), worker))
    if misses and not ranked:
        wanted = "no single port, so `port` has to say which" if port is None else f"no port {port}"
        raise SourceError(f"the endpoints have {wanted}; there are: {misses[0]}")
    ranked.sort(key=lambda entry: entry[0])
    return checked(worker for _, worker in ranked)


def _is_draining(conditions: Conditions) -> bool | None:
    """False: takes requests; True: only those that it has; None: nothing may go there, or nothing yet."""
    is_ready = conditions.ready is not False
    if not conditions.terminating:
        return False if is_ready else None
    is_serving = is_ready if conditions.serving is None else conditions.serving
    return True if is_serving else None


def _port_of(each: Slice, wanted: int | str | None) -> int | None:
    tcp = [port for port in each.ports or () if port.protocol in (None, "TCP")]
    ports = [port for port in tcp if port.port is None or 0 < port.port <= _MOST_PORT]
    if isinstance(wanted, int) and not ports:
        return wanted  # a headless service need not name its ports
    fitting = [port for port in ports if wanted in (None, port.name, port.port)]
    return fitting[0].port if len(fitting) == 1 or (fitting and wanted is not None) else None


def _worker(endpoint: Endpoint, port: int, scheme: str, *, is_draining: bool) -> FoundWorker:
    try:
        host = ip_address(endpoint.addresses[0]).compressed  # the API says that all of them are the same
    except ValueError:
        raise SourceError("an endpoint has an address that is none") from None
    url = WorkerUrl(host=host, port=port, base_path="", scheme=scheme)
    reference = endpoint.targetRef
    name = reference.name if reference is not None and reference.kind == "Pod" and reference.name else url.default_name
    return FoundWorker(name=name, url=url, is_draining=is_draining, source="kubernetes")


def by_name(slices: Iterable[Slice]) -> Mapping[str, Slice]:
    """The slices by name."""
    return {each.metadata.name: each for each in slices}
