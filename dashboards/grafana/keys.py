"""The board of API keys: who uses how much, and whose requests fail."""

from __future__ import annotations

from dashboards.grafana import links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, Unit

_REQUESTS = "ridgeline_key_requests_total"
_TOKENS = "ridgeline_key_tokens_total"
NO_QUOTA = "No key has a quota"


def _tokens(kind: str, *by: str) -> str:
    return words.total(words.rate(_TOKENS, words.KEY, f'kind="{kind}"'), *by)


def _failed(*by: str) -> str:
    failed = words.rate(_REQUESTS, words.KEY, f'outcome!~"{"|".join(words.NOT_FAILED)}"')
    return words.share(words.total(failed, *by), words.total(words.rate(_REQUESTS, words.KEY), *by))


def _hits(*by: str) -> str:
    return words.share(_tokens("cached", *by), _tokens("prompt", *by))


def _left(of: str) -> str:
    left = words.series("ridgeline_quota_remaining", words.KEY, f'of="{of}"')
    limit = words.series("ridgeline_quota_limit", words.KEY, f'limit="{of}"')
    return words.share(f"min by (key) ({left})", f"min by (key) ({limit})")


def board() -> Board:
    """Keys by their configured names."""
    return Board(
        uid=links.KEYS,
        title="Ridgeline / Keys",
        description="Who asks how much, how much of it comes from caches, and whose requests fail.",
        variables=(panels.KEY,),
        marks=(panels.RELOADS,),
        rows=(
            Row(
                title="Now",
                panels=(
                    Panel(
                        title="Keys",
                        description="What each key uses now. Its hit share counts tokens of workers that do not report hits "
                        "as computed.",
                        unit=Unit.TOKENS_PER_SECOND,
                        form=Form.TABLE,
                        width=24,
                        labels=("key",),
                        queries=(
                            Query(
                                expr=words.total(words.rate(_REQUESTS, words.KEY), "key"),
                                legend="Requests",
                                unit=Unit.REQUESTS_PER_SECOND,
                            ),
                            Query(expr=_tokens("prompt", "key"), legend="Prompt"),
                            Query(expr=_tokens("completion", "key"), legend="Completion"),
                            Query(expr=_hits("key"), legend="Hit share", unit=Unit.SHARE),
                            Query(expr=_failed("key"), legend="Failed", unit=Unit.SHARE),
                        ),
                    ),
                ),
            ),
            Row(
                title="Over time",
                panels=(
                    Panel(
                        title="Prompt tokens by key",
                        description="Prompt tokens per second, cached ones among them.",
                        unit=Unit.TOKENS_PER_SECOND,
                        queries=(Query(expr=_tokens("prompt", "key"), legend="{{key}}"),),
                        form=Form.STACKED,
                    ),
                    Panel(
                        title="Completion tokens by key",
                        description="Completion tokens per second.",
                        unit=Unit.TOKENS_PER_SECOND,
                        queries=(Query(expr=_tokens("completion", "key"), legend="{{key}}"),),
                        form=Form.STACKED,
                    ),
                    Panel(
                        title="Hit share by key",
                        description="Cached tokens over prompt tokens. One key that fell alone: its prompts changed.",
                        unit=Unit.SHARE,
                        queries=(Query(expr=_hits("key"), legend="{{key}}"),),
                        most=1,
                    ),
                    Panel(
                        title="How requests of these keys end",
                        description="Requests per second by outcome.",
                        unit=Unit.REQUESTS_PER_SECOND,
                        queries=(
                            Query(
                                expr=words.present(words.total(words.rate(_REQUESTS, words.KEY), "outcome")),
                                legend="{{outcome}}",
                            ),
                        ),
                        form=Form.STACKED,
                        coloured_by="outcome",
                    ),
                    Panel(
                        title="Failed requests by key",
                        description="Share of a key's requests that failed, and not by their client's doing or by a refusal.",
                        unit=Unit.SHARE,
                        queries=(Query(expr=_failed("key"), legend="{{key}}"),),
                        most=1,
                    ),
                    Panel(
                        title="Tokens of these keys",
                        description="Tokens per second of all chosen keys: prompt, of them cached, and completion.",
                        unit=Unit.TOKENS_PER_SECOND,
                        queries=(
                            Query(expr=_tokens("prompt"), legend="Prompt", colour=Colour.PROMPT),
                            Query(expr=_tokens("cached"), legend="Cached", colour=Colour.HIT),
                            Query(expr=_tokens("completion"), legend="Completion", colour=Colour.COMPLETION),
                        ),
                    ),
                ),
            ),
            Row(
                title="Quotas",
                panels=(
                    Panel(
                        title="Left of the limits per minute",
                        description="Share of a key's requests and tokens per minute that is left. Near 0: its next requests "
                        "are refused with 429. Only keys that have a quota.",
                        unit=Unit.SHARE,
                        queries=(
                            Query(expr=_left("requests"), legend="{{key}} requests"),
                            Query(expr=_left("tokens"), legend="{{key}} tokens"),
                        ),
                        most=1,
                        no_value=NO_QUOTA,
                    ),
                    Panel(
                        title="Refused because of quotas",
                        description="Requests per minute by key and limit; `store`: the limits could not be checked.",
                        unit=Unit.PER_MINUTE,
                        queries=(
                            Query(
                                expr=words.per_minute("ridgeline_quota_refusals_total", "key", "limit", selector=words.KEY),
                                legend="{{key}} {{limit}}",
                            ),
                        ),
                        form=Form.STACKED,
                        no_value=NO_QUOTA,
                    ),
                    Panel(
                        title="Charged to quotas",
                        description="Tokens per second that are charged as estimated, given back when the usage is known, and "
                        "leased from a shared limit.",
                        unit=Unit.TOKENS_PER_SECOND,
                        queries=(
                            Query(
                                expr=words.total(words.rate("ridgeline_quota_tokens_total", words.KEY), "change"),
                                legend="{{change}}",
                            ),
                            Query(
                                expr=words.total(words.rate("ridgeline_quota_leased_total", words.KEY, 'of="tokens"')),
                                legend="leased",
                            ),
                        ),
                        no_value=NO_QUOTA,
                    ),
                    Panel(
                        title="Requests under way of limited keys",
                        description="Beside the requests per minute that were let in.",
                        unit=Unit.COUNT,
                        queries=(
                            Query(
                                expr=words.total(words.series("ridgeline_key_in_flight_requests", words.KEY), "key"),
                                legend="{{key}}",
                            ),
                            Query(
                                expr=words.per_minute("ridgeline_quota_requests_total", "key", selector=words.KEY),
                                legend="{{key}} let in",
                                unit=Unit.PER_MINUTE,
                            ),
                        ),
                        no_value=NO_QUOTA,
                    ),
                    Panel(
                        title="Gateways that reach the store of shared quotas",
                        description="Share of the gateways. Below 1: see `quotas.on_store_failure` for what that means.",
                        unit=Unit.SHARE,
                        queries=(Query(expr="avg(ridgeline_quota_store_up)", legend="reach it"),),
                        most=1,
                        no_value="No store",
                    ),
                ),
            ),
        ),
    )
