"""`ridgeline replay`: read records, serve them again in virtual time, and write what is wanted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from proxy.replaying.outcome import Outcome, remarks_of
from routing.policy import POLICIES
from simulator.hardware import Hardware, Placement, place
from simulator.replay.formats import RecordsError, read_shapes
from simulator.replay.search import Question, search
from simulator.replay.shapes import Reading, in_order

DONE, CANNOT_WRITE, WRONG = 0, 1, 2
_PIPED_WIDTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is wanted, as it is written."""

    records: str  # "-": standard input
    gpu: str
    model: str
    workers: int
    gpus: int | None = None
    tensor_parallel: int | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    policies: tuple[str, ...] = ()
    boundaries: tuple[int, ...] = ()
    short_workers: int | None = None
    tpot_target_seconds: float | None = None
    ttft_target_seconds: float | None = None
    only_model: str | None = None
    faster: float = 1.0
    limit: int | None = None
    search_requests: int = 6_000


class ReplayError(Exception):
    """An option that cannot be, or records that cannot be used; the text says what would be right."""


def show(asked: Asked, *, as_json: bool, html: Path | None, environ: Mapping[str, str], console: Console, told: Console) -> int:
    """Replay, print and write. Returns the exit status: 0, 1 if a file could not be written, 2 for options or records."""
    try:
        outcome = _replay(asked, told)
    except ReplayError as error:
        _tell(told, f"error: {error}")
        return WRONG
    remarks = remarks_of(outcome)
    if as_json:
        from proxy.replaying.as_json import document_of  # noqa: PLC0415 - one of the two is needed

        console.file.write(json.dumps(document_of(outcome, remarks), indent=2, allow_nan=False) + "\n")
    else:
        from proxy.replaying.table import print_outcome  # noqa: PLC0415

        if not console.is_terminal and "COLUMNS" not in environ:
            console.width = _PIPED_WIDTH
        print_outcome(outcome, remarks, console)
    if html is None:
        return DONE
    from proxy.replaying.page import sections_of, title_of  # noqa: PLC0415 - only if wanted
    from proxy.reporting.page import write_page  # noqa: PLC0415

    try:
        write_page(html, title_of(outcome), sections_of(outcome, remarks))
    except OSError as error:
        _tell(told, f"error: --html {html} cannot be written: {error.strerror or error}")
        return CANNOT_WRITE
    _tell(told, f"report: {html}")
    return DONE


def _replay(asked: Asked, told: Console) -> Outcome:
    started_at = time.monotonic()
    for policy in asked.policies:
        if policy not in POLICIES:
            raise ReplayError(f"--policy is one of {', '.join(POLICIES)}, not {policy!r}")
    if asked.workers < 2 and asked.boundaries:
        raise ReplayError("a boundary divides workers: --workers is at least 2")
    if asked.short_workers is not None and not 0 < asked.short_workers < asked.workers:
        raise ReplayError(f"--short-workers is at least 1 and leaves one of the {asked.workers} workers for long requests")
    placement = _placement(asked)
    reading = _read(asked)
    shapes = in_order(reading.shapes[: asked.limit], faster=asked.faster)
    question = Question(
        shapes=shapes,
        placement=placement,
        workers=asked.workers,
        policies=asked.policies or ("prefix-affinity",),
        boundaries=asked.boundaries,
        short_workers=asked.short_workers,
        tpot_target_seconds=asked.tpot_target_seconds,
        ttft_target_seconds=asked.ttft_target_seconds,
        search_requests=asked.search_requests,
    )
    with told.status("", spinner="dots") if told.is_terminal else _silent() as status:
        answer = search(question, (lambda what: None) if status is None else status.update)
    return Outcome(
        records="standard input" if asked.records == "-" else Path(asked.records).name,
        reading=reading,
        requests=len(shapes),
        trace_seconds=shapes[-1].at_seconds,
        gpu=asked.gpu,
        shape=asked.model,
        workers=asked.workers,
        answer=answer,
        seconds=time.monotonic() - started_at,
    )


def _placement(asked: Asked) -> Placement:
    hardware = Hardware(
        gpus=asked.gpus,
        tensor_parallel_size=asked.tensor_parallel,
        weight_dtype=asked.weight_dtype,
        kv_cache_dtype=asked.kv_dtype,
    )
    try:
        return place(
            asked.model,
            None,
            asked.gpu,
            hardware,
            max_num_seqs=asked.max_num_seqs,
            step_tokens=asked.max_num_batched_tokens,
        )
    except (ValueError, OSError) as error:
        raise ReplayError(str(error)) from None


def _read(asked: Asked) -> Reading:
    try:
        with _opened(asked.records) as lines:
            return read_shapes(lines, model=asked.only_model)
    except OSError as error:
        raise ReplayError(f"{asked.records} cannot be read: {error.strerror or error}") from None
    except RecordsError as error:
        raise ReplayError(f"{asked.records}: {error}") from None


@contextmanager
def _opened(records: str) -> Iterator[TextIO]:
    if records == "-":
        yield sys.stdin
        return
    with Path(records).open(encoding="utf-8", errors="replace", newline="") as lines:
        yield lines


@contextmanager
def _silent() -> Iterator[None]:
    yield None


def _tell(told: Console, text: str) -> None:
    told.print(text, markup=False, highlight=False)
