"""How good the token estimate is, against real vocabularies: ``python -m benchmarks.estimator``.

A model's coefficients are learned from the answers to 200 prompts of all kinds, as in service, and held against others that
share no text with them. Beside the errors it says how often a prompt would be counted exactly, and how often it would still
be given the wrong one of two pools.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.estimator_texts import KINDS, Texts
from benchmarks.vocabularies import LOCALES, Count, counters
from routing.demand import Demand
from routing.estimate import Coefficients, Prompt, estimate
from routing.estimate_exact import counted, depends_on_count
from routing.estimate_learning import Learner
from routing.estimate_prompt import read_chat
from routing.policy import Impossible, choose_pool
from routing.topology import Model, Pool

ANSWERS = 200
JUDGED = 1200
OUTPUT_TOKENS = 500
_SIZES = (40, 60_000)  # characters, spread evenly by their logarithm
_POOLS = (16_384, 131_072)  # as in the examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request's messages as they come over the wire, and what a worker would say of them."""

    kind: str
    raw: bytes
    text_tokens: int
    true_tokens: int


@dataclass(slots=True)
class Findings:
    """What came out for one vocabulary."""

    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # |likely / true - 1|, by kind
    judged: int = 0
    inside: int = 0  # true tokens within the interval
    counts: int = 0  # prompts that a choice of pool depended on
    misroutes: int = 0  # with those counted exactly
    misroutes_by_estimate: int = 0  # without

    def error_within(self, kind: str, share: float) -> float:
        """The error that this share of the prompts stays within."""
        ordered = sorted(self.errors[kind])
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def samples(texts: Texts, number: int, count: Count, per_request: int, per_message: int, seed: int) -> list[Sample]:
    """Requests of all kinds in turn. Some clients escape what is not ASCII, some send content in parts."""
    draws = random.Random(seed)  # noqa: S311 (texts, no secrets)
    made = []
    for index in range(number):
        kind = KINDS[index % len(KINDS)]
        size = int(math.exp(draws.uniform(*map(math.log, _SIZES))))
        if kind in ("chinese", "japanese", "emoji"):
            size = size // 3 + 10
        if kind == "chat":
            turns = draws.randrange(1, 12)
            said = [texts.make("prose", draws.randrange(30, 600))]
            said += [texts.make("chat", max(20, size // turns)) for _ in range(turns)]
        else:
            said = [texts.make(kind, size)]
        contents: list[object] = list(said) if draws.random() < 0.7 else [[{"type": "text", "text": text}] for text in said]
        roles = ["system", *("user", "assistant") * len(said)] if len(said) > 1 else ["user"]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
        raw = json.dumps(messages, ensure_ascii=draws.random() < 0.4).encode()
        tokens = sum(map(count, said))
        made.append(Sample(kind=kind, raw=raw, text_tokens=tokens, true_tokens=tokens + per_request + per_message * len(said)))
    return made


def learn(answered: Sequence[Sample]) -> Coefficients:
    """What a model's coefficients are after these answers, one after the other."""
    learner = Learner()
    for sample in answered:
        prompt = _read(sample)
        learner.learn(prompt, estimate(prompt, learner.coefficients).tokens, sample.true_tokens)
    return learner.coefficients


def judge(judged: Sequence[Sample], coefficients: Coefficients) -> Findings:
    """Hold the estimates of prompts that nothing was learned from against their true tokens."""
    found = Findings()
    pools = tuple(
        Pool(index=index, model="m", name=str(upto), workers=(), max_total_tokens=upto) for index, upto in enumerate(_POOLS)
    )
    model = Model(index=0, name="m", aliases=(), pools=pools)
    for sample in judged:
        prompt, true = _read(sample), sample.true_tokens
        guess = estimate(prompt, coefficients)
        found.judged += 1
        found.errors[sample.kind].append(abs(guess.tokens / true - 1))
        found.inside += guess.least <= true <= guess.most
        demand = Demand(guess, OUTPUT_TOKENS, prompt=prompt)
        right = _pool(model, Demand(estimate=type(guess)(true, true, true), max_tokens=OUTPUT_TOKENS))
        found.misroutes_by_estimate += _pool(model, demand) != right
        if depends_on_count(model, demand):
            found.counts += 1
            demand = counted(demand, sample.text_tokens, coefficients)
        found.misroutes += _pool(model, demand) != right
    return found


def _read(sample: Sample) -> Prompt:
    return read_chat(sample.raw, (), has_tools=False)


def _pool(model: Model, demand: Demand) -> str:
    chosen = choose_pool(model, demand)
    return chosen.value if isinstance(chosen, Impossible) else chosen[0].name


def measure(answers: int = ANSWERS, judged: int = JUDGED, seed: int = 1) -> dict[str, Findings]:
    """Measure with every vocabulary. Raises FileNotFoundError when they have not been fetched."""
    found = {}
    for name, (count, per_request, per_message) in counters().items():
        learned_from, held_out = (
            samples(Texts(half, seed, LOCALES), number, count, per_request, per_message, seed + half)
            for half, number in ((0, answers), (1, judged))
        )
        random.Random(seed).shuffle(learned_from)  # noqa: S311 (an order, no secret)
        found[name] = judge(held_out, learn(learned_from))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimator", description=__doc__)
    parser.add_argument("--answers", type=int, default=ANSWERS, help=f"to learn from (default {ANSWERS})")
    parser.add_argument("--judged", type=int, default=JUDGED, help=f"prompts to judge (default {JUDGED})")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    write = sys.stdout.write
    for name, found in measure(options.answers, options.judged, options.seed).items():
        write(f"{name}: {found.judged} prompts after {options.answers} answers\n")
        for figure, count in (
            ("true number within the interval", found.inside),
            ("counted exactly", found.counts),
            ("wrong pool", found.misroutes),
            ("wrong pool without counting", found.misroutes_by_estimate),
        ):
            write(f"  {figure:34}{count / found.judged:8.2%}\n")
        for kind in KINDS:
            errors = " ".join(f"{share:.0%}: {found.error_within(kind, share):6.1%}" for share in (0.5, 0.8, 0.99))
            write(f"  error within, {kind:20}{errors}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
