"""The bytes of vLLM's small answers: errors, models, tokens of a text, and the like."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from simulator.dialect import NEWEST, Dialect
from simulator.refusals import Refusal, bad_value, wrong_form
from simulator.wire.common import encode

UNAUTHORIZED = b'{"error":"Unauthorized"}'


def error_body(refusal: Refusal, dialect: Dialect = NEWEST) -> bytes:
    """The error object of a refusal."""
    return encode(_error(refusal, is_flat=dialect.errors_are_flat))


def error_event(refusal: Refusal) -> bytes:
    """The event that tells an error after the head of a stream has gone out; vLLM writes it with spaces."""
    return f"data: {json.dumps(_error(refusal, is_flat=False))}\n\n".encode()


def _error(refusal: Refusal, *, is_flat: bool) -> dict[str, Any]:
    found = {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.status}
    return {"object": "error", **found} if is_flat else {"error": found}


def detail_body(text: str) -> bytes:
    """What unknown paths and methods get."""
    return encode({"detail": text})


def models_body(
    models: Mapping[str, str | None], root: str, created: int, max_model_len: int, permissions: Iterable[str]
) -> bytes:
    """The names that are served: of the one model, and of adapters, which have it as their parent.

    ``permissions`` are any identifiers, one a name.
    """
    cards = []
    for (model, parent), permission in zip(models.items(), permissions, strict=True):
        granted = {
            "id": f"modelperm-{permission}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        cards.append(
            {
                "id": model,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": root if parent is None else model,
                "parent": parent,
                "max_model_len": max_model_len,
                "permission": [granted],
            }
        )
    return encode({"object": "list", "data": cards})


def version_body(dialect: Dialect) -> bytes:
    """The version that is imitated."""
    return encode({"version": dialect.version})


def load_body(open_requests: int) -> bytes:
    """How many requests are being answered."""
    return encode({"server_load": open_requests})


def tokenize_body(ids: Sequence[int], max_model_len: int, spellings: Sequence[str] | None = None) -> bytes:
    """The tokens of a text, by number and, if wanted, by name."""
    return encode({"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": spellings})


def detokenize_body(text: str) -> bytes:
    """What tokens say."""
    return encode({"prompt": text})


def flag_body(name: str, value: bool) -> bytes:
    """One fact."""
    return encode({name: value})


def read_request_ids(raw: bytes) -> frozenset[str]:
    """The ids in the body of ``/abort_requests``. `Refusal` if there are none."""
    try:
        return frozenset(msgspec.json.decode(raw, type=_RequestIds).request_ids)
    except msgspec.ValidationError as error:
        raise wrong_form(str(error), {}) from None
    except msgspec.DecodeError as error:
        raise bad_value(f"There was an error parsing the body: {error}") from None


def aborted_body(aborted: int) -> bytes:
    """How many requests were aborted."""
    return encode({"status": "aborted", "aborted": aborted})


class _RequestIds(msgspec.Struct):
    request_ids: list[str]
