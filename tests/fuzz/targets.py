"""What is fuzzed. Each target is the module of its name beside this one, with

- ``check(data)``: raises AssertionError where the gateway and a second reading of the same bytes disagree,
- ``seeds()``: inputs to begin with, ``WORDS``: bytes that mean something there, ``LONGEST``: bytes of an input.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

# The modules that a target tries; their branches are what guides the fuzzer.
TARGETS: Mapping[str, Sequence[str]] = {
    "sse": ("telemetry.sse",),
    "meter": ("telemetry.sse", "telemetry.meter", "telemetry.events", "telemetry.typed_events", "telemetry.json_text"),
    "usage": ("proxy.upstream.usage_filter", "telemetry.sse", "telemetry.events", "telemetry.json_text"),
    "client": ("proxy.serving.client", "proxy.wire.request_head", "proxy.wire.framing", "proxy.wire.known_heads"),
    "worker": ("proxy.wire.framing", "proxy.wire.known_heads", "proxy.upstream.relay", "proxy.upstream.usage_filter"),
    "body": ("proxy.wire.inference",),
    "form": ("proxy.wire.forms",),
    "config": ("proxy.config.file", "proxy.config.problems", "proxy.config.values", "proxy.config.worker_url"),
    "metrics": ("proxy.control.probe",),
}
_KEPT = Path(__file__).parents[1] / "data" / "fuzz"


class Target(NamedTuple):
    """One of them, with its modules imported."""

    name: str
    check: Callable[[bytes], None]
    seeds: list[bytes]
    words: Sequence[bytes]
    longest: int


def load(name: str) -> Target:
    """Import a target. Its inputs to begin with are its own and those that earlier runs have kept."""
    module = import_module(f"tests.fuzz.{name}")
    return Target(name, module.check, [*module.seeds(), *kept(name)], module.WORDS, module.LONGEST)


def kept(name: str) -> list[bytes]:
    """Inputs of earlier runs that reached what no other reached, and all that ever failed."""
    path = _KEPT / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(name: str, inputs: Sequence[bytes]) -> int:
    """Keep these too. Returns how many there are now."""
    all_of_them = sorted({*kept(name), *inputs}, key=lambda data: (len(data), data))
    if not all_of_them:
        return 0
    _KEPT.mkdir(exist_ok=True)
    (_KEPT / f"{name}.txt").write_text("".join(f"{base64.b64encode(data).decode()}\n" for data in all_of_them))
    return len(all_of_them)
