"""Spans from records, as values; what a receiver gets of them is tested with a real one."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.record import Asked, Attempt, NoToken, Outcome, Phase, RequestRecord, Told, Trace
from telemetry.spans import METRIC_NAMES, SERVER_HISTOGRAMS, Semconv, Span, spans_of

ROUTES = {"chat": ("POST", "/v1/chat/completions"), "embeddings": ("POST", "/v1/embeddings")}
ADDRESSES = {"w-0": ("10.0.0.1", 8000)}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def an_attempt(number: int = 1, **fields: Any) -> Attempt:
    return Attempt(
        **{
            "span_id": f"{number:016x}",
            "worker": "w-0",
            "began_seconds": 0.25,
            "ended_seconds": 1.5,
            "result": "answered",
            "status": 200,
            **fields,
        }
    )


def a_record(*attempts: Attempt, **fields: Any) -> RequestRecord:
    return RequestRecord(
        **{
            "request_id": "r-1",
            "ended_unix_seconds": 1_700_000_002.0,
            "model": "llama",
            "pool": "short",
            "worker": "w-0",
            "endpoint": "chat",
            "stream": True,
            "status": 200,
            "outcome": Outcome.OK,
            "trace_id": TRACE_ID,
            "trace": Trace(span_id="00000000000000aa", parent_id="00000000000000bb", seconds=2.0, attempts=attempts),
            **fields,
        }
    )


def spans(record: RequestRecord) -> tuple[Span, ...]:
    return spans_of(record, ROUTES, ADDRESSES)


@pytest.mark.parametrize("change", [{"trace": None}, {"trace_id": None}])
def test_a_request_that_was_not_sampled_has_none(change: dict[str, Any]) -> None:
    """Without the ids that are made at the beginning there is nothing to send."""
    assert spans(a_record(**change)) == ()


def test_the_tree() -> None:
    """The request's span is below the client's, attempts are below the request's, and all have the one trace."""
    root, first, second = spans(a_record(an_attempt(1, result="connect_failed", status=None), an_attempt(2)))

    assert [(span.span_id, span.parent_id, span.parent_is_remote, span.is_server) for span in (root, first, second)] == [
        ("00000000000000aa", "00000000000000bb", True, True),
        (f"{1:016x}", "00000000000000aa", False, False),
        (f"{2:016x}", "00000000000000aa", False, False),
    ]
    assert {span.trace_id for span in (root, first, second)} == {TRACE_ID}


def test_the_instants() -> None:
    """All instants are counted back from the end of the request; tokens are counted from the request's being complete."""
    root, attempt = spans(a_record(an_attempt(), upload_seconds=0.125, ttft_seconds=0.5, ttft_visible_seconds=0.75))

    start = 1_700_000_000_000_000_000
    assert (root.started_unix_ns, root.ended_unix_ns) == (start, start + 2_000_000_000)
    assert (attempt.started_unix_ns, attempt.ended_unix_ns) == (start + 250_000_000, start + 1_500_000_000)
    assert [(event.name, event.unix_ns - start) for event in attempt.events] == [
        ("ridgeline.first_token", 625_000_000),
        ("ridgeline.first_visible_text", 875_000_000),
    ]


def test_the_attributes_of_an_attempt() -> None:
    """An attempt has the names of the conventions, and only the last one has what its answer said."""
    record = a_record(
        an_attempt(1, result="stale", status=None),
        an_attempt(2),
        prompt_tokens=90,
        completion_tokens=30,
        cached_tokens=0,
        reasoning_tokens=7,
        finish_reasons=("stop",),
        max_tokens=100,
        ttft_seconds=0.5,
        ttft_first_byte_seconds=0.25,
        upstream_ttft_seconds=0.375,
        tpot_seconds=0.01,
    )

    _, first, last = spans(record)

    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "llama",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.stream": True,
        "server.address": "10.0.0.1",
        "server.port": 8000,
        "ridgeline.pool": "short",
        "ridgeline.worker": "w-0",
    }
    assert dict(first.attributes) == {**common, "ridgeline.attempt_result": "stale", "error.type": "stale"}
    assert dict(last.attributes) == {
        **common,
        "ridgeline.attempt_result": "answered",
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 90,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 7,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.125,
        "ridgeline.upstream_ttft_seconds": 0.375,
        "ridgeline.tpot_seconds": 0.01,
    }
    assert last.name == "chat llama"


def test_the_attributes_of_a_request() -> None:
    """The request has the route, and every known field of the record under its own name; unknown ones are absent."""
    (root,) = spans(a_record(reason=None, cached_tokens=0, tpot_seconds=0.01, key="app", no_token=NoToken.CUT))

    assert (root.name, root.attributes["http.route"]) == ("POST /v1/chat/completions", "/v1/chat/completions")
    assert root.attributes["http.request.method"] == "POST"
    assert root.attributes["ridgeline.cached_tokens"] == 0
    assert root.attributes["ridgeline.no_token"] == "cut"
    assert root.attributes["ridgeline.key"] == "app"
    assert not [name for name in root.attributes if name in ("ridgeline.reason", "ridgeline.trace", "ridgeline.prefix_hash")]
    assert not [value for value in root.attributes.values() if value is None or isinstance(value, Outcome)]


def test_a_span_has_nothing_that_is_kept_from_the_log() -> None:
    """What a worker is chosen by is a hash of the prompt's beginning: no use to a reader, and half of them are no int64."""
    (root,) = spans(a_record(affinity=7))

    assert "ridgeline.affinity" not in root.attributes


@pytest.mark.parametrize(("tokens", "sent"), [(2**63 - 1, 2**63 - 1), (2**63, None), (2**64 - 1, None)])
def test_an_integer_that_otlp_cannot_carry_is_left_out(tokens: int, sent: int | None) -> None:
    """The exporter would log a traceback for each; a client may ask for as many tokens as it likes."""
    root, attempt = spans(a_record(an_attempt(), max_tokens=tokens))

    assert root.attributes.get("ridgeline.max_tokens") == sent
    assert attempt.attributes.get("gen_ai.request.max_tokens") == sent


def test_estimates_are_not_usage() -> None:
    """Tokens that were counted here because no usage came are not passed off as the worker's."""
    _, attempt = spans(a_record(an_attempt(), completion_tokens=30, completion_is_estimate=True))

    assert "gen_ai.usage.output_tokens" not in attempt.attributes


@pytest.mark.parametrize(
    ("outcome", "result", "status", "request_error", "attempt_error"),
    [
        (Outcome.OK, "answered", 200, None, None),
        (Outcome.CLIENT_ERROR, "answered", 400, None, "400"),
        (Outcome.WORKER_BUSY, "busy", 429, "worker_busy", "429"),
        (Outcome.WORKER_ERROR, "failed", 500, "worker_error", "500"),
        (Outcome.WORKER_ERROR, "failed", 200, "worker_error", "failed"),
        (Outcome.WORKER_ERROR, "answered", 200, "worker_error", "worker_error"),
        (Outcome.WORKER_ERROR, "broken", None, "worker_error", "broken"),
        (Outcome.TRUNCATED, "answered", 200, "truncated", "truncated"),
        (Outcome.ABORTED, "answered", 200, "aborted", "aborted"),
        (Outcome.STALLED, "abandoned", 200, "stalled", "stalled"),
        (Outcome.TIMEOUT, "abandoned", None, "timeout", "timeout"),
        (Outcome.SHUTDOWN, "abandoned", None, "shutdown", "shutdown"),
        (Outcome.CLIENT_GONE, "abandoned", None, None, None),
        (Outcome.INTERNAL_ERROR, "abandoned", None, "internal_error", "internal_error"),
    ],
)
def test_what_is_an_error(
    outcome: Outcome, result: str, status: int | None, request_error: str | None, attempt_error: str | None
) -> None:
    """A request is an error unless the client caused it; an attempt is one whenever the worker did not do what it was asked."""
    record = a_record(an_attempt(1, result=result, status=status), outcome=outcome, phase=Phase.WAIT)

    root, attempt = spans(record)

    assert (root.error, attempt.error) == (request_error, attempt_error)
    assert (root.attributes.get("error.type"), attempt.attributes.get("error.type")) == (request_error, attempt_error)


def test_an_unknown_endpoint_and_worker() -> None:
    """A path that nobody serves names no route; a worker that has been removed has no address."""
    root, attempt = spans(a_record(an_attempt(worker="gone"), endpoint="other"))

    assert root.name == "HTTP"
    assert "http.route" not in root.attributes
    assert "server.address" not in attempt.attributes


def test_a_workers_words_are_bounded_and_well_formed() -> None:
    """Finish reasons are a worker's own text: too long or with half a character in it they still can be sent."""
    root, attempt = spans(a_record(an_attempt(), finish_reasons=("x" * 10_000, "a\ud800")))

    for span in (root, attempt):
        reasons = next(value for name, value in span.attributes.items() if name.endswith("finish_reasons"))
        assert isinstance(reasons, tuple)
        assert [len(reason) for reason in reasons] == [256, 7]
        assert "".join(reasons).encode()


ASKED = Asked(
    temperature=0.5, top_p=0.9, top_k=40, seed=7, frequency_penalty=0.1, presence_penalty=0.2, choices=2, previous_id="resp_1"
)


def test_the_sampling_is_on_each_attempt_and_the_answers_name_on_the_last() -> None:
    """Names of both versions of the conventions: 1.41 has top_k as a fraction, and no name for the response gone on from."""
    told = Told(answer_id="chatcmpl-1", model="base")
    trace = Trace(
        span_id="00000000000000aa", seconds=2.0, attempts=(an_attempt(1, result="stale"), an_attempt(2)), asked=ASKED, told=told
    )
    common = {
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.frequency_penalty": 0.1,
        "gen_ai.request.presence_penalty": 0.2,
        "gen_ai.request.choice.count": 2,
    }
    by_version = {
        Semconv.LATEST: common | {"gen_ai.request.top_k": 40, "gen_ai.request.previous_response.id": "resp_1"},
        Semconv.V1_41: common | {"gen_ai.request.top_k": 40.0},
    }
    for version, wanted in by_version.items():
        _, first, last = spans_of(a_record(trace=trace), ROUTES, ADDRESSES, version)

        for attempt in (first, last):
            found = {name: value for name, value in attempt.attributes.items() if name in wanted or "previous" in name}
            assert found == wanted
            assert type(found["gen_ai.request.top_k"]) is type(wanted["gen_ai.request.top_k"])
        assert "gen_ai.response.id" not in first.attributes
        assert (last.attributes["gen_ai.response.id"], last.attributes["gen_ai.response.model"]) == ("chatcmpl-1", "base")


def test_one_choice_needs_no_count() -> None:
    """The conventions have it only where it is not 1; a figure of 0 is a figure."""
    trace = Trace(span_id="00000000000000aa", attempts=(an_attempt(),), asked=Asked(choices=1, temperature=0.0))

    _, attempt = spans(a_record(trace=trace))

    assert "gen_ai.request.choice.count" not in attempt.attributes
    assert attempt.attributes["gen_ai.request.temperature"] == 0.0


def test_names_of_the_conventions() -> None:
    """The names that dashboards of others rely on do not change by accident."""
    assert dict(SERVER_HISTOGRAMS) == {
        "ridgeline_e2e_seconds": "gen_ai.server.request.duration",
        "ridgeline_ttft_seconds": "gen_ai.server.time_to_first_token",
        "ridgeline_tpot_seconds": "gen_ai.server.time_per_output_token",
    }
    assert METRIC_NAMES[Semconv.V1_41].usage_histogram == "gen_ai.client.token.usage"
    assert METRIC_NAMES[Semconv.V1_41].usage_counters == {}
    assert METRIC_NAMES[Semconv.LATEST].usage_histogram is None
    assert sorted(METRIC_NAMES[Semconv.LATEST].usage_counters.values()) == [
        "gen_ai.client.inference.usage.cache_read.input_tokens",
        "gen_ai.client.inference.usage.input_tokens",
        "gen_ai.client.inference.usage.output_tokens",
    ]
