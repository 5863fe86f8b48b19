"""Workers behind a name: every address that it has, or every target of its SRV records, looked up again when they expire."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

from proxy.config.errors import RefusedError
from proxy.config.worker_url import WorkerUrl, parse_worker_url
from proxy.discovery.found import FoundWorker, SourceError, checked
from proxy.discovery.source import Listener, Pause

EMPTY_SECONDS = 30.0
"""How long a name that had records must have none, by its own servers' word, until it is believed."""
_LEAST_SECONDS = 1.0  # between two looks, whatever the records allow
_MOST_SECONDS = 3600.0
_LOOK_AGAIN_SECONDS = 5.0  # at a name without records
_LIFETIME_SECONDS = 5.0  # of one look, all servers tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """An answer, or the word of those who must know that there are none."""

    workers: tuple[FoundWorker, ...]
    ttl_seconds: float  # the least of all on the way to them
    why_none: str | None = None  # in words


class DnsSource:
    """Looks a name up. ``kinds`` are ``A`` and ``AAAA`` or one of them, with ``port``; or ``SRV``. ``scheme``: of the workers.

    ``has_known``: workers are in force from before, which a name without records does not take away at once.
    """

    def __init__(
        self,
        name: str,
        kinds: tuple[str, ...],
        port: int | None = None,
        nameserver: tuple[str, int] | None = None,
        *,
        scheme: str = "http",
        has_known: bool = False,
        pause: Pause | None = None,
        empty_seconds: float = EMPTY_SECONDS,
        lifetime_seconds: float = _LIFETIME_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = name
        self._kinds = kinds
        self._port = port
        self._scheme = scheme
        self._nameserver = nameserver
        self._empty_seconds = empty_seconds
        self._lifetime_seconds = lifetime_seconds
        self._clock = clock
        self._known: dict[str, tuple[FoundWorker, ...]] = {}  # by kind: one that fails for itself takes nothing away
        self._told: tuple[FoundWorker, ...] = ()
        self._empty_since: float | None = None
        self._has_known = has_known
        self._pause = pause or Pause(1.0, 30.0)

    def __repr__(self) -> str:
        return f"<DnsSource {self._name} {' '.join(self._kinds)}>"

    async def run(self, listener: Listener) -> None:
        """Look, and look again when the records expire."""
        while True:
            looks = await asyncio.gather(*(self._look(kind) for kind in self._kinds))
            await asyncio.sleep(self.take(dict(zip(self._kinds, looks, strict=True)), listener))

    def take(self, looks: dict[str, Records | SourceError], listener: Listener) -> float:
        """Tell what the looks have brought; gives back the seconds until the next ones."""
        failures = [look for look in looks.values() if isinstance(look, SourceError)]
        answers = {kind: look for kind, look in looks.items() if isinstance(look, Records)}
        fresh = {**self._known, **{kind: look.workers for kind, look in answers.items()}}
        found = [worker for kind in self._kinds for worker in fresh.get(kind, ())]
        if not found and not failures:
            return self._take_nothing([look.why_none for look in answers.values() if look.why_none], listener)
        self._empty_since = None
        if found:
            try:
                workers = checked(found)
            except SourceError as error:
                failures.append(error)
            else:
                self._known = fresh
                if not failures or workers != self._told:
                    self._told, self._has_known = workers, True
                    listener.found(workers)
        if failures:
            listener.failed(f"{self._name}: {failures[0]}")
            return self._pause.after_failure()
        self._pause.after_success()
        return min(max(min(look.ttl_seconds for look in answers.values() if look.workers), _LEAST_SECONDS), _MOST_SECONDS)

    def _take_nothing(self, reasons: list[str], listener: Listener) -> float:
        """Those who must know say that there are no records. Believed at once where there never were any."""
        now = self._clock()
        if self._empty_since is None:
            self._empty_since = now
        why = f"{self._name}: {reasons[0] if reasons else 'there are no records'}"
        if self._has_known and now - self._empty_since < self._empty_seconds:
            listener.failed(f"{why}; its last workers stay for {self._empty_seconds:g} s")
            return min(_LOOK_AGAIN_SECONDS, self._empty_seconds)
        listener.failed(why)
        self._known, self._told, self._has_known = {}, (), False
        listener.found(())
        return _LOOK_AGAIN_SECONDS

    async def _look(self, kind: str) -> Records | SourceError:
        try:
            answer = await self._resolver().resolve(
                self._name, kind, search=True, raise_on_no_answer=False, lifetime=self._lifetime_seconds
            )
        except dns.resolver.NXDOMAIN:
            return Records(workers=(), ttl_seconds=_LOOK_AGAIN_SECONDS, why_none="the name does not exist")
        except (dns.exception.DNSException, OSError) as error:
            return SourceError(_in_words(error))
        try:
            workers = self._targets(answer) if kind == "SRV" else self._addresses(answer)
        except RefusedError as error:
            return SourceError(error.wrong)
        return Records(workers=tuple(workers), ttl_seconds=answer.chaining_result.minimum_ttl)

    def _resolver(self) -> dns.asyncresolver.Resolver:
        """A new one for each look: what the system says may have changed."""
        resolver = dns.asyncresolver.Resolver(configure=self._nameserver is None)
        if self._nameserver is not None:
            host, resolver.port = self._nameserver
            resolver.nameservers = [host]
        return resolver

    def _addresses(self, answer: dns.resolver.Answer) -> Iterable[FoundWorker]:
        assert self._port is not None
        for record in answer.rrset or ():
            host = ipaddress.ip_address(record.address).compressed
            url = WorkerUrl(host=host, port=self._port, base_path="", scheme=self._scheme)
            yield FoundWorker(name=url.default_name, url=url, source="dns")

    def _targets(self, answer: dns.resolver.Answer) -> Iterable[FoundWorker]:
        records = list(answer.rrset or ())
        first = min((record.priority for record in records), default=0)
        for record in records:
            target = record.target.to_text(omit_final_dot=True)
            if record.priority == first and record.target.labels != (b"",):  # a bare dot: decidedly nobody
                url = parse_worker_url(f"{self._scheme}://{target}:{record.port}")
                yield FoundWorker(name=url.default_name, url=url, source="srv")


def _in_words(error: Exception) -> str:
    match error:
        case dns.resolver.NoNameservers():
            return "no name server could say what it is"
        case dns.exception.Timeout():
            return "no name server answered in time"
        case dns.resolver.NoResolverConfiguration():
            return "the system names no name server"
        case OSError():
            return error.strerror or "the name server cannot be reached"
    return f"the look-up failed ({type(error).__name__})"
