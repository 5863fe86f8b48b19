"""What control learns about tokens from finished requests: what prompts are made of, and how long answers are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.control.fleet import Fleet
from routing.estimate_learning import Learner
from routing.estimate_output import Outputs
from routing.guidance import NO_GUIDANCE, Guidance, ModelGuidance
from telemetry.record import Outcome, RequestRecord

_MOST_LEARNED = 50
"""Prompts of one batch of records: at 60 us each, more would be a load and teach little."""


class TokenAdviser:
    """In the control process: learns each model's tokens and outputs from its answers, and tells the serving processes."""

    def __init__(self, start: Guidance = NO_GUIDANCE) -> None:
        """``start`` is what an earlier control process of this gateway had published."""
        self._learners = {name: Learner(model.tokens) for name, model in start.models.items() if model.tokens is not None}
        self._outputs: dict[str, Outputs] = {}
        self._earlier = {name: model.output_tokens for name, model in start.models.items()}

    def __repr__(self) -> str:
        return f"<TokenAdviser of {len(self._learners)} models>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn from those that came with a worker's own counts."""
        step = max(1, len(records) // _MOST_LEARNED)
        for record in records[::step]:
            true = record.prompt_tokens
            if true is None or record.prompt_is_estimate or record.prompt is None or not record.estimated_prompt_tokens:
                continue
            learner = self._learners.get(record.model)
            if learner is None:
                learner = self._learners[record.model] = Learner()
            learner.learn(record.prompt, record.estimated_prompt_tokens, true)
        for record in records:
            if record.completion_tokens is not None and record.outcome is Outcome.OK and not record.completion_is_estimate:
                outputs = self._outputs.get(record.model)
                if outputs is None:
                    outputs = self._outputs[record.model] = Outputs()
                outputs.add(record.key or "", record.completion_tokens)

    def advise(self, guidance: Guidance, fleet: Fleet) -> Guidance:
        """Add what is known of the models that there are now."""
        models = dict(guidance.models)
        for model in fleet.topology.models:
            learner, outputs = self._learners.get(model.name), self._outputs.get(model.name)
            if learner is None and outputs is None and model.name not in self._earlier:
                continue
            budgets = dict(self._earlier.get(model.name, {}))
            if outputs is not None and model.output_quantile is not None:
                budgets |= outputs.budgets(model.output_quantile)
            models[model.name] = msgspec.structs.replace(
                models.get(model.name, ModelGuidance()),
                tokens=None if learner is None else learner.coefficients,
                output_tokens=budgets,
            )
        return msgspec.structs.replace(guidance, models=models)
