"""The board of lengths: how long prompts are, whether pools fit them, and whether the estimate chose the right one."""

from __future__ import annotations

from dashboards import thresholds
from dashboards.grafana import links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, Step, Unit
from telemetry.labels import LENGTH_CLASSES

_POOL = "{{model}} / {{pool}}"
_LENGTHS = "ridgeline_prompt_length_tokens"


def _lengths() -> Row:
    return Row(
        title="How long prompts are",
        panels=(
            Panel(
                title="Prompt length",
                description="Prompt tokens of a request, as the worker reported them.",
                unit=Unit.TOKENS,
                queries=panels.distribution(_LENGTHS),
            ),
            Panel(
                title="Prompt length: P99 over median",
                description="How unlike the prompts of one pool are. Above the line the long ones make the short ones wait "
                "in the same "
                "steps: a pool of their own is worth it.",
                unit=Unit.RATIO,
                queries=(
                    Query(
                        expr=words.share(
                            words.quantile(0.99, _LENGTHS, "model", "pool"), words.quantile(0.5, _LENGTHS, "model", "pool")
                        ),
                        legend=_POOL,
                    ),
                ),
                steps=(
                    Step(at=None, colour=Colour.PLAIN),
                    Step(at=thresholds.LENGTHS_APART_RATIO, colour=Colour.WARNING),
                ),
            ),
            Panel(
                title="Completion length",
                description="Completion tokens of a request, as the worker reported them.",
                unit=Unit.TOKENS,
                queries=panels.distribution("ridgeline_completion_length_tokens"),
            ),
            Panel(
                title="Prompts above 32k tokens",
                description="Share of the requests of each pool.",
                unit=Unit.SHARE,
                queries=(Query(expr=words.share_above(LENGTH_CLASSES["upto_32k"], _LENGTHS, "model", "pool"), legend=_POOL),),
            ),
            Panel(
                title="TTFT by prompt length: expected / measured",
                description="Median share of what can be expected that is attained, by prompt length.",
                unit=Unit.SHARE,
                queries=(
                    Query(expr=words.quantile(0.5, "ridgeline_ttft_attained_ratio", "length"), legend="{{length}}"),
                    panels.HIT_SHARE,
                ),
            ),
            Panel(
                title="TPOT by prompt length: expected / measured",
                description="The same for the time per output token.",
                unit=Unit.SHARE,
                queries=(Query(expr=words.quantile(0.5, "ridgeline_tpot_attained_ratio", "length"), legend="{{length}}"),),
            ),
        ),
    )


def _routing() -> Row:
    misrouted = words.total(words.rate("ridgeline_misroutes_total"), "model", "pool", "direction")
    counted = words.total(words.rate("ridgeline_prompt_length_tokens_count"), "model", "pool")
    return Row(
        title="Whether the estimate chose the right pool",
        panels=(
            Panel(
                title="Misroutes",
                alerts=("RidgelineMisroutes",),
                description="Share of requests whose true prompt tokens belong into another pool than the one that the "
                "estimate chose. "
                "`too_small`: the pool was; such requests may be refused by their worker.",
                unit=Unit.SHARE,
                queries=(
                    Query(
                        expr=f"{misrouted} / on (model, pool) group_left () ({counted} > 0)",
                        legend=f"{_POOL}: {{{{direction}}}}",
                    ),
                ),
                steps=(
                    Step(at=None, colour=Colour.PLAIN),
                    Step(at=thresholds.MISROUTES_RATIO, colour=Colour.WARNING),
                ),
            ),
            Panel(
                title="Estimate against usage",
                description="Prompt tokens that the worker reported over prompt tokens that were estimated; above 1 the "
                "estimate was too "
                "low. A median away from 1 is still being learned; wide tails are texts of a kind that it does not know.",
                unit=Unit.RATIO,
                queries=(
                    Query(expr=words.quantile(0.05, "ridgeline_estimate_error_ratio"), legend="P5", colour=Colour.P50),
                    Query(expr=words.quantile(0.95, "ridgeline_estimate_error_ratio"), legend="P95", colour=Colour.P95),
                    Query(expr=words.mean("ridgeline_estimate_error_ratio"), legend="Mean", colour=Colour.MEAN),
                ),
            ),
            Panel(
                title="Exact counts",
                description="Prompts that were to be counted exactly because a choice of pool depended on it, per minute, "
                "by what came of it.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=words.per_minute("ridgeline_exact_counts_total", "result"), legend="{{result}}"),),
                form=Form.STACKED,
            ),
            Panel(
                title="Requests of other pools",
                description="Choices per minute that sent a request to another pool than its own: `overflow` because its "
                "own was full, "
                "`borrowed` because another had room.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(
                        expr=words.per_minute(
                            "ridgeline_routes_total", "model", "pool", "reason", more=('reason=~"overflow|borrowed"',)
                        ),
                        legend=f"{_POOL}: {{{{reason}}}}",
                    ),
                ),
                form=Form.STACKED,
            ),
            Panel(
                title="Refused before a worker was asked",
                description="Requests per minute that the gateway refused, by reason; `fit`: longer than any pool takes.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(expr=words.present(words.per_minute("ridgeline_rejections_total", "reason")), legend="{{reason}}"),
                ),
                form=Form.STACKED,
            ),
            panels.choices("Choices of a worker per second, by policy and by what decided."),
        ),
    )


def board() -> Board:
    """For "short questions became slow since somebody sends books"."""
    return Board(
        uid=links.LENGTHS,
        title="Ridgeline / Long context and routing",
        description="How long prompts are, whether pools separate them, and whether the estimate of their length chose the "
        "right pool.",
        variables=(panels.MODEL, panels.POOL),
        marks=(panels.RESTARTS, panels.RELOADS),
        rows=(_lengths(), _routing()),
    )
