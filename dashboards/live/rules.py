"""What is looked at in the gateway, a pool and a worker, and what is said when it is not as it should be.

Each rule looks at one thing and says it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards import thresholds
from dashboards.live.finding import Finding, Growth, Severity, capital, finding_of
from dashboards.live.hour import Minute
from dashboards.live.views import GatewayFacts, PoolView, WorkerView
from dashboards.live.words import OUTCOMES, cause_words, count, percent, seconds
from telemetry.gpus_lately import is_limited
from telemetry.prefix_drift import Drift, DriftKind

_LEAST_FAILED = 3
_FAILED_RATIO = 0.05
_LEAST_DEVIATING = 3
_LEAST_BEATEN = 5  # fewer may be a token that came late and the next one at once
_LOOP_LAG_SECONDS = 0.1
_CONTROL_LAG_SECONDS = 1.0
_CONTROL_NEW_SECONDS = 600.0  # for so long it is told that control was started again
_KV_FULL_RATIO = 0.95
_UNKNOWN_RATIO = 0.5
_IN_VAIN_RATIO = 0.25  # of a worker's attempts: beside passing back-pressure, something is wrong with it
_LEAST_HIT_TOKENS = 60.0 * thresholds.HIT_LEAST_TOKENS_PER_SECOND  # in a minute
_BASELINE_MINUTES = 5
_USUAL_SHARE = 0.75  # of the minutes: what they reached before a drop, also when it has lasted for most of the hour
_HUNG_SECONDS = 10.0  # requests wait and none runs: between two steps it is so for a moment
_TAKES_NONE = frozenset({"down", "errors", "silence", "draining"})
_COSTLY_DRIFT_TOKENS = 20_000  # missed; less is worth knowing, and nothing to get up for


def gateway_findings(gateway: GatewayFacts, growth: Growth, now: float) -> Iterator[Finding]:
    """Its processes, its configuration, its own delays, what it lost, and requests that reached no pool."""
    yield from _processes(gateway, growth, now)
    if gateway.is_config_refused:
        text = "The configuration that was read last is bad: an older one stays in force"
        advice = "The gateway's standard error says what is wrong with it; ridgeline check finds it too."
        yield finding_of(Severity.WARNING, "configuration", text, advice)
    lag = gateway.loop_lag_seconds or 0.0
    if lag >= _LOOP_LAG_SECONDS:
        text = f"The gateway itself is late by up to {seconds(lag)}"
        yield finding_of(Severity.WARNING, "loop_lag", text, cause_words("loop_lag").advice, cause="loop_lag")
    control = gateway.control_lag_seconds or 0.0
    if control >= _CONTROL_LAG_SECONDS:
        text = f"The control process is late by up to {seconds(control)}: what is shown here is old, and probes are slow"
        yield finding_of(Severity.NOTICE, "control_lag", text, "Give the machine more CPU.")
    if lost := growth.of(("records",), gateway.records_dropped, now):
        text = f"{count(lost, 'record')} of requests were lost: what is shown here is not all"
        yield finding_of(Severity.NOTICE, "records_dropped", text, "The control process was away or behind; give it more CPU.")
    if lost := growth.of(("log",), gateway.log_lines_dropped, now):
        text = f"{count(lost, 'line')} of the request log were lost"
        yield finding_of(Severity.NOTICE, "log_dropped", text, "Write log.path to a faster disk, or read the output faster.")
    strays = sum(gateway.unrouted.values())
    if missed := growth.of(("unrouted",), strays, now):
        text = f"{count(missed, 'request')} reached no pool lately: unknown model, bad key, bad request or a limit of their key"
        yield finding_of(
            Severity.NOTICE, "unrouted", text, "The recent requests of pool none say which: on the live page, or in the log."
        )


def _processes(gateway: GatewayFacts, growth: Growth, now: float) -> Iterator[Finding]:
    """Whether it is being ended, and how many of its processes serve."""
    ended = growth.of(("serving restarts",), gateway.serving_restarts, now)
    if gateway.is_stopping:
        text = "The gateway is stopping: it is not ready any more, and ends with its last request"
        yield finding_of(Severity.WARNING, "stopping", text, "Its clients belong at another one until it is started again.")
        return
    if gateway.serving == 0:
        yield finding_of(
            Severity.CRITICAL,
            "gateway",
            "No serving process is up: clients are not served",
            "Look at the gateway's standard error.",
        )
    elif gateway.serving < gateway.processes:
        text = f"Only {gateway.serving} of {gateway.processes} serving processes are up"
        yield finding_of(
            Severity.WARNING, "gateway", text, "Look at the gateway's standard error; the supervisor restarts them."
        )
    if ended:
        what = "A serving process ended by itself and was started again: the requests that it had were cut off"
        if ended > 1:
            what = f"Serving processes ended by themselves {ended} times and were started again: what they had was cut off"
        advice = "Look at the gateway's standard error, and whether the system ended them for want of memory."
        yield finding_of(Severity.WARNING, "process_restarts", what, advice)
    restarted = gateway.control_restarted_seconds
    if restarted is not None and restarted < _CONTROL_NEW_SECONDS:
        text = "The control process ended by itself and was started again: what is shown here began then"
        advice = (
            "Requests were served meanwhile. Whoever sends it a signal by hand means the supervisor; else see standard error."
        )
        yield finding_of(Severity.NOTICE, "control_restarts", text, advice, since=now - restarted)


def pool_findings(pool: PoolView, growth: Growth, now: float) -> Iterator[Finding]:
    """Whether anybody serves it, who is refused or waits, and what it does not tell."""
    able = [worker for worker in pool.workers if worker.state.code not in _TAKES_NONE]
    name = f"pool {pool.pool} of {pool.model}"
    if not able:
        what, advice = _why_nobody(pool)
        yield finding_of(Severity.CRITICAL, "pool_down", capital(f"{name} {what}"), advice, pool)
    refused = pool.totals.outcomes.get("rejected", 0) + pool.totals.outcomes.get("worker_busy", 0)
    if grown := growth.of(("refused", pool.model, pool.pool), refused, now):
        text = f"{count(grown, 'request')} for {name} were refused lately"
        advice = "Their records have the reason; a full queue or busy workers want more workers."
        yield finding_of(Severity.WARNING, "refused", text, advice, pool)
    if pool.queued_requests:
        severity = Severity.WARNING if pool.queued_requests >= max(1, len(able)) else Severity.NOTICE
        text = f"{count(pool.queued_requests, 'request')} of {name} in the gateway's queue: no worker has room"
        yield finding_of(severity, "queue", text, cause_words("gateway_queue").advice, pool, cause="gateway_queue")
    lately = pool.lately
    if lately.hit_unknown > _UNKNOWN_RATIO * lately.requests and lately.hit_unknown >= _LEAST_DEVIATING:
        text = f"Workers of {name} do not say how many prompt tokens were cached"
        yield finding_of(Severity.NOTICE, "hit_unknown", text, "Start vLLM with --enable-prompt-tokens-details.", pool)
    yield from _late(pool, name)


def _why_nobody(pool: PoolView) -> tuple[str, str]:
    """What is said of a pool whose workers all get no requests, and what to do."""
    if not pool.workers:
        return "has no worker", "Start workers; requests for it are refused with 503."
    workers = count(len(pool.workers), "worker")
    draining = sum(worker.state.code == "draining" for worker in pool.workers)
    if not draining:
        advice = "Start workers, or look why each of them is left out; requests for it are refused with 503."
        return f"has none of its {workers} left", advice
    what = f"has none of its {workers} left: {draining} {'is' if draining == 1 else 'are'} draining"
    return what, "Resume one that is draining, or start others; requests for it are refused with 503."


def _late(pool: PoolView, name: str) -> Iterator[Finding]:
    """The objectives, where no limits are known that would say more."""
    if pool.hardware is not None:
        return
    for figure, what, most in ((pool.ttft, "TTFT", thresholds.TTFT_SECONDS), (pool.tpot, "TPOT", thresholds.TPOT_SECONDS)):
        if figure is not None and figure.requests >= _LEAST_DEVIATING and figure.p50_seconds > most:
            text = f"Half of the requests of {name} have a {what} above {seconds(most)}"
            advice = "Set gpu in the pool to see whether that is slow for these prompts and this hardware, and why."
            yield finding_of(Severity.WARNING, f"late_{what.lower()}", text, advice, pool)


_STATES = {
    "down": ("is down: its health check fails, or nothing answers at its address", "Look whether it runs, and at its log."),
    "silence": (
        "takes requests and says nothing, though its health check answers",
        "Its engine hangs: look at its log, and restart it.",
    ),
    "errors": (
        "gets no new requests: they fail, or no connection can be made",
        "Look at its log, and at the records of its failed requests.",
    ),
}

_PASSING = {
    "draining": ("is draining", "Remove it when it has no requests left, or resume it."),
    "slow_start": ("comes back", "Nothing to do: it soon has its whole share."),
}


def worker_findings(pool: PoolView, worker: WorkerView, growth: Growth, now: float) -> Iterator[Finding]:
    """Its health, restarts, failed requests, beaten floors, full cache and queue."""
    name = f"worker {worker.worker}"
    state = worker.state
    if state.code in _STATES:
        what, advice = _STATES[state.code]
        since = state.since_unix_seconds
        yield finding_of(Severity.WARNING, f"worker_{state.code}", capital(f"{name} {what}"), advice, pool, worker, since=since)
    elif state.code in ("draining", "slow_start"):
        what, advice = _PASSING[state.code]
        text = capital(f"{name} {what}: {state.reason}")
        yield finding_of(Severity.NOTICE, f"worker_{state.code}", text, advice, pool, worker, since=state.since_unix_seconds)
    if growth.of(("restarts", worker.worker), worker.restarts, now):
        text = capital(f"{name} was restarted: its prefix cache began empty")
        yield finding_of(Severity.NOTICE, "restarted", text, "Look at its log for why.", pool, worker)
    beaten = growth.of(("floor", worker.worker), worker.floor_beaten, now)
    if beaten >= max(_LEAST_BEATEN, _FAILED_RATIO * worker.lately.requests):
        words = cause_words("facts")
        yield finding_of(
            Severity.WARNING, "facts", capital(f"{name} is {words.what}"), words.advice, pool, worker, cause="facts"
        )
    attempts = growth.lately(("attempts", worker.worker), (worker.attempts, worker.attempts_busy, worker.attempts_failed), now)
    lately = worker.lately
    if lately.failed >= max(_LEAST_FAILED, _FAILED_RATIO * lately.requests):
        outcome = max(worker.outcomes, key=worker.outcomes.__getitem__, default="worker_error")
        words = OUTCOMES[outcome]
        text = f"{lately.failed} of {count(lately.requests, 'request')} at {name} failed lately, most because {words.what}"
        yield finding_of(Severity.WARNING, "failing", text, words.advice, pool, worker)
    elif state.code not in _STATES:
        yield from _in_vain(pool, worker, attempts)
    yield from _gpus(pool, worker, name)
    yield from _full(pool, worker, name)
    yield from _waiting(pool, worker, growth, now)


def _in_vain(pool: PoolView, worker: WorkerView, attempts: Sequence[int]) -> Iterator[Finding]:
    """Attempts that came to nothing though requests did not fail: all, busy and failed ones of lately."""
    of_all, busy, failed = attempts
    if busy + failed >= max(_LEAST_FAILED, _FAILED_RATIO * of_all):
        ends = [f"{busy} busy (429 or 503)"] * bool(busy) + [f"{failed} failed"] * bool(failed)
        text = (
            f"{busy + failed} of {count(of_all, 'attempt')} at worker {worker.worker} came to nothing lately: {', '.join(ends)}"
        )
        advice = "Clients may not notice, as others are asked then: look at its log, and at what stands in front of it."
        severity = Severity.WARNING if busy + failed >= max(_LEAST_FAILED, _IN_VAIN_RATIO * of_all) else Severity.NOTICE
        yield finding_of(severity, "attempts", text, advice, pool, worker)


_HEAT_OR_POWER = {
    "power_cap": "its power cap",
    "sw_thermal": "heat",
    "hw_thermal": "heat",
    "hw_power_brake": "its power supply",
    "hw_slowdown": "heat or power",
}


def _gpus(pool: PoolView, worker: WorkerView, name: str) -> Iterator[Finding]:
    """A clock below the usual one, and errors of the driver, where an exporter tells of them."""
    gpus, ratio = worker.gpus, worker.clock_ratio
    if gpus is None:
        return
    limited = is_limited(gpus)
    most = thresholds.CLOCK_LIMITED_RATIO if limited else thresholds.CLOCK_RATIO
    if ratio is not None and gpus.sm_clock_hertz is not None and ratio < most:
        reasons = " and ".join(dict.fromkeys(_HEAT_OR_POWER[limit] for limit in gpus.limited_by))
        held = f", held down by {reasons}" if reasons else ""
        text = f"The GPUs of {name} run at {percent(ratio)} of their usual clock ({gpus.sm_clock_hertz / 1e6:.0f} MHz){held}"
        severity = Severity.WARNING if limited or ratio < thresholds.CLOCK_FAR_OFF_RATIO else Severity.NOTICE
        advice = cause_words("gpu_clocks").advice
        yield finding_of(severity, "gpu_clocks", text, advice, pool, worker, cause="gpu_clocks")
    if gpus.xid:
        text = f"The driver of the GPUs of {name} gave XID {gpus.xid} as its last error"
        advice = (
            "Look it up in NVIDIA's list of XIDs, and at the kernel's log of its machine: some mean that the GPU is broken."
        )
        yield finding_of(Severity.NOTICE, "gpu_xid", text, advice, pool, worker)


def _full(pool: PoolView, worker: WorkerView, name: str) -> Iterator[Finding]:
    usage, words = worker.kv_usage_ratio or 0.0, cause_words("kv_pressure")
    if usage >= _KV_FULL_RATIO:
        text = capital(f"{name} has its KV cache full ({percent(usage)})")
        yield finding_of(Severity.WARNING, "kv", text, words.advice, pool, worker, cause="kv_pressure")
    elif usage > 1.0 - thresholds.KV_RESERVE_RATIO:
        text = capital(f"{name} has {percent(usage)} of its KV cache in use")
        yield finding_of(Severity.NOTICE, "kv", text, words.advice, pool, worker, cause="kv_pressure")


def _waiting(pool: PoolView, worker: WorkerView, growth: Growth, now: float) -> Iterator[Finding]:
    """Requests in the worker's own queue: it has more than it can run, or it runs nothing at all."""
    name, waiting, running = f"worker {worker.worker}", worker.waiting_requests or 0, worker.running_requests
    runs_none = waiting > 0 and running == 0
    lasts = growth.lasting(("runs none", worker.worker), runs_none, now)
    if not waiting or worker.state.code in _STATES:
        return
    text = count(waiting, "request waits", "requests wait")
    if runs_none and lasts >= _HUNG_SECONDS:
        text = capital(f"{name} runs nothing while {text} inside it: it may hang")
        advice = "Look at its log; if its engine hangs, restart it."
        yield finding_of(Severity.WARNING, "worker_hung", text, advice, pool, worker, since=now - lasts)
    elif runs_none:
        text = capital(f"{text} inside {name}, none runs")
        yield finding_of(Severity.NOTICE, "waiting", text, "If it stays so, its engine hangs: look at its log.", pool, worker)
    else:
        severity = Severity.WARNING if waiting > (running or 0) else Severity.NOTICE
        text = capital(f"{text} inside {name}, {'nobody knows how many' if running is None else running} run")
        yield finding_of(severity, "waiting", text, cause_words("engine_queue").advice, pool, worker, cause="engine_queue")


def hit_drop(pool: PoolView, minutes: Sequence[Minute]) -> Finding | None:
    """The hit share now against that of the hour before, with enough traffic in both; what the alert of that name asks for."""
    known = sorted(
        ratio for each in minutes if (ratio := each.hit_ratio) is not None and each.hit_known_tokens >= _LEAST_HIT_TOKENS
    )
    if len(known) <= _BASELINE_MINUTES or pool.hit_ratio is None or pool.lately.hit_known_tokens < _LEAST_HIT_TOKENS:
        return None
    usual = known[int(_USUAL_SHARE * len(known))]
    if usual < thresholds.HIT_LEAST_RATIO or pool.hit_ratio > thresholds.HIT_DROP_RATIO * usual:
        return None
    text = (
        f"Only {percent(pool.hit_ratio)} of the prompt tokens of pool {pool.pool} of {pool.model} come from the prefix cache, "
        f"where {percent(usual)} is usual"
    )
    return finding_of(Severity.WARNING, "hit_drop", text, cause_words("missed_prefix").advice, pool, cause="missed_prefix")


_CHANGES = {
    DriftKind.INSERTED: "text was inserted",
    DriftKind.REMOVED: "text was removed",
    DriftKind.CHANGED: "text was replaced",
}


def drift_finding(drift: Drift) -> Finding:
    """A system prompt that was cached and has changed, with the key that most of its requests have."""
    key = max(drift.keys, key=drift.keys.__getitem__, default="")
    of = f" of key {key}" if key else ""
    changed = "changes with each request" if drift.texts > 1 and drift.texts >= drift.requests / 2 else "has changed"
    text = (
        f"The system prompt{of} for {drift.model} {changed} ({_CHANGES[drift.kind]} near byte {drift.position_bytes:,}): "
        f"{count(drift.requests, 'request')} missed {count(drift.missed_tokens, 'cached token')}"
    )
    is_costly = drift.missed_tokens >= _COSTLY_DRIFT_TOKENS
    return Finding(
        kind="drift",
        severity=(Severity.WARNING if is_costly else Severity.NOTICE).name.lower(),
        text=text,
        advice="Ask its owner what changed; put what varies (time, user, ids) behind what stays the same.",
        since_unix_seconds=drift.since,
        model=drift.model,
        key=key or None,
        cause="missed_prefix",
    )
