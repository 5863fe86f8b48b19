"""What `ridgeline plan` was asked: its options as given, and the question that they make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from roofline.capacity.memory import MemorySettings
from roofline.capacity.targets import Targets, targets_named
from roofline.capacity.workload import Workload
from roofline.expected import DEFAULT_LOSSES, Losses
from roofline.plan.question import Question

PROMPT_TOKENS, OUTPUT_TOKENS = 2000, 500  # unless told
_SECONDS = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)?\Z")
_LONGEST_BARE_SECONDS = 60.0  # a target of more without a unit is meant in milliseconds
_SHORT_TARGETS = {"service": "customer-service"}


class PlanOptionError(ValueError):
    """An option, or two together, that cannot be; the message says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were given. ``None``: not given."""

    models: Sequence[str] = ()
    gpus: Sequence[str] = ()
    gpu_counts: Sequence[str] = ()
    weight_dtypes: Sequence[str] = ()
    kv_dtypes: Sequence[str] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_output_tokens: int | None = None
    cached_tokens: int | None = None
    concurrency: int | None = None
    rate: float | None = None
    workers: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    is_expert_parallel: bool = False
    utilization: float | None = None
    batched_tokens: int | None = None
    sequences: int | None = None
    engine: str = "vllm"
    target: str | None = None
    ttft_target: str | None = None
    tpot_target: str | None = None
    config: Path | None = None


def question_of(asked: Asked) -> Question:
    """The requests and rules. `PlanOptionError` says which option is wrong."""
    prompt = PROMPT_TOKENS if asked.prompt_tokens is None else asked.prompt_tokens
    output = OUTPUT_TOKENS if asked.output_tokens is None else asked.output_tokens
    cached = asked.cached_tokens or 0
    if cached > prompt:
        raise PlanOptionError(f"--cached-tokens are part of the prompt: at most {prompt:,} (--prompt-tokens), not {cached:,}")
    if asked.rate is not None and not 0.0 < asked.rate < inf:
        raise PlanOptionError(f"--rate is a number of requests a second above 0, not {asked.rate:g}")
    if asked.max_output_tokens is not None and asked.max_output_tokens < output:
        raise PlanOptionError(f"--max-output-tokens is at least the mean output of {output:,} (--output-tokens)")
    return Question(
        workload=Workload(
            prompt_tokens=prompt,
            completion_tokens=output,
            cached_tokens=cached,
            max_completion_tokens=asked.max_output_tokens,
        ),
        losses=_losses(asked.engine),
        settings=_settings(asked),
        targets=_targets(asked),
        concurrency=asked.concurrency,
        rate_per_second=asked.rate,
        workers=asked.workers or 1,
    )


def _losses(engine: str) -> Losses:
    if engine not in DEFAULT_LOSSES:
        raise PlanOptionError(f"--engine {engine} is not known; there are {', '.join(DEFAULT_LOSSES)}")
    return DEFAULT_LOSSES[engine]


def _settings(asked: Asked) -> MemorySettings:
    if asked.utilization is not None and not 0.0 < asked.utilization <= 1.0:
        raise PlanOptionError(f"--gpu-memory-utilization is a share above 0 and at most 1, not {asked.utilization:g}")
    settings = MemorySettings(max_batched_tokens=asked.batched_tokens, max_sequences=asked.sequences)
    return settings if asked.utilization is None else replace(settings, utilization_ratio=asked.utilization)


def _targets(asked: Asked) -> Targets:
    targets = _preset(asked.target or "chat")
    ttft = _target_seconds(asked.ttft_target, "--ttft-target")
    tpot = _target_seconds(asked.tpot_target, "--tpot-target")
    if ttft is not None:
        targets = replace(targets, ttft_seconds=ttft, ttft_good_seconds=None)
    if tpot is not None:
        no_gain = targets.tpot_no_gain_seconds
        kept = no_gain if no_gain is not None and no_gain < tpot else None
        targets = replace(targets, tpot_seconds=tpot, tpot_aim_seconds=None, tpot_no_gain_seconds=kept)
    return targets if ttft is None and tpot is None else replace(targets, name="given", source="given by the user")


def _preset(name: str) -> Targets:
    try:
        return targets_named(_SHORT_TARGETS.get(name.strip().lower(), name))
    except ValueError:
        raise PlanOptionError(f"--target is chat, service (or customer-service) or batch, not {name!r}") from None


def _target_seconds(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    found = _SECONDS.match(text.strip().lower())
    seconds = float(found["number"]) * (1e-3 if found["unit"] == "ms" else 1.0) if found else 0.0
    if found is None or not seconds or (found["unit"] is None and seconds > _LONGEST_BARE_SECONDS):
        raise PlanOptionError(f"{option} is a time such as 500ms or 0.5s, not {text!r}")
    return seconds
