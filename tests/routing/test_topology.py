"""What everything is counted and routed by."""

from __future__ import annotations

from tests.routing.topologies import a_model, a_pool, a_topology


def test_routes_are_every_place_a_request_can_be_counted_under():
    """First nothing known, then each model without a pool, then each pool, in the order of the indices."""
    topology = a_topology(a_model(a_pool(0, name="short"), a_pool(1, name="long")), a_model(a_pool(2), name="q"))

    assert topology.routes == (
        ("unknown", "none"),
        ("m", "none"),
        ("q", "none"),
        ("m", "short"),
        ("m", "long"),
        ("q", "default"),
    )
    assert topology.routes[-len(topology.pools) :] == tuple((pool.model, pool.name) for pool in topology.pools)
