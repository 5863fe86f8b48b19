"""The router of vLLM's production-stack, by its command line or its dynamic configuration.

Source of names and defaults: src/vllm_router/parsers/parser.py there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.importing.draft import Draft, NothingToImportError, count

_POLICIES = {
    "roundrobin": "round-robin",
    "session": "session",
    "prefixaware": "prefix-affinity",
    "kvaware": "prefix-affinity",
    "ttft": "fastest",
}
CONNECTOR = (
    "KV caches are handed over by what the prefill worker answers (kv_transfer_params), as by NixlConnector: see if yours does"
)
"""Why a connector is not carried over."""

BY_SERVICE = "pods are found by a Service, not by labels: make a headless one of them for the pool's prefill.workers"
"""Why workers of a stage that Kubernetes finds by labels are not carried over."""

_APART = ("disaggregated_prefill", "disaggregated_prefill_orchestrated")
_QUIET = {
    *("log-level", "log-stats", "log-stats-interval", "engine-stats-interval", "request-stats-window"),
    *(
        "static-model-types",
        "static-backend-health-checks",
        "backend-health-check-timeout-seconds",
        "k8s-service-discovery-type",
    ),
    *("k8s-watcher-timeout-seconds", "lmcache-controller-port", "lmcache-health-check-interval", "lmcache-worker-timeout"),
    *("kv-aware-threshold", "request-rewriter", "otel-service-name", "otel-secure", "host", "port"),
    *("service-discovery", "static-backends", "static-models", "static-aliases", "k8s-port", "k8s-namespace"),
    *("routing-logic", "session-key", "static-model-labels", "prefill-model-labels", "decode-model-labels"),
}
_WHY = {
    "k8s-label-selector": "pods are found by a Service, not by labels: make a headless one with this selector",
    "callbacks": "requests are not changed on the way",
    "enable-batch-api": "there is no batch API",
    "file-storage-path": "there is no batch API",
    "otel-endpoint": "that one is for gRPC; set tracing.otlp_endpoint to the receiver's address for HTTP (4318)",
    "sentry-dsn": "what went wrong is in the log and the metrics",
    "external-providers-config": "only vLLM servers are served",
}


def is_of_stack(options: Mapping[str, Any]) -> bool:
    """Whether these are options of that router, and not of the one in Rust."""
    return "static-backends" in options or "routing-logic" in options or "k8s-label-selector" in options


def routing(logic: str | None, session_header: str | None, where: str, draft: Draft) -> dict[str, str]:
    """The settings of a pool that its routing logic becomes."""
    if logic is None:
        return {}
    if logic in _APART:
        if logic == _APART[0]:
            draft.leave_out(where, f"LMCache's own way of handing KV caches over. {CONNECTOR}")
        return {}
    policy = _POLICIES.get(str(logic))
    if policy is None:
        draft.leave_out(where, "no policy here is like it; the default is prefix-affinity")
        return {}
    if logic == "kvaware":
        draft.leave_out(
            where, "what caches hold is not asked of LMCache: prefix-affinity sends a beginning where it went before"
        )
    if policy == "session" and session_header:
        return {"policy": policy, "session_header": session_header}
    return {"policy": policy}


def prefill_labels(options: Mapping[str, Any], logic: Any) -> frozenset[str]:
    """The labels of workers that only compute prompts; none where both phases are everywhere."""
    written = options.get("prefill-model-labels") if logic in _APART else None
    return frozenset(_listed(",".join(map(str, written)) if isinstance(written, list) else written))


def static_models(
    backends: Any,
    names: Any,
    aliases: Any,
    where: str,
    draft: Draft,
    labels: Any = None,
    prefill: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Models out of lists that belong together, each written with commas or as a list; ``prefill`` are labels of a stage."""
    urls, models = _listed(backends), _listed(names)
    if len(urls) != len(models):
        raise NothingToImportError(f"{where}: {len(urls)} backends and {len(models)} models, which belong together one by one")
    roles = _listed(labels) if prefill else [""] * len(urls)
    if len(roles) != len(urls):
        raise NothingToImportError(f"{where}: {len(urls)} backends and {len(roles)} labels, which belong together one by one")
    found: dict[str, list[str]] = {}
    stages: dict[str, list[str]] = {}
    for url, model, role in zip(urls, models, roles, strict=True):
        if worker := draft.worker_url(url, where):
            (stages if role in prefill else found).setdefault(model, []).append(worker)
    second = dict(pair.split(":", 1) for pair in _listed(aliases) if ":" in pair)
    made = []
    for model, workers in found.items():
        entry: dict[str, Any] = {"name": model, "pools": [{"name": "default", "workers": workers}]}
        if others := [alias for alias, target in second.items() if target == model]:
            entry["aliases"] = others
        if model in stages:
            entry["pools"][0]["prefill"] = {"workers": stages.pop(model)}
        made.append(entry)
    for model in stages:
        draft.leave_out(where, f"{model} has only workers that compute prompts, and none that generates")
    return made


def from_stack_options(options: Mapping[str, Any]) -> Draft:
    """Return the draft of a command line, or of a dynamic configuration with its keys spelled as options.

    Raises `NothingToImportError` when no worker is named.
    """

    def one(name: str) -> Any:
        value = options.get(name)
        return value[-1] if isinstance(value, list) and value else value or None

    draft = Draft()
    models: list[dict[str, Any]] = []
    if "static-backends" in options:
        apart = prefill_labels(options, one("routing-logic"))
        backends, names, aliases = one("static-backends"), one("static-models"), one("static-aliases")
        models = static_models(backends, names, aliases, "--static-backends", draft, one("static-model-labels"), apart)
    elif one("service-discovery") == "k8s":
        draft.variable("WORKER_SERVICE", "name of a Service that selects the workers' pods")
        draft.variable("MODEL", "the name that the workers serve (their GET /v1/models tells it)")
        found: dict[str, Any] = {"service": "${WORKER_SERVICE}", "port": count(one("k8s-port")) or 8000}
        if namespace := one("k8s-namespace"):
            found["namespace"] = namespace
        if prefill_labels(options, one("routing-logic")):
            draft.leave_out("--prefill-model-labels", BY_SERVICE)
        models = [{"name": "${MODEL}", "pools": [{"name": "default", "workers": {"kubernetes": found}}]}]
    if not models:
        raise NothingToImportError("it names no worker: neither --static-backends nor --service-discovery k8s")
    chosen = routing(one("routing-logic"), one("session-key"), "--routing-logic", draft)
    for model in models:
        model["pools"][0].update(chosen)
    draft.settings = {"listen": f"{one('host') or '0.0.0.0'}:{one('port') or 8001}", "models": models}  # noqa: S104 (its default)
    for name in options:
        if name not in _QUIET:
            draft.leave_out(f"--{name}", _WHY.get(name, "no setting here is like it"))
    return draft


def _listed(value: Any) -> list[str]:
    parts = value if isinstance(value, list) else str(value or "").split(",")
    return [str(part).strip() for part in parts if str(part).strip()]
