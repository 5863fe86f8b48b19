"""The prefill/decode exchange, as values."""

from __future__ import annotations

import pytest

from simulator.transfer import Origin, Transfer, offer, read_transfer

ORIGIN = Origin(engine_id="e1", host="10.0.0.5", port=5600)


def test_an_offer_is_taken_by_the_other_worker():
    """What the prefill worker answers is, handed on as it is, all that the decode worker needs."""
    found = read_transfer(offer(ORIGIN, "r1", [1, 2, 3], 40))

    assert found == Transfer(is_decode=True, remote_tokens=40)


def test_an_offer_says_where_the_blocks_are():
    """Engine, request, host, port and blocks are told, and who is to do what next."""
    told = offer(ORIGIN, "r1", [1, 2, 3], 40)

    assert (told["do_remote_prefill"], told["do_remote_decode"]) == (True, False)
    assert (told["remote_engine_id"], told["remote_host"], told["remote_port"]) == ("e1", "10.0.0.5", 5600)
    assert (told["remote_request_id"], told["remote_block_ids"], told["remote_num_tokens"]) == ("r1", [[1, 2, 3]], 40)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"do_remote_decode": True, "do_remote_prefill": False}, Transfer(is_prefill=True)),
        ({"do_remote_decode": False, "do_remote_prefill": False}, Transfer()),
        ({"other": 1}, Transfer()),
    ],
)
def test_what_a_request_asks_for(params, expected):
    """Keeping blocks, fetching them, or neither."""
    assert read_transfer(params) == expected


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"remote_host": None}, "remote_host missing"),
        ({"remote_port": "5600"}, "remote_port is no int"),
        ({"remote_block_ids": "1,2"}, "remote_block_ids is no list"),
        ({"remote_block_ids": []}, "remote_block_ids names no blocks"),
        ({"remote_block_ids": [[]]}, "remote_block_ids names no blocks"),
        ({"remote_block_ids": ["a"]}, "remote_block_ids names no blocks"),
    ],
)
def test_a_gateway_that_spoils_the_object_is_found_out(change, fault):
    """What cannot be fetched is known with the reason."""
    assert read_transfer({**offer(ORIGIN, "r1", [1], 16), **change}).fault == fault


def test_blocks_may_be_one_plain_list():
    """Older connectors name blocks without groups."""
    assert read_transfer({**offer(ORIGIN, "r1", [1], 16), "remote_block_ids": [4, 5]}).fault is None
