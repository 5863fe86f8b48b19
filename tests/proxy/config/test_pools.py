"""Models, pools and workers as they are configured: one readable problem for each mistake."""

import pytest

from tests.proxy.config.mistakes import only_problem

POOLED = """\
models:
  - name: m
    pools:
      - name: p
        workers: [http://127.0.0.1:8000]
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{name: 1, workers: [http://a]}", 'models[0].name: must be text, not 1; put it in quotes: "1"'),
        ("{name: on, workers: [http://a]}", 'models[0].name: must be text, not a boolean (on); put it in quotes: "on"'),
        ("{name: ' a', workers: [http://a]}", "models[0].name: has blanks"),
        ("{name: '', workers: [http://a]}", "models[0].name: is empty"),
        ('{name: "a\\nb", workers: [http://a]}', "models[0].name: has blanks at an end, or characters that cannot be printed"),
        ("{name: unknown, workers: [http://a]}", "models[0].name: `unknown` is reserved"),
        ("{name: m, aliases: [unknown], workers: [http://a]}", "models[0].aliases[0]: `unknown` is reserved"),
        ("{name: m, aliases: x, workers: [http://a]}", "models[0].aliases: must be a list, not `x`"),
        ("{name: m, workers: http://a}", "models[0].workers: is a single text; put the URL into a list"),
        (
            "{name: m, pools: [{name: p, workers: [http://a], prefill: {workers: {dns: a}}}]}",
            "models[0].pools[0].prefill.workers: has `dns` without `port`",
        ),
        (
            "{name: m, pools: [{name: p, workers: [http://a], prefill: {workers: []}}]}",
            "models[0].pools[0].prefill.workers: is empty; give at least one",
        ),
        (
            "{name: m, pools: [{name: p, workers: [http://a], prefill: {workers: http://b}}]}",
            "models[0].pools[0].prefill.workers: is a single text; put the URL into a list",
        ),
        ("{name: m, workers: {dns: a}}", "models[0].workers: has `dns` without `port`"),
        ("{name: m, workers: []}", "models[0].workers: is empty; give at least one"),
        ("{name: m, workers: null}", "models[0].workers: "),
        ("{name: m, workers: [a:8000]}", "models[0].workers[0]: the worker URL has no scheme"),
        ("{name: m, workers: [{url: a:8000}]}", "models[0].workers[0].url: the worker URL has no scheme"),
        ("{name: m, workers: [{name: a}]}", "models[0].workers[0].url: is missing"),
        (
            "{name: m, workers: [{url: http://a, nme: b}]}",
            "models[0].workers[0].nme: `nme` is not a known key here; did you mean `name`?",
        ),
        ("{name: m, workers: [8000]}", "models[0].workers[0]: is a number; write a URL"),
        (
            '{name: m, workers: [{url: http://a, name: "é"}]}',
            "models[0].workers[0].name: has blanks at an end, or characters outside",
        ),
        ("{name: m}", "models[0]: has neither `workers` nor `pools`"),
        (
            "{name: m, gpu: x, workers: [http://a]}",
            "models[0].gpu: `gpu` is not a known key here; it belongs under `models.pools`",
        ),
        ("m", "models[0]: must be a mapping, not `m`"),
    ],
)
def test_mistakes_in_a_model(text, expected):
    """Each mistake is one problem at its place, with a remedy."""
    assert only_problem(f"models:\n  - {text}\n").startswith(f"line 2, {expected}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_total_token: 1", "`max_total_token` is not a known key here; did you mean `max_total_tokens`?"),
        ("max_total_tokens: many", "must be a whole number, not `many`"),
        ("max_total_tokens: 0", "must be at least 1, not 0"),
        ("max_total_tokens: -1", "must be at least 1, not -1"),
        ("max_total_tokens: 1.5", "must be a whole number, not 1.5"),
        ("max_total_tokens: on", "is a boolean; write a number"),
        ("max_total_tokens: [1]", "must be a whole number, not a list"),
        ("policy: least_load", "`session` or `fastest`, not `least_load`; did you mean `least-load`?"),
        ("policy: prefix_affinity", "`session` or `fastest`, not `prefix_affinity`; did you mean `prefix-affinity`?"),
        ("overflow_to: 3", "must be text, not 3"),
        ("policy: 3", "`session` or `fastest`, not 3"),
        ("ask_usage: maybe", "must be true or false, not `maybe`"),
        ("gpu: 100", 'is the number 100, not text or a mapping; put a name into quotes: "100"'),
        ("gpu: [h100-sxm]", "is neither text nor a mapping; write a name, or fields as a mapping"),
        ("gpu: h100-smx", "h100-sxm"),
        ("gpu: {bf16: 989}", "bf16"),
        ("gpus_per_worker: two", "must be a whole number"),
        ("limits: 5", "must be a mapping, not 5"),
        ("limits: {connect_seconds: 5s}", "must be a number, not `5s`; write a number without a unit"),
        ("limits: {connect_seconds: 0}", "must be above 0, not 0"),
        ("limits: {connect_seconds: .inf}", "must be a number, not .inf"),
        ("limits: {connect_seconds: .nan}", "must be a number, not .nan"),
        ("limits: {connect_seconds: 1e9}", "must be at most 604800, not `1e9`"),
        ("limits: {connect_seconds: 1000000}", "must be at most 604800, not 1000000"),
        ("limits: {connect_seconds: null}", "has no value"),
        ("limits: {drain_seconds: 3}", "`drain_seconds` is not a known key here; it belongs under `limits`"),
        ("limits: {conect_seconds: 3}", "`conect_seconds` is not a known key here; did you mean `connect_seconds`?"),
        ("limits:", "has no value"),
    ],
)
def test_mistakes_in_a_pool(line, expected):
    """Each mistake is one problem at its line, with a remedy."""
    problem = only_problem(f"{POOLED}        {line}\n")
    assert problem.startswith("line 6, models[0].pools[0].")
    assert expected in problem
