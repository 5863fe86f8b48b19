"""What differs between the versions of vLLM that a worker can imitate, as far as a gateway or a dashboard can notice.

0.32.0 is what captured answers and pages show. The other three differ from it in what is named here, and only in that: which
metric families exist under which names, what usage tells, where reasoning goes, and the form of errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class ForcedUsage(Enum):
    """What ``--enable-force-include-usage`` does to a stream."""

    IF_OPTIONS = "a last usage event, if the request has stream_options"
    FINAL = "a last usage event"
    ALWAYS = "a last usage event and usage in every event"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One version."""

    version: str  # what /version says
    reasoning_fields: tuple[str, ...] = ("reasoning",)  # of a message and of a delta; all have the same text
    errors_are_flat: bool = False  # the error object is the body itself, not below "error"
    tells_zero_cached: bool = True  # prompt_tokens_details also when nothing was cached
    tells_created_cache: bool = True  # created_cache_tokens in it
    tells_request_metrics: bool = True  # the object that --enable-per-request-metrics adds
    tells_token_ids: bool = True  # token_ids and prompt_token_ids, null unless asked for
    tells_recent_fields: bool = True  # system_fingerprint's value, prompt_text, routed_experts, ec_transfer_params
    has_empty_tool_calls: bool = False  # "tool_calls": [] in a plain message without any
    forced_usage: ForcedUsage = ForcedUsage.ALWAYS
    missing_families: frozenset[str] = frozenset()  # metric families without prefix and `_total`
    older_names: Mapping[str, str] = field(default_factory=dict)  # family that exists too -> the one whose values it has


_SINCE_0_32 = frozenset({"prompt_tokens_cached_by_source", "admission_rejections"})
_SINCE_0_22 = frozenset(
    {
        "num_requests_waiting_by_reason",
        "prompt_tokens_by_source",
        "prompt_tokens_cached",
        "request_num_preemptions",
        "request_prefill_kv_computed_tokens",
    }
)
_SINCE_0_11 = frozenset(
    {
        "engine_sleep_state",
        "external_prefix_cache_hits",
        "external_prefix_cache_queries",
        "inter_token_latency_seconds",
        "mm_cache_hits",
        "mm_cache_queries",
        "request_time_per_output_token_seconds",
        "tool_call_parser_invocations",
    }
)
_OLD_LATENCY = {"time_per_output_token_seconds": "inter_token_latency_seconds"}
_OLD_CACHE = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_hits": "prefix_cache_hits",
    "gpu_prefix_cache_queries": "prefix_cache_queries",
}

DIALECTS: Mapping[str, Dialect] = {
    "0.9.2": Dialect(
        version="0.9.2",
        reasoning_fields=("reasoning_content",),
        errors_are_flat=True,
        tells_zero_cached=False,
        tells_created_cache=False,
        tells_request_metrics=False,
        tells_token_ids=False,
        tells_recent_fields=False,
        has_empty_tool_calls=True,
        forced_usage=ForcedUsage.IF_OPTIONS,
        missing_families=_SINCE_0_32 | _SINCE_0_22 | _SINCE_0_11,
        older_names={**_OLD_LATENCY, **_OLD_CACHE},
    ),
    "0.11": Dialect(
        version="0.11.2",
        reasoning_fields=("reasoning", "reasoning_content"),
        tells_zero_cached=False,
        tells_created_cache=False,
        tells_request_metrics=False,
        tells_recent_fields=False,
        has_empty_tool_calls=True,
        forced_usage=ForcedUsage.FINAL,
        missing_families=_SINCE_0_32 | _SINCE_0_22 | {"tool_call_parser_invocations"},
        older_names=_OLD_LATENCY,
    ),
    "0.22": Dialect(
        version="0.22.1",
        tells_zero_cached=False,
        tells_created_cache=False,
        tells_request_metrics=False,
        tells_recent_fields=False,
        missing_families=_SINCE_0_32,
    ),
    "0.32": Dialect(version="0.32.0"),
}
NEWEST = DIALECTS["0.32"]


def dialect_by_name(name: str) -> Dialect:
    """The version of this name, such as ``0.22``. ``ValueError``, listing the known ones, for any other."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise ValueError(f"unknown version {name!r}; a worker can imitate {', '.join(DIALECTS)}") from None
