"""What findings mean."""

from __future__ import annotations

import pytest

from proxy.probing.answer import Measured, failed
from proxy.probing.design import Experiment
from proxy.probing.expectations import expectation_of
from proxy.probing.findings import find
from proxy.probing.reading import read
from tests.proxy.probing.bursts import a_burst, loads, outputs, prompts


def codes(measured: list[Measured]) -> set[str]:
    return {remark.code for remark in read(find(measured))}


@pytest.mark.parametrize(
    ("measured", "code"),
    [
        (outputs(0.08, 0.01), "decode_bound"),
        (outputs(5.0, 0.001), "prefill_bound"),
        (outputs(0.08, 0.01)[:2], "no_line"),
        (prompts(0.01, 3e-5, 6e-10), "attention"),
        (prompts(0.01, 3e-5, 0.0), "no_attention"),
        (prompts(0.01, 0.0, 0.0), "no_curve"),
        ([*prompts(0.01, 3e-5, 0), *prompts(0.01, 3e-5, 0, is_warm=True)], "no_prefix_cache"),
        ([*prompts(0.01, 3e-5, 0), *prompts(0.01, 0, 0, is_warm=True, cached=0.99)], "prefix_cache"),
        ([*prompts(0.01, 3e-5, 0), *prompts(0.01, 0, 0, is_warm=True, cached=None)], "cache_untold"),
        (loads(2048, 0.008, 0.0004), "knee"),
        (loads(2048, 0.008, 0.0), "no_knee"),
        ([*loads(2048, 0.008, 0.0001), *loads(8192, 0.008, 0.0004)], "knee_moves"),
        (loads(2048, 0.008, 0.0004, places=8), "queueing"),
        (loads(2048, 0.008, 0.0004, places=8, is_warm=False), "prefill_queueing"),
        (loads(2048, 0.008, 0.0004, kv=0.99), "kv_full"),
        (loads(2048, 0.008, 0.0004, kv=None), "metrics_untold"),
        ([a_burst(Experiment.OUTPUT, [failed(1, 2, "status 503: full")], prompt=512, output=64)], "errors"),
    ],
)
def test_each_finding_is_put_in_words(measured: list[Measured], code: str) -> None:
    """What is seen is said, under a name that programs can rely on."""
    assert code in codes(measured)


@pytest.mark.parametrize(("kv", "word"), [(0.99, "was full (99%)"), (0.3, "--max-num-seqs")])
def test_who_waits_is_told_why(kv: float, word: str) -> None:
    """A full cache and too few places look alike from outside; the worker's metrics tell them apart."""
    said = [remark.text for remark in read(find(loads(2048, 0.008, 0.0004, places=8, kv=kv))) if remark.code == "queueing"]

    assert len(said) == 1
    assert "of 16 requests at once 8 waited" in said[0]
    assert word in said[0]


@pytest.mark.parametrize(
    ("factor", "code"),
    [(1.0, "as_expected"), (1.5, "slower_than_expected"), (3.0, "far_from_expected"), (0.3, "floor_beaten")],
)
def test_figures_are_held_against_what_the_gpu_can_do(factor: float, code: str) -> None:
    """As expected, slower, far off, or faster than physics allows: then what was said of the worker is wrong."""
    held = expectation_of("h100-sxm", "llama-3.1-8b")
    tpot = held.tpot(512, 256).expected_seconds

    remarks = read(find(outputs(0.02, factor * tpot)), held)

    assert code in {remark.code for remark in remarks}
