"""What is wrong or blind in one worker. Pure: from its replies to findings.

Texts may name hosts, models and numbers, never a key, and quote nothing of a reply but names and versions.
"""

from __future__ import annotations

from collections.abc import Iterator

from proxy.doctor.finding import Finding, error, hint, warning
from proxy.doctor.observations import (
    Answer,
    Failure,
    ListedModel,
    WorkerSeen,
    listing,
    plain,
    read_completion,
    read_families,
    read_models,
    read_prefix_caching,
    read_release,
    read_version,
)

MOST_CLOCK_OFFSET_SECONDS = 5.0
_DETAILS_ALWAYS = (0, 32)  # from here on prompt_tokens_details is there even when nothing was cached
_TIMES = (0, 27)  # the first release known to have --enable-per-request-metrics

_UNREACHED: dict[Failure, tuple[str, str]] = {
    Failure.UNRESOLVED: ("its host name is not known here", "correct its URL, or the name service of this machine"),
    Failure.REFUSED: (
        "it refuses connections: nothing listens there",
        "start vLLM with --host 0.0.0.0 and this --port, or correct the URL",
    ),
    Failure.UNREACHABLE: (
        "no connection to it can be made",
        "look at its address, name service, routes, firewalls and network policies",
    ),
    Failure.SILENT: ("it takes connections and does not answer /health in time", "look at its log; restart it if it hangs"),
    Failure.UNTRUSTED: (
        "its certificate is not trusted, or it does not speak TLS",
        "name its CA in worker_tls.ca and the certificate's name in worker_tls.server_name; or give an http:// URL",
    ),
    Failure.BROKEN: ("what it sends is no HTTP answer", "give the base URL of vLLM's API server; https:// where it speaks TLS"),
}


def shown_name(worker: WorkerSeen) -> str:
    """The worker's name, with its URL where that says more."""
    target = worker.target
    return (
        target.worker
        if target.url in (f"http://{target.worker}", f"https://{target.worker}")
        else f"{target.worker} ({target.url})"
    )


def look_at(worker: WorkerSeen) -> Iterator[Finding]:
    """Yield what is wrong with one worker or blind in it."""
    name, health = shown_name(worker), worker.health
    if health is Failure.NOT_ASKED:
        yield warning("worker_not_looked_at", name, "there was no time to look at it", "look again when fewer workers hang")
    elif isinstance(health, Failure):
        yield error(f"worker_{health.name.lower()}", name, *_UNREACHED[health])
    elif _is_other_program(worker):
        wrong = "it answers, but is not vLLM: it has neither a version page nor a model list"
        yield error("worker_not_vllm", name, wrong, "give the base URL of vLLM's API server, without /v1")
    else:
        if health.status != 200:
            mend = "look at its log; an engine that died needs a restart, one that loads needs time"
            yield error("worker_unwell", name, f"its health check answers {health.status}", mend)
        yield from _clock(name, health)
        yield from _version(name, worker)
        yield from _models(name, worker)
        yield from _metrics(name, worker)
        if listed_entry(worker) is not None or worker.target.has_key is None:  # else there is worse to mend first
            yield from _usage(name, worker)


def _is_other_program(worker: WorkerSeen) -> bool:
    pages = (worker.version, worker.models)
    lists_models = read_models(worker.models) is not None or _wants_key(worker)
    return all(isinstance(page, Answer) for page in pages) and not lists_models and read_version(worker.version) is None


def _wants_key(worker: WorkerSeen) -> bool:
    return isinstance(worker.models, Answer) and worker.models.status in (401, 403)


def _clock(name: str, health: Answer) -> Iterator[Finding]:
    offset = health.clock_offset_seconds
    if offset is not None and abs(offset) > MOST_CLOCK_OFFSET_SECONDS:
        wrong = (
            f"its clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} this machine's: log times do not match"
        )
        yield warning("clock_offset", name, wrong, "keep both in time with NTP (chrony, systemd-timesyncd)")


def _version(name: str, worker: WorkerSeen) -> Iterator[Finding]:
    if isinstance(worker.version, Failure):
        yield warning("version_unanswered", name, "it does not answer /version in time", "look at its load and its log")
    elif read_version(worker.version) is None:
        mend = "if it is vLLM, let /version, /health and /metrics through to it"
        yield warning("version_missing", name, "it has no vLLM version page: another engine, or hidden behind something", mend)


def _models(name: str, worker: WorkerSeen) -> Iterator[Finding]:
    reply, target = worker.models, worker.target
    listed = read_models(reply)
    if _wants_key(worker) and target.has_key:
        yield error(
            "key_refused", name, "it refuses the worker_key", "set worker_key to what vLLM has as --api-key or VLLM_API_KEY"
        )
    elif _wants_key(worker) and target.has_key is None:
        wrong = "it wants a key, and keys are in the configuration only: its models were not seen"
        yield hint("key_unknown", name, wrong, "name the configuration: ridgeline doctor --config FILE")
    elif _wants_key(worker):
        yield error(
            "key_missing",
            name,
            "it wants a key and none is configured",
            "set worker_key to vLLM's --api-key, overall or for the pool",
        )
    elif isinstance(reply, Failure):
        yield error("models_unanswered", name, "it does not answer /v1/models in time", "look at its load and its log")
    elif listed is None:
        wrong = f"its /v1/models answers {reply.status} and no model list"
        yield error("models_missing", name, wrong, "give the base URL of vLLM's API server, without /v1")
    elif target.model not in (names := [model.id for model in listed]):
        known = [alias for alias in target.aliases if alias in names]
        wrong = f"it does not list {plain(target.model)}; it lists {listing(names) or 'nothing'}"
        mend = f"start vLLM with --served-model-name {plain(target.model)}, or write its name in the configuration"
        if known:
            mend = f"workers are asked for the name, not an alias: make {known[0]} the name and {target.model} an alias"
        yield error("model_not_listed", name, wrong, mend)
    else:
        yield from _length(name, worker)


def _length(name: str, worker: WorkerSeen) -> Iterator[Finding]:
    entry, accepted = listed_entry(worker), worker.target.max_total_tokens
    if entry is None or entry.max_model_len is None or accepted is None or entry.max_model_len >= accepted:
        return
    wrong = f"its max_model_len is {entry.max_model_len}, its pool accepts {accepted} tokens: requests between are refused"
    mend = f"set the pool's max_total_tokens to {entry.max_model_len}, or start vLLM with --max-model-len {accepted}"
    yield error("model_too_short", name, wrong, mend)


def listed_entry(worker: WorkerSeen) -> ListedModel | None:
    """What the worker's model list says of the model that it is used for; None when it does not list it."""
    return next((model for model in read_models(worker.models) or () if model.id == worker.target.model), None)


# name before, name now, what reads the one now
_RENAMED = (
    ("gpu_cache_usage_perc", "kv_cache_usage_perc", "KV usage in dashboards (the gateway reads both)"),
    ("gpu_prefix_cache_queries", "prefix_cache_queries", "the worker's own prefix hit share"),
    ("time_per_output_token_seconds", "inter_token_latency_seconds", "the worker's own token latency"),
)
_LOAD = ("num_requests_running", "num_requests_waiting")


def _metrics(name: str, worker: WorkerSeen) -> Iterator[Finding]:
    families = read_families(worker.metrics)
    blind = "running, waiting and KV usage of it are unknown"
    if families is None:
        status = f"answers {worker.metrics.status}" if isinstance(worker.metrics, Answer) else "does not answer in time"
        yield warning("metrics_missing", name, f"its /metrics {status}: {blind}", "let /metrics through to vLLM")
        return
    if not families:
        mend = "start vLLM without --disable-log-stats; let /metrics through to vLLM itself"
        yield warning("metrics_not_vllm", name, f"its /metrics has no vllm: families: {blind}", mend)
        return

    def has(family: str) -> bool:
        return any(family + ending in families for ending in ("", "_total", "_bucket"))

    old = [(before, blind) for before, now, blind in _RENAMED if has(before) and not has(now)]
    if old:
        wrong = f"its metrics have names of an old vLLM ({', '.join(before for before, _ in old)}); blind: "
        yield hint("metrics_old", name, wrong + "; ".join(blind for _, blind in old), "update vLLM to 0.10.2 or later")
    lacking = [family for family in _LOAD if not has(family)]
    if lacking:
        wrong = f"its metrics lack {', '.join(lacking)}: its load is unknown"
        yield warning("metrics_lacking", name, wrong, "run a vLLM of 0.8.5 or later; let its /metrics through unfiltered")
    if read_prefix_caching(worker.metrics) is False:
        wrong = "it caches no prefixes: every prompt is computed whole"
        yield hint("prefix_caching_off", name, wrong, "start vLLM with --enable-prefix-caching")


_DETAILS = "--enable-prompt-tokens-details"
_BLIND_TIMES = "the worker's own queue and prefill time of a request stay unknown"


def _usage(name: str, worker: WorkerSeen) -> Iterator[Finding]:
    reply, release = worker.completion, read_release(read_version(worker.version))
    told = None if reply is None else read_completion(reply)
    if reply is not None and told is None and not _wants_key(worker):
        got = f"{reply.status} and no usage" if isinstance(reply, Answer) else "no answer in time"
        make = error if isinstance(reply, Answer) else warning
        yield make("completion_failed", name, f"a completion of one token got {got}", "look at its load and its log")
    has_details, has_times = told or (False, False)
    blind = "cached tokens stay unknown"
    if told and not has_details and release and release >= _DETAILS_ALWAYS:
        yield warning("details_off", name, f"its usage has no prompt_tokens_details: {blind}", f"start vLLM with {_DETAILS}")
    elif told and not has_details:
        wrong = f"its usage had no prompt_tokens_details, as in old versions when nothing was cached: without the flag {blind}"
        yield hint("details_unsure", name, wrong, f"start vLLM with {_DETAILS}")
    elif not told:
        wrong = f"whether it tells cached tokens cannot be seen from outside: without the flag {blind}"
        mend = f"start vLLM with {_DETAILS}" + ("" if reply else "; --probe asks for one token to see")
        yield hint("details_unknown", name, wrong, mend)
    if has_times or (release and release < _TIMES):
        return
    wrong = f"its answers carry no times: {_BLIND_TIMES}" if told else f"without the flag {_BLIND_TIMES}"
    yield hint("times_off" if told else "times_unknown", name, wrong, "start vLLM with --enable-per-request-metrics")
