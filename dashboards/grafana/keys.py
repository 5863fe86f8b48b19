"""The board of API keys: who uses how much, and whose requests fail."""

from __future__ import annotations

from dashboards.grafana import links, panels, words
from dashboards.grafana.colours import Colour
from dashboards.grafana.values import Board, Form, Panel, Query, Row, Unit

_REQUESTS = "ridgeline_key_requests_total"
_TOKENS = "ridgeline_key_tokens_total"


def _tokens(kind: str, *by: str) -> str:
    return words.total(words.rate(_TOKENS, words.KEY, f'kind="{kind}"'), *by)


def _failed(*by: str) -> str:
    failed = words.rate(_REQUESTS, words.KEY, f'outcome!~"{"|".join(words.NOT_FAILED)}"')
    return words.share(words.total(failed, *by), words.total(words.rate(_REQUESTS, words.KEY), *by))


def _hits(*by: str) -> str:
    return words.share(_tokens("cached", *by), _tokens("prompt", *by))


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
                        queries=(Query(expr=words.total(words.rate(_REQUESTS, words.KEY), "outcome"), legend="{{outcome}}"),),
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
        ),
    )
