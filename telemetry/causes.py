"""What can make a request slow, and what has to be known of its worker to say so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class CauseName(StrEnum):
    """What can make a request slow; the names are label values."""

    __hash__ = str.__hash__

    GATEWAY_QUEUE = "gateway_queue"  # it waited in the gateway for a worker with room
    CONNECT = "connect"  # getting a connection to the worker
    LOOP_LAG = "loop_lag"  # the gateway itself was late
    PREFILL_STAGE = "prefill_stage"  # the pool's prefill stage was asked first, and did not help
    FAILED_ATTEMPTS = "failed_attempts"  # other workers were asked before, and failed or were late
    SLOW_CLIENT = "slow_client"  # the client took the answer no faster
    MISSED_PREFIX = "missed_prefix"  # a hit that could be expected was not delivered
    ENGINE_QUEUE = "engine_queue"  # it waited in the worker
    OTHERS_PREFILL = "others_prefill"  # prompts of others, computed in the same steps or before
    BATCH = "batch"  # more sequences than usual
    CONTEXT = "context"  # a longer context than usual
    KV_PRESSURE = "kv_pressure"  # a full cache: waiting for blocks, or computing again
    GPU_CLOCKS = "gpu_clocks"  # the worker's GPUs run below their usual clock
    GPU_BANDWIDTH = "gpu_bandwidth"  # their memory is as busy as it can be, with more than is known here
    SLOWER_THAN_PEERS = "slower_than_peers"  # the worker, lately, beside others of its kind
    SLOWER_THAN_ITSELF = "slower_than_itself"  # than when its calibration was accepted
    FACTS = "facts"  # faster than can be: model, GPU or format is not what is configured
    UNEXPLAINED = "unexplained"  # what is left


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What is known of a worker around a request. ``None``: not known.

    The ratios are measured over expected, lately: of the worker over that of its peers, and of the worker over its own
    reference.
    """

    waiting_requests: float | None = None
    kv_usage_ratio: float | None = None
    peers_ratio: float | None = None
    own_ratio: float | None = None
    clock_ratio: float | None = None  # of its GPUs at work, over what is usual for them
    clock_is_limited: bool = False  # the driver says that heat or a lack of power holds it down
    dram_active_ratio: float | None = None  # share of the cycles in which their memory is busy; 0.8 is its peak


class Usual(NamedTuple):
    """What is usual of the requests of a worker. ``None``: not known."""

    running: float | None = None  # other sequences beside a request
    context_tokens: float | None = None  # of a request
