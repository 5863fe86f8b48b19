"""Sections of the configuration that stand beside models and their pools."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from proxy.config.values import (
    Attempts,
    ChainHeader,
    CollectorUrl,
    Count,
    HeaderName,
    HeaderValue,
    LeaseRatio,
    Name,
    NumberOrZero,
    Quantile,
    Ratio,
    RatioAboveZero,
    Seconds,
    SecondsOrZero,
    Section,
    Sha256,
    StoreUrl,
    Text,
    Weight,
    one_or_list,
)
from routing.topology import HealthRules, Hedging, Retries

_RETRIES = Retries()
_HEALTH = HealthRules()
_HEDGING = Hedging()


class QuotaConfig(Section):
    """What one key may use; null: no limit. All serving processes together go by it, and with `quotas` all gateways."""

    requests_per_minute: Count | None = Field(default=None, description="Requests in any 60 seconds; beyond them 429.")
    tokens_per_minute: Count | None = Field(
        default=None,
        description=(
            "Prompt and output tokens in any 60 seconds: estimated when a request is let in, corrected by the usage of its "
            "answer. Cached prompt tokens count."
        ),
    )
    concurrent_requests: Count | None = Field(
        default=None, description="Requests under way at a time, in each gateway; beyond them 429."
    )


class SharedQuotasConfig(Section):
    """Limits per minute that several gateways keep together."""

    store: StoreUrl | None = Field(
        default=None,
        description="URL of a Redis, `redis://` or `rediss://`; null: each gateway keeps the limits by itself. Secret.",
    )
    on_store_failure: Literal["open", "closed"] = Field(
        default="closed",
        description=(
            "While the store does not answer: `closed` lets no request of a limited key in, `open` lets each gateway go by its "
            "own count."
        ),
    )
    lease_ratio: LeaseRatio = Field(
        default=0.02, description="Share of a limit that a gateway takes from the store at once, above 0 to 0.5."
    )


class KeyConfig(Section):
    """An API key for clients. Only its SHA-256 is written down."""

    name: Name = Field(description="Label in metrics and logs; unique.")
    sha256: Annotated[tuple[Sha256, ...], Field(min_length=1, max_length=2), BeforeValidator(one_or_list)] = Field(
        repr=False,
        description=(
            'SHA-256 of the key, 64 hexadecimal digits: `printf %s "$KEY" | sha256sum`. A list of two: both keys are valid, '
            "while one is replaced by the other."
        ),
    )
    models: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None, description="Names of the models the key may use; absent: all."
    )
    priority: Literal["high", "normal", "low"] = Field(
        default="normal",
        description="Its share while requests wait: those of `high` get four times what `normal` gets, `low` a quarter of it.",
    )
    weight: Weight = Field(default=1.0, description="Its share beside other keys of its priority while requests wait; above 0.")
    quota: QuotaConfig = Field(default_factory=QuotaConfig, description="What the key may use.")


class LogConfig(Section):
    """One JSON line a request."""

    path: Text = Field(default="-", description="File that lines are appended to; `-` is standard output.")


class TracingConfig(Section):
    """OpenTelemetry. Takes effect at the start."""

    otlp_endpoint: CollectorUrl | None = Field(
        default=None,
        description=(
            "URL of a receiver for OTLP over HTTP with protobuf: its base, such as `http://127.0.0.1:4318`, or the whole URL "
            "of traces, which ends in `/v1/traces`. null: nothing is traced."
        ),
    )
    sample_ratio: Ratio = Field(
        default=0.01,
        description="Share of the traces that begin here which are recorded. A client that sent a `traceparent` has decided.",
    )
    semconv: Literal["v1.41", "latest"] = Field(
        default="latest", description="Names of GenAI attributes: those of OpenTelemetry 1.41, or the newest known."
    )
    headers: dict[HeaderName, HeaderValue] = Field(
        default_factory=dict, description="Sent to the receiver with each batch, such as an API key. Values are secret."
    )
    metrics: bool = Field(default=False, description="Send metrics to the same receiver as well.")
    metrics_interval_seconds: Seconds = Field(default=60, description="Seconds between two batches of metrics.")


class ChainsConfig(Section):
    """Requests that belong together, as those of an agent do. Takes effect at the start."""

    header: ChainHeader | None = Field(
        default=None,
        description=(
            "Header whose value names a chain, such as `x-session-id`; only a hash of it leaves the serving process. "
            "Requests without it belong together when they share the trace id of a `traceparent`."
        ),
    )


class CalibrationConfig(Section):
    """What is learned of how fast workers are. Takes effect at the start."""

    path: Text | None = Field(
        default=None,
        description=(
            "File that accepted references are kept in, so that a restart of the gateway does not begin anew; "
            "null: they are not kept."
        ),
    )


class RetriesConfig(Section):
    """When a request is sent to another worker because one failed before any byte of its answer was passed on."""

    max_attempts: Attempts = Field(
        default=_RETRIES.max_attempts,
        description="Workers that are asked for one request, at most, one after another; 1: nothing is tried again.",
    )
    budget_ratio: Ratio = Field(
        default=_RETRIES.budget_ratio,
        description="Share of the requests of the last ten seconds that may be sent once more, 0 to 1; over all requests.",
    )
    budget_per_second: NumberOrZero = Field(
        default=_RETRIES.budget_per_second,
        description="Retries a second that every serving process may make beyond that share, so that few requests may too.",
    )
    backoff_seconds: SecondsOrZero = Field(
        default=_RETRIES.backoff_seconds,
        description=(
            "Seconds, at most, until another worker is asked when two have said that they are busy; drawn from 0 on, and "
            "doubled for each one more. The first other worker is asked at once."
        ),
    )


class HedgingConfig(Section):
    """Asking a second worker as well while the first has sent nothing of a stream. Off without one of the `after_`."""

    after_seconds: Seconds | None = Field(
        default=_HEDGING.after_seconds,
        description="Seconds from asking the first worker until a second one is asked; null: never, or by `after_quantile`.",
    )
    after_quantile: Quantile | None = Field(
        default=_HEDGING.after_quantile,
        description=(
            "The same by what is usual: so long as this share of the prompts of its length waits for the first token at most, "
            "0.5 to 0.9999. Nothing is sent twice before 100 of that length have been seen."
        ),
    )
    budget_ratio: RatioAboveZero = Field(
        default=_HEDGING.budget_ratio,
        description="Share of a pool's streams that may be sent to a second worker, above 0 and at most 1.",
    )


class HealthConfig(Section):
    """When a worker gets no new requests because of how it did with earlier ones. Health checks go on beside this."""

    failures_in_row: Count = Field(
        default=_HEALTH.failures_in_row,
        description="Requests that a worker has to fail one after another. A connection that is not made is enough alone.",
    )
    failure_ratio: RatioAboveZero = Field(
        default=_HEALTH.failure_ratio,
        description="Share of the requests of the last half minute that a worker has to fail, above 0 and at most 1.",
    )
    failure_ratio_requests: Count = Field(
        default=_HEALTH.failure_ratio_requests, description="Requests in that time below which the share says nothing."
    )
    silence_seconds: Seconds = Field(
        default=_HEALTH.silence_seconds,
        description=(
            "Seconds in which no running request of a worker has sent anything, where each of them should have; long prompts "
            "and answers in one piece are given the time that they take."
        ),
    )
    ejection_seconds: Seconds = Field(
        default=_HEALTH.ejection_seconds,
        description=(
            "Seconds until a worker that was left out gets one request as a trial. The next time it is twice the last, less "
            "the seconds it was well between them, but never less than this."
        ),
    )
    max_ejection_seconds: Seconds = Field(
        default=_HEALTH.max_ejection_seconds, description="Bound of that doubling, in seconds."
    )
    max_ejected_ratio: Ratio = Field(
        default=_HEALTH.max_ejected_ratio,
        description="Share of a pool's workers that may be left out at once, 0 to 1; with 0 none ever is.",
    )
    slow_start_seconds: SecondsOrZero = Field(
        default=_HEALTH.slow_start_seconds,
        description="Seconds until a worker that came back gets its whole share of requests again; 0: at once.",
    )
