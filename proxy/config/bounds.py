"""Sections of the configuration that bound requests: limits, and how much workers are given at once.

Both stand at the top for all and in a pool for that pool; what a pool leaves out is taken from the top.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from proxy.config.values import Bytes, Count, CountOrZero, Seconds, SecondsOrZero, Section
from routing.topology import Admission, Limits

_DEFAULT = Limits()
_ADMISSION = Admission()


def _defaults_come_from_limits(schema: dict[str, Any]) -> None:
    for setting in schema["properties"].values():
        del setting["default"]


class PoolLimits(Section):
    """Bounds on a request once its pool is known. In a pool, what is absent is taken from the overall `limits`."""

    model_config = ConfigDict(json_schema_extra=_defaults_come_from_limits)

    connect_seconds: Seconds = Field(default=_DEFAULT.connect_seconds, description="Seconds to make a connection to a worker.")
    first_byte_seconds: Seconds = Field(
        default=_DEFAULT.first_byte_seconds, description="Seconds from the request sent to the first byte of the answer's body."
    )
    token_gap_seconds: Seconds = Field(
        default=_DEFAULT.token_gap_seconds, description="Seconds between two events of a stream; comments do not count."
    )
    write_seconds: Seconds = Field(
        default=_DEFAULT.write_seconds, description="Seconds a client may take no byte while bytes wait for it."
    )
    total_seconds: Seconds | None = Field(
        default=_DEFAULT.total_seconds,
        description="Seconds from the request fully received to the answer complete; null: no bound.",
    )
    head_hold_seconds: SecondsOrZero = Field(
        default=_DEFAULT.head_hold_seconds,
        description=(
            "Seconds the head of an answer is held back for its first event, so that an early error keeps its status."
        ),
    )
    worker_idle_seconds: Seconds = Field(
        default=_DEFAULT.worker_idle_seconds,
        description=("Seconds an unused connection to a worker is kept; below the worker's own keep-alive (5 s in vLLM)."),
    )


class LimitsConfig(PoolLimits):
    """Bounds on every request. Those that hold before a pool is chosen exist here only."""

    model_config = ConfigDict(json_schema_extra=lambda schema: None)

    body_bytes: Bytes = Field(default=_DEFAULT.body_bytes, description="Bytes of the largest request body; above it 413.")
    held_body_bytes: Bytes = Field(
        default=_DEFAULT.held_body_bytes,
        description=(
            "Bytes of the bodies of all requests under way in one serving process, those that wait and those still arriving "
            "among them; beyond it 503. Memory peaks at up to twice that: a body is put together when its last byte has come."
        ),
    )
    drain_seconds: SecondsOrZero = Field(
        default=_DEFAULT.drain_seconds,
        description="Seconds from SIGTERM until running requests are ended; below the grace period of the pod.",
    )
    drain_grace_seconds: SecondsOrZero = Field(
        default=_DEFAULT.drain_grace_seconds,
        description=(
            "Seconds from SIGTERM, part of drain_seconds, in which new requests are still served while `/readyz` says 503, "
            "so that load balancers notice first."
        ),
    )
    request_head_seconds: Seconds = Field(
        default=_DEFAULT.request_head_seconds,
        description=(
            "Seconds from the first byte of a request's head to its end. A TLS handshake has the same, at most 10, as set when "
            "the serving process started."
        ),
    )
    request_body_seconds: Seconds = Field(
        default=_DEFAULT.request_body_seconds, description="Seconds from the end of a request's head to the end of its body."
    )
    client_idle_seconds: Seconds = Field(
        default=_DEFAULT.client_idle_seconds, description="Seconds a client's connection is kept between two requests."
    )


class PoolAdmission(Section):
    """How much workers are given at once, and who waits for them. In a pool, what is absent is taken from the overall one."""

    model_config = ConfigDict(json_schema_extra=_defaults_come_from_limits)

    max_requests_per_worker: Count | None = Field(
        default=None,
        description=(
            "Requests that a worker has at once; null: as the limits model says, or no cap where it cannot say. What is "
            "tried again may go over it, one that is sent to a second worker as well never does."
        ),
    )
    max_tokens_per_worker: Count | None = Field(
        default=None,
        description=(
            "Tokens that a worker has at once, prompts and output budgets together; null: as the limits model says, or no cap. "
            "A request that is larger goes to a worker that has nothing else."
        ),
    )
    derive: bool = Field(
        default=True,
        description="Take caps that are null from the limits model: the worker's KV cache, and the knee at the mean context.",
    )
    gateways: Count = Field(
        default=_ADMISSION.gateways,
        description=(
            "Gateways that share the workers, this one included: each gives a worker its part of every cap, configured or "
            "derived."
        ),
    )
    queue_requests: CountOrZero = Field(
        default=_ADMISSION.queue_requests,
        description="Requests that may wait for the pool in each serving process; beyond them 429. 0: nobody waits.",
    )
    queue_bytes: Bytes = Field(
        default=_ADMISSION.queue_bytes,
        description="Bytes of the bodies of requests that wait for the pool in each serving process; beyond them 429.",
    )
    queue_seconds: Seconds = Field(
        default=_ADMISSION.queue_seconds, description="Seconds that a request may wait for a worker; after them 503."
    )


class AdmissionConfig(PoolAdmission):
    """How much workers are given at once, and who waits for them."""

    model_config = ConfigDict(json_schema_extra=lambda schema: None)
