"""A real vLLM on the CPU beside a simulated worker that was fitted to it: ``make compare-vllm``.

Measures single streams and batches that begin together, fits the constants of the simulated engine's steps to them by least
squares, and then lets both serve the same requests at loads that were not fitted. Prints the constants and a table in Markdown.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import log
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from closed_loop import Shape, Stream, run_closed_loop

from roofline.calibration.bounded_least_squares import solve_bounded
from simulator.children import child
from simulator.engine.timing import ConstantTimer
from simulator.server import WorkerSettings, start_worker

HERE = Path(__file__).resolve()
SERVE = HERE.parent / "serve.py"
MODEL = "tiny"
STEP_TOKENS = 2048
SEQUENCES = 64
LOADS = (1, 4, 16)  # streams at once
PROMPT_TOKENS, OUTPUT_TOKENS = (32, 256), (32, 96)  # drawn evenly
_GRACE_SECONDS = 25.0
_START_SECONDS = 300.0
_PREFILLS = (16, 64, 128, 256, 512, 1024, 1536)
_BATCHES = ((1, 32), (4, 32), (8, 32), (16, 32), (4, 384), (8, 768))  # sequences and prompt tokens
_FITTED_TOKENS = 64  # that each sequence of a batch generates
_TURNS = 2
_CROWD = 8  # streams at once, for what each adds to the others' first token; none of the loads
_SETTLED = 8  # tokens after which all of a batch decode

app = typer.Typer(add_completion=False)


async def fit(url: str, name: str) -> tuple[ConstantTimer, float]:
    """The constants of a server's steps, and the sigma of their noise. ``name`` makes its prompts different from others'."""
    await run_closed_loop(url, MODEL, [Shape(64, 32)] * 8, 4, f"{name} warms up")
    gaps: dict[tuple[int, int], list[float]] = {batch: [] for batch in _BATCHES}
    firsts: dict[int, list[float]] = {prompt: [] for prompt in _PREFILLS}
    for turn in range(_TURNS):  # each kind several times, far apart: the machine is not equally fast all the time
        for sequences, prompt in _BATCHES:
            shapes, seed = [Shape(prompt, _FITTED_TOKENS)] * sequences, f"{name} {turn} {sequences} {prompt}"
            streams = await run_closed_loop(url, MODEL, shapes, sequences, seed)
            gaps[sequences, prompt] += [gap for stream in streams for gap in _gaps(stream)]
        for prompt in _PREFILLS:
            streams = await run_closed_loop(url, MODEL, [Shape(prompt, 2)] * 4, 1, f"{name} {turn} {prompt}")
            firsts[prompt] += [stream.ttft_seconds for stream in streams]
    decode = [
        ((1.0, float(sequences), sequences * (prompt + (_FITTED_TOKENS + _SETTLED) / 2)), statistics.fmean(_inner(values)))
        for (sequences, prompt), values in gaps.items()
    ]
    step, sequence, cached = _least_squares(decode)
    once, token = _least_squares([((1.0, float(prompt)), statistics.median(values)) for prompt, values in firsts.items()])
    alone, crowded = [_outside_seconds(await load(url, streams, f"{name} outside")) for streams in (1, _CROWD)]
    timer = ConstantTimer(
        step_seconds=step,
        prefill_seconds_per_token=token,
        context_seconds_per_token=cached,
        sequence_seconds=sequence,
        request_overhead_seconds=max(0.0, once - step),
        stream_overhead_seconds=max(0.0, crowded - alone) / (_CROWD - 1),
    )
    return timer, statistics.median(log(_quantile(values, 0.84) / statistics.median(values)) for values in gaps.values())


async def load(url: str, concurrency: int, name: str) -> list[Stream]:
    """The same requests for whoever serves them."""
    draws = Random(f"{concurrency} {name}")  # noqa: S311 -- lengths, not secrets
    count = max(40, 10 * concurrency)
    shapes = [Shape(draws.randint(*PROMPT_TOKENS), draws.randint(*OUTPUT_TOKENS)) for _ in range(count)]
    return await run_closed_loop(url, MODEL, shapes, concurrency, f"{name} {concurrency}")


async def compare(folder: Path, rounds: int) -> None:
    """Start vLLM; in each round fit a simulated worker to it, and let both serve the loads. Prints constants and a table."""
    command = [str(SERVE), "--max-num-batched-tokens", str(STEP_TOKENS), "--enable-per-request-metrics"]
    vllm = child("vllm", command, folder=folder, grace_seconds=_GRACE_SECONDS, reads_output=True)
    found: dict[tuple[str, int], list[list[Stream]]] = {}
    async with vllm as started:
        real = (await asyncio.wait_for(started.first_line(), _START_SECONDS)).split()[-1:]
        if not real:
            raise RuntimeError(f"vLLM did not start: {started.last_words()}")
        for number in range(rounds):
            timer, sigma = await fit(real[0], f"round {number}")
            constants = json.dumps({**asdict(timer), "sigma": sigma})
            typer.echo(f"round {number + 1}, load of the machine {os.getloadavg()[0]:.1f}; fitted: {constants}")
            arguments = [str(HERE), "--simulate", constants]
            simulated = child(f"simulated-{number}", arguments, folder=folder, grace_seconds=_GRACE_SECONDS, reads_output=True)
            async with simulated as worker:
                url = (await worker.first_line()).split()[-1]
                for concurrency in LOADS:
                    for name, one in (("vLLM", real[0]), ("simulated", url)):
                        found.setdefault((name, concurrency), []).append(await load(one, concurrency, f"load {number}"))
    for line in ("", *table(found)):
        typer.echo(line)


def table(found: dict[tuple[str, int], list[list[Stream]]]) -> Iterable[str]:
    """Lines of Markdown: the quantiles of all rounds together, and in brackets those of each."""
    yield "| streams | worker | TTFT P50 ms | of it outside the engine | TTFT P99 ms | TPOT P50 ms | TPOT P99 ms |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    figures: tuple[Callable[[Stream], float], ...] = (lambda one: one.ttft_seconds, lambda one: one.tpot_seconds)
    for (name, concurrency), rounds in sorted(found.items(), key=lambda item: (item[0][1], item[0][0] != "vLLM")):
        cells = [
            f"{_quantile([figure(one) for streams in rounds for one in streams], share) * 1e3:.2f} ("
            + ", ".join(f"{_quantile([figure(one) for one in streams], share) * 1e3:.2f}" for streams in rounds)
            + ")"
            for figure in figures
            for share in (0.5, 0.99)
        ]
        known = [one for streams in rounds for one in streams if one.engine_seconds is not None]
        outside = f"{_outside_seconds(known) * 1e3:.2f}" if known else "-"
        yield f"| {concurrency} | {name} | {' | '.join([cells[0], outside, *cells[1:]])} |"


async def serve(constants: str) -> None:
    """A simulated worker with these constants, until it is told to end."""
    fields = json.loads(constants)
    sigma = fields.pop("sigma")
    settings = WorkerSettings(
        model=MODEL,
        gpu="a CPU",
        port=0,
        timer=ConstantTimer(**fields),
        kv_tokens=1_000_000,
        max_model_len=32_768,
        max_num_seqs=SEQUENCES,
        step_tokens=STEP_TOKENS,
        block_tokens=128,
        step_noise_sigma=sigma,
    )
    _, url = await start_worker(settings)
    sys.stdout.write(f"simulated worker: {url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _outside_seconds(streams: Sequence[Stream]) -> float:
    """The median of what of TTFT is neither the engine's queue nor its steps, as vLLM itself tells them."""
    known = [stream.ttft_seconds - stream.engine_seconds for stream in streams if stream.engine_seconds is not None]
    if not known:
        raise RuntimeError("vLLM does not tell how long its engine took for each request")
    return statistics.median(known)


def _gaps(stream: Stream) -> list[float]:
    times = stream.event_at[_SETTLED:]
    return [after - before for before, after in pairwise(times)]


def _inner(values: Sequence[float]) -> list[float]:
    """Without the longest hundredth: moments in which the machine did something else."""
    return sorted(values)[: -max(1, len(values) // 100)]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def _least_squares(samples: Sequence[tuple[tuple[float, ...], float]]) -> list[float]:
    """Coefficients, none below 0, that miss the measured seconds by the least squares of relative errors."""
    size = len(samples[0][0])
    scale = [max(terms[i] for terms, _ in samples) for i in range(size)]
    rows = [[term / scale[i] / seconds for i, term in enumerate(terms)] for terms, seconds in samples]
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    found = solve_bounded(matrix, [sum(row[i] for row in rows) for i in range(size)], [0.0] * size)
    return [value / scale[i] for i, value in enumerate(found)]


@app.command()
def main(
    simulate: Annotated[str | None, typer.Option(help="Only serve, with these constants as JSON.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that everything is fitted and measured.")] = 3,
) -> None:
    """Compare a real vLLM with a simulated worker fitted to it."""
    if simulate is not None:
        asyncio.run(serve(simulate))
        return
    with tempfile.TemporaryDirectory(prefix="ridgeline-compare-") as folder:
        asyncio.run(compare(Path(folder), rounds))


if __name__ == "__main__":
    app()
