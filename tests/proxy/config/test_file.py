"""Reading the file: YAML without its surprises, variables, and where everything stands."""

import pytest

from proxy.config.errors import ConfigError
from proxy.config.file import MAX_FILE_BYTES, parse_document, read_text


def read(text, **environ):
    document, problems = parse_document(text, environ, "file.yaml")
    return document, [str(problem) for problem in problems]


def refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_document(text, {}, "file.yaml")
    (problem,) = caught.value.problems
    return problem


def test_values_and_lines():
    """Scalars come as their types, and each path knows its line."""
    document, problems = read("a: 1\nb:\n  - x\n  - {c: true, d: null, e: 1.5, f: 1_000, g: 0x10}\n")
    assert document.tree == {"a": 1, "b": ["x", {"c": True, "d": None, "e": 1.5, "f": 1000, "g": 16}]}
    assert not problems
    assert tuple(document.line(path) for path in [("a",), ("b",), ("b", 0), ("b", 1, "c")]) == (1, 2, 3, 4)
    assert document.line(("b", 1, "missing")) == 4


def test_dates_stay_text():
    """A text that looks like a date is a text."""
    assert read("a: 2024-01-01")[0].tree == {"a": "2024-01-01"}


@pytest.mark.parametrize("number", ["010", "-010", "1:30", "1:30.5"])
def test_numbers_that_yaml_reads_oddly(number):
    """Octal and base 60 are problems rather than other numbers."""
    _, problems = read(f"a: {number}")
    assert "nobody expects" in problems[0]


def test_a_number_too_long_to_read():
    """An integer of thousands of digits is a problem, not a crash."""
    assert "nobody expects" in read(f"a: {'9' * 5000}")[1][0]


def test_double_keys():
    """A key given twice names the line of the first, and the first value stands."""
    document, problems = read("a: 1\nb: 2\na: 3\n")
    assert problems == ["line 3, a: is given twice, first on line 1; keep one of them"]
    assert document.tree == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", ["1: x", "on: x", "? [a]\n: x", "null: x", "~: x"])
def test_keys_must_be_text(text):
    """Numbers, booleans, nulls and lists as keys are problems."""
    assert "is not text" in read(f"ok: 1\n{text}\n")[1][0]


def test_variables():
    """Variables are replaced inside texts of any style and remembered; `$${` and a lone `$` stay."""
    document, problems = read(
        "a: http://${HOST}:${PORT}\nb: '${HOST}'\nc: $${HOST} $HOST $\nd: {e: \"${PORT}\"}", HOST="h", PORT="80"
    )
    assert document.tree == {"a": "http://h:80", "b": "h", "c": "${HOST} $HOST $", "d": {"e": "80"}}
    assert not problems
    assert document.variables == {("a",): ("HOST", "PORT"), ("b",): ("HOST",), ("d", "e"): ("PORT",)}


def test_the_value_of_a_variable_is_not_read_again():
    """What a variable holds is text as it is: no YAML, no further variables."""
    assert read("a: ${X}", X="[${X}]: 1 # no")[0].tree == {"a": "[${X}]: 1 # no"}


@pytest.mark.parametrize(
    ("text", "word"),
    [("${NO}", "NO, which is not set"), ("${}", "no variable name"), ("${a b}", "no variable name"), ("${X", "without `}`")],
)
def test_variables_that_cannot_be_replaced(text, word):
    """A missing variable is named with the key; broken forms are explained."""
    _, problems = read(f"a:\n  b: {text}\n")
    assert problems[0].startswith("line 2, a.b: ")
    assert word in problems[0]


def test_anchors_and_merge_keys():
    """Aliases and `<<` work; what the mapping spells itself wins, and lines point at the text."""
    document, problems = read("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: *x\nw:\n  <<: [*x, {c: 4}]\n")
    assert not problems
    assert document.tree["y"] == {"a": 1, "b": 3}
    assert document.tree["z"] == {"a": 1, "b": 2}
    assert document.tree["w"] == {"a": 1, "b": 2, "c": 4}
    assert (document.line(("y", "a")), document.line(("y", "b"))) == (1, 4)
    assert "no mapping" in read("x:\n  <<: 3\n")[1][0]


def bomb(kind):
    lines = ["a0: &a0 {k: v}" if kind == "merge" else "a0: &a0 [v]"]
    for level in range(1, 12):
        inner = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{inner}]}}" if kind == "merge" else f"[{inner}]"))
    return "\n".join(lines)


@pytest.mark.parametrize("kind", ["list", "merge"])
def test_alias_bombs(kind):
    """Aliases that expand to billions of values are refused soon."""
    assert "aliases" in refused(bomb(kind)).wrong


@pytest.mark.parametrize(
    "text", ["a: &a [*a]", "a: &a {b: *a}", "[" * 60 + "]" * 60, "[" * 5000 + "]" * 5000, "a: &a {<<: *a}"]
)
def test_endless_or_deep_nesting(text):
    """An alias that holds itself and absurd nesting are refused."""
    assert refused(text).right


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("~", "empty"),
        ("- a", "a list at the top"),
        ("text", "text at the top"),
        ("3", "a number at the top"),
        ("a: 1\n---\nb: 2\n", "more than one YAML document"),
        ("a: *nowhere", "alias"),
        ("a: b: c", "not YAML"),
        ("a: 'open", "not YAML"),
        ("a: \x00", "control character"),
        ("a: \x1b[0m", "control character"),
    ],
)
def test_what_is_no_mapping(text, word):
    """What does not come to a mapping is one problem that says what it is."""
    assert word in refused(text).wrong


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a:\n\tb: 1", 2, "tabs"),
        ("a: 1\nb: [http://${HOST}:80]", 2, "in quotes"),
        ("listen: [::]:8080", 1, '"[::]:8080"'),
        ("a: @b", 1, "in quotes"),
    ],
)
def test_likely_remedies(text, line, word):
    """The usual slips are explained, at their line."""
    problem = refused(text)
    assert line == problem.line
    assert word in problem.right


@pytest.mark.parametrize(
    "text", ["a: !!python/object:os.system x", "a: !secret x", "a: !!set {x}", "a: !!binary eA==", "a: !x [b]"]
)
def test_tags_do_nothing(text):
    """Tags are problems and never make objects."""
    document, problems = read(text)
    assert document.tree == {"a": None}
    assert "tag" in problems[0]


def test_yaml_errors_do_not_quote_the_file():
    """No problem of a broken line shows what the line holds."""
    for text in (
        "worker_key: 'hunter2\n",
        "worker_key: *hunter2\n",
        "a: [hunter2: {\n",
        "worker_key: hunter2: x",
        "a: !hunter2 b",
    ):
        try:
            shown = str(parse_document(text, {}, "f")[1])
        except ConfigError as error:
            shown = str(error)
        assert "hunter2" not in shown


def test_reading_a_file(tmp_path):
    """A byte order mark is taken off; the text is otherwise as it is in the file."""
    path = tmp_path / "a.yaml"
    path.write_bytes("\ufeffa: ü\n".encode())
    assert read_text(path) == "a: ü\n"


def test_files_that_cannot_be_read(tmp_path):
    """Missing files, folders, other encodings and huge files are one clear problem each."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: \xfc\n")
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * 10 * MAX_FILE_BYTES)
    wide = tmp_path / "wide.yaml"
    wide.write_bytes("a: 1".encode("utf-16"))
    for path, word in (
        (tmp_path / "no.yaml", "No such file"),
        (tmp_path, "directory"),
        (latin, "UTF-8"),
        (huge, "larger"),
        (wide, "UTF-8"),
    ):
        with pytest.raises(ConfigError, match=word) as caught:
            read_text(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="line 2"):
        read_text(latin)
