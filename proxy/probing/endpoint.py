"""An OpenAI-compatible endpoint as a probe talks to it: it finds out what the endpoint takes, and times streamed answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

from proxy.probing.answer import Answer, AnswerReader, failed

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_EXTRAS = ("ignore_eos", "min_tokens")  # of vLLM and its like: answers have exactly the length asked for
_OPTIONAL = (*_EXTRAS, "stream_options", "temperature")
_TRIES = 8
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 300.0  # a prefill may take so long
_SHOWN = 300  # characters of an error
_MOST_TEXT_BYTES = 1024 * 1024  # of what is no stream
_MOST_TOKEN_BYTES = 16 * 1024  # of a stream, for each token asked for


class ProbeError(Exception):
    """The endpoint cannot be probed; the text says what is wrong and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go."""

    url: str  # base, without /v1
    model: str | None = None  # None: the only one that the endpoint lists
    key: str | None = None
    key_env: str | None = None  # name of the variable that it came from
    path: str | None = None  # COMPLETIONS or CHAT; None: whichever is there


class Endpoint:
    """One endpoint. Call `prepare` first; it decides path, model and fields, which then stay."""

    def __init__(self, target: Target, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self._target = target
        self._session = session
        self._clock = clock
        self._dropped: list[str] = []
        self._limit_name = "max_tokens"
        self.model = target.model or ""
        self.path = target.path or COMPLETIONS
        self.most_tokens: int | None = None  # context of the model, where the endpoint says it

    def __repr__(self) -> str:
        return f"<Endpoint {self._target.url}{self.path} for {self.model}>"

    @property
    def sampling(self) -> dict[str, object]:
        """What is pinned in every request, and what was left out because the endpoint refuses it."""
        pinned: dict[str, object] = {"temperature": 0, "ignore_eos": True, "min_tokens": f"= {self._limit_name}"}
        kept: dict[str, object] = {name: value for name, value in pinned.items() if name not in self._dropped}
        return {**kept, "refused": list(self._dropped)}

    @property
    def has_exact_outputs(self) -> bool:
        """Whether answers have the length asked for; else they end where the model ends them."""
        return not set(_EXTRAS) & set(self._dropped)

    async def prepare(self) -> None:
        """Find model, path and fields with a few small requests. `ProbeError` if there is no way."""
        await self._choose_model()
        for _ in range(_TRIES):
            status, text = await self._try()
            if status == 200:
                return
            if status in (404, 405) and self._target.path is None and self.path == COMPLETIONS and "model" not in text.lower():
                self.path = CHAT
            elif not (status in (400, 422) and self._drop(text)):
                raise ProbeError(self._explain(status, text))
        raise ProbeError(f"{self._target.url}{self.path} refuses every form of the request")

    async def ask(self, text: str, output_tokens: int) -> Answer:
        """Send one request and read its answer to the end. What goes wrong is the answer's ``error``.

        It counts as sent once it has its connection (`session_of`): names, connecting and TLS are nothing of the worker's.
        """
        sent_at = self._clock()
        reader = AnswerReader(sent_at)
        try:
            async with self._session.post(
                self._target.url + self.path,
                data=json.dumps(self._body(text, output_tokens)),
                headers=self._headers,
                trace_request_ctx=lambda: reader.sent(self._clock()),
            ) as response:
                if response.status != 200:
                    said = (await _text_of(response))[:_SHOWN]
                    return failed(sent_at, self._clock(), f"status {response.status}: {_message(said)}")
                if "event-stream" not in response.content_type:
                    return failed(sent_at, self._clock(), f"no stream but {response.content_type}")
                left = _MOST_TEXT_BYTES + _MOST_TOKEN_BYTES * output_tokens
                async for piece in response.content.iter_any():
                    reader.feed(self._clock(), piece)
                    left -= len(piece)
                    if left < 0:
                        return failed(sent_at, self._clock(), f"no end of an answer of {output_tokens} tokens")
        except (aiohttp.ClientError, TimeoutError) as error:
            return failed(sent_at, self._clock(), str(error) or type(error).__name__)
        return reader.finish(self._clock())

    @property
    def _headers(self) -> dict[str, str]:
        key = self._target.key
        return {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}

    def _body(self, text: str, output_tokens: int) -> dict[str, object]:
        said: dict[str, object] = (
            {"prompt": text} if self.path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
        )
        body: dict[str, object] = {
            "model": self.model,
            **said,
            self._limit_name: output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "ignore_eos": True,
            "min_tokens": output_tokens,
        }
        return {name: value for name, value in body.items() if name not in self._dropped}

    async def _try(self) -> tuple[int, str]:
        body = self._body("Say something about water.", 4)
        try:
            async with self._session.post(
                self._target.url + self.path, data=json.dumps(body), headers=self._headers
            ) as response:
                return response.status, await _text_of(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ProbeError(_unreachable(self._target.url, error)) from None

    def _drop(self, text: str) -> bool:
        """Leave out what the endpoint complains of; False if that is nothing of what may be left out."""
        if "max_completion_tokens" in text and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return True
        named = [name for name in _OPTIONAL if name in text and name not in self._dropped]
        # Some say only that there is a field too many.
        self._dropped += named or [name for name in _EXTRAS if name not in self._dropped]
        return bool(named) or len(self._dropped) == len(_EXTRAS)

    async def _choose_model(self) -> None:
        models = await self._models()
        if models is None:
            if not self.model:
                raise ProbeError(f"{self._target.url}/v1/models does not list any model: name one with --model")
            return
        if not self.model:
            if len(models) != 1:
                listed = ", ".join(sorted(models)[:8]) or "none"
                raise ProbeError(f"the endpoint has {len(models)} models ({listed}): choose one with --model")
            self.model = next(iter(models))
        if self.model not in models and models:
            raise ProbeError(f"there is no model {self.model!r}; the endpoint lists {', '.join(sorted(models)[:8])}")
        self.most_tokens = models.get(self.model)

    async def _models(self) -> dict[str, int | None] | None:
        """Names with their context; ``None`` where they are not told."""
        url = f"{self._target.url}/v1/models"
        try:
            async with self._session.get(url, headers=self._headers) as response:
                text = await _text_of(response)
                if response.status in (401, 403):
                    raise ProbeError(self._explain(response.status, text))
                if response.status != 200:
                    return None
        except (aiohttp.ClientError, TimeoutError, UnicodeError) as error:
            raise ProbeError(_unreachable(self._target.url, error)) from None
        try:
            listed = json.loads(text)["data"]
            return {str(one["id"]): _whole(one.get("max_model_len")) for one in listed}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _explain(self, status: int, text: str) -> str:
        said = _message(text[: 4 * _SHOWN])[:_SHOWN]
        if status in (401, 403):
            if self._target.key is None:
                return f"the endpoint wants a key (status {status}): name the variable that holds it with --api-key-env"
            return f"the endpoint refuses the key in {self._target.key_env} (status {status}): {said}"
        if status == 404:
            return f"{self._target.url}{self.path} knows no model {self.model!r}, or is no such endpoint (status 404): {said}"
        return f"{self._target.url}{self.path} answers with status {status}: {said}"


def session_of() -> aiohttp.ClientSession:
    """A session for a probe: any number of connections, no proxy, no cookies, no limit but silence.

    A function given as ``trace_request_ctx`` is called when the request has its connection, right before it is written.
    """

    async def connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx()

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(connected)
    tracing.on_connection_reuseconn.append(connected)
    return aiohttp.ClientSession(
        trace_configs=[tracing],
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS),
        trust_env=False,
    )


async def _text_of(response: aiohttp.ClientResponse) -> str:
    """A body as far as it is of use; whatever coding it says it has, which may be none."""
    text = bytearray()
    async for piece in response.content.iter_any():
        text += piece
        if len(text) > _MOST_TEXT_BYTES:
            break
    return text[:_MOST_TEXT_BYTES].decode("utf-8", "replace")


def _unreachable(url: str, error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return (
            f"nothing can be reached at {url} ({error.os_error.strerror or error.os_error}): is it started, is the port right?"
        )
    if isinstance(error, TimeoutError):
        return f"{url} does not answer: no connection in {_CONNECT_SECONDS:.0f} s, or silence for {_SILENCE_SECONDS:.0f} s"
    return f"{url} does not speak HTTP as expected: {error or type(error).__name__}"


def _message(text: str) -> str:
    """The message of an OpenAI-shaped error, or the text itself."""
    try:
        body: object = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())
    for _ in range(2):
        if isinstance(body, Mapping):
            body = body.get("error", body.get("message", body.get("detail", body)))
    if isinstance(body, Mapping):
        body = body.get("message", body)
    return " ".join(str(body).split())


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
