"""Forms with a file: the fields are found wherever they stand, and what is no form is the client's fault."""

from __future__ import annotations

from time import process_time

import pytest

from proxy.serving.dispatch import prepare
from proxy.serving.endpoints import Endpoints
from proxy.wire.errors import ClientFault
from proxy.wire.forms import boundary_of, read_form, request_of
from tests.routing.topologies import a_model, a_pool, a_topology

ENDPOINTS = Endpoints(a_topology(a_model(a_pool(0), name="org/m", aliases=("alias",)), a_model(a_pool(1), name="q")), 0)
AUDIO = ENDPOINTS.find(b"POST", b"/v1/audio/transcriptions")
FORM_TYPE = b"content-type: multipart/form-data; boundary=xyz\r\n"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return b'--xyz\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name.encode(), more.encode(), value)


FILE = part("file", b"\x00\xff\r\n--xy\r\n\r\n" * 1000, '; filename="a.wav"\r\nContent-Type: audio/wav')
END = b"--xyz--\r\n"


@pytest.mark.parametrize(
    ("lines", "boundary"),
    [
        (FORM_TYPE, b"xyz"),
        (b'a: b\r\nContent-Type: Multipart/Form-Data;charset=utf-8; Boundary="x y"\r\n', b"x y"),
        (b"content-type: multipart/form-data; boundary=xyz; a=b\r\n", b"xyz"),
        (b"content-type: multipart/form-data\r\n", None),
        (b"content-type: application/json; boundary=x\r\n", None),
        (b"x-content-type: multipart/form-data; boundary=x\r\n", None),
        (b"", None),
        (FORM_TYPE + b"Content-Type: multipart/form-data; boundary=abc\r\n", None),
        (b"content-type: multipart/form-data; boundary=abc; boundary=xyz\r\n", None),
        (b"content-type: multipart/form-data; boundary*=utf-8''xyz; boundary=abc\r\n", None),
        (b"content-type: multipart/form-data; boundary=xyz; charset=utf-7\r\n", None),
        (b"content-type: multipart/form-data; boundary=<xyz>\r\n", None),
        (b'content-type: multipart/form-data; a="; boundary=abc"; boundary=xyz\r\n', b"xyz"),
        (b"content-type: multipart/form-data; boundary=" + b"x" * 71 + b"\r\n", None),
        (b"content-type: multipart/form-data; boundary=a/b=c:d?;\r\n", b"a/b=c:d?"),
    ],
)
def test_boundaries(lines, boundary):
    """The header names it, with quotes or without."""
    assert boundary_of(lines) == boundary


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("preamble", [b"", b"to be left out\r\n"])
def test_fields_before_and_behind_the_file(order, preamble):
    """The model may come last; a file that looks like a form hides nothing."""
    parts = [FILE, part("model", b"org/m"), part("stream", b"true")]
    body = preamble + b"".join(parts[at] for at in order) + END

    found = read_form(body, b"xyz")
    request = request_of(body, found)

    assert set(found) == {"file", "model", "stream"}
    assert body[slice(*found["file"])].startswith(b"\x00\xff\r\n")
    assert (request.model, request.stream, request.choices) == ("org/m", True, 1)


@pytest.mark.parametrize(("value", "stream"), [(b"true", True), (b"True", True), (b"1", True), (b"false", False), (b"", False)])
def test_streams(value, stream):
    """As forms write booleans."""
    body = part("stream", value) + END

    assert request_of(body, read_form(body, b"xyz")).stream is stream


@pytest.mark.parametrize(
    "head",
    [
        "Content-Disposition: form-data; name=model",
        "content-disposition:form-data;name=model",
        'Content-Disposition:\tForm-Data ;\tNAME = "model" ; ',
        'X-Y: content-disposition: f; name="zzz"\r\nContent-Disposition: form-data; name=model',
        'Content-Type: a/b; name="zzz"\r\nContent-Disposition: form-data; name=model',
        'Content-Disposition: form-data; filename="; name=\\"x"; name="model"',
        'Content-Disposition: form-data; filename="; name=x"; name="model"',
        "Content-Disposition: form-data; filename*=utf-8''a%22; name=model",
    ],
)
def test_ways_to_write_a_name(head):
    """The parameter of the part's own line names it; what looks like one in other lines and other values does not."""
    body = part("model", b"org/m") + b"--xyz\r\n" + head.encode() + b"\r\n\r\nq\r\n" + END

    assert request_of(body, read_form(body, b"xyz")).model == "q"


@pytest.mark.parametrize(
    "head",
    [
        "",
        "Content-Type: text/plain",
        "Content-Disposition: form-data",
        'Content-Disposition: form-data; filename="name=model"',
        'Content-Disposition: attachment; name="model"',
        "Content-Disposition: form-data; name*=utf-8''model",
        'Content-Disposition: form-data; name*0="mo"; name*1="del"',
        "Content-Disposition: form-data; name=a; name=model",
        'Content-Disposition: form-data; name="mo\\del"',
        'Content-Disposition: form-data; name="a\\\\"; x="; name=model',
        "Content-Disposition: form-data; name=<model>",
        'Content-Disposition: form-data; name="a" name="model"',
        'Content-Disposition: form-data; name="a',
        "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=model",
        "Content-Disposition: form-data;\r\n name=model",
        "X: y\nContent-Disposition: form-data; name=model\r\nContent-Disposition: form-data; name=a",
        "X: y\rContent-Disposition: form-data; name=model",
        "Content-Disposition : form-data; name=model",
        "Content-Disposition: form-data" + ";" * 600 + "name=model",
    ],
)
def test_names_that_can_be_read_in_two_ways(head):
    """What another reader could take for another field is refused, not passed over."""
    body = part("model", b"org/m") + b"--xyz\r\n" + head.encode() + b"\r\n\r\nq\r\n" + END

    with pytest.raises(ClientFault) as raised:
        read_form(body, b"xyz")

    assert (raised.value.status, raised.value.code) == (400, "invalid_form")


def test_padding_behind_a_boundary():
    """Blanks up to the end of its line belong to the boundary."""
    body = (FILE + part("model", b"q") + END).replace(b"--xyz\r\n", b"--xyz \t\r\n")

    assert request_of(body, read_form(body, b"xyz")).model == "q"


@pytest.mark.parametrize("start", [b"\n", b"\r\n\r\n"])
def test_line_ends_in_front_of_the_first_boundary(start):
    """Some readers skip them, so the first part counts."""
    body = start + part("model", b"q") + part("other", b"") + END

    assert request_of(body, read_form(body, b"xyz")).model == "q"


@pytest.mark.parametrize(
    "body",
    [
        b"x\n" + part("model", b"m") + part("other", b"") + END,
        b"",
        b"{}",
        FILE,
        part("model", b"m") + b"--xyz",
        part("model", b"m")[:-2] + END,
        b"--xyzz\r\n" + part("model", b"m")[7:] + END,
        b"--xyz\r\nno head" + END,
        b"--xyz\r\n" + b"a" * 5000 + b"\r\n\r\n\r\n" + END,
        part("a", b"") * 200 + END,
        part("model", b"m") + part("model", b"")[:-2] + END,
        part("model", b"m") + part("x", b"")[:-2] + part("model", b"q") + END,
        part("model", b"m") + b"--xyzzy\r\n" + END,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_form(body):
    """Cut, without boundary, of very many parts: a clear 400 that quotes nothing."""
    with pytest.raises(ClientFault) as raised:
        read_form(body, b"xyz")

    assert (raised.value.status, raised.value.code) == (400, "invalid_form")
    assert len(raised.value.text) < 120


def test_an_alias_is_renamed_in_its_place():
    """The worker's own name of the model stands in the field; every other byte is the client's."""
    body = FILE + part("model", b"alias") + part("prompt", b"alias") + END

    made = prepare(body, AUDIO, ENDPOINTS, None, FORM_TYPE)

    assert made.body == FILE + part("model", b"org/m") + part("prompt", b"alias") + END
    assert (made.size, made.request.model, made.model.name) == (len(made.body), "org/m", "org/m")


@pytest.mark.parametrize(
    ("body", "lines", "code"),
    [
        (FILE + END, FORM_TYPE, "model_missing"),
        (part("model", b"nobody") + END, FORM_TYPE, "model_not_found"),
        (b'{"model":"q"}', b"content-type: application/json\r\n", "invalid_form"),
        (part("model", b"q") + END, b"", "invalid_form"),
    ],
)
def test_forms_that_cannot_be_sent(body, lines, code):
    """Each is the client's fault, with a code of its own."""
    with pytest.raises(ClientFault) as raised:
        prepare(body, AUDIO, ENDPOINTS, None, lines)

    assert raised.value.code == code


@pytest.mark.parametrize("head", ["content-disposition:" * 200, "content-disposition: form-data" + "; " * 2000, "a:" * 2000])
def test_heads_are_read_in_one_pass(head):
    """Heads full of what is looked for are given up on at once."""
    body = (b"--xyz\r\n" + head.encode()[:4080] + b"\r\n\r\nv\r\n") * 98 + END
    best = 1.0
    for _ in range(3):
        begun = process_time()
        with pytest.raises(ClientFault):
            read_form(body, b"xyz")
        best = min(best, process_time() - begun)

    assert best < 0.01


def test_a_large_upload_is_read_fast():
    """25 MB hold the loop for milliseconds."""
    body = part("file", b"\r\n-" * 8_000_000) + part("model", b"q") + END
    best = 1.0
    for _ in range(3):
        begun = process_time()
        assert set(read_form(body, b"xyz")) == {"file", "model"}
        best = min(best, process_time() - begun)

    assert best < 0.2
