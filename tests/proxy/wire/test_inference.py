"""Request bodies: the few fields that matter, and changes that leave every other byte alone."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.errors import ClientFault
from proxy.wire.inference import MAX_TOKENS, Work, ask_for_usage, parse_other, parse_request, rename_model


def asked(body: bytes) -> bytes | None:
    pieces = ask_for_usage(body, parse_request(body))
    return None if pieces is None else b"".join(pieces)


# Reading


@pytest.mark.parametrize(
    ("value", "stream"), [("true", True), ("false", False), ("null", False), ('"true"', False), ("1", False), ("[]", False)]
)
def test_only_true_is_a_stream(value, stream):
    """The field has to be exactly true; anything else is left to the worker and read as not streamed."""
    assert parse_request(b'{"stream":%b,"n":2}' % value.encode()).stream is stream
    assert parse_request(b'{"stream":%b,"n":2}' % value.encode()).choices == 2


@pytest.mark.parametrize(
    ("options", "has", "include"),
    [
        ("", False, None),
        (',"stream_options":null', True, None),
        (',"stream_options":{}', True, None),
        (',"stream_options":{"include_usage":true}', True, True),
        (',"stream_options":{"include_usage":false}', True, False),
        (',"stream_options":{"include_usage":null}', True, None),
        (',"stream_options":{"include_usage":"true"}', True, None),
        (',"stream_options":"x"', True, None),
        (',"stream_options":[]', True, None),
        (',"metadata":{"stream_options":{"include_usage":true}}', False, None),
        (r',"messages":["\"stream_options\":{\"include_usage\":true}"]', False, None),
        (r',"stream\u005foptions":{"include_usage":true}', True, True),
    ],
)
def test_stream_options(options, has, include):
    """Only the top-level field counts, of whatever type it is, however its name is spelled."""
    request = parse_request(b'{"stream":true%b}' % options.encode())

    assert (request.stream, request.has_stream_options, request.include_usage) == (True, has, include)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ("", None),
        ('"max_tokens":5', 5),
        ('"max_tokens":0', 0),
        ('"max_tokens":null,"max_completion_tokens":7', 7),
        ('"max_tokens":5,"max_completion_tokens":7', 5),
        ('"max_tokens":7,"max_completion_tokens":5', 5),
        ('"max_tokens":-1', None),
        ('"max_tokens":"5"', 5),
        ('"max_tokens":1000.0', 1000),
        ('"max_tokens":1e3,"max_completion_tokens":900.0', 900),
        ('"max_tokens":-1.0', None),
        ('"max_tokens":"many"', None),
        ('"max_tokens":[5]', None),
        ('"max_tokens":true', None),
        ('"max_tokens":5.5,"max_completion_tokens":9', 9),
        ('"max_tokens":1e30', None),
        ('"max_tokens":1000000000000000000000000000000', MAX_TOKENS),
    ],
)
def test_output_budget(fields, max_tokens):
    """The smaller of both names; whole numbers count as vLLM reads them, others are absent, an absurd one spoils no sum."""
    assert parse_request(b"{" + fields.encode() + b"}").max_tokens == max_tokens


@pytest.mark.parametrize(
    ("fields", "choices", "text_bytes", "token_ids"),
    [
        ('"messages":[{"content":"abc"}]', 1, 19, 0),
        ('"messages":[{"content":"abc"}],"tools":[1,2]', 1, 24, 0),
        ('"messages":[],"n":3', 3, 2, 0),
        ('"n":0', 1, 0, 0),
        ('"n":-2', 1, 0, 0),
        ('"n":"2"', 2, 0, 0),
        ('"n":2.0', 2, 0, 0),
        ('"n":2.5', 1, 0, 0),
        ('"prompt":"abcd"', 1, 6, 0),
        ('"prompt":["a","b","c"]', 3, 13, 0),
        ('"prompt":["a","b","c"],"n":2', 6, 13, 0),
        ('"prompt":[1,2,3,4]', 1, 0, 4),
        ('"prompt":[ 1 , 2 ]', 1, 0, 2),
        ('"prompt":[[1,2],[3]]', 2, 0, 3),
        ('"prompt":[[1,2],[3]],"n":2', 4, 0, 3),
        ('"prompt":[]', 1, 2, 0),
        ('"prompt":null', 1, 4, 0),
        ('"prompt":[1,"a"]', 1, 0, 2),
    ],
)
def test_prompts_and_batches(fields, choices, text_bytes, token_ids):
    """How many finish reasons to expect, how much text there is to tokenise, and how many ids there are already."""
    request = parse_request(b"{" + fields.encode() + b"}")

    assert (request.choices, request.text_bytes, request.token_ids) == (choices, text_bytes, token_ids)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b"null",
        b'"x"',
        b"7",
        b"{",
        b'{"model":"a",}',
        b'{"model":"a"} x',
        b"{'model':'a'}",
        b'{"model":"\xff"}',
        b'{"n":"2","model":"a',
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"messages":' + b"[" * 200_000,
        b'{"n":"x","messages":' + b"[" * 200_000,
        b"\xef\xbb\xbf" * 10_000,
        b"\xff\xfe{\x00}\x00",
        b"\x1f\x8b\x08",
    ],
    ids=lambda body: repr(body[:16]),
)
@pytest.mark.parametrize("parse", [parse_request, partial(parse_other, work=Work.READ)])
def test_what_is_no_json_object_is_the_clients_fault(body, parse):
    """Empty, cut, no object, not UTF-8, nested beyond measure: a clear 400 that quotes nothing of the body."""
    with pytest.raises(ClientFault) as raised:
        parse(body)

    assert (raised.value.status, raised.value.code) == (400, "invalid_json")
    assert len(raised.value.text) < 120


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model":"m","messages":[{"content":"\ud800"}]}',
        rb'{"model":"m","messages":[{"content":"\uDFFF x"}],"n":"2"}',
        rb'{"model":"m","x":{"\ud83d":1},"stream":7}',
        b'\xef\xbb\xbf{"model":"m"}',
        b'\xef\xbb\xbf{"model":"m","n":"2"}',
        b' \n\t{"model" : "m"}\r\n',
        b'{"model":"x","model":"m"}',
        b'{"model":"m","temperature":NaN}',
        b'{"model":"m","n":"x","logit_bias":{"1":-Infinity}}',
        b'{"x":"NaN","model":"m","y":[NaN,Infinity]}',
        rb'{"model":"\u006d"}',
        rb'{"mod\u0065l":"m"}',
    ],
)
def test_bodies_that_workers_can_read(body):
    """Half a surrogate pair, a byte order mark, doubled keys and escapes are no reason to refuse what works directly."""
    assert parse_request(body).model == "m"


@pytest.mark.parametrize(
    ("fields", "echoes"),
    [
        ('"messages":[{"role":"user"},{"role":"assistant"}]', True),
        ('"messages":[{"role":"user"}]', False),
        ('"messages":[{"role":"user"}],"add_generation_prompt":false', True),
        ('"messages":[]', False),
        ('"messages":[7]', False),
        ('"messages":"x"', False),
        ('"prompt":"p"', False),
        ('"prompt":"p","max_tokens":0', True),
        ('"prompt":"p","max_tokens":1', False),
    ],
)
def test_when_an_echo_comes_by_itself(fields, echoes):
    """A chat repeats a last message of its own role, a completion its prompt with the first token behind it."""
    assert parse_request(b'{"echo":true,' + fields.encode() + b"}").echoes is echoes
    assert not parse_request(b'{"echo":"true",' + fields.encode() + b"}").echoes
    assert not parse_request(b"{" + fields.encode() + b"}").echoes


@pytest.mark.parametrize(
    ("fields", "work", "text_bytes", "token_ids", "prompts", "max_tokens"),
    [
        ('"input":"Hi"', Work.GENERATE, 4, 0, 1, None),
        ('"input":[{"role":"user","content":"Hi"}],"instructions":"x","max_output_tokens":9', Work.GENERATE, 35, 0, 1, 9),
        ('"system":"x","messages":[1],"tools":[2],"max_tokens":5', Work.GENERATE, 9, 0, 1, 5),
        ('"max_tokens":-1,"max_output_tokens":2', Work.GENERATE, 0, 0, 1, None),
        ('"input":"Hi","max_tokens":7', Work.READ, 4, 0, 1, 0),
        ('"input":["a","b"]', Work.READ, 9, 0, 2, 0),
        ('"input":[1,2,3]', Work.READ, 0, 3, 1, 0),
        ('"input":[[1,2],[3]]', Work.READ, 0, 3, 2, 0),
        ('"query":"q","documents":["a"]', Work.READ, 8, 0, 1, 0),
        ('"text_1":"q","text_2":["a"]', Work.READ, 8, 0, 1, 0),
        ('"prompt":"a long prompt"', Work.COUNT, 0, 0, 1, 0),
        ('"messages":[1]', Work.COUNT, 0, 0, 1, 0),
    ],
)
def test_bodies_of_other_paths(fields, work, text_bytes, token_ids, prompts, max_tokens):
    """The text is found under each of its names; one choice, usage not to be asked for, an output only where there is one."""
    request = parse_other(b'{"n":3,"echo":true,' + fields.encode() + b"}", work)

    assert (request.text_bytes, request.token_ids, request.prompts) == (text_bytes, token_ids, prompts)
    assert (request.choices, request.max_tokens, request.echoes) == (1, max_tokens, False)


def test_a_model_with_half_a_surrogate_pair():
    """It can be read and encoded, and will be no model's name."""
    model = parse_request(rb'{"model":"a\ud800"}').model

    assert model is not None
    assert model.encode().startswith(b"a")


@pytest.mark.parametrize("value", ["null", "7", "[]", "{}", "true"])
def test_a_model_that_is_no_text_is_absent(value):
    """A field of another type is read as absent."""
    assert parse_request(b'{"model":%b}' % value.encode()).model is None


def test_ascii_is_told_of_the_whole_body():
    """One byte above ASCII anywhere changes the estimate."""
    assert parse_request(b'{"x":"a"}').is_ascii
    assert not parse_request('{"x":"中"}'.encode()).is_ascii


@pytest.mark.parametrize("letter", ["a", "中", "\\n", "\\u4e2d", "\\ud800"])
def test_a_megabyte_is_read_fast(letter):
    """A 1 MB prompt, whatever is in it, holds the loop for milliseconds: reading, asking for usage and renaming together."""
    body = (
        b'{"messages":[{"content":"%b"}],"stream":true,"model":"alias"}'
        % (letter * (1_000_000 // len(letter.encode()))).encode()
    )
    best = 1.0
    for _ in range(5):
        begun = process_time()
        renamed = rename_model(body, "alias", "model")
        assert renamed is not None
        assert ask_for_usage(renamed, parse_request(renamed)) is not None
        best = min(best, process_time() - begun)

    assert best < 0.05


# Asking for usage

INCLUDED = {"include_usage": True}


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b'{"stream":true}', INCLUDED),
        (b' {\n "stream":true}', INCLUDED),
        (b'\xef\xbb\xbf{"stream":true}', INCLUDED),
        (b'{"stream":true,"stream_options":null}', INCLUDED),
        (b'{"stream":true,"stream_options" : {}}', INCLUDED),
        (b'{"stream":true,"stream_options":{ }}', INCLUDED),
        (b'{"stream":true,"stream_options":{"include_usage":false}}', INCLUDED),
        (b'{"stream":true,"stream_options":{"include_usage" : null},"x":1}', INCLUDED),
        (b'{"stream":true,"stream_options":{"x":1}}', INCLUDED | {"x": 1}),
        (b'{"stream":true,"stream_options":{"x":1,"include_usage":false}}', INCLUDED | {"x": 1}),
        (b'{"stream":true,"stream_options":{"continuous_usage_stats":false}}', INCLUDED | {"continuous_usage_stats": False}),
        (b'{"stream":true,"metadata":{"stream_options":{"include_usage":false}}}', INCLUDED),
        (rb'{"stream":true,"messages":["\"stream_options\":null"],"stream_options":{}}', INCLUDED),
        (b'{"stream":true,"temperature":1.00,"seed":12345678901234567890123}', INCLUDED),
    ],
)
def test_usage_is_asked_for(body, options):
    """The document with usage asked for differs in nothing else, and most of its bytes stay where they were."""
    changed = asked(body)

    assert changed is not None
    before, after = (json.loads(text.decode("utf-8-sig")) for text in (body, changed))
    assert after.pop("stream_options") == options
    before.pop("stream_options", None)
    assert after == before
    assert list(after) == list(before)


@pytest.mark.parametrize(
    "options",
    [
        b'{"continuous_usage_stats":true}',
        b'{"continuous_usage_stats" : true,"include_usage":false}',
        b'{"include_usage":null,"continuous_usage_stats":true}',
    ],
)
def test_continuous_usage_is_not_switched_on(options):
    """It has no effect without include_usage; asked together it would put usage into every event of the client's stream."""
    changed = asked(b'{"stream":true,"stream_options":' + options + b"}")

    assert changed is not None
    assert json.loads(changed)["stream_options"] == {"include_usage": True, "continuous_usage_stats": False}


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":true,"stream_options":7}',
        b'{"stream":true,"stream_options":{"include_usage":0}}',
        b'{"stream":true,"stream_options":{"include_usage":"no"}}',
        b'{"stream":true,"stream_options":{"x":{}}}',
        rb'{"stream":true,"stream\u005foptions":{}}',
        rb'{"stream":true,"stream_options":{"include\u005fusage":false}}',
        b'{"stream":true,"stream_options":{},"stream_options":{}}',
        b'{"stream":true,"stream_options":{},"messages":["stream_options"]}',
        rb'{"stream":true,"x":{"stream_options":{}},"stream\u005foptions":{"include_usage":false}}',
    ],
)
def test_what_cannot_be_changed_safely_is_left_alone(body):
    """Odd values, escaped or doubled names: the body goes as it is, and usage is not asked for."""
    assert asked(body) is None


TEXTS = st.sampled_from(["stream_options", '"stream_options":{}', "model", '"model":"alias"', "include_usage", "a", "\ud83d"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.none() | st.dictionaries(st.sampled_from(["include_usage", "x", "y"]), st.booleans() | st.none())
BODIES = st.fixed_dictionaries(
    {"stream": st.just(True), "model": st.just("alias")},
    optional={"stream_options": OPTIONS, "messages": VALUES, "metadata": VALUES, "tools": VALUES},
).flatmap(lambda body: st.permutations(list(body.items())).map(dict))


@settings(deadline=None, max_examples=300)
@given(document=BODIES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_a_change_touches_its_field_alone(document, indent, ascii_only):
    """Names in strings and nested objects never mislead: the changed document differs in the one field that was meant."""
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    document = json.loads(body)
    request = parse_request(body)

    pieces = ask_for_usage(body, request)
    renamed = rename_model(body, "alias", 'new "name"')

    if pieces is not None:
        after = json.loads(b"".join(pieces))
        options = after.pop("stream_options")
        assert options == (document.get("stream_options") or {}) | INCLUDED
        assert after == {key: value for key, value in document.items() if key != "stream_options"}
    else:
        assert "stream_options" in document
    assert renamed is not None
    assert json.loads(renamed) == document | {"model": 'new "name"'}


# Renaming


@pytest.mark.parametrize(
    ("body", "old"),
    [
        (b'{"model":"alias","n":1.0}', "alias"),
        (b'{"n":1.0,"model" :\n "alias"}', "alias"),
        (rb'{"model":"org\/alias","n":1.0}', "org/alias"),
        (rb'{"model":"\u0061lias","n":1.0}', "alias"),
        (rb'{"model":"\u4e2d","n":1.0}', "中"),
        ('{"model":"中","n":1.0}'.encode(), "中"),
        (rb'{"model":"\ud83d\ude00","n":1.0}', "\U0001f600"),
        (rb'{"model":"a\"b\\","n":1.0}', 'a"b\\'),
        (b'{"x":{"model":"alias"},"model":"alias","n":1.0,"y":[{"model":"alias"}]}', "alias"),
        (b'{"model":"alias","n":1.0,"x":{"model":"alias"}}', "alias"),
        (b'{"model":"alias","model":"alias","n":1.0}', "alias"),
        (rb'{"x":"\"model\":\"alias\"","model":"alias","n":1.0}', "alias"),
        (rb'{"x\"model":"alias","model":"alias","n":1.0}', "alias"),
        (rb'{"x":"model","y":"\ud800","model":"alias","n":1.0}', "alias"),
        (b'\xef\xbb\xbf{"model":"alias","n":1.0}', "alias"),
    ],
)
def test_an_alias_becomes_the_name_that_workers_know(body, old):
    """The top-level field is changed, however its value is spelled; every other byte stays."""
    assert parse_request(body).model == old

    changed = rename_model(body, old, "new/näme")

    assert changed is not None
    document = json.loads(body.decode("utf-8-sig"))
    assert json.loads(changed.decode("utf-8-sig")) == document | {"model": "new/näme"}
    assert b'"n":1.0' in changed or b'"n":1.0' not in body


@pytest.mark.parametrize(
    "body", [rb'{"mod\u0065l":"alias"}', b'{"x":{"model":"alias"}}', rb'{"x":{"model":"alias"},"mod\u0065l":"alias"}', b"{}"]
)
def test_a_field_that_cannot_be_found_is_not_renamed(body):
    """A name spelled with escapes, or only a nested one, is told apart."""
    assert rename_model(body, "alias", "new") is None


def test_many_candidates_are_told_apart_at_once():
    """Some thousand fields of that name take no longer than two readings; with more of them none is found, and as fast."""
    body = b'{"x":[%b],"model":"alias"}' % b",".join([b'{"model":"alias"}'] * 4000)
    changed = rename_model(body, "alias", "new")

    assert changed is not None
    assert changed.endswith(b'],"model":"new"}')
    assert changed.count(b'"new"') == 1
    assert rename_model(body.replace(b"[", b"[" + body + b","), "alias", "new") is None


MEGABYTE = 1_048_576
STRANGE = {  # start, what is repeated, how often, and end: each 12 MB
    "constants": (b'{"model":"alias","messages":[', b"NaN,", 3_000_000, b"1]}"),
    "halves": (b'{"model":"alias","messages":["', rb"\ud800", 2_000_000, b'"]}'),
    "candidates": (b'{"messages":[', b'{"model":"alias"},', 700_000, b'1],"model":"alias"}'),
    "long values": (b'{"model":"alias","messages":[{"model":"', b"x", 12_000_000, b'"}]}'),
    "ids": (b'{"model":"alias","prompt":[', b"1,", 6_000_000, b"1]}"),
    "lists of ids": (b'{"model":"alias","prompt":[', b"[1],", 3_000_000, b"[1]]}"),
    "prompts": (b'{"model":"alias","prompt":[', b'"",', 4_000_000, b'""]}'),
    "echo": (b'{"model":"alias","echo":true,"messages":[', b"{},", 4_000_000, b"{}]}"),
    "model": (rb'{"model":"', rb"\ud800", 2_000_000, b'"}'),
    "names": (b'{"n":"x","model":"alias",', b"".join(b'"%d":1,' % at for at in range(100_000)), 11, b'"a":1}'),
}


@pytest.mark.parametrize("name", STRANGE)
def test_no_body_holds_the_loop(name):
    """Whatever it is full of, a body is read and its alias renamed in little more than the time to walk over its bytes."""
    start, repeated, times, end = STRANGE[name]
    body = start + repeated * times + end
    best = 9.0
    for _ in range(3):
        begun = process_time()
        with suppress(ClientFault):
            parse_request(body)
        rename_model(body, "alias", "new")
        best = min(best, process_time() - begun)

    assert best < 0.4


@pytest.mark.parametrize("parse", [parse_request, partial(parse_other, work=Work.READ)])
@pytest.mark.parametrize("start", [b'{"n":1,', b'{"n":"x",'])
def test_constants_only_in_small_bodies(parse, start):
    """Up to a megabyte they are let through as some workers do; a larger body is told why it is refused."""
    body = start + b'"model":"m","x":[' + b"NaN," * 250_000 + b"-Infinity]}"
    assert parse(body).model == "m"
    assert parse(body.replace(b'"m"', b'"Infinity NaN"')).model == "Infinity NaN"

    with pytest.raises(ClientFault, match="NaN and Infinity are no JSON"):
        parse(body.replace(b"-I", b" " * MEGABYTE + b"-I"))


@pytest.mark.parametrize("model", [r"\ud55c\uAE00", r"\ud83d\ude00", r"\ud800", "NaN", "-Infinity", "{  }"])
@pytest.mark.parametrize("size", [1, 2 * MEGABYTE])
def test_texts_of_bodies_with_half_a_pair(model, size):
    """The model is read as it was meant in a body of any size, whatever is between other quotes in it."""
    literal = f'"{model}"'
    body = b'{"model":%b,"x":"NaN \\ud800%b"}' % (literal.encode(), b"x" * size)

    expected = json.loads(literal).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert parse_request(body).model == expected
    assert parse_request(b"\xef\xbb\xbf" + body).model == expected
    assert (rename_model(body, expected, "new") or b"").startswith(b'{"model":"new"')


def test_texts_with_quotes_and_backslashes_are_counted():
    """Escaped quotes and backslashes in front of quotes do not change how many prompts there are."""
    prompts = ['a"b', "c\\", '\\"', "", ",", '","', "\\\\"]

    assert parse_request(json.dumps({"prompt": prompts}).encode()).prompts == len(prompts)
