"""The board of prefix caches: what is hit, what is lost and by what, and prompts that changed."""

from __future__ import annotations

from dashboards.grafana import links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, Unit


def _hits() -> Row:
    return Row(
        title="What is hit",
        panels=(
            Panel(
                title="Hit share by pool",
                description="Share of prompt tokens that came from the workers' prefix caches, of the requests where it is "
                "known.",
                unit=Unit.SHARE,
                queries=(Query(expr=words.hit_share("model", "pool"), legend="{{model}} / {{pool}}"),),
                most=1,
            ),
            Panel(
                title="Hit share beside what it used to be",
                alerts=("RidgelineHitShareDrop",),
                description="The chosen pools now, and their mean over the six hours up to half an hour ago. Far below: "
                "look at drift "
                "and at what was lost.",
                unit=Unit.SHARE,
                queries=(
                    Query(expr=words.hit_share(), legend="Hit share", colour=Colour.HIT),
                    Query(
                        expr=words.share(
                            words.total(words.rate("ridgeline_cached_tokens_total", window="6h", offset="30m")),
                            words.total(words.rate("ridgeline_cache_known_prompt_tokens_total", window="6h", offset="30m")),
                        ),
                        legend="Before",
                        colour=Colour.UNKNOWN,
                        is_dashed=True,
                    ),
                ),
                most=1,
            ),
            panels.ttft(),
            Panel(
                title="Prompt tokens, and where they came from",
                description="Tokens per second: all prompt tokens, and those out of prefix caches. The difference had to be "
                "computed.",
                unit=Unit.TOKENS_PER_SECOND,
                queries=(
                    Query(expr=words.total(words.rate("ridgeline_prompt_tokens_total")), legend="Prompt", colour=Colour.PROMPT),
                    Query(expr=words.total(words.rate("ridgeline_cached_tokens_total")), legend="Cached", colour=Colour.HIT),
                ),
            ),
            Panel(
                title="Requests whose hits are unknown",
                alerts=("RidgelineHitShareUnknown",),
                description="Share of requests whose worker did not say how many tokens were cached. Above a few per cent "
                "the hit share "
                "is a guess: start workers with --enable-prompt-tokens-details.",
                unit=Unit.SHARE,
                queries=(
                    Query(
                        expr=words.share(
                            words.total(words.rate("ridgeline_cache_unknown_requests_total"), "model", "pool"),
                            words.total(words.rate("ridgeline_requests_total"), "model", "pool"),
                        ),
                        legend="{{model}} / {{pool}}",
                    ),
                ),
                most=1,
            ),
            Panel(
                title="Caches that began empty",
                description="Restarts of workers in the last ten minutes, by pool.",
                unit=Unit.COUNT,
                queries=(
                    Query(
                        expr=words.total(f"increase({words.series('ridgeline_worker_restarts_total')}[10m])", "model", "pool"),
                        legend="{{model}} / {{pool}}",
                    ),
                ),
            ),
        ),
    )


def _losses() -> Row:
    return Row(
        title="What is lost, and by what",
        panels=(
            Panel(
                title="System prompts that changed",
                alerts=("RidgelinePrefixDrift",),
                description="Times that the system prompt of requests that used to be cached was found to have changed, by "
                "what was "
                "done to it. The live page has the place in the prompt and the key.",
                unit=Unit.PER_MINUTE,
                queries=(
                    Query(expr=words.per_minute("ridgeline_prefix_drift_total", "pool", "kind"), legend="{{pool}}: {{kind}}"),
                ),
                form=Form.STACKED,
            ),
            Panel(
                title="What changed prompts cost",
                description="Expected prefill of prompt tokens that would have been cached, had the system prompt not "
                "changed: seconds of "
                "workers per second.",
                unit=Unit.SECONDS,
                queries=(
                    Query(
                        expr=words.total(words.rate("ridgeline_prefix_drift_missed_seconds_total"), "model", "pool"),
                        legend="{{model}} / {{pool}}",
                    ),
                ),
            ),
            Panel(
                title="Hits that others got",
                description="Requests that did not get the hit that others with the same system prompt get, by what lost it.",
                unit=Unit.PER_MINUTE,
                queries=(Query(expr=words.per_minute("ridgeline_cache_lost_total", "reason"), legend="{{reason}}"),),
                form=Form.STACKED,
            ),
            Panel(
                title="KV cache in use",
                description="Share of the KV cache in use: the fullest worker of each pool. A full one evicts prefixes.",
                unit=Unit.SHARE,
                queries=(
                    Query(
                        expr=f"max by (model, pool) ({words.series('ridgeline_worker_kv_usage_ratio')})",
                        legend="{{model}} / {{pool}}",
                    ),
                ),
                steps=panels.limits(panels.KV_STEPS),
                most=1,
            ),
            panels.choices(
                "Choices of a worker per second, by what decided. Where `affinity` gives way to `load_bound` "
                "prompts go where "
                "their prefix is not cached."
            ),
            panels.deviations(width=8),
        ),
    )


def board() -> Board:
    """For "the first token takes long and nobody changed anything"."""
    return Board(
        uid=links.CACHE,
        title="Ridgeline / Cache and drift",
        description="How much of the prompts comes from prefix caches, what lost the rest, and prompts that changed.",
        variables=(panels.MODEL, panels.POOL),
        marks=(panels.RESTARTS, panels.RELOADS),
        rows=(_hits(), _losses()),
    )
