"""Where what NVIDIA's dcgm-exporter says of a worker's GPUs is to be had."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from proxy.config.errors import RefusedError
from proxy.config.values import Section

_PLACE = re.compile(r"\{([^{}]*)\}")
_PLACES = ("host", "worker")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _with_places(text: str) -> str:
    """Judge what stands in braces."""
    for place in _PLACE.findall(text):
        if place not in _PLACES:
            raise RefusedError(f"has {{{place}}} in it, which means nothing", "use {host} or {worker}, or no braces")
    return text


def _page_url(text: str) -> str:
    """Judge the URL of an exporter's page."""
    filled = _PLACE.sub("x", _with_places(text))
    try:
        parts = urlsplit(filled)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or filled != filled.strip():
        raise RefusedError("is no http or https URL", "write that of its page, such as http://{host}:9400/metrics")
    if "@" in parts.netloc:
        raise RefusedError("has a user name or password in it, which would be shown", "leave them out")
    if parts.path in ("", "/"):
        raise RefusedError("has no path", "add that of its page, /metrics as a rule")
    return text


def _values(value: object) -> object:
    """A number of a GPU may be written without quotes, and one value without brackets."""
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(str(each) if isinstance(each, int) and not isinstance(each, bool) else each for each in listed)


def _label_name(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise RefusedError("is no name of a label", "write one that the page has, such as gpu, UUID, Hostname or pod")
    return text


LabelName = Annotated[str, AfterValidator(_label_name)]
LabelValues = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_with_places)], ...],
    Field(min_length=1, max_length=64),
    BeforeValidator(_values),
]


class DcgmConfig(Section):
    """A dcgm-exporter that sees the GPUs of these workers."""

    url: Annotated[str, Field(max_length=2048), AfterValidator(_page_url)] = Field(
        description=(
            "URL of its page, such as `http://{host}:9400/metrics`: `{host}` stands for the host of the worker's URL, "
            "`{worker}` for its name."
        )
    )
    labels: dict[LabelName, LabelValues] = Field(
        default_factory=dict,
        description=(
            "Which GPUs of that page are a worker's: each label has to have the value given, or one of a list; `{host}` and "
            "`{worker}` as in the URL. Labels of the page are `gpu` (a number), `UUID`, `Hostname`, `modelName`, and in "
            "Kubernetes `pod`, `namespace` and `container`. Absent: all GPUs of the page."
        ),
    )

    def of(self, worker: str, host: str) -> DcgmSource:
        """What is asked for the GPUs of one worker."""
        places = {"host": host, "worker": worker}

        def filled(text: str) -> str:
            return _PLACE.sub(lambda place: places[place[1]], text)

        in_url = f"[{host}]" if ":" in host else host
        url = _PLACE.sub(lambda place: {**places, "host": in_url}[place[1]], self.url)
        return DcgmSource(url, tuple((name, tuple(map(filled, values))) for name, values in self.labels.items()))


class DcgmSource(NamedTuple):
    """A page, and the labels that pick a worker's GPUs from it."""

    url: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
