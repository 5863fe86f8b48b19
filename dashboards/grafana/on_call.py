"""The board for whoever was woken up: is anything wrong, since when, where, and why."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.grafana import links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, Step, Unit

_ALERTS = 'alertname=~"Ridgeline.*"'
_FIRING = f'ALERTS{{alertstate="firing",{_ALERTS}}}'


def _number(
    title: str, description: str, expr: str, unit: Unit, steps: tuple[Step, ...], no_value: str = "No traffic"
) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=(Query(expr=expr, legend=title),),
        form=Form.NUMBER,
        width=3,
        height=3,
        steps=steps,
        no_value=no_value,
    )


def _numbers() -> tuple[Panel, ...]:
    left_out = f"max by (model, pool, worker) ({words.series('ridgeline_worker_left_out')})"
    return (
        _number(
            "Alerts firing",
            "Alerts of Ridgeline's rules that fire now; needs the rules loaded.",
            f"count({_FIRING}) or vector(0)",
            Unit.COUNT,
            panels.NONE_STEPS,
        ),
        _number(
            "Workers out",
            "Workers that get no new requests: draining, down, silent, or failing what they are asked.",
            f"count({left_out}) or vector(0)",
            Unit.COUNT,
            panels.NONE_STEPS,
        ),
        _number(
            "Failed requests",
            "Share of requests that failed, and not by their client's doing or by a refusal.",
            words.failed_share(),
            Unit.SHARE,
            (Step(at=None, colour=Colour.GOOD), Step(at=thresholds.ERRORS_RATIO, colour=Colour.BAD)),
        ),
        _number(
            "TTFT P95",
            "Request fully received to first token: 95 % of streams are faster. The hit share beside it says how "
            "much of their prompts did not have to be computed.",
            words.quantile(0.95, "ridgeline_ttft_seconds"),
            Unit.SECONDS,
            panels.TTFT_STEPS,
        ),
        _number(
            "Hit share",
            "Share of prompt tokens that came from prefix caches, of the requests where it is known.",
            words.hit_share(),
            Unit.SHARE,
            (Step(at=None, colour=Colour.HIT),),
        ),
        _number(
            "TPOT P99 / P50",
            "How much slower than usual the slowest hundredth of streams is; above the limit people feel stalls.",
            panels.jitter_expr(),
            Unit.RATIO,
            panels.JITTER_STEPS,
        ),
        _number(
            "TPOT attained",
            "Expected over measured, median over requests: 100 % is as fast as these GPUs can be.",
            words.quantile(0.5, "ridgeline_tpot_attained_ratio"),
            Unit.SHARE,
            panels.ATTAINED_STEPS,
        ),
        _number(
            "Waiting in the gateway",
            "Requests that wait here for a worker with room.",
            words.total(words.series("ridgeline_queued_requests")),
            Unit.COUNT,
            panels.NONE_STEPS,
        ),
    )


def _firing() -> Panel:
    labels = ("alertname", "severity", "model", "pool", "worker")
    since = f"max by ({', '.join(labels)}) (ALERTS_FOR_STATE{{{_ALERTS}}} and ignoring (alertstate) {_FIRING})"
    return Panel(
        title="What fires, and since when",
        description="Alerts of Ridgeline's rules that fire now, since when their condition holds, and where. Each panel "
        "that shows "
        "the reason of an alert links to its runbook.",
        unit=Unit.AGO,
        queries=(Query(expr=f"1000 * {since}", legend="Since"),),
        form=Form.TABLE,
        width=10,
        height=7,
        labels=labels,
        no_value="Nothing fires",
    )


def _causes_in_range() -> Panel:
    risen = words.total(f"increase({words.series('ridgeline_deviations_total')}[$__range])", "cause")
    return Panel(
        title="Slow requests in the time shown",
        description="Figures of requests far from what was expected, by the cause that explains most of each.",
        unit=Unit.COUNT,
        queries=(
            Query(
                expr=f"sort_desc({risen} > 0)",
                legend="{{cause}}",
            ),
        ),
        form=Form.BARS,
        width=5,
        height=7,
        coloured_by="cause",
        no_value="No deviations",
    )


def _pools() -> Panel:
    by = ("model", "pool")
    return Panel(
        title="Pools",
        description="The state of each pool now. Click a pool for its limits and queues.",
        unit=Unit.RATIO,
        form=Form.TABLE,
        width=24,
        height=5,
        labels=by,
        queries=(
            Query(
                expr=words.total(words.rate("ridgeline_requests_total"), *by), legend="Requests", unit=Unit.REQUESTS_PER_SECOND
            ),
            Query(
                expr=words.failed_share(*by),
                legend="Failed",
                unit=Unit.SHARE,
                steps=(Step(at=None, colour=Colour.GOOD), Step(at=thresholds.ERRORS_RATIO, colour=Colour.BAD)),
            ),
            Query(expr=words.quantile(0.5, "ridgeline_ttft_seconds", *by), legend="TTFT P50", unit=Unit.SECONDS),
            Query(
                expr=words.quantile(0.95, "ridgeline_ttft_seconds", *by),
                legend="TTFT P95",
                unit=Unit.SECONDS,
                steps=panels.TTFT_STEPS,
            ),
            Query(expr=words.hit_share(*by), legend="Hit share", unit=Unit.SHARE),
            Query(
                expr=words.quantile(0.5, "ridgeline_tpot_seconds", *by),
                legend="TPOT P50",
                unit=Unit.SECONDS,
                steps=panels.TPOT_STEPS,
            ),
            Query(expr=panels.jitter_expr(*by), legend="TPOT P99 / P50", steps=panels.JITTER_STEPS),
            Query(
                expr=words.quantile(0.5, "ridgeline_tpot_attained_ratio", *by),
                legend="TPOT attained",
                unit=Unit.SHARE,
                steps=panels.ATTAINED_STEPS,
            ),
            Query(expr=words.total(words.series("ridgeline_queued_requests"), *by), legend="Queued", steps=panels.NONE_STEPS),
        ),
    )


def board() -> Board:
    """Everything that decides where to look next fits the first screen."""
    return Board(
        uid=links.ON_CALL,
        title="Ridgeline / On call",
        description="Is anything wrong, since when, in which pool and at which worker, and why. Start here.",
        variables=(panels.MODEL, panels.POOL),
        marks=(panels.RESTARTS, panels.RELOADS),
        rows=(
            Row(
                title="Is anything wrong, since when, and why",
                panels=(*_numbers(), _firing(), panels.deviations(width=9, height=7), _causes_in_range()),
            ),
            Row(
                title="Where",
                panels=(_pools(), panels.worker_table(width=24, height=7), panels.worker_state(width=24, height=5)),
            ),
            Row(
                title="Over time",
                panels=(
                    panels.ttft(),
                    panels.tpot(),
                    panels.outcomes(),
                    panels.attained("ttft", "TTFT: expected / measured"),
                    panels.attained("tpot", "TPOT: expected / measured"),
                    Panel(
                        title="Requests by pool",
                        description="Requests per second that ended, by pool; `none` are those for which no pool was chosen.",
                        unit=Unit.REQUESTS_PER_SECOND,
                        queries=(
                            Query(
                                expr=words.total(words.rate("ridgeline_requests_total"), "model", "pool"),
                                legend="{{model}} / {{pool}}",
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )
