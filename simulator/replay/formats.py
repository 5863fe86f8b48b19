"""Request shapes from files: the gateway's own log, and the columns of public traces. Nothing else of a line is looked at.

| format | told by | times | lengths |
| --- | --- | --- | --- |
| `ridgeline` | JSON with `prompt_tokens` | `time` (the end) less `e2e_seconds` | `prompt_tokens`, `completion_tokens` |
| `mooncake` | JSON with `input_length` | `timestamp`, milliseconds | `input_length`, `output_length`, `hash_ids` |
| `azure` | a head with `ContextTokens` | `TIMESTAMP`, a date and time | `ContextTokens`, `GeneratedTokens` |
| `burstgpt` | a head with `Request tokens` | `Timestamp`, seconds | `Request tokens`, `Response tokens` |
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from math import isfinite

import msgspec

from routing.topology import NO_POOL
from simulator.replay.shapes import Reading, Shape

_MOST_TOKENS = 100_000_000
_MOST_HEAD_CHARACTERS = 10_000
_MOST_LINE_CHARACTERS = 4 * 1024 * 1024
_FRACTION_DIGITS = 6


class RecordsError(Exception):
    """The file holds no request shapes that can be read; the text says what would be right."""


class _NotAnsweredError(Exception):
    """A request of which nothing can be served again, and why."""


class _LogLine(msgspec.Struct):
    """Of a line of the gateway's log what is looked at."""

    time: str
    outcome: str = "ok"
    model: str | None = None
    pool: str | None = None
    worker: str | None = None
    prompt_tokens: int | None = None
    estimated_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    max_tokens: int | None = None
    e2e_seconds: float | None = None
    prefix_hash: str | None = None
    chain_id: str | None = None
    is_batch: bool = False


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None


_log_line = msgspec.json.Decoder(_LogLine)
_mooncake_line = msgspec.json.Decoder(_MooncakeLine)


def read_shapes(lines: Iterable[str], *, model: str | None = None) -> Reading:
    """Read all lines, whose format the first one tells. ``model``: only requests for it.

    Lines that cannot be read are counted, and the first one is named. `RecordsError` if the format is not known, or if no
    request is left.
    """
    reading = Reading()
    rows = enumerate(lines, start=1)
    first = next(((number, line.strip("\ufeff\r\n ")) for number, line in rows if line.strip("\ufeff\r\n ")), None)
    if first is None:
        raise RecordsError("the file is empty")
    number, head = first
    if head.startswith("{"):
        parse = _json_format(head)
        reading.format = "ridgeline" if parse is _of_log else "mooncake"
        _read_line(reading, number, head, parse, model)
        for number, line in rows:
            _read_line(reading, number, line.strip(), parse, model)
    else:
        _read_table(reading, head, rows, model)
    if not reading.shapes:
        said = f"; {reading.first_bad}" if reading.first_bad else ""
        passed = "".join(f"; {count} {reason}" for reason, count in reading.passed_over.items())
        raise RecordsError(f"no request with prompt and output lengths was found in {reading.lines} lines{said}{passed}")
    return reading


def _json_format(head: str) -> Callable[[str], Shape]:
    try:
        found = msgspec.json.decode(head, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        found = {}
    if "input_length" in found:
        return _of_mooncake
    if "prompt_tokens" in found or "request_id" in found or not found:
        return _of_log
    raise RecordsError(
        "the first line is JSON, but neither the gateway's log (prompt_tokens, completion_tokens) nor Mooncake's format "
        "(timestamp, input_length, output_length)"
    )


def _read_line(reading: Reading, number: int, line: str, parse: Callable[[str], Shape], model: str | None) -> None:
    if not line:
        return
    reading.lines += 1
    try:
        if len(line) > _MOST_LINE_CHARACTERS:
            raise ValueError("the line is too long")
        shape = parse(line)
    except _NotAnsweredError as error:
        reading.pass_over(str(error))
    except (ValueError, OverflowError, RecursionError, csv.Error) as error:  # msgspec's are ValueErrors
        reading.fault(number, str(error))
    else:
        _take(reading, shape, model)


def _take(reading: Reading, shape: Shape, model: str | None) -> None:
    if model is not None and shape.model != model:
        reading.pass_over("for other models")
    else:
        reading.shapes.append(shape)


def _of_log(line: str) -> Shape:
    found = _log_line.decode(line)
    prompt = found.estimated_prompt_tokens if found.prompt_tokens is None else found.prompt_tokens
    if found.is_batch:
        raise _NotAnsweredError("of several prompts or choices")
    if prompt is None or not found.completion_tokens:
        raise _NotAnsweredError("without an answer")
    return Shape(
        at_seconds=_instant(found.time) - (found.e2e_seconds or 0.0),
        prompt_tokens=_tokens(prompt, "prompt_tokens"),
        output_tokens=_tokens(found.completion_tokens, "completion_tokens"),
        max_tokens=found.max_tokens if found.max_tokens and found.max_tokens > 0 else None,
        cached_tokens=min(found.cached_tokens, prompt) if found.cached_tokens and found.cached_tokens > 0 else None,
        family=found.chain_id or found.prefix_hash,
        session=0 if found.chain_id is None else _number(found.chain_id),
        model=found.model,
        pool=None if found.pool == NO_POOL else found.pool,
        worker=found.worker or None,
    )


def _of_mooncake(line: str) -> Shape:
    found = _mooncake_line.decode(line)
    if not found.output_length:
        raise _NotAnsweredError("without an answer")
    return Shape(
        at_seconds=_finite(found.timestamp) / 1000.0,
        prompt_tokens=_tokens(found.input_length, "input_length"),
        output_tokens=_tokens(found.output_length, "output_length"),
        blocks=None if found.hash_ids is None else tuple(abs(name) for name in found.hash_ids),
    )


def _read_table(reading: Reading, head: str, rows: Iterable[tuple[int, str]], model: str | None) -> None:
    names = [name.strip() for name in next(csv.reader([head[:_MOST_HEAD_CHARACTERS]]))]
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(names):
        reading.format, of_row = "azure", _of_azure
    elif {"Timestamp", "Request tokens", "Response tokens"} <= set(names):
        reading.format, of_row = "burstgpt", _of_burstgpt
    else:
        raise RecordsError(
            "the first line is neither a JSON object nor a head with TIMESTAMP, ContextTokens and GeneratedTokens (Azure) or "
            "Timestamp, Request tokens and Response tokens (BurstGPT)"
        )

    def parse(line: str) -> Shape:
        cells = next(csv.reader([line]))
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} columns, not {len(names)}")
        return of_row(dict(zip(names, cells, strict=True)))

    for number, line in rows:
        _read_line(reading, number, line.strip(), parse, model)


def _of_azure(row: Mapping[str, str]) -> Shape:
    return _of_lengths(_instant(row["TIMESTAMP"]), row["ContextTokens"], row["GeneratedTokens"])


def _of_burstgpt(row: Mapping[str, str]) -> Shape:
    shape = _of_lengths(_finite(float(row["Timestamp"])), row["Request tokens"], row["Response tokens"])
    talk = row.get("Session ID", "")
    return Shape(
        at_seconds=shape.at_seconds,
        prompt_tokens=shape.prompt_tokens,
        output_tokens=shape.output_tokens,
        session=_number(talk) if talk else 0,
        model=row.get("Model") or None,
    )


def _of_lengths(at_seconds: float, prompt: str, output: str) -> Shape:
    prompt_tokens, output_tokens = int(float(prompt)), int(float(output))
    if not output_tokens:
        raise _NotAnsweredError("without an answer")
    return Shape(
        at_seconds=at_seconds,
        prompt_tokens=_tokens(prompt_tokens, "prompt"),
        output_tokens=_tokens(output_tokens, "output"),
    )


def _instant(text: str) -> float:
    """Seconds since 1970; without a zone it is taken for UTC. Azure's has seven digits behind the point."""
    text = text.strip()
    point = text.find(".")
    if point > 0:
        end = point + 1
        while end < len(text) and text[end].isdecimal():
            end += 1
        text = text[: min(end, point + 1 + _FRACTION_DIGITS)] + text[end:]
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _tokens(value: int, name: str) -> int:
    if not 0 < value <= _MOST_TOKENS:
        raise ValueError(f"{name} is a whole number above 0, not {value}")
    return value


def _finite(value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"a time is a finite number, not {value}")
    return value


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") + 1
