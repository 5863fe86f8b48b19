"""The filter that takes the usage event out, however a stream is cut, against events read one by one."""

from __future__ import annotations

from typing import Any

from proxy.upstream.usage_filter import UsageFilter
from tests.fuzz.inputs import cut_alike, in_several_ways, take_apart
from tests.fuzz.streams import captured, parsed, read_whole, without_inner_marks

WORDS = (
    *(b'"choices":[]', b'"usage":{', b'"usage":null', b'"finish_reason":"stop"', b'"system_fingerprint":"f"', b'"error":null'),
    *(b'"index":1', b"data: ", b"\n\n", b"data: [DONE]\n\n", b"\r\n\r\n", b"\r\r", b"}\n\n", b"event: "),
)
LONGEST = 1024


def check(data: bytes, make: type[UsageFilter] = UsageFilter) -> None:
    """The same bytes for any cut; whole events that are not the usage's stay as they are, but for the field that wanders."""
    choices, pieces = take_apart(data)
    stream = without_inner_marks(b"".join(pieces))
    count = 1 + (choices & 1)

    whole = _run(make(count), [stream])
    cut = _run(make(count), cut_alike(stream, pieces))

    assert cut == whole
    _check_events(stream, whole)


def _run(events: UsageFilter, pieces: list[bytes]) -> bytes:
    out = []
    for piece in pieces:
        out.append(events.feed(piece))
        assert len(events._held) < 8192 + 4
    return b"".join(out) + events.finish()


def _check_events(stream: bytes, filtered: bytes) -> None:
    before = _texts(stream)
    after = _texts(filtered)
    try:
        kept = _without_usage(before)
        assert [_settled(text) for text in after] == [_settled(text) for text in kept]
    except ValueError:
        return  # an event that is no JSON may be taken for anything, but is never lost: that is shown by its bytes
    if b'"system_fingerprint"' not in stream:
        assert after == kept


def _texts(stream: bytes) -> list[bytes]:
    events, rest = read_whole(stream)
    return [event.data for event in events] + ([] if rest is None else [rest])


def _without_usage(texts: list[bytes]) -> list[bytes]:
    """The events that are not the answer to our question: usage beside no choices, unless usage has come beside some."""
    kept, is_forced = [], False
    for text in texts:
        value = _value(text)
        is_usage = (
            isinstance(value, dict)
            and value.get("choices") == []
            and value.get("usage") is not None
            and not (value.get("error") is not None and not isinstance(value["usage"], dict))
        )
        if not is_usage or is_forced:
            kept.append(text)
        if isinstance(value, dict) and isinstance(value.get("usage"), dict) and value.get("choices"):
            is_forced = True
    return kept


def _value(text: bytes) -> Any:
    return None if text.strip() == b"[DONE]" else parsed(text)


def _settled(text: bytes) -> Any:
    value = _value(text)
    return {name: field for name, field in value.items() if name != "system_fingerprint"} if isinstance(value, dict) else value


def seeds() -> list[bytes]:
    """Short streams and captured ones."""
    text = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    end = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    ends = b'data: {"choices":[{"index":1,"delta":{},"finish_reason":"stop"}],"system_fingerprint":"g"}\n\n'
    usage = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5},"system_fingerprint":"f"}\n\n'
    both = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}\n\n'
    strange = b'data: {"choices":[],"usage":"none"}\n\n'
    done = b"data: [DONE]\n\n"
    streams = [text + end + usage + done, text + both + end + usage + done, end + ends + usage + done, strange + text + usage]
    streams += [stream.replace(b"\n", b"\r\n") for stream in streams] + [stream.replace(b"\n", b"\r") for stream in streams[:2]]
    return in_several_ways([*streams, *(each for each in captured() if len(each) < LONGEST)][:40], (0, 1))
