"""A probe for programs. Times in seconds; ``null`` is unknown or not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from proxy.probing.expectations import Pair
from proxy.probing.findings import LoadSeries, OutputSeries, PromptSeries
from proxy.probing.outcome import Outcome
from roofline.experiments.concurrency_knee import Knee
from roofline.experiments.least_squares import Estimated, Refused
from roofline.experiments.output_line import OutputLine
from roofline.experiments.prompt_curve import PromptCurve

SCHEMA = 1
Json = dict[str, object]


def document_of(outcome: Outcome) -> Json:
    """Everything that the table says, with every point."""
    findings = outcome.findings
    return {
        "schema": SCHEMA,
        "url": outcome.url,
        "endpoint": outcome.path,
        "model": outcome.model,
        "started_unix_seconds": outcome.started_unix_seconds,
        "seconds": outcome.seconds,
        "ended": outcome.ended,
        "left_out": list(outcome.left_out),
        "sampling": dict(outcome.sampling),
        "has_exact_outputs": outcome.has_exact_outputs,
        "counts_prompts": outcome.counts_prompts,
        "requests": findings.requests,
        "failed": findings.failed,
        "first_error": findings.first_error,
        "output": [_output(outcome, one) for one in findings.outputs],
        "prompt": [_prompt(outcome, one) for one in findings.prompts],
        "concurrency": [_load(outcome, one) for one in findings.loads],
        "steady": [
            {"context_tokens": one.context_tokens, "points": [asdict(point) for point in one.points]} for one in findings.steady
        ],
        "kv": {
            "peak_ratio": findings.peak_kv_ratio,
            "peak_tokens": findings.peak_kv_tokens,
            "capacity_tokens": findings.kv_tokens,
        },
        "gpu": None if outcome.expectation is None else outcome.expectation.deployment.gpu.id,
        "shape": None if outcome.expectation is None else outcome.expectation.deployment.shape.name,
        "remarks": [{"code": remark.code, "text": remark.text} for remark in outcome.remarks],
    }


def _output(outcome: Outcome, series: OutputSeries) -> Json:
    held, line = outcome.expectation, series.line
    prompt = series.prompt_tokens
    return {
        "warm": series.is_warm,
        "prompt_tokens": prompt,
        "cached_tokens": series.cached_tokens,
        "points": [
            {
                "output_tokens": point.count,
                "seconds": point.seconds,
                **_pair(held.whole(prompt, int(point.count), _cached(series)) if held and prompt else None),
            }
            for point in series.points
        ],
        "fit": _line(line),
    }


def _line(line: OutputLine | Refused) -> Json:
    if isinstance(line, Refused):
        return {"refused": line.reason}
    return {
        "ttft_seconds": _estimate(line.ttft_seconds),
        "tpot_seconds": _estimate(line.tpot_seconds),
        "r_squared": line.r_squared,
        "error_ratio": line.error_ratio,
    }


def _prompt(outcome: Outcome, series: PromptSeries) -> Json:
    held = outcome.expectation
    tpot = {point.count: point.seconds for point in series.tpot_points}
    return {
        "warm": series.is_warm,
        "cached_ratio": series.cached_ratio,
        "points": [
            {
                "prompt_tokens": point.count,
                "ttft_seconds": point.seconds,
                "tpot_seconds": tpot.get(point.count),
                **_pair(
                    held.ttft(int(point.count), int(point.count * (series.cached_ratio or 0.0)))
                    if held and (series.cached_ratio is not None or not series.is_warm)
                    else None
                ),
            }
            for point in series.points
        ],
        "fit": _curve(series.curve),
    }


def _curve(curve: PromptCurve | Refused) -> Json:
    if isinstance(curve, Refused):
        return {"refused": curve.reason}
    return {
        "base_seconds": _estimate(curve.base_seconds),
        "seconds_per_token": _estimate(curve.linear_seconds),
        "seconds_per_token_squared": _estimate(curve.quadratic_seconds),
        "chunk_tokens": None if curve.chunks is None else curve.chunks.tokens,
        "chunk_seconds": None if curve.chunks is None else _estimate(curve.chunks.seconds),
        "crossing_tokens": curve.crossing_tokens,
        "r_squared": curve.r_squared,
        "error_ratio": curve.error_ratio,
    }


def _load(outcome: Outcome, series: LoadSeries) -> Json:
    held = outcome.expectation
    points: list[Json] = []
    for point in series.points:
        pair = None
        if held is not None and point.prompt_tokens:
            pair = held.tpot(point.prompt_tokens, point.output_tokens or 2, point.requests)
        points.append({**asdict(point), **_pair(pair, "tpot_")})
    return {
        "context_tokens": series.context_tokens,
        "warm": series.is_warm,
        "points": points,
        "knee": _knee(series.knee),
        "waiting_from": series.waiting_from,
    }


def _knee(knee: Knee | Refused) -> Json:
    if isinstance(knee, Refused):
        return {"refused": knee.reason}
    return {
        "requests": _estimate(knee.requests),
        "shared_seconds": _estimate(knee.shared_seconds),
        "own_seconds": _estimate(knee.own_seconds),
        "is_extrapolated": knee.is_extrapolated,
        "error_ratio": knee.error_ratio,
    }


def _cached(series: OutputSeries) -> int:
    return series.cached_tokens or 0


def _estimate(found: Estimated) -> Json:
    return {"value": found.value, "margin": found.margin}


def _pair(pair: Pair | None, prefix: str = "") -> Json:
    names: Sequence[str] = (f"{prefix}floor_seconds", f"{prefix}expected_seconds")
    return dict.fromkeys(names) if pair is None else {names[0]: pair.floor_seconds, names[1]: pair.expected_seconds}
