"""The closed sets that labels of metrics take their values from, and the order of their cells."""

from __future__ import annotations

from math import inf

from routing.hedging import Withheld
from routing.policy import ELSEWHERE, POLICIES, Reason
from telemetry.causes import CauseName
from telemetry.prefix_drift import DriftKind, Lost
from telemetry.record import CountResult, HedgeResult, Misroute, NoToken, Outcome, Phase, PrefillResult, Rejection

LENGTH_CLASSES: dict[str, float] = {"upto_4k": 4096, "upto_32k": 32768, "over_32k": inf}
"""Prompt tokens of a request, upper bounds inclusive: what is attained depends on them before anything else."""

_TIMED = ("chat", "completions", "responses", "messages", "embeddings")  # each costs a histogram per pool

# A key is a label's name, or `family.label` where a family has a set of its own under that name.
LABELS: dict[str, tuple[str, ...]] = {
    "endpoint": (*_TIMED, "rerank", "audio", "tokenize", "response_lookup", "models", "other"),
    "ridgeline_e2e_seconds.endpoint": _TIMED,
    "outcome": tuple(value.value for value in Outcome),
    "phase": tuple(value.value for value in Phase),
    "ridgeline_rejections_total.reason": tuple(value.value for value in Rejection),
    "ridgeline_no_token_total.reason": tuple(value.value for value in NoToken),
    "ridgeline_routes_total.reason": tuple(value.value for value in (*ELSEWHERE, *Reason)),
    "ridgeline_worker_left_out.reason": ("draining", "down", "silence", "errors"),
    "ridgeline_process_restarts_total.role": ("control", "serving"),
    "role": ("supervisor", "control", "serving", "counting"),
    "ridgeline_reloads_total.result": ("ok", "failed"),
    "ridgeline_discovery_changes_total.source": ("file", "dns", "srv", "kubernetes"),
    "ridgeline_discovery_failures_total.source": ("file", "dns", "srv", "kubernetes"),
    "ridgeline_exact_counts_total.result": tuple(value.value for value in CountResult),
    "ridgeline_prefill_legs_total.result": tuple(value.value for value in PrefillResult),
    "ridgeline_hedges_total.result": tuple(value.value for value in HedgeResult),
    "ridgeline_hedges_withheld_total.reason": tuple(value.value for value in Withheld),
    "direction": tuple(value.value for value in Misroute),
    "policy": tuple(POLICIES),
    "result": (
        "answered",
        "connect_failed",
        "connect_timeout",
        "stale",
        "broken",
        "abandoned",
        "failed",
        "busy",
        "silent",
        "outrun",
    ),
    "kind": ("prompt", "completion", "cached"),
    "length": tuple(LENGTH_CLASSES),
    "figure": ("ttft", "tpot", "e2e"),
    "ridgeline_floor_beaten_total.figure": ("ttft", "tpot"),
    "ridgeline_worker_attained_ratio.figure": ("ttft", "tpot"),
    "ridgeline_prefix_drift_total.kind": tuple(value.value for value in DriftKind),
    "ridgeline_cache_lost_total.reason": tuple(value.value for value in Lost),
    "ridgeline_deviation_seconds_total.cause": tuple(value.value for value in CauseName if value is not CauseName.FACTS),
    "limit": ("requests", "tokens", "concurrency"),
    "ridgeline_quota_refusals_total.limit": ("requests", "tokens", "concurrency", "store"),
    "of": ("requests", "tokens"),
    "change": ("charged", "returned"),
    "file": ("log", "calibrations", "run_directory"),
    "cause": tuple(value.value for value in CauseName),
}

_ANY_POLICY = (Reason.ONLY_WORKER, Reason.OWNER, Reason.RETRY, *ELSEWHERE)
_BY_BEGINNING = (Reason.AFFINITY, Reason.LOAD_BOUND, Reason.DELIVERED, Reason.LEAST_LOAD)
USUAL_ROUTES = frozenset(
    (policy, reason.value)
    for policy, own in {
        "round-robin": (Reason.TURN,),
        "least-load": (Reason.LEAST_LOAD,),
        "power-of-two": (Reason.TWO_CHOICES,),
        "prefix-affinity": _BY_BEGINNING,
        "session": (Reason.SESSION, *_BY_BEGINNING),
        "fastest": (Reason.FASTEST, Reason.LEAST_LOAD),
    }.items()
    for reason in (*_ANY_POLICY, *own)
)
"""Policies with the reasons that they can give, but for a second worker's, which few gateways ask."""

USUAL_ATTEMPTS = frozenset((result,) for result in LABELS["result"] if result != "outrun")
"""What comes of attempts where no second worker is asked as well."""

_OF_DECODING = (
    *(CauseName.OTHERS_PREFILL, CauseName.BATCH, CauseName.CONTEXT, CauseName.KV_PRESSURE),
    *(CauseName.SLOWER_THAN_PEERS, CauseName.SLOWER_THAN_ITSELF, CauseName.FACTS, CauseName.UNEXPLAINED),
)
OF_GPUS = frozenset({CauseName.GPU_CLOCKS, CauseName.GPU_BANDWIDTH})
"""Causes that only exporters of the workers' GPUs tell of, which few pools have."""
USUAL_DEVIATIONS = frozenset(
    (figure, cause.value)
    for figure, causes in {
        "ttft": tuple(cause for cause in CauseName if cause not in (CauseName.SLOW_CLIENT, CauseName.CONTEXT)),
        "tpot": _OF_DECODING,
        "e2e": tuple(CauseName),
    }.items()
    for cause in causes
    if cause not in OF_GPUS
)
"""Figures with the causes that they can have where nothing tells of the workers' GPUs."""
