"""The token estimate against real vocabularies, on prompts that nothing was learned from."""

from __future__ import annotations

import pytest

from benchmarks.estimator import Findings, measure
from benchmarks.estimator_texts import KINDS
from benchmarks.vocabularies import DEEPSEEK, QWEN

pytestmark = pytest.mark.skipif(  # a failure under REQUIRE_REAL=1
    not (QWEN.exists() and DEEPSEEK.exists()), reason="deploy/setup/vocabularies.sh has not fetched the vocabularies"
)


@pytest.fixture(scope="module")
def found() -> dict[str, Findings]:
    return measure(answers=200, judged=1000)


def test_intervals_hold_the_true_number(found):
    """After 200 answers, for 98 of 100 prompts of all kinds."""
    for name, findings in found.items():
        assert findings.judged == 1000
        assert findings.inside >= 0.98 * findings.judged, name


@pytest.mark.parametrize(("kind", "error"), [(kind, 0.15 if kind in ("prose", "code", "chat") else 0.4) for kind in KINDS])
def test_estimates_are_near(found, kind, error):
    """Four of five prompts within 15 % for prose, code and chats, within 40 % for everything else."""
    for name, findings in found.items():
        assert findings.error_within(kind, 0.8) <= error, name


def test_few_prompts_have_to_be_counted_and_hardly_any_goes_astray(found):
    """With the pools of the examples, at most 5 % are counted exactly, and under 0.5 % get the wrong pool."""
    for name, findings in found.items():
        assert findings.counts <= 0.05 * findings.judged, name
        assert findings.misroutes < 0.005 * findings.judged, name
