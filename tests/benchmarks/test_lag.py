"""The lag of a serving process is measured by what a probe of it sees."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from benchmarks.lag import config_of, lag_of, probe
from benchmarks.proxies import new_place
from proxy.config.settings import parse_config


def test_quantiles_are_of_the_answers_of_the_probe() -> None:
    """One late answer among a thousand is the most, and no 99th percentile."""
    lag = lag_of("nothing", [0.001] * 999 + [0.05])

    assert (lag.probes, lag.p50_ms, lag.p99_ms, lag.p999_ms, lag.most_ms) == (1000, 1.0, 1.0, 50.0, 50.0)


def test_without_an_answer_there_is_no_figure() -> None:
    """A probe that never was answered has measured nothing."""
    with pytest.raises(ValueError, match="no probe"):
        lag_of("nothing", [])


@pytest.mark.parametrize("has_others", [False, True])
def test_both_configurations_are_valid(tmp_path: Path, has_others: bool) -> None:
    """What a reload brings and takes away is a model of many workers, and everything is traced."""
    config = parse_config(json.dumps(config_of(new_place(tmp_path), 4318, has_others=has_others)), {}, "lag")

    assert [len(model.pools_in_force[0].workers) for model in config.models] == [1, 200][: 1 + has_others]
    assert config.tracing.sample_ratio == 1.0


def test_the_probe_sees_how_long_an_answer_takes() -> None:
    """A server that takes 30 ms for each answer is seen to take at least that."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(4096):
                time.sleep(0.03)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        found = probe(listener.getsockname()[1], 0.05)
        thread.join()

    assert found
    assert min(found) >= 0.03
