"""How long a request each worker can hold, asked of the workers themselves: ``max_model_len`` of ``/v1/models``.

Control asks each worker once it is up and then every minute, since a restart may change it. A worker that does not say stays
unknown, and nothing is kept from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import msgspec
from yarl import URL

from proxy.control.fleet import Fleet
from routing.guidance import Guidance, PoolGuidance, WorkerGuidance, pool_key
from routing.topology import Pool, Worker
from telemetry.layout import Layout, slot
from telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often there is a look at who is to be asked."""
AGAIN_SECONDS = 60.0
"""After this a worker is asked again."""
_ASK_SECONDS = 3.0
_MOST_AT_ONCE = 20
_MOST_BYTES = 1024 * 1024
_UP = slot("ridgeline_worker_up")


class _Card(msgspec.Struct):
    id: str | None = None
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card] = []


_decode = msgspec.json.Decoder(_Cards, strict=True).decode


def length_in(page: bytes, model: str) -> int | None:
    """The length that a worker's list of models gives for this one, or for the only one; ``None`` if it does not say."""
    try:
        cards = _decode(page).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    lengths = [card.max_model_len for card in cards if card.id == model or len(cards) == 1]
    return lengths[0] if lengths and lengths[0] is not None and lengths[0] > 0 else None


@dataclass(slots=True)
class _Known:
    asked_at: float
    length: int | None


class ModelLengths:
    """An adviser. `run` asks; what was found is advised."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], _Known] = {}  # by model, worker and its URL

    def __repr__(self) -> str:
        return f"<ModelLengths of {len(self._known)} workers>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Requests teach it nothing."""

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Add what workers said, and of each pool the least and, if all have said it, the most."""
        workers, pools = dict(guidance.workers), dict(guidance.pools)
        for pool in fleet.topology.pools:
            said: list[int] = []
            for worker in pool.workers:
                known = self._known.get((pool.model, worker.name, worker.url))
                if known is not None and known.length is not None:
                    said.append(known.length)
                    told = workers.get(worker.name, WorkerGuidance())
                    workers[worker.name] = msgspec.structs.replace(told, max_model_len=known.length)
            if said:
                key = pool_key(pool.model, pool.name)
                most = max(said) if len(said) == len(pool.workers) else None
                pools[key] = msgspec.structs.replace(
                    pools.get(key, PoolGuidance()), least_model_len=min(said), most_model_len=most
                )
        return msgspec.structs.replace(guidance, workers=workers, pools=pools)

    async def run(self, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        """Ask until cancelled."""
        while True:
            try:
                await self.look(fleet, session)
            except Exception:
                _log.exception("asking workers how much they hold")
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        """Ask those that are up and have not been asked for a minute."""
        now = asyncio.get_running_loop().time()
        layout, values = Layout.of(fleet.topology), fleet.cells.values
        there: set[tuple[str, str, str]] = set()
        due: list[tuple[Pool, Worker]] = []
        for pool in fleet.topology.pools:
            for worker in pool.workers:
                which = (pool.model, worker.name, worker.url)
                there.add(which)
                known = self._known.get(which)
                is_due = known is None or now - known.asked_at >= AGAIN_SECONDS
                if is_due and values[layout.worker_base(worker.index) + _UP] == 1.0:
                    due.append((pool, worker))
        self._known = {which: known for which, known in self._known.items() if which in there}
        for first in range(0, len(due), _MOST_AT_ONCE):
            await asyncio.gather(
                *(self._ask(pool, worker, session, fleet) for pool, worker in due[first : first + _MOST_AT_ONCE])
            )

    async def _ask(self, pool: Pool, worker: Worker, session: aiohttp.ClientSession, fleet: Fleet) -> None:
        which = (pool.model, worker.name, worker.url)
        before = self._known.get(which)
        page = await _page(worker, pool, session, fleet)
        kept = None if before is None else before.length  # while it does not answer
        length = kept if page is None else length_in(page, pool.model)
        self._known[which] = _Known(asyncio.get_running_loop().time(), length)
        if length not in (None, kept):
            _log.info("worker %s holds requests of %d tokens", worker.name, length)


async def _page(worker: Worker, pool: Pool, session: aiohttp.ClientSession, fleet: Fleet) -> bytes | None:
    headers = {"Accept-Encoding": "identity"}
    if pool.worker_key is not None:
        headers["Authorization"] = f"Bearer {pool.worker_key}"
    try:
        async with session.get(
            URL(f"{worker.url}/v1/models", encoded=True),
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=_ASK_SECONDS),
            ssl=fleet.worker_contexts.find(pool.worker_tls) if worker.is_tls else True,
            server_hostname=pool.worker_tls.server_name if worker.is_tls else None,
        ) as response:
            if response.status != 200:
                return None
            page = bytearray()
            async for data in response.content.iter_any():
                page += data
                if len(page) > _MOST_BYTES:
                    return None
            return bytes(page)
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
