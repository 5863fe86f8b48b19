"""vllm-router: its command line is its configuration (vllm-project/router, docs/cli_reference.md; both of its launchers).

The router of vLLM's production-stack bears the same name and has other options, which are told apart by how workers are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.importing.draft import Draft, NothingToImportError, count, seconds, variable_of
from proxy.importing.options import options_of
from proxy.importing.stack_router import BY_SERVICE, CONNECTOR, from_stack_options, is_of_stack

_POLICIES = {
    "cache_aware": "prefix-affinity",
    "round_robin": "round-robin",
    "power_of_two": "power-of-two",
    "random": "power-of-two",
    "consistent_hash": "session",
    "rendezvous_hash": "session",
}
_SESSION_HEADER = "x-session-id"
_WHY = {
    "max-concurrent-requests": "workers are given what their memory holds (`admission`), the rest waits (queue_requests)",
    "rate-limit-tokens-per-second": "rates are limited by key (`quota`), not over all of them",
    "prefill-selector": BY_SERVICE,
    "decode-selector": "pods are found by a Service, not by labels: make a headless one with this selector",
    "cache-threshold": "affinity goes by the beginning of the prompt with bounded load; there is nothing to tune",
    "balance-abs-threshold": "the bound of the load is fixed",
    "balance-rel-threshold": "the bound of the load is fixed",
    "cors-allowed-origins": "no CORS headers are sent: browsers have no business with a gateway of models",
    "api-key-validation-urls": "keys are known by their sha256 under `keys`; nobody is asked",
    "wasm-middleware": "requests are not changed on the way",
    "otlp-traces-endpoint": "that one is for gRPC; set tracing.otlp_endpoint to the receiver's address for HTTP (4318)",
    "log-dir": "say `log: {path: …}` for the file of requests",
    "enable-igw": "every model is named here",
    "vllm-discovery-address": "workers do not register; list them, or have them found by DNS or Kubernetes",
}
# Without a counterpart that anybody would miss: how often is looked, how it looks in a log.
_QUIET = {
    *("worker-startup-timeout-secs", "worker-startup-check-interval", "eviction-interval", "eviction-interval-secs"),
    *("max-tree-size", "retry-initial-backoff-ms", "retry-max-backoff-ms", "retry-backoff-multiplier", "retry-jitter-factor"),
    *("cb-success-threshold", "cb-window-duration-secs", "health-failure-threshold", "health-success-threshold"),
    *("health-check-timeout-secs", "health-check-interval-secs", "health-check-endpoint", "log-level", "request-id-headers"),
    *("backend", "runtime", "history-backend", "enable-trace"),
}


def from_vllm_router(text: str, *, model: str | None) -> Draft:
    """Return the draft. ``model``: the name its workers serve, which their router does not know; None: a variable.

    Raises `NothingToImportError` when there is no such command line, or no worker in it.
    """
    options = options_of(text)
    if is_of_stack(options):
        return from_stack_options(options)
    draft = Draft()
    pool: dict[str, Any] = {"name": "default", "workers": _workers(options, draft)}
    if _is_pair(options):
        pool |= _policy(options, draft, "decode-policy")
        if stage := _stage(options, draft, pool):
            pool["prefill"] = stage
    else:
        pool |= _policy(options, draft)
    if key := draft.worker_key(_last(options, "api-key"), "--api-key", "WORKER_KEY"):
        pool["worker_key"] = key
    draft.settings = {"models": [{"name": _model(model, draft), "pools": [pool]}]}
    _listeners(options, draft)
    _limits(options, draft)
    for name in options:
        if name in _WHY:
            draft.leave_out(f"--{name}", _WHY[name])
        elif name not in _QUIET and name not in _TAKEN:
            draft.leave_out(f"--{name}", "no setting here is like it")
    return draft


_TAKEN = {
    *(
        "worker-urls",
        "policy",
        "api-key",
        "host",
        "port",
        "prometheus-host",
        "prometheus-port",
        "intra-node-data-parallel-size",
    ),
    *("max-payload-size", "request-timeout-secs", "retry-max-retries", "disable-retries", "cb-failure-threshold"),
    *("cb-timeout-duration-secs", "disable-circuit-breaker", "queue-size", "queue-timeout-secs", "otel-sampling-ratio"),
    *("service-discovery", "selector", "service-discovery-port", "service-discovery-namespace"),
    *("vllm-pd-disaggregation", "pd-disaggregation", "prefill", "decode", "prefill-policy", "decode-policy", "kv-connector"),
}


def _is_pair(options: dict[str, list[str]]) -> bool:
    """Whether prompts are computed on workers of their own, by vLLM's exchange and not that of SGLang."""
    names = {"prefill", "decode", "vllm-pd-disaggregation"}
    return "pd-disaggregation" not in options and not names.isdisjoint(options)


def _stage(options: dict[str, list[str]], draft: Draft, pool: dict[str, Any]) -> dict[str, Any] | None:
    """The setting `prefill` of the pool; None when no prefill worker is named."""
    urls = _urls(options, "prefill", draft)
    if not urls:
        return None
    if _last(options, "kv-connector") not in (None, "nixl"):
        draft.leave_out("--kv-connector", CONNECTOR)
    stage: dict[str, Any] = {"workers": urls, **_policy(options, draft, "prefill-policy")}
    if stage.pop("session_header", None) and pool.get("policy") != "session":
        del stage["policy"]
        draft.leave_out("--prefill-policy", "a stage goes by sessions only where its pool does; here by prefix-affinity")
    return stage


def _urls(options: dict[str, list[str]], name: str, draft: Draft) -> list[str]:
    """Workers of one kind. Behind the URL of one that computes prompts may stand its bootstrap port."""
    found = []
    for written in options.get(name, ()):
        if written.isdecimal() or written.lower() == "none":
            if written.isdecimal():
                draft.leave_out(f"--{name}", "the bootstrap port behind a URL: workers name themselves where blocks are")
        elif ":zmq://" in written:
            draft.leave_out(f"--{name}", CONNECTOR)
        elif url := draft.worker_url(written, f"--{name}"):
            found.append(url)
    return found


def _last(options: dict[str, list[str]], name: str) -> str | None:
    values: Sequence[str] = options.get(name, ())
    return values[-1] if values else None


def _model(model: str | None, draft: Draft) -> str:
    if model is not None:
        return model
    draft.variable("MODEL", "the name that the workers serve (their GET /v1/models tells it), or import again with --model")
    return "${MODEL}"


def _workers(options: dict[str, list[str]], draft: Draft) -> Any:
    if "pd-disaggregation" in options:
        sglang = "prefill and decode apart by SGLang's exchange is not spoken; that of vLLM is --vllm-pd-disaggregation"
        draft.leave_out("--pd-disaggregation", sglang)
    ranks = _count(options, "intra-node-data-parallel-size")
    urls = _urls(options, "decode" if _is_pair(options) else "worker-urls", draft)
    if urls:
        if ranks is not None and ranks > 1:
            return [{"url": url, "data_parallel_ranks": ranks} for url in urls]
        return urls
    if "service-discovery" in options:
        draft.variable("WORKER_SERVICE", "name of a Service that selects the workers' pods")
        selector = "pods are found by a Service, not by labels: make a headless one with this selector"
        draft.leave_out("--selector", selector)
        where: dict[str, Any] = {"service": "${WORKER_SERVICE}", "port": _count(options, "service-discovery-port") or 80}
        if namespace := _last(options, "service-discovery-namespace"):
            where["namespace"] = namespace
        return {"kubernetes": where}
    reasons = "; ".join(f"{note.where}: {note.why}" for note in draft.left_out)
    raise NothingToImportError(f"it names no worker that can be served{': ' if reasons else ''}{reasons}")


def _policy(options: dict[str, list[str]], draft: Draft, own: str = "policy") -> dict[str, str]:
    """Of a pool; ``own`` is the option that goes before the general one."""
    name = own if own in options else "policy"
    written = _last(options, name) or "cache_aware"
    policy = _POLICIES.get(written)
    if policy is None:
        draft.leave_out(f"--{name}", "no policy here is like it; the default is prefix-affinity")
        return {}
    if policy == "session":
        return {"policy": policy, "session_header": _SESSION_HEADER}
    return {"policy": policy}


def _listeners(options: dict[str, list[str]], draft: Draft) -> None:
    host, port = _last(options, "host") or "127.0.0.1", _count(options, "port") or 30000
    draft.settings["listen"] = f"{_bracketed(host)}:{port}"
    observers, its_port = _last(options, "prometheus-host") or "127.0.0.1", _count(options, "prometheus-port") or 29000
    draft.settings["observe_listen"] = f"{_bracketed(observers)}:{its_port}"


def _limits(options: dict[str, list[str]], draft: Draft) -> None:
    for name, section, setting in (
        ("max-payload-size", "limits", "body_bytes"),
        ("cb-failure-threshold", "health", "failures_in_row"),
        ("queue-size", "admission", "queue_requests"),
    ):
        if (count := _count(options, name)) is not None:
            draft.set(section, setting, count)
    for name, section, setting in (
        ("request-timeout-secs", "limits", "total_seconds"),
        ("queue-timeout-secs", "admission", "queue_seconds"),
    ):
        if (found := seconds(_last(options, name))) is not None:
            draft.set(section, setting, found)
    if (retries := _count(options, "retry-max-retries")) is not None:
        draft.attempts(retries)
    if (pause := seconds(_last(options, "cb-timeout-duration-secs"))) is not None:
        draft.ejection(pause)
    if "disable-retries" in options:
        draft.set("retries", "max_attempts", 1)
    if "disable-circuit-breaker" in options:
        draft.set("health", "max_ejected_ratio", 0)


def _count(options: dict[str, list[str]], name: str) -> int | None:
    return count(_last(options, name))


def _bracketed(host: str) -> str:
    if name := variable_of(host):
        return f"${{{name}}}"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
