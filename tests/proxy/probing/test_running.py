"""What a probe learns before it measures."""

from __future__ import annotations

from typing import Any, cast

import pytest

from proxy.probing.answer import Answer
from proxy.probing.endpoint import Endpoint, ProbeError
from proxy.probing.running import learn_prompts


class Answering:
    """An endpoint that counts the words of a prompt, and fails as told."""

    most_tokens = None

    def __init__(self, error: str | None, *, counts: bool) -> None:
        self.error = error
        self.counts = counts

    async def ask(self, text: str, output_tokens: int) -> Answer:
        tokens = len(text.split()) if self.counts else None
        return Answer(sent_at=0.0, ended_at=1.0, prompt_tokens=tokens, completion_tokens=output_tokens, error=self.error)


async def test_a_first_answer_of_half_a_character_still_counts_its_prompt():
    """Nothing was sent of its two tokens; what was to be learned has come."""
    maker, is_counted = await learn_prompts(cast(Endpoint, cast(Any, Answering("the answer had no token", counts=True))))

    assert is_counted
    assert len(maker.text(300, "salt").split()) == pytest.approx(300, rel=0.05)


async def test_a_first_request_that_fails_ends_the_probe():
    """With what the endpoint said."""
    with pytest.raises(ProbeError, match="no stream but text/html"):
        await learn_prompts(cast(Endpoint, cast(Any, Answering("no stream but text/html", counts=False))))
