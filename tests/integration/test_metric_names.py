"""The names that a running gateway exposes are those of the catalogue, in both directions, and strict parsers read them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from telemetry.catalog import EXPOSED, Kind
from tests.integration.answers import chat_answer, chat_events, plain, stream_of, usage_of
from tests.integration.gateway import Metrics
from tests.integration.load import volume
from tests.integration.scene import COMPLETIONS, Scene, chat_body, running_scene
from tests.integration.steps import Close, Send

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "sk-app"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """A gateway that has had one request of each kind, and has a pool whose workers are found."""
    listed = tmp_path_factory.mktemp("found") / "workers.yaml"
    listed.write_text("[]")
    pools = {"tiny": {}, "found": {"workers": {"file": str(listed)}}}
    quota = {"requests_per_minute": 1000, "tokens_per_minute": 1_000_000, "concurrent_requests": 100}
    config = {
        "keys": [{"name": "app", "sha256": hashlib.sha256(KEY.encode()).hexdigest(), "quota": quota}],
        "hedging": {"after_seconds": 5},
        "quotas": {"store": "redis://127.0.0.1:9", "on_store_failure": "open"},
    }
    async with running_scene(pools, workers={"found": 0}, config=config, headers=[("Authorization", f"Bearer {KEY}")]) as one:
        streamed = stream_of(chat_events(["a", "b", "c"], usage=usage_of(9, 3, 4)), gap_seconds=0.01)
        await one.ask(streamed)
        await one.ask(streamed, path=COMPLETIONS)
        await one.ask([Send(chat_answer("x", usage=usage_of(5, 3)))], body=chat_body(stream=False))
        await one.ask([Send(plain(429, {"error": {}}))])
        await one.ask([Close()])
        await one.ask([], body=chat_body("nobody"))
        await one.ask([], path="/nowhere")
        await one.ask([], path="/v1/models", method="GET")
        await one.gateway.metrics_when(lambda metrics: "ridgeline_worker_running_requests" in metrics)
        yield one


async def page(scene: Scene, accept: str) -> tuple[str, str]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(scene.gateway.observe_url + "/metrics", headers={"Accept": accept}) as answer,
    ):
        assert answer.status == 200
        return answer.headers["Content-Type"], await answer.text()


def seen_names(families: Iterable[Metric]) -> set[str]:
    """Names of families that have samples, as the catalogue spells them: counters with their suffix."""
    return {family.name + ("_total" if family.type == "counter" else "") for family in families if family.samples}


# Unknown, and so absent, where no GPU is configured; and there while a worker is left out, as `test_health.py` shows.
ABSENT = {"ridgeline_worker_attained_ratio", "ridgeline_worker_left_out"}
NAMES = {family.name for family in EXPOSED} - ABSENT


async def test_the_text_has_the_names_of_the_catalogue(scene: Scene) -> None:
    """After traffic every family of the catalogue has samples, nothing else is there, types and help are the catalogue's."""
    kind, text = await page(scene, "text/plain")
    families = list(text_string_to_metric_families(text))

    assert kind.startswith("text/plain; version=0.0.4")
    assert seen_names(families) == NAMES
    by_name = {family.name: family for family in families}
    for entry in EXPOSED:
        if entry.name in ABSENT:
            continue
        name = entry.name.removesuffix("_total") if entry.kind is Kind.COUNTER else entry.name
        assert (by_name[name].type, by_name[name].documentation) == (entry.kind.value, entry.help)


async def test_openmetrics_has_the_same(scene: Scene) -> None:
    """The other format passes its strict parser, ends with its mark, and has the same names and samples."""
    kind, text = await page(scene, OPENMETRICS)
    families = list(openmetrics.text_string_to_metric_families(text))
    _, plain_text = await page(scene, "text/plain")

    assert kind == OPENMETRICS
    assert text.endswith("# EOF\n")
    assert seen_names(families) == NAMES
    samples = [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
    others = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(plain_text)
        for sample in family.samples
    ]
    assert len(set(samples)) == len(samples)
    assert set(samples) == set(others)


async def test_what_was_counted(scene: Scene) -> None:
    """The traffic of this file is in the figures: tokens, cached tokens, the key's share, outcomes."""
    metrics = await scene.quiet()

    assert metrics.value("ridgeline_prompt_tokens_total", model="tiny") == 9 + 9 + 5
    assert metrics.value("ridgeline_completion_tokens_total", model="tiny") == 3 + 3 + 3
    assert metrics.value("ridgeline_cached_tokens_total", model="tiny") == 8
    assert metrics.value("ridgeline_key_tokens_total", key="app", kind="completion") == 9
    assert metrics.total("ridgeline_requests_total") == 8
    assert metrics.total("ridgeline_requests_total", outcome="ok") == 4
    assert metrics.total("ridgeline_requests_total", model="unknown") == 3
    assert metrics.total("ridgeline_requests_total", endpoint="completions") == 1
    assert metrics.total("ridgeline_key_requests_total", key="app") == 7  # a path that is not there is refused before the key
    assert metrics.value("ridgeline_worker_running_requests") == 2
    assert metrics.value("ridgeline_worker_kv_usage_ratio") == 0.25
    assert metrics.value("ridgeline_worker_up") == 1
    assert metrics.value("ridgeline_loop_lag_seconds", process="0") < 0.5


def series(metrics: Metrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(sample.name, tuple(sample.labels.items())) for name in metrics for sample in metrics[name]}


UNKNOWN_NAMES = volume(500, 10_000)
NO_MODELS = (
    "",
    "x" * volume(10_000, 1_000_000),
    'a"b\\c\nd',
    "unknown",
    "none",
    "Tiny",
    "TINY",
    " tiny",
    "tiny ",
    "tiny:lora-7",
    "tiny/adapter",
    "tiny\u0000",
)
ODD_MODELS = (None, 1, [], {}, True, *NO_MODELS)


async def test_series_do_not_grow_with_what_clients_send(scene: Scene) -> None:
    """Models, paths, methods and ids that nobody configured add no series."""
    page = await scene.quiet()
    before = series(page)
    refused_before = page.total("ridgeline_requests_total", model="unknown", outcome="client_error")
    async with await scene.connect() as client:
        for number in range(UNKNOWN_NAMES):
            await client.request("POST", "/v1/chat/completions", {"model": f"m-{number}", "messages": []}, scene.headers)
            await client.request(("PUT", "DELETE", "GET")[number % 3], f"/{number}", {}, scene.headers)
            if number % (UNKNOWN_NAMES // 4) == 0:
                for model in ODD_MODELS:
                    await client.request("POST", "/v1/chat/completions", {"model": model, "messages": []}, scene.headers)
    page = await scene.quiet()

    assert series(page) == before
    refused = page.total("ridgeline_requests_total", model="unknown", outcome="client_error") - refused_before
    assert refused >= UNKNOWN_NAMES + 4 * len(NO_MODELS), "all names that nobody configured are one"
