"""A calibration for the gateway from a probe's measurements: what it would learn by itself, in a minute instead of an hour."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from proxy.control.calibrating import key_of
from proxy.probing.answer import Measured
from proxy.probing.expectations import Expectation
from roofline.calibration.calibration import Calibration
from roofline.calibration.reference import Reference, accept, doubts
from roofline.calibration.reference_json import reference_from_json, reference_to_json
from roofline.calibration.sample import Sample, decode_sample, prefill_sample
from roofline.limits import Surroundings


class CalibrationError(Exception):
    """No calibration is written, and why."""


def reference_of(measured: Sequence[Measured], held: Expectation, *, now_unix_seconds: float) -> Reference:
    """Fit the losses of the worker. `CalibrationError` says what the measurements do not allow."""
    calibration = Calibration(key_of(held.deployment), held.losses)
    for sample in samples_of(measured, held):
        calibration.add(sample)
    fit = calibration.fit()
    if fit is None:
        raise CalibrationError(f"{calibration.samples_taken} figures were measured, which is too few: leave more lengths in")
    if why := doubts(fit):
        raise CalibrationError("; ".join(why))
    return accept(fit, accepted_unix_seconds=now_unix_seconds)


def samples_of(measured: Sequence[Measured], held: Expectation) -> Iterator[Sample]:
    """TTFT of requests that were alone and whose hit is known, TPOT while all of a burst were decoding."""
    for one in measured:
        for answer in one.answers:
            prompt, output, cached = answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens
            if answer.error is not None or not prompt or not output:
                continue
            if cached is None and not one.is_warm:
                cached = 0  # nobody had seen this prompt
            if one.burst.requests == 1 and answer.ttft_seconds and cached is not None and cached <= prompt:
                yield prefill_sample(
                    held.deployment,
                    prompt_tokens=prompt,
                    cached_tokens=cached,
                    around=Surroundings(chunk_tokens=held.chunk_tokens),
                    measured_seconds=answer.ttft_seconds,
                )
            pace = answer.tpot_seconds if one.burst.requests == 1 else one.together_seconds
            if pace and output >= 2:
                yield decode_sample(
                    held.deployment,
                    context_tokens=prompt,
                    completion_tokens=output,
                    around=Surroundings(running=one.burst.requests - 1, context_tokens=prompt + output // 2),
                    measured_seconds=pace,
                )


def write_reference(path: Path, reference: Reference) -> int:
    """Put it into the gateway's file of calibrations, in place of one of the same key; how many others are kept there.

    `CalibrationError` if the file cannot be read or written; then it stays as it was.
    """
    try:
        kept = [reference_from_json(value) for value in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
    except (OSError, ValueError, TypeError) as error:
        raise CalibrationError(f"{path} is there and no file of calibrations: {error}") from None
    others = [one for one in kept if one.key != reference.key]
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_bytes(msgspec.json.encode([reference_to_json(one) for one in (*others, reference)]))
        fresh.replace(path)
    except OSError as error:
        raise CalibrationError(f"{path} cannot be written: {error.strerror or error}") from None
    return len(others)
