"""The closed sets of reasons: why this pool, why this worker, why none. Values become labels and fields of records."""

from __future__ import annotations

from enum import StrEnum


class PoolReason(StrEnum):
    """Why this pool."""

    __hash__ = str.__hash__  # in C; Enum's own is a Python function

    ONLY_POOL = "only_pool"  # nothing to choose from
    CONTEXT_LENGTH = "context_length"  # the smallest whose range holds prompt and output budget
    UNCERTAIN = "uncertain"  # a smaller one probably holds them, but the prompt may be longer than it is taken for
    MAY_FIT = "may_fit"  # the largest: the estimate is over its range, its lower end is not
    OVERFLOW = "overflow"  # no worker of the pool meant for it could take it
    BORROWED = "borrowed"  # its own pool's workers were all busy, and one of this pool nearly idle


class Reason(StrEnum):
    """Why this worker; the names are label values."""

    __hash__ = str.__hash__  # in C; Enum's own is a Python function

    ONLY_WORKER = "only_worker"  # nothing to choose from
    TURN = "turn"  # in turn
    LEAST_LOAD = "least_load"  # the least work under way, in tokens
    TWO_CHOICES = "two_choices"  # the less loaded of two
    AFFINITY = "affinity"  # requests that begin like this one go there
    SESSION = "session"  # so do the requests of its session
    LOAD_BOUND = "load_bound"  # the next after that one, which had too much to do
    DELIVERED = "delivered"  # that one had lost the beginning; this one has taken it from its cache
    FASTEST = "fastest"  # the least time to the first token is expected there
    OWNER = "owner"  # it keeps the answer that this request goes on from
    RETRY = "retry"  # another worker had failed before it sent anything
    HEDGE = "hedge"  # another worker had it and was late; this one was asked as well


class Impossible(StrEnum):
    """Why there is no decision."""

    __hash__ = str.__hash__  # in C; Enum's own is a Python function

    FIT = "fit"  # surely longer than the largest pool accepts, or than every worker can hold
    NO_WORKER = "no_worker"  # every worker of the pool is down or has been tried
    BUSY = "busy"  # there are workers, and each has as much to do as it may; the request can wait


ELSEWHERE = (PoolReason.OVERFLOW, PoolReason.BORROWED)
"""Reasons by which a request leaves its own pool. They outrank that of the worker where only one of the two is counted."""
