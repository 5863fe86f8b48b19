"""A simulated worker as a server that runs: its ports, its engine's driver, its faults and its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from simulator.control_port import ControlPort
from simulator.drive import Driver
from simulator.faults import Faults
from simulator.handlers import SimulatedWorker
from simulator.listener import Listener
from simulator.settings import WorkerSettings

__all__ = ["RunningWorker", "WorkerSettings", "start_worker"]


class RunningWorker:
    """A worker that serves. End it with `shutdown` or `cleanup`."""

    def __init__(self, settings: WorkerSettings, exit_process: Callable[[], None] | None) -> None:
        loop = asyncio.get_running_loop()
        engine, max_model_len = settings.launch()
        driver = Driver(engine, clock=loop.time, speed=settings.speed)
        self.worker = SimulatedWorker(settings, settings.served(max_model_len), driver, exit_process or self._vanish)
        self.listener = Listener(self.worker.handle, settings.host, settings.port)
        self.control: Listener | None = None
        self.driving = loop.create_task(driver.run())
        self.driving.add_done_callback(_report)

    def __repr__(self) -> str:
        return f"<RunningWorker {self.listener!r}>"

    @property
    def control_url(self) -> str | None:
        """The base URL of the control port, if there is one."""
        return self.control.url if self.control is not None else None

    async def apply(self, faults: Faults) -> None:
        """Put faults in force, instead of all before. ``OSError`` if the port cannot be had again."""
        worker = self.worker
        worker.switch.set(faults)
        worker.driver.engine.slow_factor = faults.slow_factor
        worker.driver.engine.is_paused = faults.pause
        worker.driver.wake()
        if faults.refuse:
            await self.listener.refuse()
        else:
            await self.listener.open()

    async def shutdown(self, seconds: float) -> None:
        """Take no new requests, wait for what runs, fail what has not ended after so many seconds, and end."""
        self.worker.is_draining = True
        if seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.worker.is_idle.wait()
            for answering in tuple(self.worker.running.values()):
                answering.fail()
        await self.cleanup()

    async def cleanup(self) -> None:
        """End at once; what runs is cut. Raises what went wrong in the engine's driver."""
        for listener in (self.listener, self.control):
            if listener is not None:
                await listener.close()
        self.driving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.driving

    def _vanish(self) -> None:
        """What a killed process looks like from outside, for a worker in a process that has to live on."""
        self.listener.drop()
        self.driving.cancel()


def _report(driving: asyncio.Task[None]) -> None:
    """Say at once that the engine's driver has failed: nothing would come any more, and nobody would know why."""
    if not driving.cancelled() and (error := driving.exception()) is not None:
        asyncio.get_running_loop().call_exception_handler({"message": "the engine's driver failed", "exception": error})


async def start_worker(settings: WorkerSettings, exit_process: Callable[[], None] | None = None) -> tuple[RunningWorker, str]:
    """Begin to serve on the running loop. Returns the worker, whose ``cleanup`` ends it, and the base URL.

    ``exit_process`` ends the process when a fault wants it; without it only the worker's sockets go. ``ValueError`` for
    settings that cannot be; ``OSError`` if an address cannot be had.
    """
    running = RunningWorker(settings, exit_process)
    try:
        await running.listener.open()
        running.worker.port = running.listener.port
        await running.apply(settings.faults)
        if settings.control_port is not None:
            running.control = Listener(ControlPort(running).handle, "127.0.0.1", settings.control_port)
            await running.control.open()
    except OSError:
        await running.cleanup()
        raise
    return running, running.listener.url
