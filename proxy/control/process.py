"""The control process: everything of a gateway that may take time, so that the serving processes only serve.

It merges and exposes the figures, logs the records, probes the workers. It runs at lower priority, and when it is away the
serving processes go on without it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections import deque
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from proxy.admin.access import AdminAccess
from proxy.admin.routes import admin_app
from proxy.admin.token import admin_rules
from proxy.config.deployments import deployments_of
from proxy.config.settings import Config, ConfigError
from proxy.config.tls import LISTENERS_TLS
from proxy.config.wiring import build_topology, gpu_sources
from proxy.control.calibrating import Calibrations
from proxy.control.capping import CapAdviser
from proxy.control.conditions import ConditionWatch
from proxy.control.crowding import CrowdingWatch
from proxy.control.drifting import DriftWatch
from proxy.control.fleet import Fleet, open_control_cells
from proxy.control.forced_usage import UsageAdviser
from proxy.control.gpu_watch import GpuWatch
from proxy.control.guiding import Guide
from proxy.control.hedging import HedgeAdviser
from proxy.control.judging import Judge
from proxy.control.learning import TokenAdviser
from proxy.control.leasing import Leasing
from proxy.control.listeners import listen, tls_of, watch_certificates
from proxy.control.live import LiveFeed
from proxy.control.model_lengths import ModelLengths
from proxy.control.observer import observer_app
from proxy.control.overlay import kept_overlay
from proxy.control.pace import PaceAdviser
from proxy.control.prefixes import Prefixes
from proxy.control.probe import open_session
from proxy.control.reload import Reloader, first_config
from proxy.control.site import Site
from proxy.control.speeds import Speeds
from proxy.control.starting import CannotStartError, open_log, open_store
from proxy.control.steady_clock import SteadyClock
from proxy.control.tracing_sinks import Followers
from proxy.control.unwritten import LOG, Unwritten
from proxy.control.view import GatewayView
from proxy.control.vitals import Vitals
from proxy.discovery.finder import Finder
from proxy.discovery.found import kept_found
from proxy.listener import bound_address
from proxy.notices import notice
from proxy.published import last_guidance
from proxy.records import RecordReceiver
from proxy.rundir import CONTROL_ADDRESSES, CONTROL_CELLS, DRAIN, RECORDS_SOCKET
from proxy.supervisor import EXIT_CONFIGURATION, EXIT_OK
from telemetry.layout import slot
from telemetry.record import RequestRecord
from telemetry.sinks.jsonlog import JsonLog

_log = logging.getLogger("proxy.control.process")  # the module runs as __main__

_NICENESS = 5
_DRAIN_SECONDS = 2.0
_LOG_CLOSE_SECONDS = 2.0
_LAG_PERIOD_SECONDS = 0.5
_LAG_SAMPLES = 30  # the gauge is the largest of the last 15 s, so that scrapes see each stall
_LOOK_SECONDS = 1.0
_LOSS_PERIOD_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the supervisor says."""

    config: Path
    run_dir: Path
    processes: int
    parent_fd: int | None  # a pipe whose end means that the supervisor is gone


async def run(config: Config, text: str, options: Options) -> None:
    """Run until SIGTERM, SIGINT or the end of the supervisor; ``text`` is what the configuration was read from.

    Raises CannotStartError at the start.
    """
    stop = asyncio.Event()
    _watch_for_the_end(stop, options.parent_fd)
    overlay, clock, unwritten = kept_overlay(options.run_dir), SteadyClock(), Unwritten()
    # Undone in reverse: probes end first, then what the sockets still hold is read and logged, and scrapes work until then.
    async with AsyncExitStack() as stack:
        finder = Finder(options.config.parent, kept_found(options.run_dir))
        stack.push_async_callback(finder.close)
        finder.follow(config)
        await finder.first()
        configured = replace(build_topology(config, options.config.parent), is_settled=finder.is_settled)
        found = finder.found
        topology = overlay.over(found.over(configured))
        cells = open_control_cells(options.run_dir, topology)
        log = open_log(config.log.path)
        followers = Followers(
            config, topology, version=version("ridgeline"), run_dir=options.run_dir, on_fault=_tell, clock=clock
        )
        view = GatewayView(
            version=version("ridgeline"),
            run_dir=options.run_dir,
            processes=options.processes,
            topology=topology,
            control=cells.values,
            log_dropped=lambda: log.dropped,
            exemplars=followers.exemplars,
        )

        lengths = ModelLengths()
        speeds = Speeds(lambda: reloader.config, options.config.parent)
        caps = CapAdviser(lambda: reloader.config, options.config.parent)
        tokens = TokenAdviser(last_guidance(options.run_dir))
        guide = Guide(
            [tokens, lengths, PaceAdviser(), caps, speeds, Prefixes(), HedgeAdviser(), UsageAdviser()],
            options.run_dir,
            unwritten,
        )
        kept = None if config.calibration.path is None else Path(config.calibration.path)
        judge = Judge(Calibrations(kept, unwritten), clock)
        watch = DriftWatch(judge.prefill_of, clock)
        crowding = CrowdingWatch(view)
        feed = LiveFeed(view, judge, watch, clock=clock)
        fleet: Fleet | None = None

        access = AdminAccess(config.admin_listen)

        def know(config: Config) -> None:
            judge.know(deployments_of(config, options.config.parent))
            access.follow(admin_rules(config, options.config.parent))
            with suppress(OSError):  # then it is as at the last time
                _publish(options.run_dir / DRAIN, str(config.limits.drain_seconds))

        know(config)
        leasing = Leasing(open_store(config.quotas), config.quotas.lease_ratio)
        stack.push_async_callback(leasing.close)

        def take(records: list[RequestRecord]) -> None:
            guide.take(records)
            crowding.take(records)
            if fleet is not None:
                watch.adopt(fleet.topology, fleet.cells.values)
                judge.adopt(fleet.topology, fleet.cells.values)
            records = judge.take(watch.take(followers.take(records)))
            view.recent.extend(records)
            feed.take(records)
            if revised := judge.revised():
                view.revise(revised)
                feed.revise(revised)
            log.write_all(records)

        listeners = [listen(name, getattr(config, name)) for name in ("observe_listen", "admin_listen")]
        stack.push_async_callback(_close, log, followers)
        stack.callback(followers.send_metrics, view)
        receiver = RecordReceiver(options.run_dir / RECORDS_SOCKET, take, on_fault=_log.error)
        await receiver.start()
        stack.push_async_callback(receiver.close)
        stack.push_async_callback(receiver.drain, _DRAIN_SECONDS)
        session = await stack.enter_async_context(open_session())
        gpus = GpuWatch(session, clock)
        judge.gpus = gpus.lately
        fleet = Fleet(configured, overlay, cells, options.run_dir, view, session, found)
        stack.push_async_callback(fleet.close)
        addresses = [bound_address(listener) for listener in listeners]
        shown = [tls_of(name, getattr(config, name), options.config.parent) for name in LISTENERS_TLS]
        for app, listener, tls in zip(
            (observer_app(view), admin_app(view, fleet, addresses[1], followers.view_of_chains, judge, watch, feed, access)),
            listeners,
            shown[1:],
            strict=True,
        ):
            site = Site(app, None if tls is None else tls.context)
            stack.push_async_callback(site.stop)
            await site.start(listener)
        reloader = Reloader(
            options.config, os.environ, config, fleet, text=text, run_dir=options.run_dir, finder=finder, on_config=know
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.asked.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # the supervisor starts us with it held back

        def is_unwritten(file: str) -> bool:
            return log.is_failing if file == LOG else file in unwritten

        vitals = Vitals(fleet, view, options.run_dir, options.processes, lambda: log.dropped, is_unwritten)
        tasks = [
            asyncio.create_task(_watch_lag(fleet, options.run_dir / CONTROL_CELLS)),
            asyncio.create_task(_watch_losses(log)),
            asyncio.create_task(reloader.run()),
            asyncio.create_task(followers.run(fleet, view)),
            asyncio.create_task(guide.run(fleet)),
            asyncio.create_task(_look_around(judge, watch, fleet, clock)),
            asyncio.create_task(finder.run(fleet, view)),
            asyncio.create_task(gpus.run(lambda: gpu_sources(reloader.config, fleet.topology))),
            asyncio.create_task(lengths.run(fleet, session)),
            asyncio.create_task(ConditionWatch(view).run()),
            asyncio.create_task(crowding.run(fleet)),
            asyncio.create_task(leasing.run(fleet, view)),
            asyncio.create_task(watch_certificates([tls for tls in shown if tls is not None])),
            asyncio.create_task(feed.run()),
            asyncio.create_task(vitals.run()),
        ]
        stack.push_async_callback(_cancel, tasks)
        schemes = ["http" if tls is None else "https" for tls in shown]
        urls = (f"{scheme}://{address}" for scheme, address in zip(schemes[1:], addresses, strict=True))
        _publish(options.run_dir / CONTROL_ADDRESSES, "\n".join((*urls, schemes[0])) + "\n")
        await stop.wait()


def _watch_for_the_end(stop: asyncio.Event, parent_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent_fd is not None:

        def parent_gone() -> None:
            loop.remove_reader(parent_fd)
            stop.set()

        loop.add_reader(parent_fd, parent_gone)


def _tell(text: str) -> None:
    notice("WARNING", text)


async def _close(log: JsonLog, followers: Followers) -> None:
    """Write and send what waits, both at once and both bounded."""
    await asyncio.gather(asyncio.to_thread(log.close, _LOG_CLOSE_SECONDS), followers.close())


async def _watch_lag(fleet: Fleet, file: Path) -> None:
    """Measure how late the loop is. The modification time of the file is this process's sign of life to the others."""
    loop = asyncio.get_running_loop()
    cell = slot("ridgeline_control_lag_seconds")
    lags: deque[float] = deque(maxlen=_LAG_SAMPLES)
    while True:
        due_at = loop.time() + _LAG_PERIOD_SECONDS
        await asyncio.sleep(_LAG_PERIOD_SECONDS)
        lags.append(max(0.0, loop.time() - due_at))
        fleet.cells.values[cell] = max(lags)
        with suppress(OSError):
            os.utime(file)


async def _look_around(judge: Judge, watch: DriftWatch, fleet: Fleet, clock: SteadyClock) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        judge.standards.know_versions(fleet.engine_versions())
        for each in (watch, judge):
            each.adopt(fleet.topology, fleet.cells.values)
            each.look()
        clock.look()


async def _watch_losses(log: JsonLog) -> None:
    told = 0
    while True:
        await asyncio.sleep(_LOSS_PERIOD_SECONDS)
        if log.dropped > told:
            _log.warning("request log: %d lines lost, %d since the start", log.dropped - told, log.dropped)
            told = log.dropped


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _publish(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


class _NoticeHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        notice(record.levelname, self.format(record))


def configure_logging() -> None:
    """Send what is logged here, and warnings of libraries, to standard error in the form of `notice`."""
    logging.basicConfig(handlers=[_NoticeHandler()], level=logging.WARNING, format="%(message)s")
    logging.getLogger("proxy").setLevel(logging.INFO)


def parse_options(arguments: list[str]) -> Options:
    """Return the options; ends the process with code 2 when they are wrong."""
    parser = argparse.ArgumentParser(prog="proxy.control.process")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--parent-fd", type=int)
    return Options(**vars(parser.parse_args(arguments)))


def main() -> int:
    """Run the process; return its exit code."""
    options = parse_options(sys.argv[1:])
    os.nice(_NICENESS)
    gc.set_threshold(20_000, 50, 100)  # records die by themselves; looking for cycles among them finds nothing
    configure_logging()
    try:
        config, text = first_config(options.config, os.environ, options.run_dir)
        asyncio.run(run(config, text, options))
    except ConfigError as error:
        notice("ERROR", str(error))
        return EXIT_CONFIGURATION
    except CannotStartError as error:
        notice("ERROR", str(error))
        return EXIT_CONFIGURATION
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
