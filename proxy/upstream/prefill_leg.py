"""The first of two legs: a worker of a prefill stage computes the prompt, and says where its blocks are.

The exchange is that of vLLM's connectors of KV caches: the request goes to the prefill worker with ``max_tokens`` 1 and
``kv_transfer_params`` that ask it to keep the prompt's blocks; the object of that name in its answer goes on to the decode
worker, inside the request as the client wrote it. Whatever goes wrong here costs the request nothing but time: the decode
worker computes a prompt that it is told nothing about. Decision: docs/decisions/0010-prefill-stage.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from telemetry.events import Usage, read_event
from telemetry.record import PrefillResult

_FIELD = "kv_transfer_params"
_ASKED = msgspec.Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
_ONE, _NO = msgspec.Raw(b"1"), msgspec.Raw(b"false")
_LESS = {"max_completion_tokens": _ONE, "n": _ONE, "best_of": _ONE, "min_tokens": msgspec.Raw(b"0")}  # only where they are
_DROPPED = ("stream_options", "echo")  # the one is refused without a stream, the other would come twice
_OWN = {_FIELD, "prompt_logprobs"}  # it transfers itself, or asks for what only who computes a prompt can tell
MOST_ANSWER_BYTES = 16 * 1024 * 1024
"""Of a prefill worker: its blocks are named one by one, some 100 kB for a million tokens; log-probabilities are more."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Leg(NamedTuple):
    """What became of it."""

    result: PrefillResult
    worker: str | None = None  # name of the prefill worker; None if there was none to ask
    url: str = ""  # its own
    seconds: float | None = None  # from the choice of the worker to the end of its answer; None if nobody was asked
    transfer: bytes | None = None  # raw JSON for the decode worker; only if it was computed
    usage: Usage | None = None  # of its answer, if it had one that can be read

    def lost(self) -> Leg:
        """The same when the decode worker has failed and another is asked, which computes the prompt itself."""
        result = PrefillResult.LOST if self.result is PrefillResult.COMPUTED else self.result
        return self._replace(result=result, transfer=None)


class _Answer(msgspec.Struct, gc=False):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"")


def prefill_body(body: bytes) -> bytes | None:
    """The request for the prefill worker; ``None`` for one that cannot be changed, or that transfers on its own account.

    Only the top level is written anew: the values of all other fields are the client's own bytes.
    """
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if fields.keys() & _OWN:
        return None
    for name in _DROPPED:
        fields.pop(name, None)
    fields |= {name: value for name, value in _LESS.items() if name in fields}
    return msgspec.json.encode(fields | {"max_tokens": _ONE, "stream": _NO, _FIELD: _ASKED})


def with_transfer(pieces: Sequence[bytes | memoryview], transfer: bytes) -> list[bytes | memoryview]:
    """The pieces of a request with what the prefill worker said, in front of all other fields."""
    first = bytes(pieces[0])
    start = first.index(b"{") + 1
    return [first[:start], b'"%b":%b,' % (_FIELD.encode(), transfer), first[start:], *pieces[1:]]


def transfer_in(body: bytes) -> bytes | None:
    """The raw object that an answer has for the decode worker; ``None`` if there is none."""
    try:
        found = bytes(msgspec.json.decode(body, type=_Answer).kv_transfer_params)
        found.decode()  # what is passed over is not looked at, and would make the whole request no JSON
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.startswith(b"{") and found != b"{}" else None


def usage_in(body: bytes) -> Usage | None:
    """What an answer says of its tokens; ``None`` if it says nothing."""
    reported = read_event(body)[0].usage
    return None if reported is None else reported.checked()[0]
