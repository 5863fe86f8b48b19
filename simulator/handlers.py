"""What a simulated worker answers to users: vLLM's HTTP surface in front of the engine."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest

from simulator.answering import Answering, Circumstances
from simulator.answers import VARY, Answers, json_body
from simulator.bodies import Generation, Served, parse_chat, parse_completion, parse_detokenize, parse_tokenize
from simulator.bodies_more import parse_count, parse_messages, parse_responses
from simulator.development import DevelopmentEndpoints
from simulator.drive import Driver
from simulator.exposition import CONTENT_TYPE, EngineView, Snapshot, write_page
from simulator.faults import Faults, FaultSwitch
from simulator.metrics import REJECTIONS, HttpStats
from simulator.plain import PlainAnswer
from simulator.refusals import Refusal, shutting_down, too_many_waiting
from simulator.settings import WorkerSettings
from simulator.sockets import Handler, Reply, Request
from simulator.streamed import StreamedAnswer
from simulator.transfer import Origin, offer
from simulator.vocabulary import tokens_of_ids
from simulator.wire import small as wire_small
from simulator.wire.chat import ChatFormat
from simulator.wire.common import Format, Head, Style
from simulator.wire.completion import CompletionFormat
from simulator.wire.messages import MessagesFormat, count_body, messages_error_body
from simulator.wire.responses import ResponsesFormat

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_UNCOUNTED = frozenset({"/health", "/load", "/ping", "/version", "/metrics"})

_Parse = Callable[[bytes, Served], Generation]
_Form = Callable[[Head, Style, Generation], Format]


class SimulatedWorker:
    """The handlers, and what they share."""

    def __init__(self, settings: WorkerSettings, served: Served, driver: Driver, exit_process: Callable[[], None]) -> None:
        self.driver = driver
        self.switch = FaultSwitch()
        self.is_draining = False
        self.running: dict[str, Answering] = {}
        self.is_idle = asyncio.Event()  # nothing is running
        self.is_idle.set()
        self.port = settings.port  # as others find it
        self._settings = settings
        self._dialect = settings.dialect
        self._served = served
        self._started = time.time()
        self._permissions = [secrets.token_hex(8) for _ in (*settings.names, *settings.adapters)]
        self._salts = count(1)
        self._answers = Answers(settings)
        self._http = HttpStats()
        self._rejections = dict.fromkeys(REJECTIONS, 0)
        self._tool_calls: dict[tuple[str, str], int] = {}
        self._blocks = count(1)
        self._engine_id = secrets.token_hex(16)
        self._process = CollectorRegistry()
        GCCollector(self._process)
        PlatformCollector(self._process)
        ProcessCollector(registry=self._process)
        self._circumstances = Circumstances(
            driver=driver,
            seed=settings.seed,
            headers=VARY,
            stream_interval=settings.stream_interval,
            keep_alive_seconds=settings.sse_keep_alive_seconds,
            tells_timing=settings.per_request_metrics,
            exit=exit_process,
            dialect=self._dialect,
            count_tool_call=self._count_tool_call if settings.calls_tools else None,
            offer=self._offer if settings.kv_connector else None,
        )
        self._routes = self._make_routes()

    def __repr__(self) -> str:
        return f"<SimulatedWorker {self._settings.model}, {len(self.running)} requests running, {self.driver!r}>"

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer one request, now or later."""
        methods = self._routes.get(request.path)
        if request.path not in _UNCOUNTED:
            path = request.path if methods else "none"
            reply.on_over = lambda: self._count(path, request, reply)
        if not self._is_allowed(request):
            self._answers.give(request, reply, 401, wire_small.UNAUTHORIZED, varies=False)
        elif methods is None:
            self._answers.give(request, reply, 404, wire_small.detail_body("Not Found"))
        elif request.method not in methods:
            body = wire_small.detail_body("Method Not Allowed")
            self._answers.give(request, reply, 405, body, more=[("allow", ", ".join(sorted(methods)))])
        else:
            try:
                methods[request.method](request, reply)
            except Refusal as refusal:
                body = wire_small.error_body(refusal, self._dialect)
                if request.path == "/v1/messages" and refusal.kind != "Bad Request":
                    body = messages_error_body(refusal)
                self._answers.give(request, reply, refusal.status, body)

    def forget_prefixes(self) -> None:
        """Begin a new prefix cache: nothing that was computed before is found any more."""
        self._served = replace(self._served, salt=f"{next(self._salts)}/")

    def _make_routes(self) -> dict[str, dict[str, Handler]]:
        routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._generating(parse_chat, _chat_format)},
            "/v1/completions": {"POST": self._generating(parse_completion, _completion_format)},
            "/v1/messages": {"POST": self._generating(parse_messages, _messages_format)},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/responses": {"POST": self._generating(parse_responses, _responses_format)},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/kv_event_sources": {"GET": self._kv_event_sources},
        }
        if self._settings.dev_mode:
            endpoints = DevelopmentEndpoints(self.driver, self.running, self.forget_prefixes, self._answers)
            routes |= endpoints.routes()
        return routes

    # --- tokens -----------------------------------------------------------------------------------------------------------

    def _generating(self, parse: _Parse, form: _Form) -> Handler:
        def handle(request: Request, reply: Reply) -> None:
            faults = self.switch.draw()
            if self.is_draining or self.switch.faults.draining:
                body = wire_small.error_body(shutting_down(), self._dialect)
                self._answers.give(request, reply, 500, body, varies=False)
            elif faults.status is not None:
                self._answers.refuse(request, reply, faults.status, faults.retry_after_seconds)
            elif not faults.silent:
                self._generate(request, reply, parse, form, faults)

        return handle

    def _generate(self, request: Request, reply: Reply, parse: _Parse, form: _Form, faults: Faults) -> None:
        settings, engine = self._settings, self.driver.engine
        served = replace(self._served, salt=f"cold{next(self._salts)}/") if faults.cold_cache else self._served
        wanted = parse(json_body(request), served)
        rank = self._rank(request)
        if settings.max_queued is not None and engine.waiting >= settings.max_queued:
            self._rejections["max_num_queued_reqs"] += 1
            raise too_many_waiting()
        identifier = request.headers.get("x-request-id") or wanted.identifier or secrets.token_hex(8)
        head = Head(
            identifier=identifier,
            created=int(time.time()),
            model=wanted.model,
            fingerprint=self._fingerprint(),
        )
        circumstances = self._circumstances
        if settings.request_id_headers:
            circumstances = replace(circumstances, headers=self._answers.headers(request))
        kind = StreamedAnswer if wanted.stream else PlainAnswer
        answering = kind(reply, wanted, form(head, self._style(wanted), wanted), faults, circumstances, identifier)
        self._follow(answering, request, reply)
        answering.start(rank)

    def _follow(self, answering: Answering, request: Request, reply: Reply) -> None:
        """Know the request as running until its answer has ended."""
        key = answering.identifier
        while key in self.running:  # a client may use its id twice
            key += "'"
        self.running[key] = answering
        self.is_idle.clear()
        count_answer = reply.on_over

        def over() -> None:
            del self.running[key]
            if not self.running:
                self.is_idle.set()
            if count_answer is not None:
                count_answer()

        reply.on_over = over

    def _style(self, wanted: Generation) -> Style:
        settings = self._settings
        return Style(
            dialect=self._dialect,
            has_parser=settings.calls_tools or settings.thinks,
            counts_reasoning=settings.thinks,
            shows_reasoning=wanted.shows_reasoning,
            details=settings.prompt_tokens_details,
            token_ids=wanted.wants_token_ids,
            top_logprobs=wanted.top_logprobs,
        )

    def _rank(self, request: Request) -> int | None:
        """The data-parallel rank that a header asks for; one that is no number is ignored."""
        given, ranks = request.headers.get("x-data-parallel-rank", ""), self._settings.data_parallel_size
        if not given.isdecimal():
            return None
        if int(given) >= ranks:
            text = f"data_parallel_rank {given} is out of range [0, {ranks})."
            raise Refusal(400, "BadRequestError", text)
        return int(given)

    def _fingerprint(self) -> str:
        ranks = self._settings.data_parallel_size
        parallel = f"dp{ranks}-" if ranks > 1 else ""
        digest = blake2b(self._settings.model.encode(), digest_size=4).hexdigest()
        return f"vllm-{self._dialect.version}-{parallel}{digest}"

    def _offer(self, identifier: str, prompt_tokens: int) -> dict[str, Any]:
        blocks = -(-prompt_tokens // self._settings.block_tokens)
        ids = [next(self._blocks) for _ in range(blocks)]
        origin = Origin(engine_id=self._engine_id, host=self._settings.host, port=self.port)
        return offer(origin, f"{identifier}-{secrets.token_hex(4)}", ids, prompt_tokens)

    def _count_tool_call(self, mode: str, outcome: str) -> None:
        self._tool_calls[mode, outcome] = self._tool_calls.get((mode, outcome), 0) + 1

    # --- the small endpoints ----------------------------------------------------------------------------------------------

    def _tokenize(self, request: Request, reply: Reply) -> None:
        asked = parse_tokenize(json_body(request), self._served)
        ids = asked.source.ids()
        spellings = [token.spelling for token in tokens_of_ids(ids)] if asked.wants_spellings else None
        self._answers.give(request, reply, 200, wire_small.tokenize_body(ids, self._served.max_model_len, spellings))

    def _count_tokens(self, request: Request, reply: Reply) -> None:
        self._answers.give(request, reply, 200, count_body(parse_count(json_body(request), self._served)))

    def _detokenize(self, request: Request, reply: Reply) -> None:
        text = parse_detokenize(json_body(request), self._served)
        self._answers.give(request, reply, 200, wire_small.detokenize_body(text))

    def _models(self, request: Request, reply: Reply) -> None:
        settings = self._settings
        longest = self._served.max_model_len
        parents = {**dict.fromkeys(settings.names), **dict.fromkeys(settings.adapters, settings.model)}
        body = wire_small.models_body(parents, settings.model, int(time.time()), longest, self._permissions)
        self._answers.give(request, reply, 200, body)

    def _health(self, request: Request, reply: Reply) -> None:
        self._answers.give(request, reply, self.switch.faults.health_status, b"", content_type=None)

    def _version(self, request: Request, reply: Reply) -> None:
        self._answers.give(request, reply, 200, wire_small.version_body(self._dialect))

    def _load(self, request: Request, reply: Reply) -> None:
        running = len(self.running) if self._settings.load_tracking else 0
        self._answers.give(request, reply, 200, wire_small.load_body(running))

    def _kv_event_sources(self, request: Request, reply: Reply) -> None:
        self._answers.give(request, reply, 200, b"{}")

    def _metrics(self, request: Request, reply: Reply) -> None:
        engine = self.driver.engine
        snapshot = Snapshot(
            model=self._settings.model,
            created=self._started,
            settings=engine.settings,
            max_model_len=self._served.max_model_len,
            cache_settings={
                "cache_dtype": self._settings.hardware.kv_cache_dtype or "auto",
                "gpu_memory_utilization": str(self._settings.hardware.memory_utilization_ratio),
            },
            engines=[
                EngineView(
                    running=rank.running,
                    waiting=rank.waiting,
                    kv_usage_ratio=rank.kv_usage_ratio,
                    totals=rank.totals,
                    ledger=ledger,
                )
                for rank, ledger in zip(engine.ranks, self.driver.ledgers, strict=True)
            ],
            rejections=self._rejections,
            tool_calls=self._tool_calls,
            lag=self.driver.lag,
            http=self._http,
        )
        page = generate_latest(self._process) + write_page(snapshot, self._dialect).encode()
        self._answers.give(request, reply, 200, page, content_type=CONTENT_TYPE)

    # --- around every request ---------------------------------------------------------------------------------------------

    def _is_allowed(self, request: Request) -> bool:
        """Some paths want the key, unknown ones below them too; nothing else does."""
        key = self._settings.api_key
        if key is None or not request.path.startswith(_GUARDED):
            return True
        return hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {key}".encode())

    def _count(self, path: str, request: Request, reply: Reply) -> None:
        seconds = time.monotonic() - request.received_at
        self._http.count(path, request.method, reply.status or 499, seconds, len(request.body), reply.size)


def _chat_format(head: Head, style: Style, _: Generation) -> Format:
    return ChatFormat(head, style)


def _completion_format(head: Head, style: Style, _: Generation) -> Format:
    return CompletionFormat(head, style)


def _messages_format(head: Head, style: Style, _: Generation) -> Format:
    return MessagesFormat(head, style)


def _responses_format(head: Head, style: Style, wanted: Generation) -> Format:
    if wanted.response is None:
        raise ValueError("a response repeats what was asked for")
    return ResponsesFormat(replace(head, identifier=secrets.token_hex(8)), style, wanted.response)
