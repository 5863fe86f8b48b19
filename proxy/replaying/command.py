"""The options of `ridgeline replay`. What it needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

_FLEET = "Workers"
_TRIED = "What is tried"
_RESULTS = "Results"


def replay(
    records: Annotated[
        str,
        typer.Argument(help="The gateway's log, or an Azure, Mooncake or BurstGPT trace; - reads it from standard input."),
    ],
    gpu: Annotated[str, typer.Option(help="GPU of a worker, as for plan.", rich_help_panel=_FLEET)],
    model: Annotated[str, typer.Option(help="Known model, or the path of a config.json.", rich_help_panel=_FLEET)],
    workers: Annotated[int, typer.Option(min=1, max=1000, help="Workers in all.", rich_help_panel=_FLEET)] = 4,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of one worker.", show_default="1", rich_help_panel=_FLEET)
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs that split every matrix.", show_default="all of --gpus", rich_help_panel=_FLEET),
    ] = None,
    weight_dtype: Annotated[
        str | None,
        typer.Option(help="Format of the weights.", show_default="as the checkpoint has it", rich_help_panel=_FLEET),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Format of the KV cache.", show_default="auto", rich_help_panel=_FLEET)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that run at once.", show_default="vLLM's", rich_help_panel=_FLEET)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in one step at most.", show_default="vLLM's", rich_help_panel=_FLEET),
    ] = None,
    threshold: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="max_total_tokens of the short pool; repeat for several.",
            show_default="powers of two",
            rich_help_panel=_TRIED,
        ),
    ] = None,
    short_workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers below it.", show_default="several", rich_help_panel=_TRIED),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy within pools, the one in use first; further ones are tried in one pool.",
            show_default="prefix-affinity",
            rich_help_panel=_TRIED,
        ),
    ] = None,
    tpot_target_ms: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="TPOT that a request should have.", show_default="1.5 x the median", rich_help_panel=_TRIED
        ),
    ] = None,
    ttft_target_ms: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="TTFT that a request should have.",
            show_default="500 ms and 3 x what its prompt takes alone",
            rich_help_panel=_TRIED,
        ),
    ] = None,
    only_model: Annotated[
        str | None, typer.Option(help="Only requests for this model.", show_default=False, rich_help_panel=_TRIED)
    ] = None,
    faster: Annotated[
        float, typer.Option(min=0.001, max=1000.0, help="2 brings the requests in half the time.", rich_help_panel=_TRIED)
    ] = 1.0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many requests.", show_default=False, rich_help_panel=_TRIED)
    ] = None,
    search_requests: Annotated[
        int, typer.Option(min=100, help="Requests on which layouts are compared.", rich_help_panel=_TRIED)
    ] = 6000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.", rich_help_panel=_RESULTS)] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a report with plots, one file.", metavar="FILE", show_default=False, rich_help_panel=_RESULTS),
    ] = None,
) -> None:
    """Replay recorded requests by lengths and arrivals, in virtual time: which pools and policies would have served them best.

    Exit status 1 if a file could not be written, 2 for options that cannot be or records that cannot be read.
    """
    from rich.console import Console  # noqa: PLC0415

    from proxy.replaying.replay import Asked, show  # noqa: PLC0415

    asked = Asked(
        records=records,
        gpu=gpu,
        model=model,
        workers=workers,
        gpus=gpus,
        tensor_parallel=tensor_parallel,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        policies=tuple(policy or ()),
        boundaries=tuple(threshold or ()),
        short_workers=short_workers,
        tpot_target_seconds=None if tpot_target_ms is None else tpot_target_ms / 1000.0,
        ttft_target_seconds=None if ttft_target_ms is None else ttft_target_ms / 1000.0,
        only_model=only_model,
        faster=faster,
        limit=limit,
        search_requests=search_requests,
    )
    told = Console(stderr=True, soft_wrap=True)
    raise typer.Exit(show(asked, as_json=as_json, html=html, environ=os.environ, console=Console(), told=told))
