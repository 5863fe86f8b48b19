"""One vLLM with a gateway in front of it: what both say of the same requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.integration.gateway import Gateway, Metrics, running_gateway
from tests.integration.raw_client import Answer, RawClient
from tests.integration.scene import events_of
from tests.vllm.answers import new_id, path_of, record_of
from tests.vllm.flag_sets import KEY, FlagSet, counted, streamed, timed
from tests.vllm.worker import CACHED, COMPLETION, PROMPT, RealWorker

TOKENS = {
    "prompt": (PROMPT, "ridgeline_prompt_tokens_total"),
    "completion": (COMPLETION, "ridgeline_completion_tokens_total"),
    "cached": (CACHED, "ridgeline_cached_tokens_total"),
}
TIMES = {
    "ttft": ("vllm:time_to_first_token_seconds", "upstream_ttft_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds", "tpot_seconds"),
    "e2e": ("vllm:e2e_request_latency_seconds", "e2e_seconds"),
}
TIMED_STREAMS = 12

# How much longer a time of the gateway's may be than the worker's, and how much shorter. vLLM counts from a request's arrival
# in its server's code to its engine's output; the gateway from its own write to the bytes that come back, with HTTP both ways.
MORE_SECONDS = {"ttft": 0.020, "tpot": 0.0003, "e2e": 0.030}
LESS_SECONDS = {"ttft": 0.001, "tpot": 0.0003, "e2e": 0.001}
_SUCCESS = "vllm:request_success_total"
_UNKNOWN = "ridgeline_cache_unknown_requests_total"


@dataclass(slots=True)
class Compared:
    """Figures of both sides under one set of flags, the worker's first."""

    flag_set: FlagSet
    streams: int = 0
    different: list[str] = field(default_factory=list)  # what was not as in a direct call, for each such stream
    requests: int = 0
    tokens: dict[str, tuple[float, float]] = field(default_factory=dict)
    unknown_hits: float = 0  # requests whose cached tokens the worker did not tell
    times: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # seconds: medians, and that of the differences
    tokens_an_event: float | None = None  # median of the timed streams

    def faults(self) -> Iterator[str]:
        """What is not as it has to be."""
        for words in self.different:
            yield f"another stream than that of a direct call: {words}"
        for kind, (theirs, ours) in self.tokens.items():
            if ours != theirs and (kind != "cached" or self.flag_set.tells_cached):
                yield f"{kind} tokens: the worker counts {theirs:.0f}, the gateway {ours:.0f}"
        if self.tokens["cached"][1] > self.tokens["cached"][0]:
            yield "more cached tokens than the worker has"
        if bool(self.unknown_hits) is (self.flag_set.tells_cached and not self.flag_set.is_pooling):
            yield f"{self.unknown_hits:.0f} of {self.requests} requests have unknown cached tokens"
        for figure, (*_, difference) in self.times.items():
            if not -LESS_SECONDS[figure] <= difference <= MORE_SECONDS[figure]:
                yield f"{figure}: the gateway says {difference * 1000:+.2f} ms more than the worker"


async def ask(url: str, path: str, body: Mapping[str, Any], request_id: str, flag_set: FlagSet) -> Answer:
    """Send one request on a connection of its own and read its answer."""
    headers = [("X-Request-Id", request_id), *([("Authorization", f"Bearer {KEY}")] if flag_set.has_key else [])]
    async with await RawClient.connect(url) as client:
        return await client.request("POST", path, dict(body), headers, timeout_seconds=60.0)


def essence(body: bytes) -> dict[str, Any]:
    """What a stream says, whichever of its tokens share an event, which is a matter of timing.

    The worker's own times are left out, and how many tokens were reasoning, which it counts by events.
    """
    texts: dict[tuple[int, str], str] = {}
    found: dict[str, Any] = {"texts": texts, "ids": set(), "finish": [], "usage beside text": set(), "tail": []}
    for event in events_of(body):
        if not isinstance(event, dict) or not event["choices"]:
            found["tail"].append(_without_times(event) if isinstance(event, dict) else event)
            continue
        found["ids"].add((event["id"], event["model"]))
        found["usage beside text"].add(event.get("usage") is not None)
        for choice in event["choices"]:
            delta = choice.get("delta") or {"text": choice.get("text")}
            calls = [call.get("function", {}) for call in delta.get("tool_calls") or ()]
            for field_name, value in [*delta.items(), *(pair for call in calls for pair in call.items())]:
                if isinstance(value, str):
                    key = (choice["index"], field_name)
                    texts[key] = texts.get(key, "") + value
            if choice["finish_reason"] is not None:
                found["finish"].append((choice["index"], choice["finish_reason"], choice.get("stop_reason")))
    return found


def _without_times(event: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in event.items() if name not in ("created", "metrics", "system_fingerprint")}
    if usage := event.get("usage"):
        kept["usage"] = {name: value for name, value in usage.items() if name != "completion_tokens_details"}
    return kept | {"has": sorted(event)}


async def _compare_streams(gateway: Gateway, worker: RealWorker, found: Compared) -> None:
    """The same streams with and without the gateway, of prompts that were asked before: both find the cache alike."""
    for body in streamed(found.flag_set):
        found.streams += 1
        request_id = new_id()
        await ask(worker.url, path_of(body), body, request_id, found.flag_set)
        direct = await ask(worker.url, path_of(body), body, request_id, found.flag_set)
        ours = await ask(gateway.base_url, path_of(body), body, request_id, found.flag_set)
        assert (direct.status, ours.status) == (200, 200), (direct.body[:500], ours.body[:500])
        expected, got = essence(direct.body), essence(ours.body)
        if got != expected:
            parts = [f"{name}: {expected[name]} and {got[name]}" for name in expected if got[name] != expected[name]]
            found.different.append(f"{body}: {'; '.join(parts)}")


async def _compare_tokens(gateway: Gateway, worker: RealWorker, found: Compared) -> None:
    """What both count of the same requests."""
    before, ours_before = await worker.quiet(), await gateway.metrics()
    for path, body in counted(found.flag_set):
        request_id = new_id()
        answer = await ask(gateway.base_url, path, body, request_id, found.flag_set)
        assert answer.status == 200, (path, body, answer.body[:500])
        await record_of(gateway, request_id)
        found.requests += 1
    finished = ours_before.total("ridgeline_requests_total", outcome="ok") + found.requests
    ours = await gateway.metrics_when(lambda page: page.total("ridgeline_requests_total", outcome="ok") == finished, 10.0)
    after = await worker.quiet()
    for kind, (theirs_name, ours_name) in TOKENS.items():
        found.tokens[kind] = (_grown(before, after, theirs_name), _grown(ours_before, ours, ours_name))
    found.unknown_hits = _grown(ours_before, ours, _UNKNOWN)


async def _compare_times(gateway: Gateway, worker: RealWorker, found: Compared) -> None:
    """What both say of each of some streams, one after another; a busy machine makes a few of them late, so medians count."""
    flag_set = found.flag_set
    warm = timed(flag_set, -1)
    await ask(worker.url, path_of(warm), warm, new_id(), flag_set)
    seen: dict[str, list[tuple[float, float]]] = {figure: [] for figure in TIMES}
    rates = []
    for number in range(TIMED_STREAMS):
        request_id = new_id()
        body = timed(flag_set, number)
        before = await worker.quiet()
        await ask(gateway.base_url, path_of(body), body, request_id, flag_set)
        record = await record_of(gateway, request_id)
        wanted = before.total(_SUCCESS) + 1
        after = await worker.metrics_when(lambda page, wanted=wanted: page.total(_SUCCESS) >= wanted)  # type: ignore[misc]
        rates.append(record["completion_tokens"] / record["token_events"])
        for figure, (theirs_name, ours_name) in TIMES.items():
            if record[ours_name] is not None:
                seen[figure].append((_grown(before, after, f"{theirs_name}_sum"), record[ours_name]))
    for figure, pairs in seen.items():
        theirs, ours = (median(side) for side in zip(*pairs, strict=True))
        found.times[figure] = (theirs, ours, median(ours - theirs for theirs, ours in pairs))
    found.tokens_an_event = median(rates)


def _grown(before: Metrics, after: Metrics, name: str) -> float:
    return after.total(name) - before.total(name) if name in after else 0.0


@asynccontextmanager
async def in_front_of(worker: RealWorker, flag_set: FlagSet) -> AsyncIterator[Gateway]:
    """A gateway whose model ``tiny`` has this one worker."""
    async with running_gateway({"worker_key": KEY} if flag_set.has_key else {}, workers=[worker.url]) as gateway:
        yield gateway


async def compare(gateway: Gateway, worker: RealWorker, flag_set: FlagSet) -> Compared:
    """Everything that can be compared under these flags."""
    found = Compared(flag_set)
    await _compare_streams(gateway, worker, found)
    await _compare_tokens(gateway, worker, found)
    if not flag_set.is_pooling:
        await _compare_times(gateway, worker, found)
    return found
