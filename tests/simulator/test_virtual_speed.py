"""Virtual time is fast: a hundred thousand requests in less than a minute of one core."""

from __future__ import annotations

import time

import pytest

from routing.policy import POLICIES
from simulator import traces
from simulator.arrivals import Poisson
from simulator.engine import Engine, EngineSettings, Noise
from simulator.gpus import gpu_by_name
from simulator.served import summarise
from simulator.virtual import simulate
from simulator.virtual_routing import by_policy

REQUESTS = 20_000
SECONDS = 12.0  # a fifth of a minute for a fifth of the requests; about 4 s when this was written


@pytest.mark.integration
def test_a_fifth_of_a_hundred_thousand_requests_takes_a_fifth_of_a_minute():
    """Conversations on eight workers, with noise and prefix caches, are made and served within the processor time allowed."""
    began = time.process_time()
    engines = [
        Engine(
            EngineSettings(
                gpu=gpu_by_name("h100-sxm"), max_num_seqs=256, step_tokens=8192, noise=Noise(sigma=0.03), seed=number
            )
        )
        for number in range(8)
    ]
    served = simulate(engines, traces.chat(REQUESTS, Poisson(per_second=20.0)), by_policy(POLICIES["least-load"], 8))

    assert summarise(served).completed == REQUESTS
    assert time.process_time() - began < SECONDS
