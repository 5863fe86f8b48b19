"""The command that runs one simulated worker: ``python -m simulator.worker --model M --gpu G --port P``."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer

from simulator.server import WorkerSettings, start_worker


async def _serve(settings: WorkerSettings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    runner, url = await start_worker(settings)
    typer.echo(f"simulated worker for {settings.model} on {settings.gpu}: {url}")
    await stopping.wait()
    await runner.cleanup()


def run(
    model: str,
    gpu: str,
    port: int,
    host: str = "127.0.0.1",
    max_model_len: int = 131_072,
    max_num_seqs: int = 64,
    api_key: str | None = None,
    seed: int = 0,
    speed: float = 1.0,
) -> None:
    """Serve until SIGINT or SIGTERM. The first line on standard output ends with the base URL.

    ``ValueError`` for settings that cannot be (an unknown GPU); ``OSError`` if the address cannot be had.
    """
    settings = WorkerSettings(
        model=model,
        gpu=gpu,
        port=port,
        host=host,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        api_key=api_key,
        seed=seed,
        speed=speed,
    )
    asyncio.run(_serve(settings))


def main(
    model: Annotated[str, typer.Option(help="Name of the model it serves.")],
    gpu: Annotated[str, typer.Option(help="Whose demo timing it takes, such as h100-sxm.")],
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    max_model_len: Annotated[int, typer.Option(help="Most tokens of prompt and output together.")] = 131_072,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences that run at once.")] = 64,
    api_key: Annotated[str | None, typer.Option(help="Key wanted below /v1.")] = None,
    seed: Annotated[int, typer.Option(help="What texts and lengths are drawn from.")] = 0,
    speed: Annotated[float, typer.Option(help="2 makes everything take half its time.")] = 1.0,
) -> None:
    """Run one simulated worker."""
    try:
        run(model, gpu, port, host, max_model_len, max_num_seqs, api_key, seed, speed)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
