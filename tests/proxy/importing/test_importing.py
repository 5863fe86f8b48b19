"""Configurations of other gateways: what they become, what is said to be left out, and that no secret comes along."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from proxy.cli import app
from proxy.config.errors import ConfigError
from proxy.importing.command import Kind, imported
from proxy.importing.draft import Draft, NothingToImportError
from proxy.importing.options import options_of

FOLDER = Path(__file__).resolve().parents[2] / "data/imports"
SECRETS = (
    "sk-in-the-clear-0123456789",
    "hunter2-of-redis",
    "sk-master-1234",
    "secret-of-db",
    "sk-literal-worker-key",
    "from-the-vault",
)


def made(kind: Kind, name: str, **options: Any) -> tuple[dict[str, Any], Draft, str]:
    """The settings as a program reads them, the draft and the text."""
    whole = {"model": None, "release": "vllm"} | options
    text, draft = imported(kind, (FOLDER / name).read_text(), source=name, **whole)
    return yaml.safe_load(text), draft, text


def left_out(draft: Draft) -> set[str]:
    return {note.where for note in draft.left_out}


def from_text(kind: Kind, text: str, **options: Any) -> Draft:
    return imported(kind, text, source="it", **({"model": "m", "release": "vllm"} | options))[1]


def test_deployments_of_litellm_become_workers_of_the_model_they_ask_for():
    """What clients send is an alias of what workers are asked for; policy, keys, caps and limits go along."""
    settings, _, _ = made(Kind.LITELLM, "litellm.yaml")

    llama, qwen = settings["models"]
    assert (llama["name"], llama["aliases"]) == ("meta-llama/Llama-3.1-8B-Instruct", ["llama", "llama-3"])
    assert llama["pools"] == [
        {
            "name": "default",
            "workers": ["http://10.0.0.11:8000", "http://10.0.0.12:8000"],
            "policy": "least-load",
            "worker_key": "${VLLM_KEY}",
            "limits": {"total_seconds": 300},
            "admission": {"max_requests_per_worker": 64},
        }
    ]
    assert qwen["pools"][0]["workers"] == ["${QWEN_BASE}"]
    assert "aliases" not in qwen
    assert settings["keys"] == [{"name": "master", "sha256": hashlib.sha256(b"sk-master-1234").hexdigest()}]
    assert (settings["retries"], settings["limits"]) == ({"max_attempts": 3}, {"total_seconds": 600})
    assert settings["health"] == {"failures_in_row": 4, "ejection_seconds": 30}


def test_what_litellm_has_beyond_workers_is_named():
    """Clouds, wildcards, rates, fallbacks, callbacks, databases; what nobody would miss is not."""
    _, draft, _ = made(Kind.LITELLM, "litellm.yaml")

    assert left_out(draft) == {
        "model_list[0].litellm_params.rpm",
        "model_list[3]",
        "model_list[4]",
        "model_list[5]",
        "router_settings.redis_host",
        "router_settings.redis_password",
        "litellm_settings.success_callback",
        "litellm_settings.context_window_fallbacks",
        "general_settings.database_url",
    }


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ([], "no model_list"),
        ([{"model_name": "a", "litellm_params": {"model": "gpt-4o"}}], "no vLLM server"),
        ([{"model_name": "a", "litellm_params": {"model": "openai/gpt-4o"}}], "no api_base"),
        ([{"model_name": "a", "litellm_params": {"model": "openai/b", "api_base": "grpc://x/v1"}}], "grpc to workers"),
        ([{"model_name": "a", "litellm_params": {"model": "openai/b", "api_base": "https://api.openai.com/v1"}}], "of a cloud"),
        ([{"model_name": "a", "litellm_params": {"model": "openai/b", "api_base": "http://me:pass@x"}}], "Bearer token"),
        ([{"model_name": "a"}], "none of its deployments"),
    ],
)
def test_a_litellm_without_a_vllm_has_nothing_to_import(models, reason):
    """The reason is that of its deployments; a password in a URL is not repeated."""
    with pytest.raises(NothingToImportError, match=reason) as failure:
        from_text(Kind.LITELLM, yaml.safe_dump({"model_list": models}))

    assert "pass@" not in str(failure.value)


def test_workers_with_https_are_taken_and_have_to_be_trusted():
    """Which the file says."""
    entry = {"model_name": "a", "litellm_params": {"model": "openai/b", "api_base": "https://vllm.internal/v1"}}

    text, draft = imported(Kind.LITELLM, yaml.safe_dump({"model_list": [entry]}), source="it", model=None, release="vllm")

    assert draft.settings["models"][0]["pools"][0]["workers"] == ["https://vllm.internal"]
    assert "worker_tls" in text


def test_two_groups_for_the_same_workers_are_one_model_with_two_names():
    """And with other workers the second is left out: a name of vLLM's can stand for one set only."""

    def entry(group: str, url: str) -> dict[str, Any]:
        return {"model_name": group, "litellm_params": {"model": "hosted_vllm/m", "api_base": url}}

    entries = [entry("fast", "http://a:1"), entry("slow", "http://a:1/v1/"), entry("other", "http://b:1")]

    draft = from_text(Kind.LITELLM, yaml.safe_dump({"model_list": entries}))

    (model,) = draft.settings["models"]
    assert model["aliases"] == ["fast", "slow"]
    assert left_out(draft) == {"model_list[2]"}


def test_engines_of_production_stack_are_found_by_their_services():
    """Engines with one model and several lengths are its pools; the session header goes along; a served name is what counts."""
    settings, draft, _ = made(Kind.PRODUCTION_STACK, "production-stack.yaml", release="prod")

    llama, opt = settings["models"]
    short, long = llama["pools"]
    assert short["workers"] == {"kubernetes": {"service": "prod-llama-short-engine-service", "port": 8000}}
    assert (short["max_total_tokens"], long["max_total_tokens"], long["tensor_parallel"]) == (16384, 131072, 2)
    assert (long["policy"], long["session_header"]) == ("session", "x-user-id")
    assert (opt["name"], opt["pools"][0].get("max_total_tokens")) == ("opt", None)
    assert settings["worker_key"] == "${VLLM_API_KEY}"
    assert left_out(draft) == {"routerSpec.autoscaling", "routerSpec.extraArgs --enable-batch-api", "cacheserverSpec"}


@pytest.mark.parametrize("name", ["production-stack-static.yaml", "production-stack-dynamic.json"])
def test_listed_backends_of_production_stack_are_grouped_by_their_models(name):
    """In the chart's values and in the router's dynamic configuration; all of it is carried over."""
    settings, draft, _ = made(Kind.PRODUCTION_STACK, name)

    workers = {model["name"]: model["pools"][0]["workers"] for model in settings["models"]}
    assert workers["llama"][0] == "http://10.0.0.11:8000"
    assert set(workers) == {"llama", "opt"}
    assert draft.left_out == []


def test_backends_and_models_that_do_not_match_are_refused():
    """They belong together one by one."""
    text = yaml.safe_dump({"routerSpec": {"serviceDiscovery": "static", "staticBackends": "a:1,b:1", "staticModels": "m"}})

    with pytest.raises(NothingToImportError, match="2 backends and 1 models"):
        from_text(Kind.PRODUCTION_STACK, text)


def test_the_command_line_of_vllm_router_is_found_in_a_script():
    """Over continued lines, up to the redirection; ranks, limits, retries and breakers go along, under their names here."""
    settings, draft, _ = made(Kind.VLLM_ROUTER, "vllm-router.sh", model="llama")

    (model,) = settings["models"]
    (pool,) = model["pools"]
    assert model["name"] == "llama"
    assert pool["workers"] == [{"url": f"http://10.0.0.1{n}:8000", "data_parallel_ranks": 8} for n in (1, 2)]
    assert (pool["policy"], pool["session_header"], pool["worker_key"]) == ("session", "x-session-id", "${VLLM_KEY}")
    assert (settings["listen"], settings["observe_listen"]) == ("0.0.0.0:30000", "127.0.0.1:29000")
    assert settings["limits"] == {"body_bytes": 268435456, "total_seconds": 900}
    assert settings["admission"] == {"queue_requests": 50, "queue_seconds": 15}
    assert (settings["retries"], settings["health"]["failures_in_row"]) == ({"max_attempts": 3}, 4)
    assert left_out(draft) == {"--max-concurrent-requests"}


def test_the_command_line_of_vllm_router_is_found_in_a_deployment():
    """Pods are found by a Service, whose name somebody has to say; so has the model's."""
    settings, draft, _ = made(Kind.VLLM_ROUTER, "vllm-router.yaml")

    found = {"service": "${WORKER_SERVICE}", "port": 8000, "namespace": "llm"}
    assert settings["models"][0]["pools"][0]["workers"] == {"kubernetes": found}
    assert set(draft.variables) == {"MODEL", "WORKER_KEY", "WORKER_SERVICE"}
    assert left_out(draft) == {"--selector", "--wasm-middleware"}


def test_figures_beyond_what_may_be_are_brought_within():
    """So that something is written: many retries, and a pause that is longer than its usual bound."""
    line = "vllm-router --worker-urls http://a:1 --retry-max-retries 1000 --cb-timeout-duration-secs 900"

    draft = from_text(Kind.VLLM_ROUTER, line)

    assert draft.settings["retries"] == {"max_attempts": 100}
    assert draft.settings["health"] == {"ejection_seconds": 900, "max_ejection_seconds": 900}


def test_a_prefill_worker_becomes_the_stage_of_a_pool():
    """Those that decode are the pool; a bootstrap port is nothing that this exchange needs, which is said."""
    settings, draft, _ = made(Kind.VLLM_ROUTER, "vllm-router.service", model="m")

    (pool,) = settings["models"][0]["pools"]
    assert pool == {
        "name": "default",
        "workers": ["http://10.0.0.12:8000"],
        "policy": "prefix-affinity",
        "prefill": {"workers": ["http://10.0.0.11:8000"], "policy": "prefix-affinity"},
    }
    assert left_out(draft) == {"--prefill"}


@pytest.mark.parametrize(
    ("policies", "pool", "stage", "notes"),
    [
        ("--policy round_robin", "round-robin", "round-robin", set()),
        ("--policy random --decode-policy round_robin", "round-robin", "power-of-two", set()),
        ("--prefill-policy random", "prefix-affinity", "power-of-two", set()),
        ("--policy consistent_hash", "session", "session", set()),
        ("--prefill-policy consistent_hash", "prefix-affinity", None, {"--prefill-policy"}),
        ("--decode-policy unheard_of", None, "prefix-affinity", {"--decode-policy"}),
        ("--kv-connector nixl", "prefix-affinity", "prefix-affinity", set()),
        ("--kv-connector mooncake", "prefix-affinity", "prefix-affinity", {"--kv-connector"}),
    ],
)
def test_both_kinds_of_worker_have_their_policy(policies, pool, stage, notes):
    """Each its own before the general one; sessions bind to the stage only where they bind to the pool."""
    line = f"vllm-router --vllm-pd-disaggregation --prefill http://p:1 --prefill http://q:1 --decode http://d:1 {policies}"

    draft = from_text(Kind.VLLM_ROUTER, line)

    (found,) = draft.settings["models"][0]["pools"]
    assert (found["workers"], found["prefill"]["workers"]) == (["http://d:1"], ["http://p:1", "http://q:1"])
    assert (found.get("policy"), found["prefill"].get("policy")) == (pool, stage)
    assert left_out(draft) == notes


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("vllm-router --pd-disaggregation --prefill http://p:1 9000 --decode http://d:1", "SGLang"),
        ("vllm-router --vllm-pd-disaggregation --prefill http://p:1", "names no worker that can be served"),
        ("vllm-router --vllm-pd-disaggregation --prefill http://p:1 --decode http://d:zmq://d:2", "kv_transfer_params"),
    ],
)
def test_pairs_without_a_worker_that_generates_are_nothing_to_import(line, why):
    """Nor are those that hand their caches over in another way served as if each could do both."""
    with pytest.raises(NothingToImportError, match=why):
        from_text(Kind.VLLM_ROUTER, line)


STACK_LINE = (
    "vllm-router --static-backends http://p:1,http://d:1,http://q:1 --static-models m,m,n --static-model-labels pre,dec,pre "
    "--prefill-model-labels pre --decode-model-labels dec --routing-logic "
)


@pytest.mark.parametrize(
    ("logic", "notes"),
    [
        ("disaggregated_prefill_orchestrated", {"--static-backends"}),
        ("disaggregated_prefill", {"--static-backends", "--routing-logic"}),
    ],
)
def test_labels_say_who_computes_prompts(logic, notes):
    """LMCache's own transfer is another one, which is said; a model that nobody generates for is left out."""
    draft = from_text(Kind.VLLM_ROUTER, STACK_LINE + logic)

    pool = {"name": "default", "workers": ["http://d:1"], "prefill": {"workers": ["http://p:1"]}}
    assert draft.settings["models"] == [{"name": "m", "pools": [pool]}]
    assert left_out(draft) == notes


def test_labels_are_only_labels_where_prefill_is_not_apart():
    """Every backend does both phases then; too few labels are refused where they tell the kinds."""
    models = from_text(Kind.VLLM_ROUTER, STACK_LINE + "roundrobin").settings["models"]
    assert [model["pools"][0]["workers"] for model in models] == [["http://p:1", "http://d:1"], ["http://q:1"]]

    with pytest.raises(NothingToImportError, match="3 backends and 2 labels"):
        from_text(Kind.VLLM_ROUTER, STACK_LINE.replace("pre,dec,pre", "pre,dec") + "disaggregated_prefill")


def engines_apart(*decode_tokens: int) -> dict[str, Any]:
    """Values of the chart: one set of engines that computes prompts, and one that generates for each length."""

    def engine(name: str, phase: str, tokens: int) -> dict[str, Any]:
        return {"name": name, "modelURL": "org/m", "labels": {"model": f"m-{phase}"}, "vllmConfig": {"maxModelLen": tokens}}

    specs = [engine("prefill-1", "prefill", 4096)]
    specs += [engine(f"decode-{number}", "decode", tokens) for number, tokens in enumerate(decode_tokens, 1)]
    router = {
        "routingLogic": "disaggregated_prefill_orchestrated",
        "extraArgs": ["--prefill-model-labels", "m-prefill", "--decode-model-labels=m-decode"],
    }

    return {"servingEngineSpec": {"modelSpec": specs}, "routerSpec": router}


def test_engines_of_the_chart_that_compute_prompts_become_a_stage():
    """By their label; their Service is one worker, since those of a stage are listed."""
    draft = from_text(Kind.PRODUCTION_STACK, yaml.safe_dump(engines_apart(4096)))

    pool = {
        "name": "decode-1",
        "workers": {"kubernetes": {"service": "vllm-decode-1-engine-service", "port": 8000}},
        "prefill": {"workers": ["http://vllm-prefill-1-engine-service:80"]},
    }
    assert draft.settings["models"] == [{"name": "org/m", "pools": [pool]}]
    assert left_out(draft) == {"servingEngineSpec.modelSpec[0]"}


def test_two_pools_may_have_the_same_stage():
    """Its worker bears another name in the second, as has to be."""
    draft = from_text(Kind.PRODUCTION_STACK, yaml.safe_dump(engines_apart(4096, 32768)))

    url = "http://vllm-prefill-1-engine-service:80"
    assert [pool["prefill"]["workers"] for pool in draft.settings["models"][0]["pools"]] == [
        [url],
        [{"name": "prefill-1-for-decode-2", "url": url}],
    ]


def test_engines_that_only_compute_prompts_are_nothing_to_import():
    """Nobody would generate."""
    with pytest.raises(NothingToImportError, match="no model that is enabled"):
        from_text(Kind.PRODUCTION_STACK, yaml.safe_dump(engines_apart()))


def test_the_other_router_of_that_name_is_known_by_its_options():
    """That of production-stack is started as `vllm-router`, too."""
    line = "vllm-router --service-discovery static --static-backends http://a:1 --static-models m --routing-logic ttft"

    draft = from_text(Kind.VLLM_ROUTER, line)

    pool = {"name": "default", "workers": ["http://a:1"], "policy": "fastest"}
    assert draft.settings["models"] == [{"name": "m", "pools": [pool]}]
    assert draft.left_out == []


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("vllm-router --worker-urls a b --policy=random", {"worker-urls": ["a", "b"], "policy": ["random"]}),
        ("python -m vllm_router.launch_router --worker-urls a && echo --policy x", {"worker-urls": ["a"]}),
        ("# vllm-router --worker-urls old\nvllm-router --worker-urls new", {"worker-urls": ["new"]}),
        (
            "ExecStart=/opt/vllm-router --worker-urls a --worker-urls b --disable-retries",
            {"worker-urls": ["a", "b"], "disable-retries": []},
        ),
        ("services: {router: {command: vllm-router --worker-urls a}}", None),
        ("services:\n  router:\n    command: [--worker-urls, a, --port, 1]", {"worker-urls": ["a"], "port": ["1"]}),
    ],
)
def test_options_are_read_as_a_shell_would(line, options):
    """Wherever the command stands."""
    if options is None:
        assert options_of(line)["worker-urls"][0].startswith("a")
    else:
        assert options_of(line) == options


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[!R]*")), ids=lambda path: path.name)
@pytest.mark.parametrize("kind", list(Kind))
def test_no_secret_is_in_what_is_written_or_said(kind, path):
    """Neither in the file, nor on standard error, nor when the file is of another kind."""
    done = CliRunner().invoke(app, ["import", kind.value, str(path)])

    assert done.exit_code in (0, 1, 2)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    for secret in SECRETS:
        assert secret not in done.output + done.stderr


def test_the_status_says_whether_all_was_carried_over(tmp_path):
    """0 for all of it, 1 for less, 2 for nothing; a file that is there is not written over."""
    runner = CliRunner()
    target = tmp_path / "ridgeline.yaml"
    whole = ["import", "production-stack", str(FOLDER / "production-stack-dynamic.json"), "--output", str(target)]

    assert runner.invoke(app, whole).exit_code == 0
    again = runner.invoke(app, whole)
    assert again.exit_code == 2
    assert "cannot be written" in again.stderr
    assert yaml.safe_load(target.read_text())["models"][0]["name"] == "llama"
    assert runner.invoke(app, ["import", "litellm", str(FOLDER / "litellm.yaml")]).exit_code == 1
    (tmp_path / "broken.yaml").write_text("model_list: [sk-secret-in-it, {")
    broken = runner.invoke(app, ["import", "litellm", str(tmp_path / "broken.yaml")])
    assert (broken.exit_code, "sk-secret" in broken.stderr) == (2, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "model_list",
    "litellm_params",
    "model_name",
    "model",
    "api_base",
    "servingEngineSpec",
    "routerSpec",
    "modelSpec",
    "name",
]
KEYS += [
    "modelURL",
    "vllmConfig",
    "router_settings",
    "model_group_alias",
    "staticBackends",
    "static_backends",
    "serviceDiscovery",
]
SHAPED = st.recursive(
    JSON | st.sampled_from(["hosted_vllm/m", "http://a:1", "static", "openai/x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(tree=SHAPED, kind=st.sampled_from([Kind.LITELLM, Kind.PRODUCTION_STACK]))
def test_no_file_whatever_makes_it_fall_over(tree, kind):
    """It is imported, or refused with a reason."""
    with suppress(NothingToImportError, ConfigError):
        from_text(kind, yaml.safe_dump(tree))


@given(text=st.text(alphabet="-abc =\n'\"\\ worker-urls:[]{}", max_size=80))
def test_no_command_line_whatever_makes_it_fall_over(text):
    """The same for what is no YAML."""
    with suppress(NothingToImportError, ConfigError):
        from_text(Kind.VLLM_ROUTER, "vllm-router --worker-urls " + text)


ROUTER = "vllm-router --worker-urls http://a:1"
SERVED = "model_list: [{model_name: a, litellm_params: {model: openai/a, api_base: 'http://a:1'%s}}]\n%s"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.LITELLM, SERVED % ("", "5: 6\nrouter_settings: {7: 8}")),
        (Kind.LITELLM, SERVED % (", timeout: 1" + "0" * 400, "")),
        (Kind.LITELLM, SERVED % ("", "router_settings: {routing_strategy: [1], model_group_alias: {x: {model: [2]}}}")),
        (Kind.LITELLM, "model_list: " + "[" * 5000 + "]" * 5000),
        (Kind.LITELLM, "model_list: &a\n- *a"),
        (Kind.LITELLM, "model_list: [{model_name: 2024-99-99}]"),
        (Kind.VLLM_ROUTER, "a: &a\n- *a"),
        (Kind.VLLM_ROUTER, "[" * 5000 + "]" * 5000),
        (Kind.VLLM_ROUTER, f"{ROUTER} --port {'9' * 5000}"),
        (Kind.VLLM_ROUTER, "vllm-router --service-discovery k8s --k8s-label-selector a=b --k8s-port x"),
        (Kind.PRODUCTION_STACK, "servingEngineSpec: {modelSpec: [{name: a, modelURL: m}]}\nrouterSpec: {routingLogic: [x]}"),
    ],
)
def test_odd_values_are_refused_or_left_out(kind, text):
    """Numbers without end, lists for names, keys that are numbers, lists that hold themselves: never a fault of ours."""
    with suppress(NothingToImportError, ConfigError):
        from_text(kind, text)


def test_aliases_do_not_grow(tmp_path):
    """Nine lists of nine lists of nine …: refused at once, and through the command as any other file that is none."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 20)]
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join([*lines, "model_list: *a19", ""]))

    result = CliRunner().invoke(app, ["import", "litellm", str(file)])

    assert result.exit_code == 2
    assert "over 200,000 values" in result.output
