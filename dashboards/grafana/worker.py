"""The board of single workers: what it is asked, how it answers, what it says itself, and its GPU."""

from __future__ import annotations

from dashboards.grafana import gpus, links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, State, Unit

_NAME = "{{pool}} / {{worker}}"


def _worst(name: str) -> str:
    return f"max by (model, pool, worker) ({words.series(name, words.WORKER)})"


def _attained(figure: str) -> Panel:
    matchers = f'{words.ROUTE},figure="{figure}"'
    return Panel(
        title=f"{figure.upper()}: expected / measured",
        description="Median of the worker's recent requests, beside the median of all workers of the chosen pools. A worker "
        "below "
        "its peers is slow by itself; all of them low together is load or wrong facts.",
        unit=Unit.SHARE,
        queries=(
            Query(
                expr=f'avg by (model, pool, worker) (ridgeline_worker_attained_ratio{{{words.WORKER},figure="{figure}"}})',
                legend=_NAME,
            ),
            Query(
                expr=f"quantile(0.5, ridgeline_worker_attained_ratio{{{matchers}}})",
                legend="Median of the pool",
                colour=Colour.UNKNOWN,
                is_dashed=True,
            ),
        ),
        steps=panels.ATTAINED_STEPS[:1] + panels.ATTAINED_STEPS[1:3],
    )


def _latency() -> Row:
    return Row(
        title="How it answers",
        panels=(
            Panel(
                title="Time to first token at these workers",
                description="Request sent to the worker to first generated token, in coarse buckets; streams only. The "
                "dashed line "
                "is the hit share of the chosen pools (right axis).",
                unit=Unit.SECONDS,
                queries=(*panels.distribution("ridgeline_worker_ttft_seconds", words.WORKER), panels.HIT_SHARE),
                steps=panels.limits(panels.TTFT_STEPS),
            ),
            Panel(
                title="Time per output token at these workers",
                alerts=("RidgelineWorkerSlow",),
                description="Time per output token, in coarse buckets.",
                unit=Unit.SECONDS,
                queries=panels.distribution("ridgeline_worker_tpot_seconds", words.WORKER),
                steps=panels.limits(panels.TPOT_STEPS),
            ),
            Panel(
                title="What came of asking",
                description="Times a worker was asked, per second, by what came of it.",
                unit=Unit.REQUESTS_PER_SECOND,
                queries=(
                    Query(
                        expr=words.present(words.total(words.rate("ridgeline_attempts_total", words.WORKER), "result")),
                        legend="{{result}}",
                    ),
                ),
            ),
            _attained("ttft"),
            _attained("tpot"),
            Panel(
                title="Faster than can be",
                alerts=("RidgelineFloorBeaten",),
                description="Figures below their physical floor, per minute: the model, GPU, number format or cached tokens "
                "are "
                "not what is believed, and every other judgement of this worker is off.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(
                        expr=words.per_minute(
                            "ridgeline_floor_beaten_total", "pool", "worker", "figure", selector=words.WORKER
                        ),
                        legend=f"{_NAME}: {{{{figure}}}}",
                    ),
                ),
            ),
        ),
    )


def _load() -> Row:
    return Row(
        title="What it has to do",
        panels=(
            Panel(
                title="Running and waiting",
                description="Requests that run and that wait at the workers, as they say themselves. Waiting for long: the "
                "batch or "
                "the KV cache is full.",
                unit=Unit.COUNT,
                queries=(
                    Query(
                        expr=words.total(_worst("ridgeline_worker_running_requests")), legend="Running", colour=Colour.RUNNING
                    ),
                    Query(
                        expr=words.total(_worst("ridgeline_worker_waiting_requests")), legend="Waiting", colour=Colour.WAITING
                    ),
                    Query(
                        expr=words.total(words.series("ridgeline_in_flight_requests", words.WORKER)),
                        legend="In flight from here",
                        colour=Colour.MEAN,
                        is_dashed=True,
                    ),
                ),
            ),
            Panel(
                title="KV cache in use",
                description="Share of the KV cache in use, as the worker says; the largest of its engines. Line: the "
                "reserve that is "
                "better kept free.",
                unit=Unit.SHARE,
                queries=(Query(expr=_worst("ridgeline_worker_kv_usage_ratio"), legend=_NAME),),
                steps=panels.limits(panels.KV_STEPS),
                most=1,
            ),
            Panel(
                title="Tokens in flight",
                description="Estimated prompt and output tokens of the requests that this gateway has running there.",
                unit=Unit.TOKENS,
                queries=(
                    Query(
                        expr=words.total(words.series("ridgeline_in_flight_tokens", words.WORKER), "pool", "worker"),
                        legend=_NAME,
                    ),
                ),
            ),
        ),
    )


def _health() -> Row:
    return Row(
        title="Is it there",
        panels=(
            panels.worker_state(width=6, height=8),
            Panel(
                title="Health check",
                description="1 while the worker's health check succeeds for every gateway, 0 while not.",
                unit=Unit.RATIO,
                queries=(
                    Query(
                        expr=f"min by (model, pool, worker) ({words.series('ridgeline_worker_up', words.WORKER)})", legend=_NAME
                    ),
                ),
                form=Form.STATES,
                width=6,
                states=(State(0, "Fails", Colour.BAD), State(1, "Succeeds", Colour.GOOD)),
                no_value="Not probed yet",
            ),
            Panel(
                title="Restarts",
                alerts=("RidgelineWorkerRestarts",),
                description="Times a worker was found to be another process than before, in the last ten minutes; its "
                "prefix cache "
                "began empty.",
                unit=Unit.COUNT,
                queries=(
                    Query(
                        expr=words.total(
                            f"increase({words.series('ridgeline_worker_restarts_total', words.WORKER)}[10m])", "pool", "worker"
                        ),
                        legend=_NAME,
                    ),
                ),
                width=6,
            ),
            Panel(
                title="Metrics page not read",
                alerts=("RidgelineWorkerUnread",),
                description="Reads of the worker's metrics page that failed, per minute. Running, waiting and KV use are "
                "then unknown.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(
                        expr=words.per_minute("ridgeline_scrape_failures_total", "pool", "worker", selector=words.WORKER),
                        legend=_NAME,
                    ),
                ),
                width=6,
            ),
        ),
    )


def board() -> Board:
    """One worker, or several beside each other."""
    return Board(
        uid=links.WORKER,
        title="Ridgeline / Workers",
        description="What single workers are asked, how they answer beside what is expected of them, and what they say "
        "themselves.",
        variables=(panels.MODEL, panels.POOL, panels.WORKER, gpus.HOST),
        marks=(panels.RESTARTS, panels.RELOADS),
        rows=(
            Row(title="All workers of the chosen pools", panels=(panels.worker_table(width=24, height=8),)),
            _latency(),
            _load(),
            _health(),
            gpus.row(),
        ),
    )
