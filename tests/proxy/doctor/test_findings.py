"""What `ridgeline doctor` makes of what it has seen: no I/O, observations in, findings out."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from proxy.config.settings import parse_config, warnings_of
from proxy.doctor.finding import Finding, Severity, exit_status
from proxy.doctor.findings import find
from proxy.doctor.observations import (
    Answer,
    Failure,
    GatewaySeen,
    ListenerSeen,
    Observations,
    Target,
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

NOW = 1_800_000_000.0
PAGE = b"""\
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.0
vllm:prefix_cache_queries_total{engine="0"} 0.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01"} 0.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0"} 1.0
"""
OLD_PAGE = PAGE.replace(b"kv_cache", b"gpu_cache").replace(b"prefix_cache_q", b"gpu_prefix_cache_q")
TARGET = Target(worker="w", url="http://w:8000", model="m", pool="p", aliases=("nick",), max_total_tokens=4096)
ERROR, WARNING, HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


def a_page(**fields):
    return Answer(status=200, body=json.dumps(fields).encode(), at=NOW)


def a_list(*names, max_model_len=8192, root="org/m"):
    return a_page(data=[{"id": name, "root": root, "max_model_len": max_model_len, "parent": None} for name in names])


def a_completion(details=None, metrics=None):
    return a_page(usage={"prompt_tokens": 1, "prompt_tokens_details": details}, metrics=metrics)


WELL = WorkerSeen(
    target=TARGET,
    health=Answer(status=200, at=NOW),
    version=a_page(version="0.32.0"),
    models=a_list("m"),
    metrics=Answer(status=200, body=PAGE),
    completion=a_completion({"cached_tokens": 0}, {"queue_time_ms": 1.0}),
)
HTML = Answer(status=200, body=b"<html>welcome</html>")
NOT_FOUND = Answer(status=404, body=b"no")
KEY_WANTED = Answer(status=401, body=b'{"error":"Unauthorized"}')


def at_time(seconds):
    return Answer(status=200, at=NOW, date=format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True))


def a_state(*workers, serving_processes=1, **fields):
    pools = [{"model": "m", "pool": "p", "workers": [{"worker": name, "url": "http://w", "is_up": up} for name, up in workers]}]
    return a_page(version="1", serving_processes=serving_processes, pools=pools, **fields)


RUNNING = GatewaySeen(
    livez=Answer(status=200, body=b"ok\n"), readyz=Answer(status=200, body=b"ok\n"), state=a_state(("w", True), ("v", True))
)
ALL_WELL = Observations(workers=(WELL,), gateway=RUNNING)


def codes(seen):
    return {found.code: found.severity for found in find(seen)}


def found_of(code, seen):
    return next(found for found in find(seen) if found.code == code)


def test_nothing_is_found_where_all_is_well():
    """A set-up without fault has no findings and status 0."""
    assert find(ALL_WELL) == ()
    assert exit_status(()) == 0


@pytest.mark.parametrize(
    ("change", "code", "severity", "mend"),
    [
        ({"health": Failure.UNRESOLVED}, "worker_unresolved", ERROR, "name service"),
        ({"health": Failure.REFUSED}, "worker_refused", ERROR, "--host 0.0.0.0"),
        ({"health": Failure.UNREACHABLE}, "worker_unreachable", ERROR, "firewalls"),
        ({"health": Failure.SILENT}, "worker_silent", ERROR, "log"),
        ({"health": Failure.BROKEN}, "worker_broken", ERROR, "https://"),
        ({"health": Failure.UNTRUSTED}, "worker_untrusted", ERROR, "worker_tls.ca"),
        ({"health": Failure.NOT_ASKED}, "worker_not_looked_at", WARNING, "again"),
        ({"health": HTML, "version": HTML, "models": HTML, "metrics": HTML}, "worker_not_vllm", ERROR, "base URL"),
        ({"version": NOT_FOUND, "models": NOT_FOUND}, "worker_not_vllm", ERROR, "/v1"),
        ({"health": Answer(status=503)}, "worker_unwell", ERROR, "restart"),
        ({"health": at_time(NOW + 60)}, "clock_offset", WARNING, "NTP"),
        ({"health": at_time(NOW - 6)}, "clock_offset", WARNING, "NTP"),
        ({"version": NOT_FOUND}, "version_missing", WARNING, "/version"),
        ({"version": Failure.SILENT}, "version_unanswered", WARNING, "log"),
        ({"models": KEY_WANTED}, "key_missing", ERROR, "worker_key"),
        ({"models": KEY_WANTED, "target": replace(TARGET, has_key=True)}, "key_refused", ERROR, "--api-key"),
        ({"models": KEY_WANTED, "target": replace(TARGET, has_key=None)}, "key_unknown", HINT, "--config"),
        ({"models": Failure.SILENT}, "models_unanswered", ERROR, "log"),
        ({"models": Answer(status=500)}, "models_missing", ERROR, "base URL"),
        ({"models": a_list("other")}, "model_not_listed", ERROR, "--served-model-name m"),
        ({"models": a_list()}, "model_not_listed", ERROR, "--served-model-name m"),
        ({"models": a_list("nick")}, "model_not_listed", ERROR, "make nick the name and m an alias"),
        ({"models": a_list("m", max_model_len=4095)}, "model_too_short", ERROR, "max_total_tokens to 4095"),
        ({"metrics": NOT_FOUND}, "metrics_missing", WARNING, "/metrics"),
        ({"metrics": Failure.SILENT}, "metrics_missing", WARNING, "/metrics"),
        ({"metrics": HTML}, "metrics_not_vllm", WARNING, "--disable-log-stats"),
        ({"metrics": Answer(status=200, body=OLD_PAGE)}, "metrics_old", HINT, "0.10.2"),
        ({"metrics": Answer(status=200, body=PAGE.replace(b"_waiting", b"_x"))}, "metrics_lacking", WARNING, "unfiltered"),
        ({"metrics": Answer(status=200, body=PAGE.replace(b"True", b"False"))}, "prefix_caching_off", HINT, "--enable-prefix"),
        ({"completion": None}, "details_unknown", HINT, "--probe"),
        ({"completion": None}, "times_unknown", HINT, "--enable-per-request-metrics"),
        ({"completion": a_completion()}, "details_off", WARNING, "--enable-prompt-tokens-details"),
        ({"completion": a_completion(), "version": a_page(version="0.22.1")}, "details_unsure", HINT, "--enable-prompt"),
        ({"completion": a_completion({})}, "times_off", HINT, "--enable-per-request-metrics"),
        ({"completion": Answer(status=500)}, "completion_failed", ERROR, "log"),
        ({"completion": Failure.SILENT}, "completion_failed", WARNING, "log"),
    ],
)
def test_one_worker(change, code, severity, mend):
    """Each fault of a worker is found, is as bad as it is, and names what mends it."""
    seen = replace(ALL_WELL, workers=(replace(WELL, **change),))

    assert codes(seen)[code] is severity
    assert mend in found_of(code, seen).mend
    assert found_of(code, seen).subjects == ("w (http://w:8000)",)


@pytest.mark.parametrize(
    "change",
    [
        {"health": at_time(NOW + 4)},
        {"health": Answer(status=200, at=NOW, date="yesterday")},
        {"models": a_list("other", "m")},
        {"models": a_list("m", max_model_len=4096)},
        {"models": a_list("m", max_model_len=None)},
        {"version": a_page(version="0.22.1"), "completion": a_completion({"cached_tokens": 1})},  # no flag for times yet
        {"metrics": Answer(status=200, body=PAGE + OLD_PAGE)},  # both names, as in versions between
    ],
)
def test_what_is_no_fault(change):
    """What is within bounds, or cannot be otherwise, is not found."""
    assert find(replace(ALL_WELL, workers=(replace(WELL, **change),))) == ()


def test_one_fault_hides_what_follows_from_it():
    """A worker that does not answer, or is another program, has that one finding and no others."""
    for change in ({"health": Failure.REFUSED}, {"health": HTML, "version": HTML, "models": HTML, "metrics": HTML}):
        assert len(find(replace(ALL_WELL, workers=(replace(WELL, completion=None, **change),)))) == 1


def test_the_text_says_what_is_listed():
    """Of a wrong model name one learns which the worker has."""
    seen = replace(ALL_WELL, workers=(replace(WELL, models=a_list("other", "more")),))
    assert "lists other, more" in found_of("model_not_listed", seen).wrong


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"version": a_page(version="0.22.1")}, "pool_differs_in_version", "0.32.0 (w); 0.22.1 (v)"),
        ({"models": a_list("m", max_model_len=9000)}, "pool_differs_in_max_model_len", "8192 (w); 9000 (v)"),
        ({"models": a_list("m", root="org/m2")}, "pool_differs_in_root", "org/m (w); org/m2 (v)"),
    ],
)
def test_workers_of_a_pool_are_alike(change, code, text):
    """Workers that stand in for each other and differ are found, with who has what; in two pools they may differ."""
    second = replace(WELL, target=replace(TARGET, worker="v"), **change)
    elsewhere = replace(second, target=replace(TARGET, worker="v", pool="q"))

    found = found_of(code, replace(ALL_WELL, workers=(WELL, second)))
    assert (found.severity, found.subjects) == (WARNING, ("pool m/p",))
    assert text in found.wrong
    assert find(replace(ALL_WELL, workers=(WELL, elsewhere))) == ()


def test_the_same_words_are_one_finding():
    """What is true of several workers is said once, with all their names; worst comes first."""
    second = replace(WELL, target=replace(TARGET, worker="v", url="http://v"), completion=None)
    seen = replace(ALL_WELL, workers=(replace(WELL, completion=None), second), file_limit=1024)

    assert found_of("times_unknown", seen).subjects == ("w (http://w:8000)", "v")
    assert [found.severity for found in find(seen)] == [WARNING, HINT, HINT]


SILENT_GATEWAY = GatewaySeen(livez=Failure.REFUSED, readyz=Failure.REFUSED, state=Failure.REFUSED)
IN_USE = ListenerSeen(setting="listen", address="127.0.0.1:1", fault="Address already in use", is_in_use=True)
NOT_HAD = ListenerSeen(setting="listen", address="127.0.0.1:1", fault="Permission denied")


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"gateway": SILENT_GATEWAY}, "gateway_not_running", HINT),
        ({"gateway": SILENT_GATEWAY, "has_configuration": False}, "gateway_not_found", ERROR),
        ({"gateway": SILENT_GATEWAY, "listeners": (IN_USE,)}, "address_in_use", ERROR),
        ({"gateway": SILENT_GATEWAY, "listeners": (NOT_HAD,)}, "address_not_to_be_had", ERROR),
        ({"gateway": replace(RUNNING, state=Failure.REFUSED, readyz=Failure.REFUSED)}, "control_away", WARNING),
        ({"gateway": replace(RUNNING, state=HTML)}, "admin_away", WARNING),
        ({"gateway": replace(RUNNING, state=replace(HTML, status=401))}, "admin_token", HINT),
        ({"gateway": replace(RUNNING, readyz=HTML)}, "observe_away", WARNING),
        ({"gateway": replace(RUNNING, livez=Failure.REFUSED)}, "serving_away", ERROR),
        ({"gateway": replace(RUNNING, state=a_state(("w", False)))}, "worker_down", WARNING),
        ({"gateway": replace(RUNNING, state=a_state(("other", True)))}, "worker_not_in_force", HINT),
        ({"gateway": replace(RUNNING, state=a_state(("w", None), log_lines_dropped=3))}, "log_lost", WARNING),
        ({"file_limit": 1024}, "file_limit", WARNING),
        ({"proxy_variables": ("HTTP_PROXY",)}, "proxy_ignored", HINT),
        ({"drain_seconds": 120.0, "ending_seconds": 10.0, "grace_seconds": 129.0}, "grace_too_short", WARNING),
        ({"warnings": ("something new",)}, "configuration", WARNING),
    ],
)
def test_the_gateway_and_its_surroundings(change, code, severity):
    """Each fault beside the workers is found on its own and is as bad as it is."""
    found = codes(replace(ALL_WELL, **change))
    assert found.pop(code) is severity
    assert found in ({}, {"gateway_not_running": HINT})


def test_a_gateway_of_another_file_is_told_as_such():
    """It has none of the file's models: that its workers are not in force there says nothing more."""
    other = a_page(
        version="1",
        serving_processes=1,
        pools=[{"model": name, "pool": "p", "workers": []} for name in ("llama", "qwen", "llama")],
    )
    seen = replace(ALL_WELL, gateway=replace(RUNNING, state=other))

    found = found_of("other_gateway", seen)
    assert codes(seen) == {"other_gateway": WARNING}
    assert "llama, qwen" in found.wrong
    assert "SIGHUP" in found.mend


def test_a_grace_period_that_is_enough():
    """Draining and ending within the grace period are no fault, and without a grace period nothing is said."""
    seen = replace(ALL_WELL, drain_seconds=120.0, ending_seconds=10.0)
    assert find(replace(seen, grace_seconds=130.0)) == ()
    assert find(seen) == ()


def test_a_worker_that_is_down_for_both_is_told_once():
    """That the gateway calls a worker down that does not answer here either is no second finding."""
    gateway = replace(RUNNING, state=a_state(("w", False)))
    assert codes(Observations(workers=(replace(WELL, health=Failure.REFUSED),), gateway=gateway)) == {"worker_refused": ERROR}


def test_every_warning_of_the_configuration_has_a_mend():
    """Each kind of warning that a configuration can have is mended by something more than the reference."""
    config = parse_config(
        """
models:
  - {name: a, workers: [{name: x, url: "http://w"}]}
  - {name: b, workers: [{name: y, url: "http://w"}]}
limits: {worker_idle_seconds: 5, head_hold_seconds: 20, first_byte_seconds: 10, total_seconds: 1}
""",
        {},
        "test",
    )
    found = [found for found in find(replace(ALL_WELL, warnings=warnings_of(config))) if found.code == "configuration"]
    assert len({found.mend for found in found}) == len(found) == 5
    assert not any("reference" in found.mend for found in found)


@pytest.mark.parametrize(
    ("severities", "status"), [([], 0), ([HINT], 0), ([HINT, WARNING], 1), ([WARNING, ERROR, HINT], 2), ([ERROR], 2)]
)
def test_exit_status(severities, status):
    """The worst finding decides."""
    findings = [Finding(severity=each, code="c", subjects=("s",), wrong="w", mend="m") for each in severities]
    assert exit_status(findings) == status


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b'{"version": 1}', b'{"data": 1}', b"[" * 100_000])
def test_any_body_can_be_read(body):
    """Whatever a worker sends is at worst not understood."""
    reply = Answer(status=200, body=body)
    assert (read_version(reply), read_models(reply), read_completion(reply)) == (None, None, None)
    assert (read_families(reply), read_prefix_caching(reply)) == (frozenset(), None)


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.32.0", (0, 32)), ("v0.8.5.post1", (0, 8)), ("1.2rc1+cpu", (1, 2)), ("0.1.dev1+g0", None), ("dev", None), (None, None)],
)
def test_release_of_a_version(version, release):
    """Release numbers are found in the forms vLLM has; builds without a tag say nothing."""
    assert read_release(version) == release


def test_texts_of_others_are_made_plain():
    """Control characters are replaced and long texts cut; of many names the first are shown."""
    assert plain("a\x1b[31mb\n") == "a?[31mb?"
    assert len(plain("x" * 1000)) == 80
    assert listing(["a", "b", "c"], 2) == "a, b and 1 more"


def test_a_pool_without_workers_is_an_error():
    """Nobody has been found for it: everything that is asked of it is refused."""
    assert codes(replace(ALL_WELL, empty_pools=("m/short",))) == {"no_workers": ERROR}
