"""`ridgeline probe`: run the experiments, fit, read, and write what is wanted."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxy.probing.answer import Measured
from proxy.probing.design import Burst, Design, fitting, requests_of
from proxy.probing.endpoint import Endpoint, ProbeError, Target, session_of
from proxy.probing.expectations import Expectation
from proxy.probing.findings import find
from proxy.probing.outcome import Outcome, printable
from proxy.probing.reading import read
from proxy.probing.running import Bounds, Log, Watch, learn_prompts, run_bursts

DONE, NOTHING_MEASURED, CANNOT, CANCELLED = 0, 1, 2, 130
_PIPED_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is wanted."""

    target: Target
    design: Design
    bounds: Bounds
    most_at_once: int
    metrics_url: str | None
    expectation: Expectation | None
    chunk_tokens: int | None  # said by the user


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Where results go, besides the screen."""

    as_json: bool = False
    html: Path | None = None
    calibration: Path | None = None


def show(asked: Asked, wanted: Wanted, environ: Mapping[str, str], console: Console) -> int:
    """Probe, print and write.

    Returns the exit status: 0, 1 if nothing was measured or a file not written, 2 if it cannot be, 130 if cancelled.
    """
    told = Console(stderr=True, soft_wrap=True)
    try:
        outcome, measured = asyncio.run(_probe(asked, told))
    except ProbeError as error:
        _tell(told, f"error: {error}")
        return CANNOT
    if wanted.as_json:
        from proxy.probing.as_json import document_of  # noqa: PLC0415 - one of the two is needed

        console.file.write(json.dumps(document_of(outcome), indent=2, allow_nan=False) + "\n")
    else:
        from proxy.probing.table import print_outcome  # noqa: PLC0415

        if not console.is_terminal and "COLUMNS" not in environ:
            console.width = _PIPED_WIDTH
        print_outcome(outcome, console)
    status = _write(outcome, measured, wanted, told)
    if outcome.ended == "cancelled":
        return CANCELLED
    return status if outcome.findings.requests > outcome.findings.failed else NOTHING_MEASURED


def _write(outcome: Outcome, measured: Sequence[Measured], wanted: Wanted, told: Console) -> int:
    """The files that are wanted; 1 if one of them could not be made."""
    status = DONE
    if wanted.html is not None:
        from proxy.probing.page import sections_of, title_of  # noqa: PLC0415 - only if wanted
        from proxy.reporting.page import write_page  # noqa: PLC0415

        try:
            write_page(wanted.html, title_of(outcome), sections_of(outcome))
            _tell(told, f"report: {wanted.html}")
        except OSError as error:
            _tell(told, f"error: --html {wanted.html} cannot be written: {error.strerror or error}")
            status = NOTHING_MEASURED
    if wanted.calibration is not None and outcome.expectation is not None:
        from proxy.probing.calibration import CalibrationError, reference_of, write_reference  # noqa: PLC0415

        try:
            reference = reference_of(measured, outcome.expectation, now_unix_seconds=time.time())
            others = write_reference(wanted.calibration, reference)
            kept = f", beside {others} others" if others else ""
            _tell(told, f"calibration: {wanted.calibration}, from {reference.samples:.0f} figures{kept}")
        except CalibrationError as error:
            _tell(told, f"error: no calibration was written: {error}")
            status = NOTHING_MEASURED
    return status


def _tell(told: Console, text: str) -> None:
    told.print(printable(text), markup=False, highlight=False)


async def _probe(asked: Asked, told: Console) -> tuple[Outcome, Sequence[Measured]]:
    clock = time.monotonic
    started_at, started_unix = clock(), time.time()
    log = Log()
    async with session_of() as session:
        endpoint = Endpoint(asked.target, session, clock)
        try:
            async with asyncio.timeout(asked.bounds.seconds):
                await endpoint.prepare()
                maker, counts_prompts = await learn_prompts(endpoint)
        except TimeoutError:
            raise ProbeError(f"{asked.target.url} has not ended its first answers in {asked.bounds.seconds:.0f} s") from None
        plan = fitting(asked.design, most_tokens=endpoint.most_tokens, most_at_once=asked.most_at_once)
        log.left_out += plan.left_out
        watch = Watch(session, asked.metrics_url or f"{asked.target.url}/metrics")
        total = requests_of(plan.bursts, is_warm_too=asked.design.is_warm_too)
        with _progress(told) as progress:
            bar = progress.add_task("", total=total)

            def tell(burst: Burst, is_warm: bool) -> None:
                name = f"{burst.experiment.value}: {burst.title}, {'warm' if is_warm else 'cold'}"
                progress.update(bar, completed=log.requests, description=name)

            running = asyncio.create_task(
                run_bursts(
                    endpoint,
                    plan.bursts,
                    maker,
                    asked.bounds,
                    log,
                    is_warm_too=asked.design.is_warm_too,
                    watch=watch,
                    clock=clock,
                    tell=tell,
                )
            )
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, running.cancel)
            try:
                await running
                progress.update(bar, completed=log.requests)
            except asyncio.CancelledError:
                log.ended = "cancelled"
            finally:
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)
    findings = find(log.measured, kv_tokens=log.kv_tokens, chunk_tokens=asked.chunk_tokens)
    outcome = Outcome(
        url=asked.target.url,
        path=endpoint.path,
        model=endpoint.model,
        started_unix_seconds=started_unix,
        seconds=clock() - started_at,
        ended=log.ended,
        left_out=tuple(dict.fromkeys(log.left_out)),
        sampling=endpoint.sampling,
        has_exact_outputs=endpoint.has_exact_outputs,
        counts_prompts=counts_prompts,
        findings=findings,
        remarks=read(findings, asked.expectation),
        expectation=asked.expectation,
    )
    return outcome, log.measured


def _progress(told: Console) -> Progress:
    """A bar on standard error; nothing if that is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=told,
        transient=True,
        disable=not told.is_terminal,
    )
