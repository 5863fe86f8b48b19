"""How much workers can hold is what they say themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.control.fleet import Fleet
from proxy.control.model_lengths import ModelLengths, length_in
from proxy.control.overlay import Overlay
from proxy.control.probe import open_session
from routing.guidance import NO_GUIDANCE, PoolGuidance, pool_key
from telemetry.layout import Layout, slot
from tests.integration.scripted_worker import ScriptedWorker
from tests.proxy.fleets import a_topology, an_addition, running_fleet

KEY = pool_key("m", "default")


def a_page(length: Any = 4096, name: str = "m") -> bytes:
    return json.dumps({"object": "list", "data": [{"id": "lora"}, {"id": name, "max_model_len": length}]}).encode()


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (a_page(), 4096),
        (a_page(name="other"), None),
        (b'{"data":[{"id":"other","max_model_len":7}]}', 7),
        (b'{"data":[{"id":"m"}]}', None),
        (a_page(length=0), None),
        (a_page(length="4096"), None),
        (a_page(length=None), None),
        (b'{"data":[]}', None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
def test_what_a_list_of_models_says(page, expected):
    """The length of the model by its name, or of the only one; anything odd is not known."""
    assert length_in(page, "m") == expected


def set_up(fleet: Fleet, *up: float) -> None:
    for worker, is_up in zip(fleet.topology.workers, up, strict=True):
        fleet.cells.values[Layout.of(fleet.topology).worker_base(worker.index) + slot("ridgeline_worker_up")] = is_up


async def test_workers_are_asked_once_they_are_up(tmp_path: Path):
    """One that is down is left alone, each that answers is known, with the worker key, and not asked again at once."""
    topology = a_topology({"default": ["w-0"]}, key="secret")
    async with ScriptedWorker() as worker, open_session() as session:
        worker.models_page = a_page(8192)
        overlay = Overlay().add(topology, an_addition("w-9", f"http://127.0.0.1:{worker.port}"))
        async with running_fleet(tmp_path, topology, overlay) as fleet:
            lengths = ModelLengths()
            set_up(fleet, 0.0, 0.0)
            await lengths.look(fleet, session)
            assert lengths.advise(NO_GUIDANCE, fleet) == NO_GUIDANCE

            for _ in range(2):
                set_up(fleet, 0.0, 1.0)
                await lengths.look(fleet, session)
            asked = [probe.headers["authorization"] for probe in worker.probes if probe.path == "/v1/models"]
            assert asked == ["Bearer secret"]
            found = lengths.advise(NO_GUIDANCE, fleet)
            assert found.workers["w-9"].max_model_len == 8192
            assert found.pools[KEY] == PoolGuidance(least_model_len=8192, most_model_len=None)  # w-0 has not said

            fleet.change(Overlay())
            set_up(fleet, 0.0)
            await lengths.look(fleet, session)
            assert lengths.advise(NO_GUIDANCE, fleet) == NO_GUIDANCE
            assert repr(lengths) == "<ModelLengths of 0 workers>"


@pytest.mark.parametrize("page", [None, b"[]", b" " * (1024 * 1024 + 1)])
async def test_a_worker_that_does_not_say_stays_unknown(tmp_path: Path, page: bytes | None):
    """An error, an odd page or one without end leaves nothing known, and nothing is kept from the worker."""
    topology = a_topology({"default": ["w-0"]})
    async with ScriptedWorker() as worker, open_session() as session:
        worker.models_page = page
        overlay = Overlay().add(topology, an_addition("w-9", f"http://127.0.0.1:{worker.port}"))
        async with running_fleet(tmp_path, topology, overlay) as fleet:
            lengths = ModelLengths()
            set_up(fleet, 1.0, 1.0)
            await lengths.look(fleet, session)

            assert lengths.advise(NO_GUIDANCE, fleet) == NO_GUIDANCE
            assert [probe.path for probe in worker.probes].count("/v1/models") == 1
