"""From what was seen of a set-up to what is wrong or blind in it, and the flag or setting that mends it.

Pure: `find` runs all rules over the observations. What is wrong with one worker stands in `proxy.doctor.worker_findings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from proxy.doctor.finding import Finding, Severity, error, hint, merge, warning
from proxy.doctor.gpu_findings import look_at_gpus
from proxy.doctor.observations import Answer, Observations, WorkerSeen, listing, plain, read_state, read_version
from proxy.doctor.worker_findings import listed_entry, look_at, shown_name

LEAST_FILE_LIMIT = 4096

_SHOWN_MODELS = 8  # of a gateway, as long as they may be


def find(seen: Observations) -> tuple[Finding, ...]:
    """Everything found, worst first. What is said in the same words of several subjects is one finding."""
    return merge(_all(seen))


def _all(seen: Observations) -> Iterator[Finding]:
    troubled: set[str] = set()
    for worker in seen.workers:
        yield from look_at_gpus(shown_name(worker), worker)
        for found in look_at(worker):
            if found.severity is Severity.ERROR:
                troubled.add(worker.target.worker)
            yield found
    yield from _pools(seen.workers)
    yield from _gateway(seen, troubled)
    yield from _configuration(seen)
    yield from _machine(seen)


# Workers beside each other


def _pools(workers: tuple[WorkerSeen, ...]) -> Iterator[Finding]:
    pools: dict[str, list[WorkerSeen]] = {}
    for worker in workers:
        pools.setdefault(f"{worker.target.model}/{worker.target.pool}", []).append(worker)
    aspects: tuple[tuple[str, str, Callable[[WorkerSeen], str | None], str], ...] = (
        ("version", "vLLM version", lambda worker: read_version(worker.version), "run one version, or make two pools"),
        ("max_model_len", "max_model_len", _length_of, "start them with one --max-model-len, or make two pools"),
        ("root", "model root", _root_of, "serve the same weights, or make two models"),
    )
    for pool, members in pools.items():
        for code, what, read, mend in aspects:
            by_value: dict[str, list[str]] = {}
            for worker in members:
                if (value := read(worker)) is not None:
                    by_value.setdefault(value, []).append(worker.target.worker)
            if len(by_value) > 1:
                parts = "; ".join(f"{value} ({listing(names, 3)})" for value, names in by_value.items())
                yield warning(f"pool_differs_in_{code}", f"pool {pool}", f"its workers differ in {what}: {parts}", mend)


def _length_of(worker: WorkerSeen) -> str | None:
    entry = listed_entry(worker)
    return None if entry is None or entry.max_model_len is None else str(entry.max_model_len)


def _root_of(worker: WorkerSeen) -> str | None:
    entry = listed_entry(worker)
    return None if entry is None or entry.root is None else plain(entry.root)


# The gateway


def _gateway(seen: Observations, troubled: set[str]) -> Iterator[Finding]:
    gateway, state = seen.gateway, read_state(seen.gateway.state)
    if not gateway.is_running:
        yield from _not_running(seen)
        return
    if state is None and not gateway.is_observable:
        wrong = "its control process does not answer: no metrics, no request log, no worker is seen to be down"
        yield warning("control_away", "gateway", wrong, "look at its standard error; the supervisor restarts what dies")
    elif isinstance(gateway.state, Answer) and gateway.state.status == 401:
        wrong = "the admin listener wants a token: what the gateway sees of its workers was not looked at"
        yield hint("admin_token", "gateway", wrong, "give it to this command as the variable RIDGELINE_ADMIN_TOKEN")
    elif state is None:
        wrong = "it does not answer on admin_listen"
        yield warning(
            "admin_away", "gateway", wrong, "look whether another program has that address, and which file it was started with"
        )
    elif not gateway.is_observable and seen.has_configuration:
        wrong = "it does not answer on observe_listen: Prometheus and probes find nothing"
        yield warning(
            "observe_away",
            "gateway",
            wrong,
            "look whether another program has that address, and which file it was started with",
        )
    if not gateway.serves and (seen.has_configuration or (state is not None and not state.serving_processes)):
        yield error("serving_away", "gateway", "no serving process answers on listen", "look at its standard error; restart it")
    if state is None:
        return
    if state.log_lines_dropped:
        wrong = f"{state.log_lines_dropped} lines of the request log were lost"
        yield warning("log_lost", "gateway", wrong, "write log.path to a faster disk, or read its standard output faster")
    if is_other_gateway(seen):
        models = ", ".join(plain(name) for name in list(dict.fromkeys(pool.model for pool in state.pools))[:_SHOWN_MODELS])
        wrong = f"what answers at admin_listen has none of this file's models but {models}: it was started with another file"
        mend = "name that file with --config; if it is this one, which has changed, send SIGHUP to the supervisor"
        yield warning("other_gateway", "gateway", wrong, f"{mend} and read its standard error")
        return
    states = {worker.worker: worker for pool in state.pools for worker in pool.workers}
    for worker in seen.workers:
        known = states.get(worker.target.worker)
        if known is None:
            mend = "send SIGHUP to the supervisor and read its standard error; or the worker was removed by hand"
            yield hint("worker_not_in_force", shown_name(worker), "it is in the file and not in the running gateway", mend)
        elif known.is_up is False and worker.target.worker not in troubled:
            wrong = "the gateway says it is down, and it answers here"
            yield warning("worker_down", shown_name(worker), wrong, "look again in 10 s; then at the network between the two")


def is_other_gateway(seen: Observations) -> bool:
    """Whether the gateway that answers has none of the models whose workers were looked at."""
    state = read_state(seen.gateway.state)
    if state is None or not state.pools or not seen.workers:
        return False
    return {pool.model for pool in state.pools}.isdisjoint(worker.target.model for worker in seen.workers)


def _not_running(seen: Observations) -> Iterator[Finding]:
    if not seen.has_configuration:
        wrong = "no gateway answers on the default addresses, and without a file nothing else is known"
        yield error("gateway_not_found", "gateway", wrong, "name its configuration: ridgeline doctor --config FILE")
        return
    yield hint("gateway_not_running", "gateway", "it does not run here", "ridgeline serve --config FILE")
    for listener in seen.listeners:
        subject = f"{listener.setting} {listener.address}"
        if listener.is_in_use:
            yield error(
                "address_in_use", subject, "another program has this address", "end that program, or choose another port"
            )
        elif listener.fault:
            mend = "write an address and port of this machine that this user may have"
            yield error("address_not_to_be_had", subject, f"cannot listen on it: {listener.fault}", mend)


# The configuration and this machine

# how a warning of the configuration begins or what it holds, what mends it
_MENDS = (
    ("listen is ", "add keys, or listen on 127.0.0.1"),
    (".verify is ", "name the CA in worker_tls.ca, and the certificate's name in worker_tls.server_name"),
    (".worker_idle_seconds is ", "set it to 4, or raise VLLM_HTTP_TIMEOUT_KEEP_ALIVE of the workers"),
    (".head_hold_seconds is ", "lower head_hold_seconds, or raise first_byte_seconds"),
    (".total_seconds is ", "lower first_byte_seconds, or raise total_seconds"),
    ("workers ", "list each worker once; several names for one model are aliases"),
)


def _configuration(seen: Observations) -> Iterator[Finding]:
    for pool in seen.empty_pools:
        wrong = "no worker has been found for it: its requests are refused with 503"
        yield error(
            "no_workers", f"pool {pool}", wrong, "see what finds them (`workers` of the pool), and the gateway's notices"
        )
    for pool in seen.unseen_pools:
        wrong = "its workers are found while the gateway runs, and were not looked at"
        yield hint("workers_not_known", f"pool {pool}", wrong, "look while the gateway runs and its admin listener answers")
    for text in seen.warnings:
        mend = next((mend for mark, mend in _MENDS if mark in text), "see the reference of the configuration")
        yield warning("configuration", "configuration", text, mend)
    if seen.grace_seconds is None or seen.drain_seconds is None:
        return
    needed = seen.drain_seconds + seen.ending_seconds
    if needed > seen.grace_seconds:
        wrong = (
            f"ending takes up to {needed:g} s (drain_seconds {seen.drain_seconds:g} and {seen.ending_seconds:g} s more), "
            f"the grace period is {seen.grace_seconds:g} s: streams are cut off"
        )
        mend = f"terminationGracePeriodSeconds: {needed:.0f} or more"
        if (most := seen.grace_seconds - seen.ending_seconds) > 0:
            mend += f", or limits.drain_seconds: {most:g} or less"
        yield warning("grace_too_short", "configuration", wrong, mend)


def _machine(seen: Observations) -> Iterator[Finding]:
    if seen.file_limit < LEAST_FILE_LIMIT:
        wrong = f"a process may have {seen.file_limit} files, and every stream takes two"
        mend = (
            f"raise the hard limit to {LEAST_FILE_LIMIT * 16}: ulimit -Hn, LimitNOFILE= in systemd, --ulimit nofile= in docker"
        )
        yield warning("file_limit", "this machine", wrong, mend)
    if seen.proxy_variables:
        names = listing(seen.proxy_variables)
        wrong = f"{names} set: the gateway takes no notice, workers are asked directly"
        yield hint("proxy_ignored", "this machine", wrong, "nothing, if workers can be reached directly")
