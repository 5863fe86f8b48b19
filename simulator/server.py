"""The HTTP server of a simulated worker: vLLM's surface in front of the engine, in real time."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import blake2b

from aiohttp import web
from aiohttp.typedefs import Handler

from simulator import wire
from simulator.bodies import Generation, Refusal, Served, parse_chat, parse_completion, parse_tokenize, unsupported_media_type
from simulator.drive import Driver, Ticket
from simulator.engine import Engine, EngineSettings, Progress
from simulator.gpus import gpu_by_name
from simulator.metrics import CONTENT_TYPE, Load, write_page
from simulator.prefix import Prompt
from simulator.text import Output, write_output

KEEP_ALIVE_SECONDS = 5.0  # uvicorn's
_JSON = "application/json"
_SSE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker. ``port`` 0 takes a free one."""

    model: str
    gpu: str
    port: int
    host: str = "127.0.0.1"
    max_model_len: int = 131_072  # prompt and output tokens together
    max_num_seqs: int = 64
    api_key: str | None = None  # None: open
    seed: int = 0
    speed: float = 1.0  # 2.0: everything takes half its time

    def engine(self) -> Engine:
        """A new engine. ``ValueError`` for a GPU nobody knows, or a context that its KV cache cannot hold."""
        gpu = gpu_by_name(self.gpu)
        if self.max_model_len > gpu.kv_tokens:
            raise ValueError(
                f"max_model_len {self.max_model_len} is more than the {gpu.kv_tokens} tokens of KV cache on {self.gpu}"
            )
        return Engine(EngineSettings(gpu=gpu, max_num_seqs=self.max_num_seqs))


class SimulatedWorker:
    """The handlers, and what they share."""

    def __init__(self, settings: WorkerSettings, driver: Driver) -> None:
        self._settings = settings
        self._driver = driver
        self._served = Served(model=settings.model, max_model_len=settings.max_model_len)
        self._started = time.time()
        self._permission = secrets.token_hex(8)
        self._fingerprint = f"vllm-{wire.VLLM_VERSION}-{blake2b(settings.model.encode(), digest_size=4).hexdigest()}"

    def application(self) -> web.Application:
        """The routes, with the driver running while the application does."""
        app = web.Application(middlewares=[_refusals_as_answers, self._authorised], client_max_size=0)
        app.cleanup_ctx.append(self._drive)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models, allow_head=False)
        app.router.add_get("/health", self._health, allow_head=False)
        app.router.add_get("/version", self._version, allow_head=False)
        app.router.add_get("/metrics", self._metrics, allow_head=False)
        return app

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, parse_chat(await _json_body(http), self._served), wire.ChatFormat())

    async def _completion(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, parse_completion(await _json_body(http), self._served), wire.CompletionFormat())

    async def _generate(self, http: web.Request, wanted: Generation, form: wire.Format) -> web.StreamResponse:
        output = write_output(
            wanted.prompt.digest, seed=self._settings.seed, limit=wanted.limit_tokens, ignores_end=wanted.ignores_end
        )
        head = wire.Head(
            identifier=http.headers.get("X-Request-Id") or secrets.token_hex(8),
            created=int(time.time()),
            model=self._settings.model,
            fingerprint=self._fingerprint,
        )
        ticket = self._driver.submit(wanted.prompt, len(output.pieces), output.finish_reason)
        try:  # a client that leaves cancels this handler
            if wanted.stream:
                return await _stream(http, ticket, wanted, output, head, form)
            progress = await ticket.next()
            while not progress.is_finished:
                progress = await ticket.next()
            text = output.text(0, progress.generated_tokens)
            return _answer(200, form.answer(head, text, output.finish_reason, _usage(wanted.prompt, progress)))
        finally:
            self._driver.withdraw(ticket)

    async def _tokenize(self, http: web.Request) -> web.StreamResponse:
        tokens = parse_tokenize(await _json_body(http), self._served)
        return _answer(200, wire.tokenize_body(tokens, self._settings.max_model_len))

    async def _models(self, _http: web.Request) -> web.StreamResponse:
        settings = self._settings
        return _answer(200, wire.models_body(settings.model, int(time.time()), settings.max_model_len, self._permission))

    async def _health(self, _http: web.Request) -> web.StreamResponse:
        return _answer(200, b"", None)

    async def _version(self, _http: web.Request) -> web.StreamResponse:
        return _answer(200, wire.version_body())

    async def _metrics(self, _http: web.Request) -> web.StreamResponse:
        engine = self._driver.engine
        load = Load(
            running=engine.running,
            waiting=engine.waiting,
            kv_usage_ratio=engine.kv_usage_ratio,
            kv_blocks=engine.settings.kv_blocks,
        )
        page = write_page(
            model=self._settings.model,
            load=load,
            totals=engine.totals,
            latencies=self._driver.latencies,
            created=self._started,
        )
        return _answer(200, page.encode(), CONTENT_TYPE)

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Everything below /v1 wants the key, unknown paths too; nothing else does."""
        key = self._settings.api_key
        if key is not None and request.path.startswith("/v1"):
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
                return _answer(401, wire.UNAUTHORIZED)
        return await handler(request)

    async def _drive(self, _app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._driver.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _stream(
    http: web.Request, ticket: Ticket, wanted: Generation, output: Output, head: wire.Head, form: wire.Format
) -> web.StreamResponse:
    """The head at once, then an event as soon as there is a token, usage if asked for, and the end mark."""
    response = web.StreamResponse(headers=_headers(_SSE))
    response.enable_chunked_encoding()
    await response.prepare(http)
    told = 0
    is_finished = False
    while not is_finished:
        progress = await ticket.next()
        is_finished = progress.is_finished
        running = wanted.wants_running_usage
        opening = form.opening(head, _usage(wanted.prompt, progress, 0) if running else None) if told == 0 else b""
        if opening:
            await response.write(opening)
        event = form.piece(
            head,
            output.text(told, progress.generated_tokens),
            output.finish_reason if is_finished else None,
            _usage(wanted.prompt, progress) if running else None,
            is_last=is_finished and not wanted.wants_usage,
        )
        await response.write(event)
        told = progress.generated_tokens
    if wanted.wants_usage:
        await response.write(form.closing(head, _usage(wanted.prompt, progress)))
    await response.write(wire.DONE)
    await response.write_eof()
    return response


def _usage(prompt: Prompt, progress: Progress, completion_tokens: int | None = None) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=prompt.tokens,
        completion_tokens=progress.generated_tokens if completion_tokens is None else completion_tokens,
        cached_tokens=progress.cached_tokens,
        created_cache_tokens=progress.created_cache_tokens,
    )


async def _json_body(http: web.Request) -> bytes:
    raw = await http.read()
    if raw and http.content_type != _JSON:
        raise unsupported_media_type()
    return raw


@web.middleware
async def _refusals_as_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        body = wire.error_body(refusal.status, refusal.kind, refusal.message, refusal.param)
        return _answer(refusal.status, body)
    except web.HTTPMethodNotAllowed as error:
        response = _answer(405, wire.detail_body("Method Not Allowed"))
        response.headers["allow"] = ", ".join(sorted(error.allowed_methods))
        return response
    except web.HTTPNotFound:
        return _answer(404, wire.detail_body("Not Found"))


def _answer(status: int, body: bytes, content_type: str | None = _JSON) -> web.Response:
    return web.Response(status=status, body=body, headers=_headers(content_type, len(body)))


def _headers(content_type: str | None, size: int | None = None) -> dict[str, str]:
    """uvicorn's headers, in its order and spelling."""
    headers = {"date": formatdate(usegmt=True), "server": "uvicorn"}
    if size is not None:
        headers["content-length"] = str(size)
    if content_type:
        headers["content-type"] = content_type
    return {**headers, "vary": "Origin"}


async def start_worker(settings: WorkerSettings) -> tuple[web.AppRunner, str]:
    """Begin to serve on the running loop. Returns the runner, whose ``cleanup`` ends it, and the base URL.

    ``ValueError`` for settings that cannot be; ``OSError`` if the address cannot be had.
    """
    loop = asyncio.get_running_loop()
    driver = Driver(settings.engine(), clock=loop.time, speed=settings.speed)
    runner = web.AppRunner(
        SimulatedWorker(settings, driver).application(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        shutdown_timeout=0.5,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError:
        await runner.cleanup()
        raise
    port = runner.addresses[0][1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return runner, f"http://{host}:{port}"
