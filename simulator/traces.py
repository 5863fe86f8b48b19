"""Synthetic traffic with seeds: chat, retrieval, agents, offline batches, and long prompts among short ones.

Prompts are told as ranges of block keys, so that a hundred thousand of them are made in seconds. Equal beginnings have equal
keys: system prompts, documents, and the history of a conversation with the answers in it. The same seed gives the same traffic
under every Python version. The numbers are round figures of the right size for such traffic, not measurements of anybody's.
"""

# ruff: noqa: RUF009 -- the lengths that are defaults are immutable
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import log

from simulator.arrivals import Arrival, Pace, paced
from simulator.draws import Draws, Length, Zipf
from simulator.engine.prefix import BLOCK_TOKENS, BlockRuns, Prompt

_TEMPLATE_TOKENS = 8  # a chat template adds to each message
_KEY_BITS = 40  # of a text; ...
_PLACE_BITS = 22  # ... and of a block within it: 4 million blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Conversations: the history grows with every turn, answers included."""

    assistants: int = 20  # system prompts, some far more popular than others
    system: Length = Length(median=350, sigma=0.7, most=4_000)
    message: Length = Length(median=60, sigma=1.1, most=4_000)
    answer: Length = Length(median=220, sigma=0.8, most=2_048)
    mean_turns: float = 4.0
    think_seconds: float = 20.0  # mean time from an answer to the next message
    most_tokens: int = 16_000  # of a conversation, which then ends
    max_tokens: int | None = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class Rag:
    """Questions about documents that a search put before them, most relevant first."""

    documents: int = 5_000
    document: Length = Length(median=600, sigma=0.5, most=4_000)
    found: int = 4  # documents in a prompt
    popularity: float = 0.9  # exponent of Zipf's law over the documents
    system_tokens: int = 300
    question: Length = Length(median=40, sigma=0.7, most=500)
    answer: Length = Length(median=160, sigma=0.7, most=1_024)
    max_tokens: int | None = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Tool loops: every step sends everything before it again, with the result of the last call behind it."""

    agents: int = 5  # each with instructions and tools of its own
    instructions: Length = Length(median=6_000, sigma=0.5, most=20_000)
    task: Length = Length(median=500, sigma=0.9, most=8_000)
    call: Length = Length(median=90, sigma=0.8, most=2_048)
    result: Length = Length(median=500, sigma=1.2, most=16_000)
    mean_steps: float = 12.0
    tool_seconds: float = 1.5  # median time that a tool takes
    most_tokens: int = 100_000
    max_tokens: int | None = 32_000  # as agents do: far more than they need


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """An offline job: the same instructions before many documents."""

    instruction_tokens: int = 500
    document: Length = Length(median=1_500, sigma=0.6, most=12_000)
    answer: Length = Length(median=150, sigma=0.6, most=1_024)
    max_tokens: int | None = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Short requests, and now and then a very long one, evenly spread over the logarithm of its length."""

    long_ratio: float = 0.1
    prompt: Length = Length(median=400, sigma=0.8, most=4_000)
    answer: Length = Length(median=180, sigma=0.8, most=1_024)
    long_least_tokens: int = 30_000
    long_most_tokens: int = 100_000
    long_answer: Length = Length(median=300, sigma=0.7, most=1_024)
    max_tokens: int | None = 1_024


def chat(
    count: int, pace: Pace, *, seed: int = 0, shape: Chat | None = None, block_tokens: int = BLOCK_TOKENS
) -> list[Arrival]:
    """``count`` requests of conversations, which begin at this pace (so requests come about ``mean_turns`` times as fast)."""
    shape = shape or Chat()
    draws, text = Draws(seed, "chat"), _Texts(seed, "chat", block_tokens)
    systems = [draws.tokens(shape.system) for _ in range(shape.assistants)]
    popularity = Zipf(shape.assistants, 1.0)

    def session(number: int, most: int) -> list[Arrival]:
        assistant = popularity.draw(draws)
        talk = text.growing(("system", assistant), systems[assistant], ("talk", number))
        turns: list[Arrival] = []
        while len(turns) < most:
            talk.hear(draws.tokens(shape.message))
            think = draws.exponential(shape.think_seconds)
            turns.append(talk.ask(think, draws.tokens(shape.answer), shape.max_tokens, "chat", number))
            if talk.tokens > shape.most_tokens or draws.happens(1.0 / shape.mean_turns):
                break
        return turns

    return paced(_sessions(count, session), pace, draws)


def agents(
    count: int, pace: Pace, *, seed: int = 0, shape: Agents | None = None, block_tokens: int = BLOCK_TOKENS
) -> list[Arrival]:
    """``count`` requests of agents, whose tasks begin at this pace (so requests come about ``mean_steps`` times as fast)."""
    shape = shape or Agents()
    draws, text = Draws(seed, "agents"), _Texts(seed, "agents", block_tokens)
    instructions = [draws.tokens(shape.instructions) for _ in range(shape.agents)]

    def session(number: int, most: int) -> list[Arrival]:
        agent = draws.below(shape.agents)
        talk = text.growing(("instructions", agent), instructions[agent], ("task", number))
        talk.hear(draws.tokens(shape.task))
        steps: list[Arrival] = []
        while len(steps) < most:
            wait = draws.lognormal(shape.tool_seconds, 1.0)
            steps.append(talk.ask(wait, draws.tokens(shape.call), shape.max_tokens, "agents", number))
            if talk.tokens > shape.most_tokens or draws.happens(1.0 / shape.mean_steps):
                break
            talk.hear(draws.tokens(shape.result))
        return steps

    return paced(_sessions(count, session), pace, draws)


def rag(count: int, pace: Pace, *, seed: int = 0, shape: Rag | None = None, block_tokens: int = BLOCK_TOKENS) -> list[Arrival]:
    """``count`` questions about documents at this pace."""
    shape = shape or Rag()
    draws, text = Draws(seed, "rag"), _Texts(seed, "rag", block_tokens)
    lengths = [draws.tokens(shape.document) for _ in range(shape.documents)]
    popularity = Zipf(shape.documents, shape.popularity)

    def session(number: int, _most: int) -> list[Arrival]:
        found: dict[int, None] = {}
        while len(found) < min(shape.found, shape.documents):
            found[popularity.draw(draws)] = None
        pieces: list[tuple[object, int]] = [("system", shape.system_tokens)]
        pieces += [(document, lengths[document]) for document in found]
        pieces.append((("question", number), draws.tokens(shape.question)))
        return [text.request(pieces, draws.tokens(shape.answer), shape.max_tokens, "rag", number)]

    return paced(_sessions(count, session), pace, draws)


def batch(
    count: int, pace: Pace, *, seed: int = 0, shape: Batch | None = None, block_tokens: int = BLOCK_TOKENS
) -> list[Arrival]:
    """``count`` documents of a job; `AtOnce`, or `Closed` for a client that keeps so many requests open."""
    shape = shape or Batch()
    draws, text = Draws(seed, "batch"), _Texts(seed, "batch", block_tokens)

    def session(number: int, _most: int) -> list[Arrival]:
        document = (("document", number), draws.tokens(shape.document))
        pieces: list[tuple[object, int]] = [("instructions", shape.instruction_tokens), document]
        return [text.request(pieces, draws.tokens(shape.answer), shape.max_tokens, "batch", number)]

    return paced(_sessions(count, session), pace, draws)


def mixed(
    count: int, pace: Pace, *, seed: int = 0, shape: Mixed | None = None, block_tokens: int = BLOCK_TOKENS
) -> list[Arrival]:
    """``count`` requests of kinds "short" and "long", which share nothing with each other."""
    shape = shape or Mixed()
    draws, text = Draws(seed, "mixed"), _Texts(seed, "mixed", block_tokens)

    def session(number: int, _most: int) -> list[Arrival]:
        if draws.happens(shape.long_ratio):
            spread = log(shape.long_most_tokens / shape.long_least_tokens)
            tokens = round(shape.long_least_tokens * 2.718281828459045 ** draws.uniform(0.0, spread))
            return [text.request([(number, tokens)], draws.tokens(shape.long_answer), shape.max_tokens, "long", number)]
        tokens = draws.tokens(shape.prompt)
        return [text.request([(number, tokens)], draws.tokens(shape.answer), shape.max_tokens, "short", number)]

    return paced(_sessions(count, session), pace, draws)


def _sessions(count: int, session: Callable[[int, int], list[Arrival]]) -> Iterator[list[Arrival]]:
    """Sessions by number until there are so many requests; each is told how many are still wanted."""
    made = number = 0
    while made < count:
        requests = session(number, count - made)
        made += len(requests)
        number += 1
        yield requests


class _Texts:
    """Names blocks of texts: a text's key depends on the texts before it, a block's on its place."""

    def __init__(self, seed: int, name: str, block_tokens: int) -> None:
        self._root = _key(0, (seed, name))
        self._block_tokens = block_tokens

    def request(
        self, pieces: list[tuple[object, int]], answer_tokens: int, max_tokens: int | None, kind: str, session: int
    ) -> Arrival:
        """A prompt made of named texts of so many tokens one after another. A block across two texts belongs to the later."""
        size = self._block_tokens
        runs: list[range] = []
        key, tokens = self._root, 0
        for name, length in pieces:
            key = _key(key, name)
            runs.append(range(key + tokens // size, key + (tokens + length) // size))
            tokens += length
        runs[-1] = range(runs[-1].start, key + (tokens + answer_tokens) // size)
        prompt = Prompt(tokens=tokens, blocks=BlockRuns(tuple(runs)), digest=b"", block_tokens=size)
        return Arrival(
            at_seconds=0.0, prompt=prompt, output_tokens=answer_tokens, max_tokens=max_tokens, kind=kind, session=session
        )

    def growing(self, shared: object, shared_tokens: int, own: object) -> _Talk:
        """A text that begins with a shared one and grows."""
        key = _key(self._root, shared)
        blocks = shared_tokens // self._block_tokens
        return _Talk(range(key, key + blocks), _key(key, own) + blocks, shared_tokens, self._block_tokens)


class _Talk:
    """A conversation so far."""

    def __init__(self, shared: range, own: int, tokens: int, block_tokens: int) -> None:
        self.tokens = tokens
        self._shared = shared
        self._own = own  # key of the first block that is not shared
        self._block_tokens = block_tokens

    def hear(self, tokens: int) -> None:
        """Somebody else's message is added."""
        self.tokens += tokens + _TEMPLATE_TOKENS

    def ask(self, wait_seconds: float, answer_tokens: int, max_tokens: int | None, kind: str, session: int) -> Arrival:
        """A request with everything so far, whose answer is added."""
        tokens = self.tokens
        self.tokens += answer_tokens
        own = range(self._own, self._own + self.tokens // self._block_tokens - len(self._shared))
        runs = BlockRuns((self._shared, own))
        return Arrival(
            at_seconds=round(wait_seconds, 6),
            prompt=Prompt(tokens=tokens, blocks=runs, digest=b"", block_tokens=self._block_tokens),
            output_tokens=answer_tokens,
            max_tokens=max_tokens,
            kind=kind,
            session=session,
        )


def _key(parent: int, name: object) -> int:
    """A number for a text behind another one, far from all other texts' numbers."""
    digest = blake2b(f"{parent}:{name!r}".encode(), digest_size=_KEY_BITS // 8).digest()
    return int.from_bytes(digest, "big") << _PLACE_BITS
