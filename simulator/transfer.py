"""The exchange by which a gateway has one worker compute a prompt and another one generate from it.

As vLLM's NIXL connector does it: a prefill worker that is told ``do_remote_decode`` keeps the prompt's blocks for a while and
says in its answer where they are; the gateway hands that object on to a decode worker, which fetches the blocks instead of
computing them. What does not say where the blocks are is no error there: the prompt is computed once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_NEEDED = {"remote_engine_id": str, "remote_request_id": str, "remote_host": str, "remote_port": int, "remote_block_ids": list}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What ``kv_transfer_params`` asks for."""

    is_prefill: bool = False  # keep the blocks for another worker
    is_decode: bool = False  # fetch the blocks from another worker
    fault: str | None = None  # why nothing can be fetched; None if it can, or if nothing is to be
    remote_tokens: int | None = None  # prompt tokens that were computed there; None if it is not said


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The worker that computes prompts for others, as it names itself to them."""

    engine_id: str
    host: str
    port: int


def read_transfer(params: dict[str, Any]) -> Transfer:
    """The request's side of the exchange; never an error, as with vLLM."""
    if params.get("do_remote_decode"):
        return Transfer(is_prefill=True)
    if not params.get("do_remote_prefill"):
        return Transfer()
    tokens = params.get("remote_num_tokens")
    return Transfer(is_decode=True, fault=_fault(params), remote_tokens=tokens if isinstance(tokens, int) else None)


def _fault(params: dict[str, Any]) -> str | None:
    absent = [name for name in _NEEDED if params.get(name) is None]
    if absent:
        return f"{', '.join(absent)} missing"
    for name, kind in _NEEDED.items():
        if not isinstance(params[name], kind):
            return f"{name} is no {kind.__name__}"
    blocks = params["remote_block_ids"]
    groups = blocks if all(isinstance(group, list) for group in blocks) else [blocks]
    if not any(groups) or not all(isinstance(block, int) for group in groups for block in group):
        return "remote_block_ids names no blocks"
    return None


def offer(origin: Origin, request_id: str, blocks: Sequence[int], prompt_tokens: int) -> dict[str, Any]:
    """What a prefill worker answers: where the prompt's blocks are."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(blocks)],
        "remote_engine_id": origin.engine_id,
        "remote_request_id": request_id,
        "remote_host": origin.host,
        "remote_port": origin.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": prompt_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
