"""From the configuration to the topology that all processes agree on."""

from proxy.config.settings import parse_config
from proxy.config.wiring import build_topology
from routing.topology import Limits

TEXT = """
models:
  - name: m
    aliases: [x]
    pools:
      - {name: any, workers: [http://c/sub/v1], limits: {total_seconds: 9}}
      - {name: long, max_total_tokens: 200, workers: [http://b], worker_key: own, policy: round-robin, ask_usage: false}
      - {name: short, max_total_tokens: 100, workers: [http://a, {name: aa, url: "http://[fd00::1]:8000"}]}
  - {name: n, workers: [http://d]}
worker_key: all
limits: {connect_seconds: 3}
keys:
  - {name: k, sha256: "${FIRST}", models: [n]}
  - {name: l, sha256: "${SECOND}"}
"""
ENVIRON = {"FIRST": "0f" * 32, "SECOND": "f0" * 32}


def a_topology():
    return build_topology(parse_config(TEXT, ENVIRON, "file.yaml"))


def test_pools_are_smallest_range_first():
    """Pools of a model come by range, without bound last, whatever their order in the file; indices follow."""
    topology = a_topology()
    assert [(pool.index, pool.model, pool.name) for pool in topology.pools] == [
        (0, "m", "short"),
        (1, "m", "long"),
        (2, "m", "any"),
        (3, "n", "default"),
    ]
    assert [(worker.index, worker.name) for worker in topology.workers] == [
        (0, "a:80"),
        (1, "aa"),
        (2, "b:80"),
        (3, "c:80/sub"),
        (4, "d:80"),
    ]
    assert [model.pools for model in topology.models] == [topology.pools[:3], topology.pools[3:]]
    assert topology.models[0].aliases == ("x",)


def test_every_worker_is_in_the_flat_tuple_at_its_index():
    """A worker reached through its pool is the one at its index."""
    topology = a_topology()
    assert all(topology.workers[worker.index] is worker for pool in topology.pools for worker in pool.workers)


def test_workers():
    """A worker has its address in every form the client needs."""
    worker = a_topology().workers[1]
    assert (
        worker.url,
        worker.host,
        worker.port,
        worker.base_path,
        worker.authority,
    ) == ("http://[fd00::1]:8000", "fd00::1", 8000, "", "[fd00::1]:8000")


def test_pool_settings_override_overall_ones():
    """A pool has its own key and limits where given, and the overall ones otherwise."""
    short, long, anything, _ = a_topology().pools
    assert (short.worker_key, long.worker_key) == ("all", "own")
    assert (short.asks_usage, long.asks_usage) == (True, False)
    assert (short.policy, long.policy) == ("prefix-affinity", "round-robin")
    assert Limits(connect_seconds=3, total_seconds=9) == anything.limits
    assert Limits(connect_seconds=3) == short.limits


def test_keys():
    """Keys have the bytes of their sum and the models they may use."""
    first, second = a_topology().keys
    assert (bytes([15] * 32), frozenset({"n"})) == (first.sha256, first.models)
    assert (second.index, second.models) == (1, None)


def test_a_file_gives_the_same_topology_every_time():
    """Two processes that read the same file build equal topologies."""
    assert a_topology() == a_topology()


def test_requests_are_followed_as_configured():
    """Ids of traces are made only when there is a receiver for them; the header of chains needs none."""
    plain = build_topology(parse_config(TEXT + "chains: {header: X-Session-Id}\n", ENVIRON, "f"))
    traced = build_topology(parse_config(TEXT + "tracing: {otlp_endpoint: 'http://c:4318'}\n", ENVIRON, "f"))

    assert (plain.following.sample_ratio, plain.following.chain_header) == (None, "x-session-id")
    assert (traced.following.sample_ratio, traced.following.chain_header) == (0.01, None)


def test_found_workers_are_trusted_by_the_name_that_was_looked_up():
    """Unless another one is configured; those of a stage by the name of the stage, or by their own where they are listed."""
    text = """
models:
  - name: m
    pools:
      - name: found
        max_total_tokens: 100
        workers: {dns: vllm.example, port: 8000, scheme: https}
        prefill: {workers: ["https://stage.example"]}
      - name: named
        max_total_tokens: 200
        workers: {dns: b.example, port: 8000, scheme: https}
        worker_tls: {server_name: other.example}
      - name: plain
        max_total_tokens: 300
        workers: {dns: c.example, port: 8000}
        prefill: {workers: {dns: stages.example, port: 8000, scheme: https}}
      - {name: blind, workers: {dns: d.example, port: 8000, scheme: https}, worker_tls: {verify: false}}
"""
    topology = build_topology(parse_config(text, {}, "file.yaml"))

    assert {pool.name: pool.worker_tls.server_name for pool in topology.pools} == {
        "found": "vllm.example",
        "named": "other.example",
        "plain": None,
        "blind": None,
        "found-prefill": None,
        "plain-prefill": "stages.example",
    }
