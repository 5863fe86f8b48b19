"""What several settings must be together, and what only warns."""

import hashlib

import pytest

from proxy.config.checks import cross_problems, find
from proxy.config.file import parse_document
from proxy.config.settings import ConfigError, parse_config, warnings_of

SHA = hashlib.sha256(b"sk-test").hexdigest()


def a_model(**pools):
    """Return a model whose pools have these lines."""
    entries = "".join(f"      - {{name: {name}, {rest}}}\n" for name, rest in pools.items())
    return f"models:\n  - name: m\n    pools:\n{entries}"


def problems(text):
    with pytest.raises(ConfigError) as caught:
        parse_config(text, {}, "file.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "models: [{name: m, workers: [http://a]}, {name: m, workers: [http://b]}]",
            "models[1].name: is the same model name as models[0].name",
        ),
        (
            "models: [{name: m, aliases: [m], workers: [http://a]}]",
            "models[0].aliases[0]: is the same model name as models[0].name",
        ),
        (
            "models: [{name: m, aliases: [x], workers: [http://a]}, {name: n, aliases: [x], workers: [http://b]}]",
            "models[1].aliases[0]: is the same model name as models[0].aliases[0]",
        ),
        (
            "models: [{name: m, workers: [http://a, http://A:80/v1]}]",
            "models[0].workers[1]: is the same worker as models[0].workers[0]",
        ),
        (
            "models: [{name: m, workers: [http://a]}, {name: n, workers: [http://a]}]",
            "models[1].workers[0]: is also models[0].workers[0]; give one",
        ),
        (
            "models: [{name: m, workers: [{name: x, url: http://a}, {name: x, url: http://b}]}]",
            "models[0].workers[1]: has the same name as models[0].workers[0]",
        ),
        (
            "models: [{name: m, workers: [http://a:8000, {name: 'a:8000', url: http://b}]}]",
            "models[0].workers[1]: has the same name as models[0].workers[0]",
        ),
        (
            "models: [{name: m, workers: [http://a], pools: [{name: p, workers: [http://b]}]}]",
            "models[0].workers: stands beside `pools`",
        ),
        ("models: [{name: m, pools: []}]", "models[0].pools: is empty"),
        ("models: [{name: m, pools: [{name: none, workers: [http://b]}]}]", "models[0].pools[0].name: `none` is reserved"),
    ],
)
def test_contradictions(text, expected):
    """Double names, double workers and unclear pools are one problem each, which names the other place."""
    (problem,) = problems(text)
    assert problem.startswith(f"line 1, {expected}")


def test_pool_names_are_unique_within_their_model():
    """The same pool name may be used by two models, not by one."""
    (problem,) = problems(
        "models: [{name: m, pools: [{name: p, workers: [http://a], max_total_tokens: 1}, {name: p, workers: [http://b]}]}]"
    )
    assert "models[0].pools[1].name: is the same pool name as models[0].pools[0].name" in problem
    parse_config(
        "models: [{name: m, pools: [{name: p, workers: [http://a]}]}, {name: n, pools: [{name: p, workers: [http://b]}]}]",
        {},
        "f",
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            ", max_total_tokens: 10",
            ", max_total_tokens: 10",
            "models[0].pools[1].max_total_tokens: accepts 10 tokens, like models[0].pools[0]",
        ),
        (", max_total_tokens: 10", ", max_total_tokens: '10'", "models[0].pools[1].max_total_tokens: accepts 10 tokens"),
        ("", "", "models[0].pools[1]: has no max_total_tokens, like models[0].pools[0]"),
        ("", ", max_total_tokens: null", "models[0].pools[1].max_total_tokens: has no max_total_tokens"),
    ],
)
def test_pools_need_ranges_of_their_own(first, second, expected):
    """Of two pools with the same range one would get no request, so that is refused."""
    (problem,) = problems(a_model(p=f"workers: [http://a]{first}", q=f"workers: [http://b]{second}"))
    assert expected in problem


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("listen: 127.0.0.1:9000\nadmin_listen: 127.0.0.1:9000", "line 3, admin_listen: overlaps with listen (127.0.0.1:9000)"),
        ("listen: 0.0.0.0:9000\nadmin_listen: 127.0.0.1:9000", "line 3, admin_listen: overlaps with listen (0.0.0.0:9000)"),
        ("listen: 127.0.0.1:8081", "line 2, listen: overlaps with admin_listen (127.0.0.1:8081)"),
        ("observe_listen: 127.0.0.1:8080", "line 2, observe_listen: overlaps with listen (0.0.0.0:8080)"),
    ],
)
def test_listeners_must_differ(lines, expected):
    """Listeners that cannot be bound at once are refused, defaults included, at a line that the file has."""
    (problem,) = problems(f"models: [{{name: m, workers: [http://a]}}]\n{lines}\n")
    assert problem.startswith(expected)


def test_word_of_a_key_that_is_not_shown():
    """What a key says is hidden, and that it is text helps nobody where text is asked for."""
    text = f"models: [{{name: a, workers: [http://a]}}]\nkeys: [{{name: a, sha256: {SHA}, priority: hi}}]\n"

    assert problems(text) == ["line 2, keys[0].priority: must be `high`, `normal` or `low`; did you mean `high`?"]


def test_keys_together():
    """Keys have names, sums and models of their own; a near or aliased model name is pointed out."""
    other = hashlib.sha256(b"other").hexdigest()
    found = problems(
        "models: [{name: llama-8b, aliases: [llama], workers: [http://a]}]\nkeys:\n"
        f"- {{name: a, sha256: {SHA}, models: [llama]}}\n"
        f"- {{name: a, sha256: {SHA.upper()}}}\n"
        f"- {{name: b, sha256: {other}, models: [lama-8b, llama-8b]}}\n"
    )
    assert [line.split("; ")[0] for line in found] == [
        "line 3, keys[0].models[0]: is an alias",
        "line 4, keys[1].name: is the same key name as keys[0].name",
        "line 4, keys[1].sha256: is the same SHA-256 as keys[0].sha256",
        "line 5, keys[2].models[0]: is no configured model",
    ]
    assert found[-1].endswith("did you mean `llama-8b`?")


TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("address", ["0.0.0.0:8081", "10.0.0.5:8081", '"[::]:8081"', "gateway.example:8081"])
def test_an_admin_listener_off_loopback_wants_a_token(address):
    """Whoever reaches it could read and change everything; on loopback it may be open."""
    (found,) = problems(f"admin_listen: {address}\nmodels: [{{name: m, workers: [http://a]}}]")
    assert found.startswith("line 1, admin_listen: ")
    assert "no admin_token; set admin_token" in found
    parse_config(f"admin_listen: {address}\nadmin_token: {TOKEN}\nmodels: [{{name: m, workers: [http://a]}}]", {}, "f")
    parse_config("admin_listen: 127.0.0.1:8081\nmodels: [{name: m, workers: [http://a]}]", {}, "f")


def test_an_admin_token_is_given_in_one_way():
    """Text, file or hash: of two it would not be clear which is meant."""
    (found,) = problems(f"admin_token: {TOKEN}\nadmin_token_sha256: {SHA}\nmodels: [{{name: m, workers: [http://a]}}]")
    assert found.startswith("line 2, admin_token_sha256: stands beside admin_token")


@pytest.mark.parametrize("token", ["sh0rt", "has a blank in it", "0123456789abcdé"])
def test_a_bad_admin_token_is_not_shown(token):
    """It may be the token with a typing error."""
    (found,) = problems(f'admin_token: "{token}"\nmodels: [{{name: m, workers: [http://a]}}]')
    assert found.startswith("line 1, admin_token: ")
    assert token not in found


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "cannot be read: No such file"),
        ("\n", "does not hold one or 2 lines"),
        (f"{TOKEN}\n{TOKEN}1\n{TOKEN}2\n", "does not hold one or 2 lines"),
        ("s3cret\n", "is shorter than 16 characters"),
        (f"{TOKEN}\n", None),
        (f"{TOKEN}\r\n{TOKEN}2", None),
    ],
)
def test_the_file_of_the_admin_token_is_looked_at(tmp_path, content, wrong):
    """Beside the configuration, one or two tokens, a line each."""
    if content is not None:
        (tmp_path / "token").write_text(content)
    text = "admin_token_file: token\nmodels: [{name: m, workers: [http://a]}]"
    document, _ = parse_document(text, {}, str(tmp_path / "gateway.yaml"))
    found = [str(problem) for problem in cross_problems(document)]
    assert len(found) == (wrong is not None)
    assert all(wrong in each and "s3cret" not in each for each in found)


def warnings(lines):
    return warnings_of(parse_config(f"{lines}\nmodels: [{{name: m, workers: [http://a]}}]\n", {}, "f"))


QUIET = "listen: 127.0.0.1:8080"


def test_nothing_to_warn_of():
    """A private address with the default limits, or a public one with keys, gives no warning."""
    assert warnings(QUIET) == ()
    assert warnings(f"keys: [{{name: a, sha256: {SHA}}}]") == ()


@pytest.mark.parametrize(
    ("lines", "values"),
    [
        ("listen: 0.0.0.0:8080", ["listen is 0.0.0.0:8080", "no keys"]),
        (f"{QUIET}\nlimits: {{worker_idle_seconds: 5}}", ["limits.worker_idle_seconds is 5", "after 5 s"]),
        (
            f"{QUIET}\nlimits: {{head_hold_seconds: 20, first_byte_seconds: 10}}",
            ["head_hold_seconds is 20", "first_byte_seconds is 10"],
        ),
        (f"{QUIET}\nlimits: {{total_seconds: 30}}", ["total_seconds is 30", "first_byte_seconds is 600"]),
    ],
)
def test_what_warns(lines, values):
    """What is allowed and probably not meant gives one warning that names the settings and their values."""
    (warning,) = warnings(lines)
    assert all(value in warning for value in values)


def test_pools_warn_for_what_they_override():
    """A pool whose own limits make a bad pair with the overall ones is named; others are silent."""
    text = f"{QUIET}\n" + a_model(
        p="workers: [http://a], max_total_tokens: 1, limits: {first_byte_seconds: 3}", q="workers: [http://b]"
    )
    (warning,) = warnings_of(parse_config(text, {}, "f"))
    assert warning.startswith("models[0].pools[0].limits.head_hold_seconds is 15")


def test_a_worker_in_two_pools_warns():
    """One worker under two names is allowed, and the split of its load is pointed out."""
    text = f"{QUIET}\n" + a_model(
        p="workers: [{name: x, url: http://a}], max_total_tokens: 1", q="workers: [{name: y, url: http://a}]"
    )
    (warning,) = warnings_of(parse_config(text, {}, "f"))
    assert "workers x and y are both http://a" in warning


def test_find():
    """A pattern yields every match with its path, and nothing where types differ."""
    tree = {"a": [{"b": 1}, {"c": 2}, 3, {"b": [4]}]}
    assert list(find(tree, "a.*.b")) == [(("a", 0, "b"), 1), (("a", 3, "b"), [4])]
    assert list(find(tree, "a.b")) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("overflow_to: long", None),
        ("borrows_from: long, borrow_below_ratio: 0.5", None),
        ("policy: session, session_header: X-Session", None),
        ("overflow_to: lang", "overflow_to: is no pool of this model; did you mean `long`?"),
        ("overflow_to: elsewhere", "overflow_to: is no pool of this model; write the name of another pool of this model"),
        ("overflow_to: short", "overflow_to: is this pool itself; name another pool of the model, or leave it out"),
        ("borrows_from: short", "borrows_from: is this pool itself; name another pool of the model, or leave it out"),
        (
            "borrow_below_ratio: 0.5",
            "borrow_below_ratio: stands without `borrows_from`; name the pool that helps, or leave it out",
        ),
        ("borrows_from: long, borrow_below_ratio: 1", "borrow_below_ratio: must be below 1, not 1"),
        ("session_header: x-session", "session_header: has no effect with this policy; write policy: session, or leave it out"),
        (
            "policy: session, session_header: cookie",
            "session_header: `cookie` belongs to one connection or one request, or is a",
        ),
    ],
)
def test_pools_that_help_each_other(lines, expected):
    """Overflow and borrowing name another pool of the same model, and settings that would do nothing are problems."""
    text = a_model(
        short=f"max_total_tokens: 100, workers: [http://a], {lines}", long="max_total_tokens: 200, workers: [http://b]"
    )
    if expected is None:
        parse_config(text, {}, "file.yaml")
    else:
        (problem,) = problems(text)
        assert f"models[0].pools[0].{expected}" in problem


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("health: {ejection_seconds: 300, max_ejection_seconds: 300}", None),
        (
            "health: {ejection_seconds: 400}",
            "health.ejection_seconds: is 400, while max_ejection_seconds is 300: the first time",
        ),
        ("health: {max_ejection_seconds: 2}", "health.max_ejection_seconds: is 2, while ejection_seconds is 5: the first time"),
        ("health: {failure_ratio: 0}", "health.failure_ratio: must be above 0, not 0"),
        (
            "limits: {body_bytes: 2000000000}",
            "limits.body_bytes: is 2000000000, while held_body_bytes is 1073741824: no body of",
        ),
        ("limits: {body_bytes: 9007199254740992, held_body_bytes: 9007199254740992}", "limits.body_bytes: must be at most"),
        ("hedging: {after_seconds: 1, budget_ratio: 0.1}", None),
        ("hedging: {after_seconds: 1, after_quantile: 0.9}", "hedging.after_quantile: stands beside after_seconds"),
        ("hedging: {after_quantile: 0.4}", "hedging.after_quantile: must be at least 0.5, not 0.4"),
        ("hedging: {after_seconds: 0}", "hedging.after_seconds: must be above 0, not 0"),
        ("hedging: {after_seconds: 1, budget_ratio: 0}", "hedging.budget_ratio: must be above 0, not 0"),
        (
            "hedging: {after_seconds: 1}\nretries: {max_attempts: 1}",
            "hedging.after_seconds: has no effect with retries.max_attempts: 1",
        ),
        ("hedging: {}\nretries: {max_attempts: 1}", None),
        ("retries: {max_attempts: 1000000}", "retries.max_attempts: must be at most 100, not 1000000"),
        ("admission: {queue_bytes: 9007199254740992}", "admission.queue_bytes: must be at most 1099511627776"),
    ],
)
def test_what_bounds_what(lines, expected):
    """A setting that another one makes pointless, or that nobody can mean, is a problem and says what would be right."""
    text = f"models: [{{name: m, workers: [http://a]}}]\n{lines}\n"
    if expected is None:
        parse_config(text, {}, "file.yaml")
    else:
        assert any(problem.split(": ", 1)[-1].startswith(expected) or expected in problem for problem in problems(text))


def test_a_pattern_that_is_none_is_found_when_the_file_is_read():
    """Otherwise every serving process would find it at its first long prompt."""
    pytest.importorskip("tiktoken")
    text = "models: [{name: m, workers: [http://a], tokenizer: {tiktoken: ranks.tiktoken, pattern: '%s'}}]"

    parse_config(text % r"\\p{L}+|\\s+", {}, "file.yaml")
    (problem,) = problems(text % "(")
    assert "models[0].tokenizer: has a pattern that is no regular expression: " in problem
    assert problem.endswith("write it as tiktoken has it, or leave it out")


def test_where_workers_are_asked_how_they_are_is_a_path():
    """Nothing else, as it is asked of each worker."""
    text = a_model(short="workers: [http://a], health_path: {}")

    parse_config(text.replace("{}", "/health/liveliness"), {}, "file.yaml")
    (problem,) = problems(text.replace("{}", "'http://elsewhere/health'"))

    assert "health_path: is no path of a URL; write it like /health" in problem
