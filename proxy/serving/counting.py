"""Counting prompts exactly, off the loop of the serving process: by a process of its own, or by a worker's ``/tokenize``.

Bounded in time, size and number; whoever does not get a count goes on with the estimate.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from ssl import SSLContext
from time import monotonic as clock
from typing import TYPE_CHECKING

import msgspec

from proxy.serving.counting_process import LENGTH, Counted, Job
from proxy.tls import WorkerContexts
from proxy.upstream.lone_request import ask
from proxy.wire.framing import FramingError
from routing.topology import Model, Pool, TokenizerSource, Topology, Worker
from telemetry.events import MAX_TOKENS
from telemetry.record import CountResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.wire.inference import InferenceRequest

_log = logging.getLogger(__name__)

MOST_PENDING = 8
_STUCK_SECONDS = 5.0  # a job that takes longer ends the process
_RESTART_SECONDS = 5.0
_LOAD_SECONDS = 60.0
_MOST_ANSWER_BYTES = 64 * 1024 * 1024  # of a worker, whose list of ids comes along

Result = tuple[CountResult, int | None]


class CountingProcess:
    """The process that counts, started when there is something to count with, and again when it has ended."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending: dict[int, tuple[asyncio.Future[int | None], float]] = {}
        self._sources: set[TokenizerSource] = set()  # that the process was started for
        self._ready: set[TokenizerSource] = set()
        self._numbers = 0
        self._started_at = float("-inf")
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<CountingProcess {'running' if self._process else 'not running'}, {len(self._pending)} pending>"

    def look_after(self, topology: Topology, now: float) -> None:
        """Twice a second: start it if any model needs it, end it when it is stuck or has loaded something else."""
        sources = {
            model.tokenizer for model in topology.models if model.tokenizer is not None and not model.tokenizer.is_worker
        }
        if self._process is not None:
            if any(now > until for _, until in self._pending.values()):
                _log.warning("counting tokens took too long; the counting process is started again")
                self._kill()
            elif sources != self._sources:  # of a reload; one that was loaded would stay in memory
                self._kill()
        if sources and self._task is None and not self._is_closed and now - self._started_at >= _RESTART_SECONDS:
            self._started_at, self._sources = now, sources
            self._task = asyncio.get_running_loop().create_task(self._run(sources))

    async def count(self, job: Job) -> Result:
        """Count, or say why not."""
        source = job.source
        size = len(job.messages) + len(job.prompt) + sum(map(len, job.others))
        if size > source.most_bytes:
            return CountResult.TOO_LONG, None
        if source not in self._ready or len(self._pending) >= MOST_PENDING:
            return CountResult.BUSY, None
        future = self._send(job, _STUCK_SECONDS)
        try:
            async with asyncio.timeout(source.timeout_seconds):
                tokens = await asyncio.shield(future)
        except TimeoutError:
            return CountResult.TIMEOUT, None
        return (CountResult.FAILED, None) if tokens is None else (CountResult.COUNTED, tokens)

    def close(self) -> None:
        """End the process; nothing is counted any more."""
        self._is_closed = True
        self._kill()

    def _send(self, job: Job, allowed_seconds: float) -> asyncio.Future[int | None]:
        self._numbers += 1
        job.number = self._numbers
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if self._process is None or self._process.stdin is None:
            future.set_result(None)
            return future
        self._pending[job.number] = future, clock() + allowed_seconds
        body = msgspec.msgpack.encode(job)
        self._process.stdin.write(LENGTH.pack(len(body)) + body)
        return future

    async def _run(self, sources: set[TokenizerSource]) -> None:
        """One life of the process."""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy.serving.counting_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            if self._is_closed:
                self._kill()
            for source in sources:
                self._send(Job(0, source), _LOAD_SECONDS).add_done_callback(self._note_loaded(source))
            results = process.stdout or asyncio.StreamReader()
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    (length,) = LENGTH.unpack(await results.readexactly(LENGTH.size))
                    found = msgspec.msgpack.decode(await results.readexactly(length), type=Counted)
                    self._settle(found.number, found.tokens)
            await process.wait()
        except OSError as error:
            _log.warning("the counting process could not be started: %s", error.strerror)
        finally:
            self._process = self._task = None
            self._ready = set()
            for number in list(self._pending):
                self._settle(number, None)

    def _note_loaded(self, source: TokenizerSource) -> Callable[[asyncio.Future[int | None]], None]:
        def loaded(future: asyncio.Future[int | None]) -> None:
            if future.result() is not None:
                self._ready.add(source)
            else:
                _log.warning("a tokenizer could not be loaded: %s", source.file or source.tiktoken)

        return loaded

    def _settle(self, number: int, tokens: int | None) -> None:
        future, _ = self._pending.pop(number, (None, 0.0))
        if future is not None and not future.done():
            future.set_result(tokens)

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()


async def count_at_worker(
    model: Model, source: TokenizerSource, request: InferenceRequest, is_up: Sequence[float], contexts: WorkerContexts
) -> Result:
    """Ask a worker of the model, which knows its template too."""
    if request.text_bytes > source.most_bytes:
        return CountResult.TOO_LONG, None
    worker, in_pool = next(
        ((worker, pool) for pool in reversed(model.pools) for worker in pool.workers if is_up[worker.index] != 0.0),
        (None, None),
    )
    if worker is None or in_pool is None:
        return CountResult.FAILED, None
    try:
        async with asyncio.timeout(source.timeout_seconds):
            tls = contexts.find(in_pool.worker_tls) if worker.is_tls else None
            tokens = await _ask(worker, in_pool, tls, _question(model.name, request))
    except TimeoutError:
        return CountResult.TIMEOUT, None
    except (OSError, FramingError, asyncio.IncompleteReadError):
        tokens = None
    return (CountResult.FAILED, None) if tokens is None else (CountResult.COUNTED, tokens)


class _Answer(msgspec.Struct, gc=False):
    count: int


def _question(model: str, request: InferenceRequest) -> bytes:
    fields: dict[str, object] = {"model": model}
    if request.messages:
        fields["messages"] = request.messages
        if request.has_tools:
            fields["tools"] = request.others[0]
    else:
        fields["prompt"] = request.prompt
    return msgspec.json.encode(fields)


async def _ask(worker: Worker, pool: Pool, tls: SSLContext | None, body: bytes) -> int | None:
    bearer = f"authorization: Bearer {pool.worker_key}\r\n" if pool.worker_key else ""
    head = (
        f"POST {worker.base_path}/tokenize HTTP/1.1\r\nhost: {worker.authority}\r\n{bearer}connection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    status, answer = await ask(worker, pool, tls, (head.encode(), body), _MOST_ANSWER_BYTES)
    if status != 200:
        return None
    try:
        count = msgspec.json.decode(answer, type=_Answer).count
    except msgspec.DecodeError:
        return None
    return count if 0 <= count <= MAX_TOKENS else None
