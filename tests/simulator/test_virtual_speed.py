"""Virtual time is fast: a hundred thousand requests in less than a minute of one core."""

from __future__ import annotations

import time
from typing import Any

import pytest

from routing.policy import POLICIES
from simulator import traces
from simulator.arrivals import Poisson
from simulator.engine.engine import Engine, EngineSettings, Noise
from simulator.hardware import Hardware, place
from simulator.virtual.fleet import simulate
from simulator.virtual.routing import by_policy
from simulator.virtual.served import summarise

REQUESTS = 20_000
SECONDS = 12.0  # a fifth of a minute for a fifth of the requests; about 4 s when this was written


@pytest.mark.integration
def test_a_fifth_of_a_hundred_thousand_requests_takes_a_fifth_of_a_minute():
    """Conversations on eight workers, with noise and prefix caches, are made and served within the processor time allowed."""
    began = time.process_time()
    placed = place("llama-3.1-8b", None, "h100-sxm", Hardware())
    limits: Any = {"timer": placed.timer, "kv_tokens": placed.kv_tokens, "max_num_seqs": 256, "step_tokens": 8192}
    engines = [Engine(EngineSettings(**limits, noise=Noise(sigma=0.03), seed=number)) for number in range(8)]
    served = simulate(engines, traces.chat(REQUESTS, Poisson(per_second=20.0)), by_policy(POLICIES["least-load"], 8))

    assert summarise(served).completed == REQUESTS
    assert time.process_time() - began < SECONDS
