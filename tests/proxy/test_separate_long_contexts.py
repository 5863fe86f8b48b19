"""The how-to about pools shows a configuration that does what the page says."""

from __future__ import annotations

from pathlib import Path

from proxy.config.settings import parse_config, warnings_of
from proxy.config.wiring import build_topology
from routing.demand import Demand
from routing.estimate import TokenEstimate
from routing.policy import Decision, Snapshot, choose

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "separate-long-contexts.md").read_text()


def test_the_configuration_divides_and_overflows():
    """It is valid and warns of nothing; long requests go to `long`, short ones to `short`, or to `long` while that is down."""
    config = parse_config(PAGE.split("```yaml\n")[1].split("```")[0], {}, "page")
    assert warnings_of(config) == ()
    model = build_topology(config).models[0]

    def chosen(tokens: int, up: tuple[float, ...]) -> tuple[str, str]:
        decision = choose(model, Demand(TokenEstimate(tokens, tokens, tokens), max_tokens=500), Snapshot(up, (0.0,) * 4, 0))
        assert isinstance(decision, Decision)
        return decision.pool.name, decision.pool_reason

    assert chosen(1000, (1, 1, 1, 1)) == ("short", "context_length")
    assert chosen(60_000, (1, 1, 1, 1)) == ("long", "context_length")
    assert chosen(1000, (0, 0, 1, 1)) == ("long", "overflow")
