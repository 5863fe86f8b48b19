"""The layout: every figure has a cell of its own, and a change of meaning is a change of digest."""

from __future__ import annotations

from collections import Counter
from math import isnan

import pytest

from telemetry.catalog import CATALOG, Family, Kind, Scope, Writer
from telemetry.layout import (
    BLOCK_CELLS,
    Layout,
    bounds,
    cells_per_block,
    cells_per_combination,
    combinations,
    family_meaning,
    gauge_starts,
    offset,
    slot,
)


def test_every_cell_belongs_to_exactly_one_figure(a_topology):
    """Walking all blocks, families and label combinations visits each cell of the array once."""
    layout = Layout.of(a_topology())

    visited = Counter(
        base + slot(family.name, **dict(zip(family.labels, values, strict=True))) + cell
        for family in CATALOG
        if family.writer is not Writer.EXPOSITION
        for base in layout.blocks(family.scope)
        for values in combinations(family)
        for cell in range(cells_per_combination(family))
    )

    assert visited == Counter(range(layout.size))


def test_blocks_follow_the_topology(a_topology):
    """Blocks lie in the order process, routes, pools, workers, keys, one for each entry."""
    topology = a_topology()
    layout = Layout.of(topology)

    assert list(layout.blocks(Scope.PROCESS)) == [0]
    assert list(layout.blocks(Scope.ROUTE)) == [layout.route_base(index) for index in range(len(topology.routes))]
    assert list(layout.blocks(Scope.POOL)) == [layout.pool_base(index) for index in range(len(topology.pools))]
    assert list(layout.blocks(Scope.WORKER)) == [layout.worker_base(index) for index in range(len(topology.workers))]
    assert list(layout.blocks(Scope.KEY)) == [layout.key_base(index) for index in range(len(topology.keys))]
    assert layout.route_base(0) == BLOCK_CELLS[Scope.PROCESS]
    assert layout.pool_base(0) == layout.route_base(len(topology.routes))
    assert layout.size == layout.key_base(len(topology.keys))


def test_a_topology_without_keys_has_no_key_blocks(a_topology):
    """An open gateway has no cells for keys."""
    layout = Layout.of(a_topology(keys=()))

    assert list(layout.blocks(Scope.KEY)) == []
    assert layout.size == layout.key_base(0)


def test_labels_are_flattened_row_major():
    """The last label moves fastest, and a histogram takes its whole width for each combination."""
    first = slot("ridgeline_requests_total", endpoint="chat", outcome="ok")

    assert first == offset("ridgeline_requests_total")
    assert slot("ridgeline_requests_total", outcome="client_error", endpoint="chat") == first + 1
    assert slot("ridgeline_requests_total", endpoint="completions", outcome="ok") == first + 12
    width = len(bounds("ridgeline_e2e_seconds")) + 2
    assert slot("ridgeline_e2e_seconds", endpoint="completions") == offset("ridgeline_e2e_seconds") + width


def test_what_is_known_only_at_exposition_has_no_cells():
    """The version is no figure that a process counts."""
    [build_info] = [family for family in CATALOG if family.writer is Writer.EXPOSITION]

    assert cells_per_block(build_info) == 0


@pytest.mark.parametrize("look_up", [offset, slot, bounds])
def test_an_unknown_family_is_named(look_up):
    """A misspelt name raises KeyError with the name."""
    with pytest.raises(KeyError, match="ridgeline_ttft_millis"):
        look_up("ridgeline_ttft_millis")


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ({"endpoint": "chat"}, "outcome"),
        ({"endpoint": "chat", "outcome": "ok", "reason": "fit"}, "reason"),
        ({"endpoint": "/v1/chat/completions", "outcome": "ok"}, "/v1/chat/completions"),
    ],
)
def test_labels_outside_the_closed_sets_are_refused(labels, named):
    """A label that is missing, too many or of an unknown value never lands in a neighbour's cell."""
    with pytest.raises(KeyError, match=named):
        slot("ridgeline_requests_total", **labels)


def test_digest_is_the_same_in_every_process(a_topology):
    """Two equal topologies share arrays."""
    assert Layout.of(a_topology()) == Layout.of(a_topology())


@pytest.mark.parametrize(
    "change",
    [
        {"pools": (("llama", "short", ("w-1", "w-0")), ("llama", "long", ("w-2",)), ("qwen", "default", ("w-3",)))},
        {"pools": (("llama", "short", ("w-0",)), ("llama", "long", ("w-1", "w-2")), ("qwen", "default", ("w-3",)))},
        {"pools": (("llama", "long", ("w-0", "w-1")), ("llama", "short", ("w-2",)), ("qwen", "default", ("w-3",)))},
        {"pools": (("llama", "short", ("w-0", "w-1")), ("llama", "long", ("w-2",)), ("qwen-2", "default", ("w-3",)))},
        {"keys": ("app-b", "app-a")},
        {"keys": ("app-a', 'app-b",)},
        {"keys": ()},
    ],
    ids=["workers swapped", "worker moved", "pools swapped", "model renamed", "keys swapped", "key with a comma", "no keys"],
)
def test_digest_knows_every_name_and_order(a_topology, change):
    """Arrays of another topology are never read as ours, also where the number of cells is the same."""
    assert Layout.of(a_topology()).digest != Layout.of(a_topology(**change)).digest


@pytest.mark.parametrize(
    "replacement",
    [
        {"name": "ridgeline_renamed_total"},
        {"kind": Kind.GAUGE},
        {"scope": Scope.POOL},
        {"labels": ("outcome",)},
        {"bounds": (1.0, 2.0)},
        {"writer": Writer.CONTROL},
    ],
    ids=str,
)
def test_digest_knows_the_catalogue(replacement):
    """Whatever gives a cell its meaning is part of the digest; the help text is not."""
    base = {"name": "ridgeline_a_total", "kind": Kind.COUNTER, "scope": Scope.ROUTE, "help": "A.", "labels": ("phase",)}

    meaning = family_meaning(Family(**base))

    assert meaning != family_meaning(Family(**{**base, **replacement}))
    assert meaning == family_meaning(Family(**{**base, "help": "B."}))


def test_gauge_cells_are_those_of_the_writer(a_topology):
    """A serving process resets its own gauges, nothing that it counts and nothing of control's."""
    topology = a_topology()
    layout = Layout.of(topology)

    assert [cell for cell, _ in gauge_starts(layout, Writer.SERVING)] == [
        *(layout.pool_base(index) + offset("ridgeline_queued_requests") for index in range(len(topology.pools))),
        *(layout.worker_base(index) + offset("ridgeline_in_flight_requests") for index in range(len(topology.workers))),
        *(layout.worker_base(index) + offset("ridgeline_in_flight_tokens") for index in range(len(topology.workers))),
        *(layout.worker_base(index) + offset("ridgeline_worker_ejected") for index in range(len(topology.workers))),
        *(layout.worker_base(index) + offset("ridgeline_worker_condition") for index in range(len(topology.workers))),
        *(
            layout.worker_base(index) + offset("ridgeline_in_flight_further_sequences")
            for index in range(len(topology.workers))
        ),
        *(
            layout.worker_base(index) + offset(f"ridgeline_ledger_{name}")
            for name in ("prompt_tokens", "pending_prompt_tokens", "until_seconds")
            for index in range(len(topology.workers))
        ),
        *(layout.key_base(index) + offset("ridgeline_key_in_flight_requests") for index in range(len(topology.keys))),
        *(
            layout.key_base(index) + slot("ridgeline_quota_wanted", of=of)
            for index in range(len(topology.keys))
            for of in ("requests", "tokens")
        ),
        offset("ridgeline_loop_lag_seconds"),
    ]
    in_control = len(list(gauge_starts(layout, Writer.CONTROL)))
    assert in_control == 13 * len(topology.workers) + len(topology.pools) + 9 * len(topology.keys) + 12


def test_control_gauges_start_unknown(a_topology):
    """What a worker says is unknown until it was asked; a file is taken as written until one could not be."""
    layout = Layout.of(a_topology(keys=()))
    known = [start for _, start in gauge_starts(layout, Writer.CONTROL) if not isnan(start)]
    (files,) = (family for family in CATALOG if family.name == "ridgeline_unwritten_files")
    assert known == [0.0] * cells_per_block(files)
