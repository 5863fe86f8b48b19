"""The options of `ridgeline plan`. What it needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

MOST_TOKENS = 1_000_000_000  # more is a typing error


def plan(
    model: Annotated[
        list[str] | None, typer.Option(help="Known name, or path of a config.json. Repeat for columns.", show_default=False)
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="Id such as h100-sxm, the driver's name, or figures: bf16=9.9e14,bandwidth=3.35e12,memory=80e9. "
            "A comma or another --gpu makes columns.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        list[str] | None, typer.Option(help="GPUs of one worker, or auto: as few as hold it.", show_default="1")
    ] = None,
    weight_dtype: Annotated[
        list[str] | None,
        typer.Option(help="bf16, fp8, int8, awq, nvfp4, ...; several make columns.", show_default="as the checkpoint has it"),
    ] = None,
    kv_dtype: Annotated[
        list[str] | None, typer.Option(help="As vLLM's --kv-cache-dtype; several make columns.", show_default="auto")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, max=MOST_TOKENS, help="Mean length of prompts.", show_default="2000")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(min=1, max=MOST_TOKENS, help="Mean length of answers.", show_default="500")
    ] = None,
    max_output_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_TOKENS, help="Longest answer, for which memory is kept.", show_default="the mean"),
    ] = None,
    cached_tokens: Annotated[
        int | None, typer.Option(min=0, max=MOST_TOKENS, help="Of the prompt, found in the prefix cache.", show_default="0")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_TOKENS, help="Requests at once on one worker.", show_default="1, or what --rate leads to"),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, on all workers together.", show_default=False)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers that share the rate.", show_default="1")] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="GPUs that split every matrix.", show_default="all of --gpus")
    ] = None,
    pipeline_parallel: Annotated[
        int | None, typer.Option(min=1, help="Stages that split the layers.", show_default="1")
    ] = None,
    data_parallel: Annotated[
        int | None, typer.Option(min=1, help="Ranks with sequences of their own.", show_default="1")
    ] = None,
    expert_parallel: Annotated[bool, typer.Option("--expert-parallel", help="Experts are spread whole over GPUs.")] = False,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of a GPU that the engine may use.", show_default="0.92")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens in one step at most.", show_default="vLLM's for the GPU")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that run at once at most.", show_default="vLLM's for the GPU")
    ] = None,
    engine: Annotated[str, typer.Option(help="Whose losses are expected: vllm, sglang, tensorrt-llm.")] = "vllm",
    target: Annotated[str | None, typer.Option(help="Kind of use: chat, service or batch.", show_default="chat")] = None,
    ttft_target: Annotated[
        str | None, typer.Option(help="TTFT to keep, such as 500ms.", show_default="that of --target")
    ] = None,
    tpot_target: Annotated[
        str | None, typer.Option(help="TPOT to keep, such as 40ms.", show_default="that of --target")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A gateway's configuration: one column for each pool.", metavar="FILE", show_default=False),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Formula and source of each figure too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write plots to FILE (.svg, .png, .pdf).", metavar="FILE", show_default=False)
    ] = None,
) -> None:
    """Plan capacity: what a model on some GPUs can do, every figure with its calculation, and what binds first.

    Exit status 1 if not one such request can be served, 2 for options that cannot be.
    """
    from rich.console import Console  # noqa: PLC0415

    from proxy.planning.asked import Asked  # noqa: PLC0415
    from proxy.planning.plan import show  # noqa: PLC0415

    asked = Asked(
        models=model or (),
        gpus=gpu or (),
        gpu_counts=gpus or (),
        weight_dtypes=weight_dtype or (),
        kv_dtypes=kv_dtype or (),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_output_tokens=max_output_tokens,
        cached_tokens=cached_tokens,
        concurrency=concurrency,
        rate=rate,
        workers=workers,
        tensor=tensor_parallel,
        pipeline=pipeline_parallel,
        data=data_parallel,
        is_expert_parallel=expert_parallel,
        utilization=gpu_memory_utilization,
        batched_tokens=max_num_batched_tokens,
        sequences=max_num_seqs,
        engine=engine,
        target=target,
        ttft_target=ttft_target,
        tpot_target=tpot_target,
        config=config,
    )
    raise typer.Exit(show(asked, os.environ, as_json=as_json, explains=explain, plot=plot, console=Console()))
