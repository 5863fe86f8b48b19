"""How fast the workers of each pool are expected to be: what the policy `fastest` compares, made from GPU and model shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from proxy.config.deployments import deployment_of_pool
from proxy.config.pools import ModelConfig, PoolConfig
from proxy.config.settings import Config
from proxy.control.fleet import Fleet
from roofline.closed_form import ClosedForm, closed_form
from roofline.expected import DEFAULT_LOSSES
from routing.guidance import Guidance, PoolGuidance, Speed, pool_key
from telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

_HALF_LIFE_REQUESTS = 200.0  # of what is learned from requests
_FEWEST_REQUESTS = 20.0  # before anything is learned


def speed_of(form: ClosedForm, context_tokens: float = 2048.0) -> Speed:
    """The coefficients of one worker, for prompts of about so many tokens: a token's attention to the others is part of it."""
    half = 0.5 * context_tokens
    return Speed(
        prefill_token_seconds=form.token_seconds + half * form.pair_seconds + form.exchange_seconds,
        step_seconds=form.step_seconds + form.weights_seconds,
        running_seconds=form.decode_token_seconds + form.state_seconds + form.exchange_seconds,
        context_token_seconds=max(form.context_seconds, form.decode_pair_seconds) / max(1, form.data_ranks),
        chunk_tokens=form.chunk_tokens,
    )


@dataclass(slots=True)
class _Shares:
    """Sums that fade, of one pool."""

    requests: float = 0.0
    e2e_seconds: float = 0.0
    ttft_seconds: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0

    def take(self, record: RequestRecord) -> None:
        """Learn from one answered stream."""
        fade = 0.5 ** (1.0 / _HALF_LIFE_REQUESTS)
        for name in ("requests", "e2e_seconds", "ttft_seconds", "prompt_tokens", "cached_tokens"):
            setattr(self, name, fade * getattr(self, name))
        before = record.prefill_leg_seconds or 0.0  # at another pool's worker
        self.requests += 1.0
        self.e2e_seconds += max(0.0, (record.e2e_seconds or 0.0) - before)
        self.ttft_seconds += max(0.0, (record.ttft_seconds or 0.0) - before)
        # Of what a stage computed there is nothing left to compute here.
        cached = record.prompt_tokens if record.is_prefilled_elsewhere else record.cached_tokens
        if cached is not None and not record.prompt_is_estimate:
            self.prompt_tokens += record.prompt_tokens or 0
            self.cached_tokens += cached

    def known(self) -> tuple[float, float] | None:
        """Shares of a request's time before its first token, and of prompts that were cached; to a hundredth each."""
        if self.requests < _FEWEST_REQUESTS or not self.e2e_seconds:
            return None
        cached = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        return round(min(1.0, self.ttft_seconds / self.e2e_seconds), 2), round(min(1.0, cached), 2)


class Speeds:
    """An adviser for pools with the policy `fastest`. ``config`` gives the configuration in force, with model files beside."""

    def __init__(self, config: Callable[[], Config], directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._made_of: Config | None = None
        self._speeds: dict[str, Speed | None] = {}  # by pool key, of pools with that policy
        self._shares: dict[str, _Shares] = {}
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"<Speeds of {len(self._speeds)} pools>"

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Learn how much of a request's time goes before its first token, and how much of prompts is cached."""
        if not self._speeds:
            return
        for record in records:
            key = pool_key(record.model, record.pool)
            if key in self._speeds and record.ttft_seconds is not None and record.e2e_seconds is not None:
                self._shares.setdefault(key, _Shares()).take(record)

    def advise(self, guidance: Guidance, _fleet: Fleet) -> Guidance:
        """Add the speed of each such pool, where GPU and shape of the model are known; one notice where they are not."""
        config = self._config()
        if config is not self._made_of:
            self._made_of = config
            self._speeds = {
                pool_key(model.name, pool.name): self._speed(model, pool)
                for model in config.models
                for pool in model.pools_in_force
                if pool.policy == "fastest"
            }
            self._shares = {key: shares for key, shares in self._shares.items() if key in self._speeds}
        if not self._speeds:
            return guidance
        pools = dict(guidance.pools)
        for key, speed in self._speeds.items():
            told = pools.get(key, PoolGuidance())
            learned = self._shares.get(key, _Shares()).known()
            if learned is None:
                pools[key] = msgspec.structs.replace(told, speed=speed)
            else:
                pools[key] = msgspec.structs.replace(told, speed=speed, prefill_ratio=learned[0], cached_ratio=learned[1])
        return msgspec.structs.replace(guidance, pools=pools)

    def _speed(self, model: ModelConfig, pool: PoolConfig) -> Speed | None:
        try:
            deployment = deployment_of_pool(model, pool, self._directory)
            return speed_of(closed_form(deployment, DEFAULT_LOSSES["vllm"]))
        except (ValueError, OSError) as error:
            which = f"{model.name}/{pool.name}"
            if which not in self._told:
                self._told.add(which)
                _log.warning("pool %s: policy fastest goes by least load, as its speed is not known: %s", which, error)
            return None
