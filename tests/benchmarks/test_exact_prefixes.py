"""What exact knowledge of prefix caches would bring, as the decision on KV events reads it, on fewer requests."""

from __future__ import annotations

import pytest

from benchmarks import exact_prefixes
from benchmarks.policies import WORKLOADS, hardware


@pytest.mark.parametrize(("ratio", "least", "most"), [(1.0, -0.02, 0.02), (0.25, 0.03, 0.25)])
def test_exact_knowledge_gains_where_caches_are_too_small(ratio: float, least: float, most: float) -> None:
    """Of agents' prompts, whose homes keep them where there is room, it finds more only where there is not."""
    arrivals = WORKLOADS[2].arrivals(1500, 1)
    homes, exact = (exact_prefixes.run(way, arrivals, hardware(), ratio) for way in ("prefix-affinity", "exact"))

    assert least < exact.hit_ratio - homes.hit_ratio < most


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each way for each traffic and size of the cache, all with the same columns."""
    assert exact_prefixes.main(["--requests", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 2 + 3 * len(exact_prefixes.CACHE_RATIOS) * len(exact_prefixes.WAYS)
    assert {line.count("|") for line in lines} == {len(exact_prefixes.HEADS) + 1}
