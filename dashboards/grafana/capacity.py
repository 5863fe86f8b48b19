"""The board of limits: how near to what the GPUs can do, and what runs full first."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.grafana import links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, Unit

_POOL = "{{model}} / {{pool}}"


def _far_off(figure: str, title: str) -> Panel:
    family = f"ridgeline_{figure}_attained_ratio"
    return Panel(
        title=title,
        description=f"Share of requests that took more than twice (expected / measured up to {thresholds.ATTAINED_RATIO}) "
        f"and more "
        f"than three times (up to {thresholds.ATTAINED_FAR_OFF_RATIO}) as long as expected.",
        unit=Unit.SHARE,
        queries=(
            Query(expr=words.share_upto(thresholds.ATTAINED_RATIO, family), legend="Wrong", colour=Colour.WARNING),
            Query(expr=words.share_upto(thresholds.ATTAINED_FAR_OFF_RATIO, family), legend="Very wrong", colour=Colour.BAD),
        ),
        most=1,
    )


def _limits() -> Row:
    return Row(
        title="How near to the limits",
        panels=(
            panels.ttft(),
            panels.attained("ttft", "TTFT: expected / measured"),
            _far_off("ttft", "TTFT: requests far from what is expected"),
            panels.tpot(),
            panels.attained("tpot", "TPOT: expected / measured"),
            _far_off("tpot", "TPOT: requests far from what is expected"),
            panels.attained("e2e", "Plain answers: expected / measured"),
            Panel(
                title="Why requests are slow",
                description="Figures of requests far from what was expected, per minute, by the cause that explains most of "
                "the gap.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(expr=words.present(words.per_minute("ridgeline_deviations_total", "cause")), legend="{{cause}}"),
                ),
                form=Form.STACKED,
                coloured_by="cause",
            ),
            Panel(
                title="Faster than can be",
                description="Figures below their physical floor, per minute, by pool: model, GPU, number format or cached "
                "tokens are not "
                "what is believed.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(
                        expr=words.per_minute("ridgeline_floor_beaten_total", "model", "pool", "figure"),
                        legend=f"{_POOL}: {{{{figure}}}}",
                    ),
                ),
            ),
        ),
    )


def _objectives() -> Row:
    def met(family: str, bound: float) -> Query:
        return Query(expr=words.share_upto(bound, family, "model", "pool"), legend=_POOL)

    return Row(
        title="Objectives",
        panels=(
            Panel(
                title=f"First token within {thresholds.TTFT_SECONDS:g} s",
                description="Share of streams whose first token came within the objective.",
                unit=Unit.SHARE,
                queries=(met("ridgeline_ttft_seconds", thresholds.TTFT_SECONDS), panels.HIT_SHARE),
                most=1,
            ),
            Panel(
                title=f"Tokens within {1000 * thresholds.TPOT_SECONDS:g} ms each",
                description="Share of streams whose time per output token met the objective.",
                unit=Unit.SHARE,
                queries=(met("ridgeline_tpot_seconds", thresholds.TPOT_SECONDS),),
                most=1,
            ),
            Panel(
                title="TPOT: P99 over median",
                description="How much slower than usual the slowest hundredth of streams is. Above the line people feel "
                "stalls.",
                unit=Unit.RATIO,
                queries=(Query(expr=panels.jitter_expr("model", "pool"), legend=_POOL),),
                steps=panels.limits(panels.JITTER_STEPS),
            ),
        ),
    )


def _capacity() -> Row:
    def at_workers(name: str) -> str:
        # each gateway says it of the same workers
        return words.total(f"max by (model, pool, worker) ({words.series(name)})")

    return Row(
        title="What runs full first",
        panels=(
            Panel(
                title="Running and waiting at the workers",
                alerts=("RidgelineQueueAtWorkers",),
                description="Requests as the workers say; waiting ones wait for room in the batch or in the KV cache.",
                unit=Unit.COUNT,
                queries=(
                    Query(
                        expr=at_workers("ridgeline_worker_running_requests"),
                        legend="Running",
                        colour=Colour.RUNNING,
                    ),
                    Query(
                        expr=at_workers("ridgeline_worker_waiting_requests"),
                        legend="Waiting",
                        colour=Colour.WAITING,
                    ),
                ),
            ),
            Panel(
                title="KV cache in use",
                alerts=("RidgelineKvPressure", "RidgelineKvFull"),
                description="Share in use at the fullest worker of each pool. Line: the reserve that is better kept free.",
                unit=Unit.SHARE,
                queries=(
                    Query(expr=f"max by (model, pool) ({words.series('ridgeline_worker_kv_usage_ratio')})", legend=_POOL),
                ),
                steps=panels.limits(panels.KV_STEPS),
                most=1,
            ),
            Panel(
                title="Waiting in the gateway",
                alerts=("RidgelineQueueAtGateway",),
                description="Requests that wait here for a worker with room, by pool.",
                unit=Unit.COUNT,
                queries=(Query(expr=words.total(words.series("ridgeline_queued_requests"), "model", "pool"), legend=_POOL),),
            ),
            Panel(
                title="Time in the gateway's queue",
                description="Time spent in the gateway's own admission queue.",
                unit=Unit.SECONDS,
                queries=panels.distribution("ridgeline_queue_seconds"),
            ),
            Panel(
                title="Refused before a worker was asked",
                alerts=("RidgelineSheddingLoad",),
                description="Requests per minute that the gateway refused, by reason.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(expr=words.present(words.per_minute("ridgeline_rejections_total", "reason")), legend="{{reason}}"),
                ),
                form=Form.STACKED,
            ),
            Panel(
                title="Tokens per second",
                description="Prompt tokens read and completion tokens written by the chosen pools.",
                unit=Unit.TOKENS_PER_SECOND,
                queries=(
                    Query(expr=words.total(words.rate("ridgeline_prompt_tokens_total")), legend="Prompt", colour=Colour.PROMPT),
                    Query(
                        expr=words.total(words.rate("ridgeline_completion_tokens_total")),
                        legend="Completion",
                        colour=Colour.COMPLETION,
                    ),
                ),
            ),
            Panel(
                title="Tokens in flight",
                description="Estimated prompt and output tokens of the requests that this gateway has running, by pool.",
                unit=Unit.TOKENS,
                queries=(Query(expr=words.total(words.series("ridgeline_in_flight_tokens"), "model", "pool"), legend=_POOL),),
            ),
            Panel(
                title="Workers found",
                description="Workers that a file, DNS or Kubernetes names now; nothing for pools whose workers are listed.",
                unit=Unit.COUNT,
                queries=(
                    Query(
                        expr=f"max by (model, pool) ({words.series('ridgeline_discovered_workers')})",
                        legend=_POOL,
                    ),
                ),
                no_value="All workers are listed",
            ),
            Panel(
                title="Retries refused",
                alerts=("RidgelineRetryBudgetSpent",),
                description="Requests per minute that no further worker was asked for because the retry budget was spent.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=words.per_minute("ridgeline_retries_refused_total", "model", "pool"), legend=_POOL),),
            ),
        ),
    )


_NO_STAGE = "No pool has a prefill stage"


def _stages() -> Row:
    return Row(
        title="Prefill and decode apart",
        panels=(
            Panel(
                title="What became of prompts sent to a prefill stage",
                description="Requests per minute of pools with a prefill stage, by result. All but computed ones are computed "
                "by the pool's own workers: clients wait longer for the first token. Much of not_offered: the stage's workers "
                "have no connector for KV caches.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(expr=words.present(words.per_minute("ridgeline_prefill_legs_total", "result")), legend="{{result}}"),
                ),
                form=Form.STACKED,
                no_value=_NO_STAGE,
            ),
            Panel(
                title="Prompts computed at the stage",
                description="Share of the requests of pools with a prefill stage whose prompt came from there. Few in a pool "
                "whose prompts are long: look at what became of them.",
                unit=Unit.SHARE,
                queries=(
                    Query(
                        expr=words.share(
                            words.total(
                                words.rate("ridgeline_prefill_legs_total", words.ROUTE, 'result="computed"'), "model", "pool"
                            ),
                            words.total(words.rate("ridgeline_prefill_legs_total"), "model", "pool"),
                        ),
                        legend=_POOL,
                    ),
                ),
                most=1,
                no_value=_NO_STAGE,
            ),
            Panel(
                title="Time at the prefill stage",
                description="Prefill worker chosen to its answer complete, whatever came of it; part of the time to first "
                "token. It rises when prompts get longer, fewer of them are cached there, or they wait for each other: then "
                "the stage needs more workers.",
                unit=Unit.SECONDS,
                queries=panels.distribution("ridgeline_prefill_leg_seconds"),
                no_value=_NO_STAGE,
            ),
        ),
    )


_NO_HEDGING = "No pool asks second workers"


def _second_workers() -> Row:
    return Row(
        title="Second workers",
        panels=(
            Panel(
                title="Streams sent to a second worker",
                description="Requests per minute whose worker was late, by what became of asking another one. Many lost "
                "and few won: the time is too short.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=words.per_minute("ridgeline_hedges_total", "result"), legend="{{result}}"),),
                form=Form.STACKED,
                no_value=_NO_HEDGING,
            ),
            Panel(
                title="Late streams sent once",
                description="Requests per minute whose worker was late and for which no other was asked, by why not. Much "
                "budget: the time is too short, or more than single workers are slow.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=words.per_minute("ridgeline_hedges_withheld_total", "reason"), legend="{{reason}}"),),
                form=Form.STACKED,
                no_value=_NO_HEDGING,
            ),
            Panel(
                title="Work thrown away",
                description="Workers, on average, that had a request for nothing because another one began to answer it; and "
                "prompt tokens per second that were computed for nothing at most.",
                unit=Unit.COUNT,
                queries=(
                    Query(expr=words.total(words.rate("ridgeline_hedge_wasted_seconds_total")), legend="workers"),
                    Query(
                        expr=words.total(words.rate("ridgeline_hedge_wasted_prompt_tokens_total")),
                        legend="prompt tokens, at most",
                        unit=Unit.TOKENS_PER_SECOND,
                    ),
                ),
                no_value=_NO_HEDGING,
            ),
        ),
    )


def board() -> Board:
    """For "do we need more GPUs, or do we use badly those that we have"."""
    return Board(
        uid=links.LIMITS,
        title="Ridgeline / Limits and capacity",
        description="How near to what the GPUs can do requests are served, whether objectives are met, and what runs full "
        "first.",
        variables=(panels.MODEL, panels.POOL),
        marks=(panels.RESTARTS, panels.RELOADS),
        rows=(_limits(), _objectives(), _capacity(), _stages(), _second_workers()),
    )
