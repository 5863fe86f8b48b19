"""The `ridgeline` command. Each subcommand imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from proxy.built import serving_path
from proxy.importing.command import import_config
from proxy.planning.command import plan
from proxy.probing.command import probe
from proxy.replaying.command import replay

app = typer.Typer(
    name="ridgeline",
    help="OpenAI-compatible gateway for vLLM fleets that measures every request as it passes.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_show_locals=False,  # locals may hold keys
)


class EventLoop(StrEnum):
    """What serving processes wait with."""

    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 (see the module)

        typer.echo(f"ridgeline {version('ridgeline')} (serving path {serving_path()})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="Configuration file.", metavar="FILE")],
    processes: Annotated[int, typer.Option(min=1, max=64, help="Serving processes; one per core that traffic is to use.")] = 1,
    event_loop: Annotated[
        EventLoop,
        typer.Option(
            envvar="RIDGELINE_EVENT_LOOP", help="Of the serving processes; asyncio is Python's own, which costs more a request."
        ),
    ] = EventLoop.UVLOOP,
) -> None:
    """Run the gateway. Exit status 2 when the configuration has problems."""
    from proxy.config.settings import ConfigError, load_config, warnings_of  # noqa: PLC0415

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # a reload that is asked for too early ends nothing
    try:
        settings = load_config(config, os.environ)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    for warning in warnings_of(settings):
        typer.echo(f"warning: {warning}", err=True)
    command = supervisor_command(config.absolute(), settings.listen, processes, settings.limits.drain_seconds, event_loop)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)  # noqa: S606 (the same interpreter; the supervisor stays small without our imports)


def supervisor_command(
    config: Path, listen: str, processes: int, drain_seconds: float, event_loop: EventLoop = EventLoop.UVLOOP
) -> list[str]:
    """Return the command line of the supervisor, the program first."""
    arguments = {
        "--config": str(config),
        "--listen": listen,
        "--processes": str(processes),
        "--drain-seconds": str(drain_seconds),
        "--event-loop": event_loop.value,
    }
    return [sys.executable, "-m", "proxy.supervisor", *(word for pair in arguments.items() for word in pair)]


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="Configuration file.", metavar="FILE", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the configuration and exit.")] = False,
) -> None:
    """Validate a configuration; print every value in force and where it came from. Exit status 2 when it has problems."""
    if schema:
        from proxy.config.reference import schema_text  # noqa: PLC0415

        typer.echo(schema_text(), nl=False)
        return
    if file is None:
        typer.echo("name a configuration file: ridgeline check FILE", err=True)
        raise typer.Exit(2)
    from rich.console import Console  # noqa: PLC0415

    from proxy.config.shown import check_file  # noqa: PLC0415

    raise typer.Exit(check_file(file, os.environ, as_json=as_json, console=Console()))


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; without it, a gateway on the default addresses.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask every worker for one token, to see what its usage tells.")
    ] = False,
    grace_seconds: Annotated[
        float | None,
        typer.Option(min=0, envvar="TERMINATION_GRACE_PERIOD_SECONDS", help="From SIGTERM to SIGKILL of the gateway's pod."),
    ] = None,
) -> None:
    """Say what is wrong or blind in a set-up, and what mends it. Exit status 1 for warnings, 2 for errors."""
    from rich.console import Console  # noqa: PLC0415

    from proxy.doctor.command import examine  # noqa: PLC0415

    status = examine(
        config, os.environ, as_json=as_json, wants_completion=probe, grace_seconds=grace_seconds, console=Console()
    )
    raise typer.Exit(status)


@app.command()
def top(
    url: Annotated[
        str, typer.Option(help="Base URL of the gateway's admin listener.", metavar="URL")
    ] = "http://127.0.0.1:8081",
    ca: Annotated[
        Path | None,
        typer.Option(help="Certificates that an https:// URL is trusted by, else the system's.", metavar="FILE"),
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.", metavar="SECONDS")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and end; so it is when the output is no terminal.")] = False,
) -> None:
    """Watch pools and workers in the terminal: what is wrong, since when, and why. Exit status 1 when `--once` finds nobody."""
    from rich.console import Console  # noqa: PLC0415

    from proxy.top import top as watch  # noqa: PLC0415

    console = Console() if sys.stdout.isatty() else Console(width=200)
    token = os.environ.get("RIDGELINE_ADMIN_TOKEN") or None
    raise typer.Exit(watch(url, token, ca, every_seconds=every, once=once or not sys.stdout.isatty(), console=console))


app.command()(plan)
app.command("import")(import_config)
app.command()(probe)
app.command()(replay)


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def simulate(context: typer.Context) -> None:
    """Run one simulated worker; its options are told by `ridgeline simulate --help`."""
    from simulator.worker import app as worker  # noqa: PLC0415

    worker(context.args, prog_name="ridgeline simulate")


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
