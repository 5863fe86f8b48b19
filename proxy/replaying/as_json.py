"""A replay for programs. Times in seconds; ``null`` is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from proxy.replaying.outcome import Outcome, Remark
from proxy.replaying.table import compared
from simulator.replay.layouts import Figures, Result

SCHEMA = 1
Json = dict[str, object]


def document_of(outcome: Outcome, remarks: Sequence[Remark]) -> Json:
    """Everything that the table says."""
    answer, reading = outcome.answer, outcome.reading
    return {
        "schema": SCHEMA,
        "records": {
            "path": outcome.records,
            "format": reading.format,
            "lines": reading.lines,
            "bad_lines": reading.bad,
            "first_bad_line": reading.first_bad,
            "passed_over": dict(reading.passed_over),
            "requests": outcome.requests,
            "seconds": outcome.trace_seconds,
        },
        "gpu": outcome.gpu,
        "shape": outcome.shape,
        "workers": outcome.workers,
        "targets": asdict(answer.targets),
        "output_budget_tokens": answer.budget_tokens,
        "search_requests": answer.search_requests,
        "tried": [_result(result) for result in compared(answer)],
        "before": _result(answer.before),
        "suggested": None if answer.after is None else _result(answer.after),
        "near_boundaries": list(answer.near_boundaries),
        "alike_boundaries": list(answer.alike_boundaries),
        "loads": [asdict(check) for check in answer.loads],
        "remarks": [{"code": remark.code, "text": remark.text} for remark in remarks],
    }


def _result(result: Result) -> Json:
    layout = result.layout
    return {
        "name": layout.name,
        "policy": layout.policy,
        "is_recorded": layout.is_recorded,
        "pools": [asdict(part) for part in layout.parts],
        "met_ratio": result.met_ratio,
        "short": _figures(result.short),
        "long": _figures(result.long),
        "refused": result.refused,
        "unfinished": result.unfinished,
        "cached_ratio": result.cached_ratio,
        "work_ratios": list(result.busy_ratios),
    }


def _figures(figures: Figures) -> Json:
    return {
        "requests": figures.requests,
        "ttft_seconds": asdict(figures.ttft),
        "tpot_seconds": asdict(figures.tpot),
        "stall_ratio": figures.stall_ratio,
    }
