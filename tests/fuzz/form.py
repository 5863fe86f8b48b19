"""A form with a file: the fields that the gateway reads are those that a worker's parser reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from proxy.wire.errors import ClientFault
from proxy.wire.forms import boundary_of, read_form
from tests.fuzz.inputs import put_together, take_apart

WORDS = (
    *(b"--xyz\r\n", b"\r\n--xyz", b"--xyz--\r\n", b'Content-Disposition: form-data; name="', b'"model"', b'; filename="a.wav"'),
    *(b"\r\n\r\n", b"\r\n", b"\n", b"Content-Type: text/plain\r\n", b'name="model"', b"; name=model", b"filename*=utf-8''a"),
    *(b'\\"', b"%22", b"Content-Disposition: ", b" ", b"\t", b"; ", b'"', b"=", b"--", b"boundary=xyz", b"multipart/form-data"),
)
LONGEST = 800
_TYPE = b"multipart/form-data; boundary=xyz"
_Read = Callable[[bytes, bytes], Mapping[str, tuple[int, int]]]


def check(data: bytes, read: _Read = read_form) -> None:
    """Against the parser behind vLLM's server, which refuses more. With odd choices it is the header's value, else a body."""
    choices, pieces = take_apart(data)
    given = b"".join(pieces)
    if choices & 1:
        _check_header(given)
        return
    try:
        found = read(given, b"xyz")
    except ClientFault:
        return
    expected = _as_a_worker_reads(given)
    assert expected is None or {name: given[slice(*span)] for name, span in found.items()} == expected


def _check_header(value: bytes) -> None:
    if b"\r" in value or b"\n" in value or b"\0" in value:
        return  # no header that could have come
    boundary = boundary_of(b"content-type: " + value + b"\r\n")
    if boundary is not None:
        kind, options = parse_options_header(value.strip())
        assert kind == b"multipart/form-data"
        assert options.get(b"boundary") == boundary


def _as_a_worker_reads(body: bytes) -> dict[str, bytes] | None:
    """The last value of each name, as Starlette takes them from its parser; None if it refuses."""
    found: dict[str, bytes] = {}
    headers: list[tuple[bytes, bytes]] = []
    part, name, value, key = bytearray(), bytearray(), bytearray(), ""

    def on_part_begin() -> None:
        headers.clear()
        part.clear()

    def on_header_end() -> None:
        headers.append((bytes(name).lower(), bytes(value)))
        name.clear()
        value.clear()

    def on_headers_finished() -> None:
        nonlocal key
        given = [text for field, text in headers if field == b"content-disposition"]
        options = parse_options_header(given[-1] if given else None)[1]
        key = options[b"name"].decode("utf-8", "replace")

    def on_part_end() -> None:
        found[key] = bytes(part)

    def taking(target: bytearray) -> Callable[[bytes, int, int], None]:
        return lambda data, start, end: target.extend(data[start:end])

    parser = MultipartParser(
        b"xyz",
        {
            "on_part_begin": on_part_begin,
            "on_part_data": taking(part),
            "on_part_end": on_part_end,
            "on_header_field": taking(name),
            "on_header_value": taking(value),
            "on_header_end": on_header_end,
            "on_headers_finished": on_headers_finished,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except (FormParserError, KeyError):
        return None
    return found


def seeds() -> list[bytes]:
    """Forms, broken ones, and values of the header."""
    field = b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    head = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    file = head + b"\0\r\n--xy\r\n"
    bodies = (field + file + b"--xyz--\r\n", file + field + field + b"--xyz--", b"x\r\n" + field + b"--xyz--\r\nbehind", field)
    values = (_TYPE, b'multipart/form-data; charset=utf-8; boundary="xyz"', b"text/plain; boundary=xyz")
    return [put_together(body) for body in bodies] + [put_together(value, (), 1) for value in values]
