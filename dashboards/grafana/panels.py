"""Panels and variables that several boards have, so that the same question looks the same everywhere."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.grafana import words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Form, Mark, Panel, Query, State, Step, Unit, Variable

MODEL = Variable(name="model", label="Model", values="label_values(ridgeline_queued_requests, model)")
POOL = Variable(name="pool", label="Pool", values='label_values(ridgeline_queued_requests{model=~"$model"}, pool)')
WORKER = Variable(
    name="worker", label="Worker", values='label_values(ridgeline_in_flight_requests{model=~"$model",pool=~"$pool"}, worker)'
)
KEY = Variable(name="key", label="API key", values="label_values(ridgeline_key_requests_total, key)")

RESTARTS = Mark(
    title="Worker restarted",
    words="{{pool}} / {{worker}} has been restarted",
    expr=f"sum by (pool, worker) (increase({words.series('ridgeline_worker_restarts_total')}[1m])) > 0",
    colour=Colour.WARNING,
)
RELOADS = Mark(
    title="Configuration read",
    words="Configuration read: {{result}}",
    expr="sum by (result) (increase(ridgeline_reloads_total[1m])) > 0",
    colour=Colour.RUNNING,
)

TTFT_STEPS = (
    Step(at=None, colour=Colour.GOOD),
    Step(at=thresholds.TTFT_SECONDS, colour=Colour.WARNING),
    Step(at=thresholds.TTFT_FAR_OFF_SECONDS, colour=Colour.BAD),
)
TPOT_STEPS = (Step(at=None, colour=Colour.GOOD), Step(at=thresholds.TPOT_SECONDS, colour=Colour.WARNING))
JITTER_STEPS = (Step(at=None, colour=Colour.GOOD), Step(at=thresholds.TPOT_JITTER_RATIO, colour=Colour.WARNING))
ATTAINED_STEPS = (
    Step(at=None, colour=Colour.BAD),
    Step(at=thresholds.ATTAINED_FAR_OFF_RATIO, colour=Colour.WARNING),
    Step(at=thresholds.ATTAINED_RATIO, colour=Colour.PLAIN),
    Step(at=thresholds.ATTAINED_GOOD_RATIO, colour=Colour.GOOD),
)
KV_STEPS = (Step(at=None, colour=Colour.GOOD), Step(at=1 - thresholds.KV_RESERVE_RATIO, colour=Colour.WARNING))
NONE_STEPS = (Step(at=None, colour=Colour.GOOD), Step(at=1, colour=Colour.BAD))
"""For what should not be there at all."""

HIT_SHARE = Query(expr=words.hit_share(), legend="Hit share", colour=Colour.HIT, unit=Unit.SHARE, is_dashed=True)


def limits(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps for a plot: lines at the limits, nothing below the first."""
    return (Step(at=None, colour=Colour.PLAIN), *(step for step in steps if step.at is not None))


def distribution(family: str, selector: str = words.ROUTE) -> tuple[Query, ...]:
    """P50, P95, P99 and mean of a histogram."""
    return (
        Query(expr=words.quantile(0.5, family, selector=selector), legend="P50", colour=Colour.P50),
        Query(expr=words.quantile(0.95, family, selector=selector), legend="P95", colour=Colour.P95),
        Query(expr=words.quantile(0.99, family, selector=selector), legend="P99", colour=Colour.P99),
        Query(expr=words.mean(family, selector=selector), legend="Mean", colour=Colour.MEAN),
    )


def ttft(*, width: int = 8) -> Panel:
    """Time to first token, with the hit share that it depends on beside it."""
    return Panel(
        title="Time to first token",
        alerts=("RidgelineTtftBudgetBurn",),
        description="Request fully received to first generated token, streams only; the dashed line is the share of prompt "
        "tokens that came from prefix caches (right axis). TTFT rises when the hit share falls: look there first. "
        "Lines: the objective and what is far off.",
        unit=Unit.SECONDS,
        queries=(*distribution("ridgeline_ttft_seconds"), HIT_SHARE),
        width=width,
        steps=limits(TTFT_STEPS),
    )


def tpot(*, width: int = 8) -> Panel:
    """Time per output token."""
    return Panel(
        title="Time per output token",
        alerts=("RidgelineTpotBudgetBurn", "RidgelineTpotSpike"),
        description="(Last token - first token) / (completion tokens - 1) of streams that their client did not slow down. "
        "P50 that rises: larger batches or longer contexts. P99 away from P50: prompts of others, or one slow worker. "
        "Line: the objective.",
        unit=Unit.SECONDS,
        queries=distribution("ridgeline_tpot_seconds"),
        width=width,
        steps=limits(TPOT_STEPS),
    )


def jitter_expr(*by: str) -> str:
    """P99 over median of TPOT."""
    return words.share(words.quantile(0.99, "ridgeline_tpot_seconds", *by), words.quantile(0.5, "ridgeline_tpot_seconds", *by))


def choices(description: str) -> Panel:
    """What decided on the worker of a request, over time."""
    return Panel(
        title="What decided on the worker",
        description=description,
        unit=Unit.REQUESTS_PER_SECOND,
        queries=(
            Query(
                expr=words.present(words.total(words.rate("ridgeline_routes_total"), "policy", "reason")),
                legend="{{policy}}: {{reason}}",
            ),
        ),
        form=Form.STACKED,
    )


def deviations(*, width: int, height: int = 8) -> Panel:
    """What slow requests lost their time to, over time."""
    return Panel(
        title="What slow requests lose their time to",
        description="Seconds beyond what was expected, of requests that are far from it, per second, by cause. The colour "
        "that grew "
        "when it began is where to look.",
        unit=Unit.SECONDS,
        queries=(
            Query(
                expr=words.present(words.total(words.rate("ridgeline_deviation_seconds_total"), "cause")), legend="{{cause}}"
            ),
        ),
        form=Form.STACKED,
        width=width,
        height=height,
        coloured_by="cause",
    )


_FAR = {"ttft": ("RidgelineTtftFarFromLimit",), "tpot": ("RidgelineTpotFarFromLimit",)}


def attained(figure: str, title: str, *, width: int = 8) -> Panel:
    """Expected over measured of one figure, as a distribution over requests."""
    family = f"ridgeline_{figure}_attained_ratio"
    return Panel(
        title=title,
        alerts=_FAR.get(figure, ()),
        description="Expected time over measured time: 1 is as fast as these GPUs can be with their calibrated losses, "
        f"{thresholds.ATTAINED_RATIO} is half as fast. Median, and the slowest twentieth of requests.",
        unit=Unit.SHARE,
        queries=(
            Query(expr=words.quantile(0.5, family), legend="P50", colour=Colour.P50),
            Query(expr=words.quantile(0.05, family), legend="Slowest 5 %", colour=Colour.P99),
            Query(expr=words.mean(family), legend="Mean", colour=Colour.MEAN),
        ),
        width=width,
        steps=(
            Step(at=None, colour=Colour.BAD),
            Step(at=thresholds.ATTAINED_FAR_OFF_RATIO, colour=Colour.WARNING),
            Step(at=thresholds.ATTAINED_RATIO, colour=Colour.PLAIN),
        ),
    )


def outcomes(*, width: int = 8) -> Panel:
    """How requests end."""
    return Panel(
        title="How requests end",
        alerts=("RidgelineErrors",),
        description="Requests per second by outcome. Grey is the client's doing, orange a refusal, red a failure of a worker.",
        unit=Unit.REQUESTS_PER_SECOND,
        queries=(
            Query(expr=words.present(words.total(words.rate("ridgeline_requests_total"), "outcome")), legend="{{outcome}}"),
        ),
        form=Form.STACKED,
        width=width,
        coloured_by="outcome",
    )


WORKER_STATES = (
    State(1, "Takes requests", Colour.GOOD),
    State(2, "Draining", Colour.UNKNOWN),
    State(3, "Silent", Colour.BAD),
    State(4, "Its requests fail", Colour.BAD),
    State(5, "Health check fails", Colour.BAD),
)


def worker_state_expr() -> str:
    """What state each worker is in, as a number of `WORKER_STATES`."""
    by = "max by (model, pool, worker)"
    reasons = {2: "draining", 3: "silence", 4: "errors", 5: "down"}
    left_out = [
        f"{value} * {by} (" + words.series("ridgeline_worker_left_out", words.ROUTE, f'reason="{reason}"') + ")"
        for value, reason in reasons.items()
    ]
    every = f"({by} ({words.series('ridgeline_in_flight_requests')}) >= bool 0)"
    return " or ".join((*left_out, every))


def worker_state(*, width: int, height: int) -> Panel:
    """Since when a worker is left out, and why."""
    return Panel(
        title="Workers over time",
        alerts=("RidgelineWorkerDown", "RidgelineWorkerHung", "RidgelinePoolDown"),
        description="Whether a worker gets new requests, and why not: it drains, its health check fails, its requests fail, "
        "or it "
        "has fallen silent.",
        unit=Unit.RATIO,
        queries=(Query(expr=worker_state_expr(), legend="{{pool}} / {{worker}}"),),
        form=Form.STATES,
        width=width,
        height=height,
        states=WORKER_STATES,
    )


def worker_table(*, width: int, height: int) -> Panel:
    """A row for each worker, the first sight of who is to blame."""
    by = ("model", "pool", "worker")

    def most(name: str, how: str = "max") -> str:
        return f"{how} by ({', '.join(by)}) ({words.series(name, words.ROUTE)})"

    asked = words.total(words.rate("ridgeline_attempts_total"), *by)
    failed = words.total(words.rate("ridgeline_attempts_total", words.ROUTE, 'result!~"answered|abandoned|busy|outrun"'), *by)
    attained_at = 'ridgeline_worker_attained_ratio{model=~"$model",pool=~"$pool",figure="%s"}'
    return Panel(
        title="Workers",
        description="The state of each worker now. Attained is expected over measured, the median of its recent requests. "
        "Click a worker "
        "for its details.",
        unit=Unit.RATIO,
        form=Form.TABLE,
        width=width,
        height=height,
        labels=by,
        queries=(
            Query(expr=worker_state_expr(), legend="State", states=WORKER_STATES),
            Query(expr=words.share(failed, asked), legend="Failed", unit=Unit.SHARE),
            Query(
                expr=f"avg by ({', '.join(by)}) ({attained_at % 'ttft'})",
                legend="TTFT attained",
                unit=Unit.SHARE,
                steps=ATTAINED_STEPS,
            ),
            Query(
                expr=f"avg by ({', '.join(by)}) ({attained_at % 'tpot'})",
                legend="TPOT attained",
                unit=Unit.SHARE,
                steps=ATTAINED_STEPS,
            ),
            Query(expr=most("ridgeline_worker_running_requests"), legend="Running"),
            Query(expr=most("ridgeline_worker_waiting_requests"), legend="Waiting"),
            Query(expr=most("ridgeline_worker_kv_usage_ratio"), legend="KV in use", unit=Unit.SHARE, steps=KV_STEPS),
        ),
    )
