"""The command that runs one simulated worker: ``ridgeline simulate``, or ``python -m simulator.worker``."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

import typer
import uvloop

from roofline.expected import DEFAULT_LOSSES
from simulator.dialect import DIALECTS
from simulator.engine.roofline_timing import Scale
from simulator.faults import read_faults
from simulator.hardware import Hardware
from simulator.server import WorkerSettings, start_worker

_HARDWARE = "Model and GPUs"
_FORM = "Form of answers"
_ENGINE = "Engine"
_FAULTS = "Faults"

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)  # locals may hold keys


async def _serve(settings: WorkerSettings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    running, url = await start_worker(settings, exit_process=lambda: os._exit(1))
    typer.echo(f"simulated worker for {settings.model} on {settings.gpu}: {url}")
    if running.control_url is not None:
        typer.echo(f"faults can be changed at {running.control_url}/faults")
    told = loop.create_task(stopping.wait())
    await asyncio.wait({told, running.driving}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    await running.shutdown(settings.shutdown_seconds)


def run(settings: WorkerSettings) -> None:
    """Serve until SIGINT or SIGTERM. The first line on standard output ends with the base URL.

    ``ValueError`` for settings that cannot be (an unknown GPU); ``OSError`` if an address cannot be had.
    """
    uvloop.run(_serve(settings))


@app.command()
def main(
    model: Annotated[str, typer.Option(help="Name of the model it serves.")],
    gpu: Annotated[
        str, typer.Option(help="GPU that it simulates: an id such as h100-sxm, or bf16=9.9e14,bandwidth=3.35e12,memory=80e9.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    alias: Annotated[list[str] | None, typer.Option(help="A further name of the model.", show_default=False)] = None,
    lora_module: Annotated[list[str] | None, typer.Option(help="Name of a LoRA adapter.", show_default=False)] = None,
    imitate: Annotated[str, typer.Option(help=f"Version of vLLM: {', '.join(DIALECTS)}.")] = "0.32",
    api_key: Annotated[str | None, typer.Option(help="Key wanted below /v1.", show_default=False)] = None,
    shutdown_timeout: Annotated[float, typer.Option(min=0, help="Seconds that requests get to end after SIGTERM.")] = 0.0,
    dev_mode: Annotated[
        bool, typer.Option("--dev-mode", help="/pause, /resume, /abort_requests, /reset_prefix_cache.")
    ] = False,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Model whose size it has: a known name, or the path of a config.json; else the one known as --model.",
            show_default=False,
            rich_help_panel=_HARDWARE,
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of the worker.", show_default=False, rich_help_panel=_HARDWARE)
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(min=1, help="GPUs that share each layer.", show_default=False, rich_help_panel=_HARDWARE)
    ] = None,
    data_parallel_size: Annotated[
        int, typer.Option(min=1, help="Engines behind the one server.", rich_help_panel=_HARDWARE)
    ] = 1,
    enable_expert_parallel: Annotated[
        bool, typer.Option("--enable-expert-parallel", help="Experts lie whole on GPUs.", rich_help_panel=_HARDWARE)
    ] = False,
    weight_dtype: Annotated[
        str | None, typer.Option(help="Format of the weights: fp8, awq …", show_default=False, rich_help_panel=_HARDWARE)
    ] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option(help="Format of the KV cache: auto, fp8 …", show_default=False, rich_help_panel=_HARDWARE)
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the GPU's memory it may use.", rich_help_panel=_HARDWARE)
    ] = 0.92,
    engine: Annotated[
        str, typer.Option(help=f"Whose losses: {', '.join(DEFAULT_LOSSES)}.", rich_help_panel=_HARDWARE)
    ] = "vllm",
    compute_factor: Annotated[float, typer.Option(help="2: computing takes twice as long.", rich_help_panel=_HARDWARE)] = 1.0,
    memory_factor: Annotated[float, typer.Option(help="The same of memory traffic.", rich_help_panel=_HARDWARE)] = 1.0,
    overhead_factor: Annotated[
        float, typer.Option(help="The same of overheads, per layer and request.", rich_help_panel=_HARDWARE)
    ] = 1.0,
    exchange_factor: Annotated[float, typer.Option(help="The same of what GPUs exchange.", rich_help_panel=_HARDWARE)] = 1.0,
    request_overhead: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds from a request's arrival to the engine's queue; else the engine's.",
            show_default=False,
            rich_help_panel=_HARDWARE,
        ),
    ] = None,
    stream_overhead: Annotated[
        float, typer.Option(min=0, help="Seconds more for each other request in flight.", rich_help_panel=_HARDWARE)
    ] = 0.0,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most tokens of prompt and output together; else the model's.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(min=1, help="Most sequences that run at once; else as vLLM.", show_default=False, rich_help_panel=_ENGINE),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of a step; else as vLLM.", show_default=False, rich_help_panel=_ENGINE),
    ] = None,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(min=1, help="Most requests that wait.", show_default=False, rich_help_panel=_ENGINE)
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block of the KV cache.", rich_help_panel=_ENGINE)] = 16,
    num_speculative_tokens: Annotated[
        int, typer.Option(min=0, help="Drafts of speculative decoding in each step; 0 for none.", rich_help_panel=_ENGINE)
    ] = 0,
    acceptance_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Chance of a draft to be accepted.", rich_help_panel=_ENGINE)
    ] = 0.7,
    step_noise: Annotated[
        float, typer.Option("--noise", min=0, help="Sigma of the lognormal noise on step times.", rich_help_panel=_ENGINE)
    ] = 0.0,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of KV cache; else the GPU's.", show_default=False, rich_help_panel=_ENGINE)
    ] = None,
    seed: Annotated[int, typer.Option(help="What texts and lengths are drawn from.", rich_help_panel=_ENGINE)] = 0,
    speed: Annotated[float, typer.Option(help="2 makes everything take half its time.", rich_help_panel=_ENGINE)] = 1.0,
    enable_prompt_tokens_details: Annotated[
        bool, typer.Option("--enable-prompt-tokens-details", help="Usage tells cached tokens.", rich_help_panel=_FORM)
    ] = False,
    enable_per_request_metrics: Annotated[
        bool, typer.Option("--enable-per-request-metrics", help="Answers tell their own times.", rich_help_panel=_FORM)
    ] = False,
    enable_request_id_headers: Annotated[
        bool, typer.Option("--enable-request-id-headers", help="Answers carry X-Request-Id.", rich_help_panel=_FORM)
    ] = False,
    enable_server_load_tracking: Annotated[
        bool, typer.Option("--enable-server-load-tracking", help="/load counts open requests.", rich_help_panel=_FORM)
    ] = False,
    enable_force_include_usage: Annotated[
        bool, typer.Option("--enable-force-include-usage", help="Streams tell usage unasked.", rich_help_panel=_FORM)
    ] = False,
    enable_auto_tool_choice: Annotated[
        bool, typer.Option("--enable-auto-tool-choice", help="Requests with tools get a call.", rich_help_panel=_FORM)
    ] = False,
    reasoning_parser: Annotated[
        bool, typer.Option("--reasoning-parser", help="Chats begin with reasoning.", rich_help_panel=_FORM)
    ] = False,
    thoughts: Annotated[
        str | None, typer.Option(help="What is always thought; else some words.", show_default=False, rich_help_panel=_FORM)
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="What is always said; else some words.", show_default=False, rich_help_panel=_FORM)
    ] = None,
    stream_interval: Annotated[int, typer.Option(min=1, help="Tokens in an event.", rich_help_panel=_FORM)] = 1,
    sse_keep_alive_interval: Annotated[
        float | None, typer.Option(help="Seconds of silence before a comment.", show_default=False, rich_help_panel=_FORM)
    ] = None,
    kv_connector: Annotated[
        bool, typer.Option("--kv-connector", help="Takes part in the prefill/decode exchange.", rich_help_panel=_FORM)
    ] = False,
    faults: Annotated[
        str, typer.Option(help='Faults from the start, as JSON: {"slow_factor": 2}.', rich_help_panel=_FAULTS)
    ] = "{}",
    control_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Loopback port for faults at run time.", show_default=False, rich_help_panel=_FAULTS
        ),
    ] = None,
) -> None:
    """Run one simulated worker. Exit status 2 for settings that cannot be, or an address that cannot be had."""
    try:
        run(
            WorkerSettings(
                model=model,
                gpu=gpu,
                port=port,
                shape=shape,
                hardware=Hardware(
                    gpus=gpus,
                    tensor_parallel_size=tensor_parallel_size,
                    is_expert_parallel=enable_expert_parallel,
                    weight_dtype=weight_dtype,
                    kv_cache_dtype=kv_cache_dtype,
                    memory_utilization_ratio=gpu_memory_utilization,
                    engine=engine,
                    scale=Scale(
                        compute_factor=compute_factor,
                        memory_factor=memory_factor,
                        overhead_factor=overhead_factor,
                        exchange_factor=exchange_factor,
                    ),
                    request_overhead_seconds=request_overhead,
                    stream_overhead_seconds=stream_overhead,
                ),
                host=host,
                aliases=tuple(alias or ()),
                adapters=tuple(lora_module or ()),
                imitate=imitate,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                step_tokens=max_num_batched_tokens,
                max_queued=max_num_queued_reqs,
                block_tokens=block_size,
                data_parallel_size=data_parallel_size,
                step_noise_sigma=step_noise,
                kv_tokens=kv_tokens,
                draft_tokens=num_speculative_tokens,
                draft_acceptance_ratio=acceptance_ratio,
                api_key=api_key,
                seed=seed,
                speed=speed,
                prompt_tokens_details=enable_prompt_tokens_details,
                per_request_metrics=enable_per_request_metrics,
                request_id_headers=enable_request_id_headers,
                load_tracking=enable_server_load_tracking,
                force_include_usage=enable_force_include_usage,
                calls_tools=enable_auto_tool_choice,
                thinks=reasoning_parser,
                thoughts=thoughts,
                answer=answer,
                stream_interval=stream_interval,
                sse_keep_alive_seconds=sse_keep_alive_interval,
                kv_connector=kv_connector,
                dev_mode=dev_mode,
                shutdown_seconds=shutdown_timeout,
                faults=read_faults(faults),
                control_port=control_port,
            )
        )
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app(prog_name="python -m simulator.worker")
