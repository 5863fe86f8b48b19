"""What the path of a request costs in one serving process, without sockets: ``python -m benchmarks.hot_path``.

The real connections of client and worker, with transports that only count. The figures leave out the kernel, the event
loop and the control process, so they are much smaller than those of ``python -m benchmarks``, and steadier: good for
seeing what a change to the path does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import uvloop

from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from proxy.records import RecordSender
from proxy.serving.client import ClientConnection
from proxy.serving.state import ServingState
from proxy.upstream.connections import WorkerConnection
from routing.topology import Following
from telemetry.record import RequestRecord

STREAM_TOKENS = 128
_KEY = "sk-test"
_CONFIG = {
    "listen": "127.0.0.1:1",
    "observe_listen": "127.0.0.1:2",
    "admin_listen": "127.0.0.1:3",
    "keys": [{"name": "bench", "sha256": sha256(_KEY.encode()).hexdigest()}],
    "models": [{"name": "m", "workers": ["http://127.0.0.1:9"]}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPathCosts:
    """The least of several repeats, in microseconds."""

    plain_us: float  # a request with a plain answer
    one_token_stream_us: float
    token_us: float  # each further token of a stream, each in a read of its own


class _CountingTransport(asyncio.Transport):
    """Takes what is written and keeps the last of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written = data if isinstance(data, bytes) else bytes(data)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class _NoSender(RecordSender):
    """There is no control process that would take the records."""

    def put(self, record: RequestRecord) -> None:
        pass


def a_config(models: int = 1, workers: int = 1) -> dict[str, object]:
    """The configuration of so many models with so many workers each; the first one is called ``m``."""
    return _CONFIG | {
        "models": [
            {
                "name": "m" if not model else f"m{model}",
                "workers": [f"http://10.{model}.{worker // 250}.{worker % 250 + 1}:8000" for worker in range(workers)],
            }
            for model in range(models)
        ]
    }


class HotPath:
    """One client and the workers on a serving state. Made in a running loop, which gets no turn while requests pass."""

    def __init__(self, run_dir: Path, sample_ratio: float | None = None, config: Mapping[str, object] | None = None) -> None:
        topology = build_topology(parse_config(json.dumps(config or _CONFIG), {}, "benchmark"))
        topology = replace(topology, following=Following(sample_ratio=sample_ratio))
        state = ServingState(topology, run_dir, 0, 1, asyncio.get_running_loop())
        state.sender = _NoSender(run_dir / "nobody")
        self._answer = _CountingTransport()
        self._client = ClientConnection(state)
        self._client.connection_made(self._answer)
        for worker in topology.workers:
            connections = state.connections_to(worker)
            connections.idle_seconds = 1e9  # none is dropped for the benchmark's taking its time
            self.worker = WorkerConnection(connections)
            self.worker.connection_made(_CountingTransport())
            connections.give_back(self.worker)
        self.state = state

    def plain(self) -> None:
        """One request with a plain answer. Raises RuntimeError when the answer does not reach the client."""
        self._client.data_received(_PLAIN_REQUEST)
        self.worker.data_received(_PLAIN_ANSWER)
        self._check(_PLAIN_BODY)

    def plain_to_any(self, request: bytes) -> None:
        """The same for a request that any of the workers may get."""
        self._client.data_received(request)
        (exchange,) = self.state.exchanges
        if exchange.connection is None:
            raise RuntimeError("no worker was asked")
        exchange.connection.data_received(_PLAIN_ANSWER)
        self._check(_PLAIN_BODY)

    def stream(self, tokens: int) -> None:
        """One request with a stream of this many tokens. Raises RuntimeError when its end does not reach the client."""
        feed = self.worker.data_received
        self._client.data_received(_STREAM_REQUEST)
        feed(_STREAM_HEAD)
        for _ in range(tokens):
            feed(_TOKEN)
        feed(_STREAM_END)
        self._check(_LAST_CHUNKS)

    def _check(self, end: bytes) -> None:
        if not self._answer.written.endswith(end):
            raise RuntimeError(f"the answer did not come through; written last: {self._answer.written[-200:]!r}")
        self._answer.written = b""


def measure_hot_path(run_dir: Path, *, requests: int, repeats: int, sample_ratio: float | None = None) -> HotPathCosts:
    """Measure in a running loop; `run_dir` takes the files of the serving state. A ratio turns tracing on."""
    path = HotPath(run_dir, sample_ratio)

    def least_us(call: Callable[[], None], count: int) -> float:
        call()
        return min(_seconds(call, count) for _ in range(repeats)) / count * 1e6

    streams = max(1, requests // STREAM_TOKENS)
    one_token_us = least_us(lambda: path.stream(1), requests)
    long_us = least_us(lambda: path.stream(STREAM_TOKENS), streams)
    return HotPathCosts(
        plain_us=least_us(path.plain, requests),
        one_token_stream_us=one_token_us,
        token_us=(long_us - one_token_us) / (STREAM_TOKENS - 1),
    )


def _seconds(call: Callable[[], None], count: int) -> float:
    started_at = perf_counter()
    for _ in range(count):
        call()
    return perf_counter() - started_at


def plain_request(model: str, number: int) -> bytes:
    """A request for a plain answer, whose prompt begins like no other number's."""
    return _request("", model, f"{number:06d}")


def _request(extra: str, model: str = "m", beginning: str = "") -> bytes:
    prompt = beginning + "abcde " * 334
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":128{extra}}}'
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAuthorization: Bearer {_KEY}\r\n"
        "Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: tokstorm\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def _chunk(event: str) -> bytes:
    return f"{len(event):x}\r\n{event}\r\n".encode()


def _event(choices: str, rest: str = "") -> bytes:
    start = '"id":"chatcmpl-7a1f0f0d3c4b4d0c9c8a5f1f1a2b3c4d","object":"chat.completion.chunk","created":1764436800,"model":"m"'
    return _chunk(f'data: {{{start},"choices":[{choices}]{rest}}}\n\n')


_PLAIN_BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1764436800,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2}}'
)
_PLAIN_REQUEST = _request("")
_PLAIN_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: uvicorn\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_PLAIN_BODY),
    _PLAIN_BODY,
)
_STREAM_REQUEST = _request(',"stream":true,"stream_options":{"include_usage":true}')
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nserver: uvicorn\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
    + _event('{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}')
)
_TOKEN = _event('{"index":0,"delta":{"content":" 0001549925455214"},"logprobs":null,"finish_reason":null,"token_ids":null}')
_LAST_CHUNKS = _chunk("data: [DONE]\n\n") + b"0\r\n\r\n"
_STREAM_END = (
    _event('{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}')
    + _event(
        "",
        ',"usage":{"prompt_tokens":500,"total_tokens":628,"completion_tokens":128,"prompt_tokens_details":{"cached_tokens":128}}',
    )
    + _LAST_CHUNKS
)


async def run(requests: int, repeats: int, sample_ratio: float | None = None) -> HotPathCosts:
    """Measure with files in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-bench-") as folder:
        return measure_hot_path(Path(folder), requests=requests, repeats=repeats, sample_ratio=sample_ratio)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hot_path", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000, help="of each repeat (default 3000)")
    parser.add_argument("--repeats", type=int, default=7, help="the least counts (default 7)")
    parser.add_argument("--sample-ratio", type=float, help="trace, and sample this share, 0 to 1 (default: no tracing)")
    options = parser.parse_args(arguments)
    gc.set_threshold(20_000, 50, 100)  # as the serving process does
    costs = uvloop.run(run(options.requests, options.repeats, options.sample_ratio))
    for name, figure in (
        ("plain request", costs.plain_us),
        ("one-token stream", costs.one_token_stream_us),
        ("token", costs.token_us),
    ):
        sys.stdout.write(f"{name:18}{figure:8.2f} us\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
