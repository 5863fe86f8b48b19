"""Measured bursts made by hand."""

from __future__ import annotations

from proxy.probing.answer import Answer, Measured
from proxy.probing.design import Burst, Experiment


def an_answer(ttft: float, tpot: float, prompt: int, output: int, *, cached: int | None = 0, sent_at: float = 10.0) -> Answer:
    """One token an event, evenly."""
    first = sent_at + ttft
    token_at = tuple(first + tpot * place for place in range(output))
    return Answer(
        sent_at=sent_at,
        ended_at=token_at[-1],
        first_token_at=first,
        last_token_at=token_at[-1],
        token_at=token_at,
        prompt_tokens=prompt,
        completion_tokens=output,
        cached_tokens=cached,
    )


def a_burst(
    experiment: Experiment,
    answers: list[Answer],
    *,
    prompt: int,
    output: int,
    is_warm: bool = False,
    kv: float | None = None,
    waiting: float | None = None,
) -> Measured:
    return Measured(
        burst=Burst(experiment=experiment, prompt_tokens=prompt, output_tokens=output, requests=len(answers)),
        is_warm=is_warm,
        answers=tuple(answers),
        peak_kv_ratio=kv,
        peak_waiting=waiting,
    )


def outputs(ttft: float, tpot: float, *, is_warm: bool = False, prompt: int = 512) -> list[Measured]:
    return [
        a_burst(Experiment.OUTPUT, [an_answer(ttft, tpot, prompt, n)], prompt=prompt, output=n, is_warm=is_warm)
        for n in (16, 64, 256)
    ]


def prompts(base: float, linear: float, square: float, *, is_warm: bool = False, cached: float | None = 0.0) -> list[Measured]:
    return [
        a_burst(
            Experiment.PROMPT,
            [an_answer(base + linear * n + square * n * n, 0.008, n, 64, cached=None if cached is None else round(cached * n))],
            prompt=n,
            output=64,
            is_warm=is_warm,
        )
        for n in (256, 512, 1024, 2048, 4096, 8192)
    ]


def loads(
    context: int, shared: float, own: float, *, is_warm: bool = True, places: int = 1000, kv: float | None = 0.1
) -> list[Measured]:
    """Bursts of which at most ``places`` run at once; the others come when these have ended."""
    made = []
    for n in (1, 2, 4, 8, 16, 32):
        running = min(n, places)
        tpot = shared + own * running
        answers = [an_answer(0.05 + (place // places) * 128 * tpot, tpot, context, 128) for place in range(n)]
        made.append(
            a_burst(
                Experiment.CONCURRENCY,
                answers,
                prompt=context,
                output=128,
                is_warm=is_warm,
                kv=kv,
                waiting=float(n - running) if kv is not None else None,
            )
        )
    return made
