"""What a worker answers instead of tokens, in the words of vLLM."""

from __future__ import annotations

import re
from typing import Any


class Refusal(Exception):  # noqa: N818 -- an answer to the client, and no fault of ours
    """A request the worker answers with an error instead of tokens."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind  # vLLM's `error.type`
        self.message = message
        self.param = param


def bad_value(message: str, param: str | None = None, value: object = None) -> Refusal:
    """A value that cannot be; the parameter and its value are repeated behind the message if they are told."""
    where = "" if param is None else f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    return Refusal(400, "BadRequestError", message + where, param)


def unknown_model(name: str, served: tuple[str, ...]) -> Refusal:
    """A model that is not served here."""
    text = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
    return Refusal(404, "NotFoundError", text, "model")


def missing(where: str, items: int | None) -> Refusal:
    """A field that is not there, in a value of so many ``items``; ``None``: there was no body at all."""
    return invalid("missing", where, "Field required", "None" if items is None else f"<dict of {items} items>")


def invalid(kind: str, where: str, message: str, given: str, reason: str | None = None) -> Refusal:
    """Refused by the validation layer, before anybody looked at a value."""
    found: dict[str, Any] = {"type": kind, "loc": where, "msg": message, "input": given}
    if reason is not None:
        found["ctx"] = {"error": reason}
    return Refusal(400, "Bad Request", f"1 validation error:\n  {found}", where)


def unsupported_media_type() -> Refusal:
    """What a body gets that is not announced as JSON."""
    text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return Refusal(400, "Bad Request", text)


def wrong_form(text: str, value: object) -> Refusal:
    """The refusal for a body that is JSON of another form; ``text`` is what msgspec says about ``value``."""
    found = re.match(r"Object missing required field `(\w+)`(?: - at `\$(.*)`)?", text)
    if found:
        return missing(f"{_place(found[2] or '')}.{found[1]}", len(value) if isinstance(value, dict) else 0)
    reason, _, path = text.partition(" - at `$")
    return invalid("type_error", _place(path.rstrip("`")), reason, type(value).__name__)


def too_many_waiting() -> Refusal:
    """The queue has the length it may have."""
    text = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    return Refusal(503, "Service Unavailable", text)


def shutting_down() -> Refusal:
    """The worker is being stopped and lets only what runs go on."""
    return Refusal(500, "InternalServerError", "cannot schedule new futures after shutdown")


def engine_died() -> Refusal:
    """The engine is gone, the server before it is not."""
    text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return Refusal(500, "InternalServerError", text)


def check_length(prompt_tokens: int, asked: int | None, longest: int) -> None:
    """Raise `Refusal` unless so many prompt tokens and ``asked`` output tokens (``None``: any) fit ``longest``."""
    if asked is not None and asked > longest:
        text = f"max_tokens={asked} cannot be greater than max_model_len={longest}. Please request fewer output tokens."
        raise bad_value(text, "max_tokens", asked)
    limit = f"This model's maximum context length is {longest} tokens. However, "
    if prompt_tokens > longest - (asked is None):
        text = (
            f"your prompt contains at least {longest + 1} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt."
        )
        raise bad_value(limit + text, "input_tokens", longest + 1)
    if asked is not None and prompt_tokens + asked > longest:
        least = longest + 1 - asked  # vLLM stops counting there
        text = (
            f"you requested {asked} output tokens and your prompt contains at least {least} input tokens, for a total of "
            f"at least {longest + 1} tokens. Please reduce the length of the input prompt or the number of requested output "
            "tokens."
        )
        raise bad_value(limit + text, "input_tokens", least)


def _place(path: str) -> str:
    """Where in the body, as vLLM writes it: ``body.messages.0``."""
    return "body" + re.sub(r"\[(\d+)\]", r".\1", path)
