"""What a finished request costs the control process, step by step: ``python -m benchmarks.control_path``.

The records of `benchmarks.hot_path`, taken through what control does with every one of them in the order of
``proxy.control.process``: with a GPU that is unknown, so that nothing is held against limits, and with one that is known. CPU
time; the least of several repeats. Sampled traces, exports and what is done once a second are not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import msgspec

from benchmarks.hot_path import HotPath, a_config
from benchmarks.machine import command_line, describe_machine
from dashboards.live.window import Window
from proxy.config.deployments import deployments_of
from proxy.config.settings import Config, parse_config
from proxy.config.wiring import build_topology
from proxy.control.capping import CapAdviser
from proxy.control.drifting import DriftWatch
from proxy.control.guiding import Guide
from proxy.control.judging import Judge
from proxy.control.learning import TokenAdviser
from proxy.control.pace import PaceAdviser
from proxy.control.prefixes import Prefixes
from proxy.control.tracing_sinks import Followers
from proxy.control.view import RECENT_RECORDS
from proxy.records import FrameReader, RecordSender, encode_frame
from telemetry.layout import Layout
from telemetry.record import RequestRecord
from telemetry.sinks.jsonlog import log_line

BATCH = 256  # records of a frame: 5,000 a second, sent twenty times a second
_SHAPE = "llama-3.1-8b"
_GPU = "h100-sxm"


@dataclass(frozen=True, slots=True)
class ControlCosts:
    """Microseconds of CPU a record, the least of the repeats."""

    kind: str  # "plain request", "one-token stream" or "stream"
    is_judged: bool  # the GPU is known
    read_us: float  # from bytes of the socket
    learn_us: float  # what routing is told
    follow_us: float  # chains, drift of prompts
    judge_us: float  # limits, deviations, causes
    show_us: float  # what the live page shows
    log_us: float  # a line of JSON, without writing it

    @property
    def total_us(self) -> float:
        """All steps."""
        return self.read_us + self.learn_us + self.follow_us + self.judge_us + self.show_us + self.log_us


class _Keeper(RecordSender):
    """Keeps records instead of sending them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kept: list[RequestRecord] = []

    def put(self, record: RequestRecord) -> None:
        self.kept.append(record)


def _records(run_dir: Path, count: int) -> dict[str, list[RequestRecord]]:
    """Records of each kind, as a serving process makes them, but with times that a worker with a GPU would have taken."""
    path = HotPath(run_dir)
    keeper = path.state.sender = _Keeper(run_dir / "nobody")
    kinds: dict[str, Callable[[], None]] = {
        "plain request": path.plain,
        "one-token stream": lambda: path.stream(1),
        "stream": lambda: path.stream(64),
    }
    found = {}
    for kind, call in kinds.items():
        keeper.kept = []
        for _ in range(count):
            call()
        found[kind] = [_as_of_a_gpu(record) for record in keeper.kept]
    return found


def _as_of_a_gpu(record: RequestRecord) -> RequestRecord:
    if not record.stream:
        return msgspec.structs.replace(record, e2e_seconds=0.045)
    times = dict.fromkeys(("ttft_seconds", "ttft_visible_seconds", "upstream_ttft_seconds"), 0.035)
    return msgspec.structs.replace(record, **times, tpot_seconds=0.0085, e2e_seconds=1.2)


def _config(*, has_gpu: bool) -> Config:
    text = a_config()
    if has_gpu:
        text["models"] = [
            {"name": "m", "shape": _SHAPE, "pools": [{"name": "default", "gpu": _GPU, "workers": ["http://127.0.0.1:9"]}]}
        ]
    return parse_config(json.dumps(text), {}, "benchmark")


class Control:
    """What takes records in a control process, as `proxy.control.process` puts it together."""

    def __init__(self, run_dir: Path, *, has_gpu: bool) -> None:
        config = _config(has_gpu=has_gpu)
        topology = build_topology(config)
        layout = Layout.of(topology)
        cells = memoryview(bytearray(8 * layout.size)).cast("d")
        self._reader = FrameReader()
        self._guide = Guide(
            [TokenAdviser(), PaceAdviser(), CapAdviser(lambda: config, run_dir), Prefixes()],
            run_dir,
        )
        self._followers = Followers(config, topology, version="0", run_dir=run_dir, on_fault=lambda _: None)
        self._judge = Judge()
        self._judge.know(deployments_of(config, run_dir))
        self._judge.adopt(topology, cells)
        self._watch = DriftWatch(self._judge.prefill_of)
        self._watch.adopt(topology, cells)
        self.recent: deque[RequestRecord] = deque(maxlen=RECENT_RECORDS)
        self._window = Window()

    def take(self, frame: bytes) -> list[float]:
        """Take a frame of records; CPU seconds of each step."""
        instants = [process_time()]
        records = self._reader.feed(frame)
        instants.append(process_time())
        self._guide.take(records)
        instants.append(process_time())
        records = self._watch.take(self._followers.take(records))
        instants.append(process_time())
        records = self._judge.take(records)
        instants.append(process_time())
        self.recent.extend(records)
        self._window.take(records)
        instants.append(process_time())
        for record in records:
            log_line(record)
        instants.append(process_time())
        return [later - earlier for earlier, later in itertools.pairwise(instants)]


def measure_control(run_dir: Path, *, repeats: int, batch: int = BATCH) -> list[ControlCosts]:
    """Measure in a running loop; `run_dir` takes the files of the processes."""
    found = []
    for kind, records in _records(run_dir, batch).items():
        frame = encode_frame(records)
        for has_gpu in (False, True):
            control = Control(run_dir, has_gpu=has_gpu)
            control.take(frame)
            steps = [min(times) / batch * 1e6 for times in zip(*(control.take(frame) for _ in range(repeats)), strict=True)]
            found.append(ControlCosts(kind, has_gpu, *(round(step, 2) for step in steps)))
    return found


async def run(repeats: int) -> list[ControlCosts]:
    """Measure with files in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-bench-") as folder:
        return measure_control(Path(folder), repeats=repeats)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_path", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="of 256 records, the least counts (default 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures, with machine and versions")
    options = parser.parse_args(arguments)
    gc.set_threshold(20_000, 50, 100)  # as the control process does
    found = asyncio.run(run(options.repeats))
    sys.stdout.write("microseconds a record    GPU    all  read learn follow  judge  show   log\n")
    for each in found:
        steps = (each.total_us, each.read_us, each.learn_us, each.follow_us, each.judge_us, each.show_us, each.log_us)
        told = "{:6.1f} {:5.1f} {:5.1f} {:6.1f} {:6.1f} {:5.1f} {:5.1f}".format(*steps)
        sys.stdout.write(f"{each.kind:23} {'known' if each.is_judged else '-':>5} {told}\n")
    if options.json:
        told_all = {
            "command": command_line(),
            "machine": asdict(describe_machine()),
            "control": [asdict(each) for each in found],
        }
        options.json.write_text(json.dumps(told_all, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
