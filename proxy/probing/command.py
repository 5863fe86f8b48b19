"""The options of `ridgeline probe`. What it needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

_LENGTHS = "Experiments"
_BOUNDS = "Bounds"
_KNOWN = "What the worker is"
_RESULTS = "Results"


def probe(
    url: Annotated[str, typer.Argument(help="Base URL of an OpenAI-compatible endpoint.", metavar="URL")],
    model: Annotated[
        str | None, typer.Option(help="Model to ask for.", show_default="the only one that the endpoint lists")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Variable that holds the API key.", metavar="NAME", show_default=False)
    ] = None,
    endpoint: Annotated[str, typer.Option(help="completions, chat, or auto: completions where there are any.")] = "auto",
    metrics_url: Annotated[
        str | None, typer.Option(help="Metrics page of the worker.", show_default="URL/metrics", metavar="URL")
    ] = None,
    outputs: Annotated[
        str, typer.Option(help="Output lengths of the first experiment; empty leaves it out.", rich_help_panel=_LENGTHS)
    ] = "16,32,64,128,256,512",
    prompts: Annotated[
        str, typer.Option(help="Prompt lengths of the second experiment.", rich_help_panel=_LENGTHS)
    ] = "256,512,1024,2048,4096,6144,8192",
    concurrency: Annotated[
        str, typer.Option(help="Requests at once of the third experiment.", rich_help_panel=_LENGTHS)
    ] = "1,2,4,8,16,32",
    contexts: Annotated[
        str, typer.Option(help="Prompt lengths of the third experiment.", rich_help_panel=_LENGTHS)
    ] = "2048,8192",
    output_prompt: Annotated[int, typer.Option(min=1, help="Prompt of the first experiment.", rich_help_panel=_LENGTHS)] = 512,
    prompt_output: Annotated[int, typer.Option(min=2, help="Output of the second experiment.", rich_help_panel=_LENGTHS)] = 64,
    concurrency_output: Annotated[
        int, typer.Option(min=16, help="Output of the third experiment.", rich_help_panel=_LENGTHS)
    ] = 128,
    steady: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            help="Also keep as many requests under way as in the third experiment, until each stream has sent so many: "
            "what users get. 3 or more, 0 leaves it out.",
            rich_help_panel=_LENGTHS,
        ),
    ] = 0,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Of the first two experiments.", rich_help_panel=_LENGTHS)] = 3,
    only_cold: Annotated[
        bool, typer.Option("--only-cold", help="Do not send prompts a second time.", rich_help_panel=_LENGTHS)
    ] = False,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests in all.", rich_help_panel=_BOUNDS)] = 2000,
    max_concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.", rich_help_panel=_BOUNDS)] = 64,
    max_seconds: Annotated[float, typer.Option(min=1, help="Time in all.", rich_help_panel=_BOUNDS)] = 900.0,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="GPU of the worker, as for plan: floor and expectation stand beside each figure.",
            show_default=False,
            rich_help_panel=_KNOWN,
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Model's shape: a known name or a config.json.", show_default="that of --model", rich_help_panel=_KNOWN
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of the worker.", show_default="1", rich_help_panel=_KNOWN)
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs that split every matrix.", show_default="all of --gpus", rich_help_panel=_KNOWN),
    ] = None,
    weight_dtype: Annotated[
        str | None,
        typer.Option(help="Format of the weights.", show_default="as the checkpoint has it", rich_help_panel=_KNOWN),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Format of the KV cache.", show_default="auto", rich_help_panel=_KNOWN)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in one step at most.", show_default="vLLM's for the GPU", rich_help_panel=_KNOWN),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.", rich_help_panel=_RESULTS)] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a report with plots, one file.", metavar="FILE", show_default=False, rich_help_panel=_RESULTS),
    ] = None,
    write_calibration: Annotated[
        Path | None,
        typer.Option(
            help="Write what the worker's losses are into a gateway's file of calibrations (calibration.path).",
            metavar="FILE",
            show_default=False,
            rich_help_panel=_RESULTS,
        ),
    ] = None,
) -> None:
    """Probe an endpoint: three load experiments, cold and warm, with fits and what they mean. Ctrl-C keeps what was measured.

    Exit status 1 if nothing could be measured or a file could not be written, 2 if the endpoint or the options do not allow it,
    130 if cancelled.
    """
    from rich.console import Console  # noqa: PLC0415

    from proxy.probing.asked import OptionError, Options, asked_of  # noqa: PLC0415
    from proxy.probing.probe import Wanted, show  # noqa: PLC0415

    options = Options(
        url=url,
        model=model,
        api_key_env=api_key_env,
        endpoint=endpoint,
        metrics_url=metrics_url,
        outputs=outputs,
        prompts=prompts,
        concurrency=concurrency,
        contexts=contexts,
        output_prompt=output_prompt,
        prompt_output=prompt_output,
        concurrency_output=concurrency_output,
        steady=steady,
        repeats=repeats,
        is_warm_too=not only_cold,
        max_requests=max_requests,
        max_concurrency=max_concurrency,
        max_seconds=max_seconds,
        gpu=gpu,
        shape=shape,
        gpus=gpus,
        tensor_parallel=tensor_parallel,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        chunk_tokens=max_num_batched_tokens,
    )
    try:
        if write_calibration is not None and gpu is None:
            raise OptionError("--write-calibration needs --gpu and --shape: losses are shares of what the GPU can do")
        asked = asked_of(options, os.environ)
    except OptionError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(show(asked, Wanted(as_json=as_json, html=html, calibration=write_calibration), os.environ, Console()))
