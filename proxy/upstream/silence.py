"""Workers that take requests and say nothing, found from what this process itself has running there.

A health check cannot tell: an engine that hangs has an API server that is well. A worker is silent when nothing has come of any
request for a while, and one or more have waited for longer than they could take.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from proxy.serving.deadlines import last_sign_at
from routing.guidance import UNKNOWN_PACE
from routing.health import FleetHealth
from routing.patience import LIMIT_FACTOR, expected_silence_seconds, held_tokens

if TYPE_CHECKING:
    from proxy.serving.exchange import Exchange


def look_for_silence(exchanges: Collection[Exchange], health: FleetHealth, silence_seconds: float, now: float) -> None:
    """Judge every worker; requests that have had nothing from one that is silent go to another one where possible."""
    alive: set[str] = set()
    waiting: dict[str, list[tuple[Exchange, float]]] = {}  # and since when
    for exchange in exchanges:
        decision, sent_at = exchange.decision, exchange.sent_at
        if decision is None or exchange.connection is None or sent_at is None or exchange.endpoint.response_id is not None:
            continue
        name = decision.worker.name
        if name in alive and name not in health.ejected:
            continue  # one sign of life is enough
        sign_at = _last_sign_at(exchange, sent_at)
        if exchange.paused_at is not None or (sign_at > sent_at and now - sign_at <= silence_seconds):
            alive.add(name)  # or not read now, so that nothing can be said
            if name in health.ejected and exchange.first_body_at is not None:
                health.has_begun(name, now)
        else:
            waiting.setdefault(name, []).append((exchange, sign_at))
    for name in tuple(health.unheard):
        if name in alive or (health.has_long_been_unheard(name) and health.seems_silent(name, now)):
            health.heard(name)
    for name, those in waiting.items():
        if name not in alive and _is_one_overdue(those, silence_seconds, now) and health.seems_silent(name, now):
            for exchange, _ in those:
                if exchange.first_body_at is None:
                    exchange.fail_over("silent", needs_free=True)


def _last_sign_at(exchange: Exchange, sent_at: float) -> float:
    """The head of an answer is none: an API server sends it at once, whatever becomes of the engine behind it."""
    return sent_at if exchange.first_body_at is None else last_sign_at(exchange)


def _is_one_overdue(those: list[tuple[Exchange, float]], silence_seconds: float, now: float) -> bool:
    """Whether one has waited for longer than the worker can take for what it has to compute before.

    That is what was sent before it, and for a stream that has begun the longest of the prompts that may hold it up. What came
    later does not count: a worker that hangs goes on getting requests.
    """
    ahead = longest = 0
    for exchange, since in sorted(those, key=_sent_at):
        if exchange.first_body_at is None:
            tokens = 0 if exchange.prepared is None else _held(exchange, exchange.prepared.demand.estimate.tokens)
            ahead += tokens
            longest = max(longest, tokens)
            if now - since > silence_seconds + _expected_seconds(exchange, ahead):
                return True
    return any(
        now - since > silence_seconds + _expected_seconds(exchange, longest)
        for exchange, since in those
        if exchange.first_body_at is not None
    )


def _sent_at(one: tuple[Exchange, float]) -> float:
    return one[0].sent_at or 0.0


def _expected_seconds(exchange: Exchange, prompt_tokens: int) -> float:
    """Of these prompts, and of this answer as far as it comes in one piece."""
    prepared, decision = exchange.prepared, exchange.decision
    if prepared is None or decision is None:
        return 0.0
    pace = exchange.state.loads.guidance.workers.get(decision.worker.name, UNKNOWN_PACE)
    expected = expected_silence_seconds(
        prompt_tokens,
        0
        if prepared.request.stream and not prepared.request.hides_reasoning
        else _held(exchange, prepared.demand.output_tokens),
        prefill_tokens_per_second=pace.prefill_tokens_per_second,
        decode_tokens_per_second=pace.decode_tokens_per_second,
    )
    return expected if pace is UNKNOWN_PACE else LIMIT_FACTOR * expected


def _held(exchange: Exchange, tokens: int) -> int:
    decision = exchange.decision
    if decision is None:
        return tokens
    pace = exchange.state.loads.guidance.workers.get(decision.worker.name, UNKNOWN_PACE)
    return held_tokens(tokens, pace.max_model_len)
