"""The topology as it travels from control to the serving processes."""

from __future__ import annotations

import pytest

from proxy.published import TopologyReader, publish
from routing.topology import Following, Key, Topology, assemble
from tests.proxy.fleets import a_topology

FILE = "topology.msgpack"


@pytest.fixture
def topology() -> Topology:
    return a_topology({"short": ["w-0", "w-1"], "long": ["w-2"]}, key="s3cret", keys=("a", "b"), limits={"total_seconds": 9})


def test_what_was_published_is_what_is_read(tmp_path, topology):
    """Workers, secrets, limits, policies, the models of a key and what is followed arrive as they were."""
    key = Key(index=0, name="a", sha256=bytes(range(32)), models=frozenset({"m", "n"}))
    whole = assemble(topology.models, (key,), topology.limits, Following(sample_ratio=0.25, chain_header="x-session-id"))

    publish(tmp_path, whole)

    assert TopologyReader(tmp_path).read_news() == whole


def test_news_is_told_once(tmp_path, topology):
    """The same publication is no news a second time; another one is, also when it says the same."""
    publish(tmp_path, topology)
    reader = TopologyReader(tmp_path)
    assert reader.read_news() is not None
    assert reader.read_news() is None

    publish(tmp_path, topology)

    assert reader.read_news() == topology
    assert reader.read_news() is None


def test_only_the_last_of_several_publications_is_news(tmp_path, topology):
    """A reader that was busy gets what is in force, not what was in between."""
    reader = TopologyReader(tmp_path)
    for names in (["w-0"], ["w-1"], ["w-2"]):
        publish(tmp_path, a_topology({"default": names}))

    found = reader.read_news()

    assert found is not None
    assert [worker.name for worker in found.workers] == ["w-2"]
    assert reader.read_news() is None


def test_nothing_published_is_no_news(tmp_path):
    """Without a file, and without the directory, there is just nothing to read."""
    assert TopologyReader(tmp_path).read_news() is None
    assert TopologyReader(tmp_path / "none").read_news() is None


@pytest.mark.parametrize(
    "content", [b"", b"\xc1", b"\x80", b"\x83\xa6models", b"RDGLCELL" * 100, b"\x83\xa6models\x90\xa4keys\x90"]
)
def test_damage_is_no_news_and_what_follows_it_is(tmp_path, topology, content):
    """A file that makes no sense leaves what is in force alone, and does not hide the next one."""
    publish(tmp_path, topology)
    reader = TopologyReader(tmp_path)
    reader.read_news()

    (tmp_path / FILE).write_bytes(content)
    assert reader.read_news() is None
    publish(tmp_path, topology)

    assert reader.read_news() == topology


def test_a_file_that_is_gone_for_a_while_is_no_news(tmp_path, topology):
    """What is in force stays in force while there is no file."""
    publish(tmp_path, topology)
    reader = TopologyReader(tmp_path)
    reader.read_news()
    (tmp_path / FILE).unlink()

    assert reader.read_news() is None


def test_only_the_gateways_user_may_read_it(tmp_path, topology):
    """The file holds the workers' keys."""
    publish(tmp_path, topology)

    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert b"s3cret" in (tmp_path / FILE).read_bytes()


def test_half_a_publication_of_a_killed_process_is_replaced(tmp_path, topology):
    """What an earlier control process left unfinished is neither read nor in the way."""
    (tmp_path / f"{FILE}.new").write_bytes(b"half")

    publish(tmp_path, topology)

    assert TopologyReader(tmp_path).read_news() == topology
    assert [tmp_path / FILE] == list(tmp_path.iterdir())


def test_no_secret_in_a_representation(tmp_path, topology):
    """A topology that came from the file hides the workers' key as the configured one does."""
    publish(tmp_path, topology)

    assert "s3cret" not in repr(TopologyReader(tmp_path).read_news())
