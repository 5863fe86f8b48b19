"""`ridgeline doctor`: looks (`proxy.doctor.looking`), and prints what `proxy.doctor.findings` makes of what was seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxy.config.settings import Config, ConfigError, load_config
from proxy.doctor.finding import Finding, Severity, exit_status
from proxy.doctor.findings import find, is_other_gateway
from proxy.doctor.looking import observe
from proxy.doctor.observations import Answer, Observations, listing, read_state

TOKEN_VARIABLE = "RIDGELINE_ADMIN_TOKEN"  # noqa: S105 -- the name of one
_PIPED_WIDTH = 160  # columns when the output is no terminal
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.HINT: "cyan"}


def examine(
    path: Path | None,
    environ: Mapping[str, str],
    *,
    as_json: bool,
    wants_completion: bool,
    grace_seconds: float | None,
    console: Console,
) -> int:
    """Look, and print what was found. Returns the exit status: 0 for nothing worse than hints, 1 for warnings, 2 for errors.

    Without a file a gateway on the default addresses is asked for its workers.
    """
    try:
        config = load_config(path, environ) if path else None
    except ConfigError as error:
        if as_json:
            problems = [asdict(problem) for problem in error.problems]
            _print_json(console, {"file": str(path), "valid": False, "problems": problems, "status": 2})
        else:
            Console(stderr=True, soft_wrap=True).print(str(error), markup=False, highlight=False)
        return 2
    token = environ.get(TOKEN_VARIABLE) or (None if path is None or config is None else _admin_token(config, path.parent))
    folder = Path() if path is None else path.parent
    seen = asyncio.run(observe(config, wants_completion=wants_completion, token=token, folder=folder))
    names = {name for name in environ if name.upper() in _PROXY_VARIABLES and environ[name]}
    seen = replace(seen, grace_seconds=grace_seconds, proxy_variables=tuple(sorted(names)))
    findings = find(seen)
    if as_json:
        rows = [{**asdict(found), "severity": found.severity.name.lower()} for found in findings]
        report = {"file": str(path) if path else None, "valid": True, **_summary(seen), "findings": rows}
        _print_json(console, {**report, "status": exit_status(findings)})
    else:
        _print_table(console, seen, findings)
    return exit_status(findings)


def _admin_token(config: Config, folder: Path) -> str | None:
    """The admin token, where the configuration has it and not only its hash."""
    if config.admin_token is not None:
        return config.admin_token.get_secret_value()
    if config.admin_token_file is None:
        return None
    return (folder / config.admin_token_file).read_text(encoding="utf-8").split()[0]  # it was read when it was checked


def _summary(seen: Observations) -> dict[str, Any]:
    state = read_state(seen.gateway.state)
    gateway = {
        "is_running": seen.gateway.is_running,
        "version": state.version if state else None,
        "serving_processes": state.serving_processes if state else None,
    }
    answered = sum(isinstance(worker.health, Answer) for worker in seen.workers)
    return {"gateway": gateway, "workers": len(seen.workers), "workers_that_answered": answered}


def _print_json(console: Console, value: object) -> None:
    console.file.write(json.dumps(value, indent=2) + "\n")


def _print_table(console: Console, seen: Observations, findings: tuple[Finding, ...]) -> None:
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    summary = _summary(seen)
    gateway = summary["gateway"]
    running = f"running, {gateway['serving_processes']} serving" if gateway["version"] else "running"
    if is_other_gateway(seen):
        running = f"another one is {running}"
    say(f"gateway: {running if gateway['is_running'] else 'not running'}")
    say(f"workers: {summary['workers_that_answered']} of {summary['workers']} answer")
    if findings:
        table = Table("", "what", "is wrong", "mends it", box=None, pad_edge=False, padding=(0, 2, 1, 0))
        for column in table.columns:
            column.overflow = "fold"
        for found in findings:
            severity = f"[{_STYLES[found.severity]}]{found.severity.name.lower()}[/]"
            table.add_row(severity, escape(listing(found.subjects)), escape(found.wrong), escape(found.mend))
        console.print(table, highlight=False)
    counts = ((severity, sum(found.severity is severity for found in findings)) for severity in Severity)
    say(", ".join(f"{count} {severity.name.lower()}{'' if count == 1 else 's'}" for severity, count in counts))
