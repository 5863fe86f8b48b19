"""The settings: defaults, bounds, and one readable problem for each mistake, all in one go."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.config.bounds import LimitsConfig, PoolLimits
from proxy.config.settings import ConfigError, Problem, load_config, parse_config
from routing.topology import Limits
from tests.proxy.config.mistakes import only_problem, problems

ROOT = Path(__file__).parents[3]
SHA = hashlib.sha256(b"sk-test").hexdigest()
MINIMAL = "models:\n  - {name: m, workers: [http://127.0.0.1:8000]}\n"


def test_the_smallest_configuration():
    """One model with one worker is enough; everything else has the documented default."""
    config = parse_config(MINIMAL, {}, "file.yaml")
    assert (config.listen, config.observe_listen, config.admin_listen) == ("0.0.0.0:8080", "0.0.0.0:8082", "127.0.0.1:8081")
    (pool,) = config.models[0].pools_in_force
    assert (pool.name, pool.policy, pool.ask_usage, pool.max_total_tokens) == ("default", "prefix-affinity", True, None)
    assert config.log.path == "-"
    assert config.worker_key is None
    assert config.keys == ()


@pytest.mark.parametrize("name", ["minimal", "two-pools", "found-workers"])
def test_examples_load(name):
    """Every example is a valid configuration in an empty environment."""
    assert load_config(ROOT / f"examples/{name}.yaml", {}).models


def test_limits_are_those_of_the_topology():
    """The settings have the same names and defaults as the values that the processes work with."""
    assert LimitsConfig().model_dump() == {name: getattr(Limits(), name) for name in Limits.__dataclass_fields__}
    assert PoolLimits.model_fields.keys() < LimitsConfig.model_fields.keys()


def test_a_full_configuration():
    """Every setting can be given, with numbers and booleans from variables too."""
    text = f"""
listen: "[::1]:${{PORT}}"
models:
  - name: meta-llama/Llama 3.1
    aliases: [llama, "1"]
    shape: {{hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 128, vocab_size: 100}}
    pools:
      - name: long
        workers: [http://a:8000, {{name: b, url: http://b:8000/v1}}]
        gpu: h100-sxm
        gpus_per_worker: 2
        tensor_parallel: 2
        weight_dtype: bf16
        kv_dtype: fp8
        policy: round-robin
        ask_usage: ${{ASK}}
        worker_key: other
        limits: {{total_seconds: null, connect_seconds: 1}}
      - {{name: short, max_total_tokens: "${{TOKENS}}", workers: [http://c:8000]}}
worker_key: ${{KEY}}
keys: [{{name: app, sha256: {SHA.upper()}, models: [meta-llama/Llama 3.1]}}]
limits: {{drain_seconds: 0, body_bytes: 1_000}}
log: {{path: /var/log/ridgeline.jsonl}}
"""
    config = parse_config(text, {"PORT": "80", "ASK": "off", "TOKENS": "4096", "KEY": "12345"}, "file.yaml")
    assert config.listen == "[::1]:80"
    assert [pool.name for pool in config.models[0].pools_in_force] == ["short", "long"]
    assert config.models[0].pools[0].ask_usage is False
    assert config.models[0].pools[1].max_total_tokens == 4096
    assert config.models[0].pools[0].workers[1].url == "http://b:8000"
    assert config.worker_key is not None
    assert config.worker_key.get_secret_value() == "12345"
    assert config.keys[0].sha256 == (SHA,)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("listen: 8080", "listen: is a number without a host; write 0.0.0.0:8080"),
        ("listen: a", "listen: the address is not host:port"),
        ("listen: 0.0.0.0:70000", "listen: the port is out of range"),
        ("lisen: 0.0.0.0:80", "lisen: `lisen` is not a known key here; did you mean `listen`?"),
        ("frobnicate: 1", "frobnicate: `frobnicate` is not a known key here; known keys: listen,"),
        (
            "tracing: {otlp_endpoint: localhost}",
            "tracing.otlp_endpoint: is no http or https URL; write the receiver's base URL",
        ),
        ("tracing: {otlp_endpoint: 'http://c:4317'}", "tracing.otlp_endpoint: has the port of OTLP over gRPC, 4317; use"),
        (
            "tracing: {otlp_endpoint: 'http://u:s3cret@c'}",
            "tracing.otlp_endpoint: has a user name or password in it, which is not",
        ),
        ("tracing: {otlp_endpoint: 'http://c?key=a'}", "tracing.otlp_endpoint: has a query or fragment"),
        ("tracing: {otlp_endpoint: 'http://c:99999'}", "tracing.otlp_endpoint: is no http or https URL"),
        ("tracing: {sample_ratio: 1.5}", "tracing.sample_ratio: must be at most 1, not 1.5"),
        ("tracing: {sample_ratio: true}", "tracing.sample_ratio: is a boolean"),
        ("tracing: {semconv: v1.28}", "tracing.semconv: must be `v1.41` or `latest`, not `v1.28`; did you mean `v1.41`?"),
        ("tracing: {headers: {'a b': c}}", "tracing.headers.a b: is no name of a header"),
        ('tracing: {headers: {a: "s3cret\\nx"}}', "tracing.headers.a: has a line break or a character outside ASCII"),
        (
            "tracing: {endpoint: 'http://c'}",
            "tracing.endpoint: `endpoint` is not a known key here; did you mean `otlp_endpoint`?",
        ),
        ("chains: {header: Cookie}", "chains.header: `cookie` belongs to one connection or one request, or is a secret"),
        ("chains: {header: 'x:'}", "chains.header: is no name of a header"),
        ("keys:", "keys: has no value"),
        ("keys: {a: b}", "keys: must be a list, not a mapping"),
        (f"keys: [{{name: a, sha256: {SHA}, models: []}}]", "keys[0].models: is empty"),
        (f"keys: [{{name: a, sha256: {SHA}, models: [n]}}]", "keys[0].models[0]: is no configured model; "),
        *(
            (
                f"keys: [{{name: a, sha256: '{SHA}{behind}'}}]",
                "keys[0].sha256: has something behind the SHA-256's 64 digits, as",
            )
            for behind in ("  -", " *-", "  key.txt", " ")
        ),
        (
            f"admin_token_sha256: {SHA}  -",
            "admin_token_sha256: has something behind the SHA-256's 64 digits, as sha256sum writes",
        ),
        (f"keys: [{{name: a, sha256: 'sha256:{SHA}'}}]", "keys[0].sha256: has something before the SHA-256's 64 digits; give"),
        (
            f"keys: [{{name: a, sha256: 'SHA2-256(stdin)= {SHA}'}}]",
            "keys[0].sha256: has something before the SHA-256's 64 digits",
        ),
        (f"keys: [{{name: a, sha256: {SHA}0}}]", "keys[0].sha256: is not a SHA-256 (64 hexadecimal digits); the value is not"),
        (f"keys: [{{name: a, sha256: {hashlib.sha256().hexdigest()}}}]", "keys[0].sha256: is the SHA-256 of an empty text"),
        ("limits: {body_bytes: 64MB}", "limits.body_bytes: must be a whole number, not `64MB`"),
        ("log: {path: ''}", "log.path: is empty"),
        ('log: "-"', "log: must be a mapping, not `-`"),
        ("worker_key: ''", "worker_key: is empty"),
        ("worker_key: ${NO}", "worker_key: needs the environment variable NO, which is not set"),
    ],
)
def test_mistakes_at_the_top(line, expected):
    """Each mistake is one problem at its line, with a remedy."""
    problem = only_problem(f"{MINIMAL}{line}\n")
    assert problem.startswith("line 3")
    assert expected in problem


@pytest.mark.parametrize(
    "line",
    [
        "worker_key: hunter2 hunter2",
        "worker_key: [hunter2]",
        "worker_key: {hunter2: 1}",
        'worker_key: "hunter2\\n"',
        "worker_key: ${SECRET}\nlisten: ${SECRET}\nlimits: ${SECRET}",
        "keys: [hunter2]",
        "keys: hunter2",
        "keys: {hunter2: app}",
        "keys: [{name: a, sha256: hunter2}]",
        "keys: [{name: a, key: hunter2}]",
        "keys: [{hunter2: app}]",
        "keys: [{name: a, sha256: [hunter2]}]",
        "keys: [{name: a, sha256: sk, models: {hunter2: 1}}]",
    ],
)
def test_problems_never_show_secrets(line):
    """Whatever is wrong with a key, its text is not in the problem."""
    shown = " ".join(problems(f"{MINIMAL}{line}\n", SECRET="hunter2 \n"))
    assert "hunter2" not in shown


def test_numbers_as_secrets_are_not_shown():
    """A key that YAML reads as a number is refused without quoting it."""
    assert "4711" not in only_problem(f"{MINIMAL}worker_key: 4711\n")
    assert "4711" not in " ".join(problems(f"{MINIMAL}keys: [{{name: 47110, sha256: 4711}}]\n"))


def test_secrets_are_not_in_the_repr():
    """Neither the worker key nor the sums of client keys are in what a log or a debugger would show."""
    config = parse_config(f"{MINIMAL}worker_key: hunter2\nkeys: [{{name: a, sha256: {SHA}}}]\n", {}, "file.yaml")
    assert "hunter2" not in repr(config)
    assert SHA not in repr(config)


def test_all_problems_come_at_once():
    """Problems of the reader, of single values and of values together are all reported, in the order of the file."""
    text = "lisen: 1\nmodels:\n  - {name: m, workers: [http://a, http://a]}\n  - {name: m, workers: [${X}]}\n".replace(
        "[${X}]", '["${X}"]'
    )
    found = problems(text + "listen: 8080\nlog: {path: 1}\nlog: {path: b}\n")
    assert [line.split(":")[0] for line in found] == [
        "line 1, lisen",
        "line 3, models[0].workers[1]",
        "line 4, models[1].name",
        "line 4, models[1].workers[0]",
        "line 5, listen",
        "line 6, log.path",
        "line 7, log",
    ]


def test_the_error_is_readable():
    """The error names the file, counts the problems and puts each on a line of its own."""
    with pytest.raises(ConfigError) as caught:
        parse_config("models: []\nlisen: 1\n", {}, "/etc/ridgeline.yaml")
    assert str(caught.value) == (
        "/etc/ridgeline.yaml: 2 problems\n"
        "  line 1, models: is empty; give at least one\n"
        "  line 2, lisen: `lisen` is not a known key here; did you mean `listen`?"
    )


def test_a_configuration_cannot_be_changed():
    """Settings are values: assigning to one fails."""
    config = parse_config(MINIMAL, {}, "file.yaml")
    with pytest.raises(ValidationError):
        config.listen = "a:1"  # type: ignore[misc]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["http://a", "m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "url", "workers", "pools", "limits"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["models", "keys", "limits", "listen", "log", "worker_key"]), JUNK))
def test_any_yaml_is_a_configuration_or_a_config_error(tree):
    """Whatever types stand where, the only error is a `ConfigError` whose problems are complete."""
    found: tuple[Problem, ...] = ()
    try:
        parse_config(json.dumps(tree), {}, "file.yaml")
    except ConfigError as error:
        found = error.problems or (Problem(path="", line=None, wrong="", right=""),)
    assert all(problem.wrong and problem.right for problem in found)


def test_importing_the_configuration_is_cheap():
    """Every process imports it at start: nothing for terminals, servers or clients comes with it."""
    code = "import sys, proxy.config.settings; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "typer", "aiohttp", "uvloop", "prometheus_client", "asyncio"} & set(loaded)


def test_tracing_is_off_by_default():
    """Without a receiver nothing is traced; names of headers are lower case, and their values are shown to nobody."""
    plain = parse_config(f"{MINIMAL}tracing: {{otlp_endpoint: null}}", {}, "f")
    told = parse_config(f"{MINIMAL}tracing: {{otlp_endpoint: 'https://c/', headers: {{Api-Key: s3cret}}}}", {}, "f")

    assert (plain.tracing.otlp_endpoint, plain.tracing.sample_ratio, plain.chains.header) == (None, 0.01, None)
    assert told.tracing.otlp_endpoint == "https://c"
    assert {name: value.get_secret_value() for name, value in told.tracing.headers.items()} == {"api-key": "s3cret"}
    assert "s3cret" not in repr(told)


@pytest.mark.parametrize(("setting", "package"), [("file", "tokenizers"), ("tiktoken", "tiktoken")])
def test_a_tokenizer_needs_its_package(setting, package, monkeypatch):
    """What could never count is found when the file is read, with what to install."""
    monkeypatch.setattr("proxy.config.tokenizer.find_spec", lambda name: None)
    text = f"models: [{{name: m, tokenizer: {{{setting}: /x}}, workers: ['http://a:1']}}]"

    with pytest.raises(ConfigError, match=f"counts with the package {package}, which is not installed here; install the extra"):
        parse_config(text, {}, "test")
