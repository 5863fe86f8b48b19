"""What can be configured of one worker, and the two ways to say which workers: listed, or found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from proxy.config.dcgm import DcgmConfig
from proxy.config.errors import RefusedError
from proxy.config.file import kind_of
from proxy.config.found import FoundWorkersConfig
from proxy.config.problems import FOUND, LISTED
from proxy.config.values import BaseUrl, Count, Name, Section
from proxy.config.worker_url import parse_worker_url


def _url_or_mapping(schema: dict[str, Any]) -> None:
    mapping = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "description": "The base URL alone."}, mapping]


class WorkerConfig(Section):
    """One vLLM server: its base URL, or a mapping with `name` and `url`."""

    model_config = ConfigDict(json_schema_extra=_url_or_mapping)

    url: BaseUrl = Field(
        description=(
            "Base URL, http or https. A slash or `/v1` at the end is dropped, a path before it is kept; IPv6 in brackets."
        )
    )
    name: Name | None = Field(
        default=None,
        description=(
            "Label in metrics, logs and `x-ridgeline-worker`; unique among all workers. When absent: "
            "`host:port` and the path of the URL, if any."
        ),
    )

    data_parallel_ranks: Count | None = Field(
        default=None,
        description=(
            "Ranks behind this URL, as `--data-parallel-size` has it where one address serves them all. Each request then "
            "names one by `x-data-parallel-rank`, so that prefix caches are found again. Absent: the worker chooses."
        ),
    )

    dcgm: DcgmConfig | None = Field(
        default=None, description="What tells of its GPUs, as a whole; absent: as the pool's `dcgm` says."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, str):
            return {"url": value}
        if not isinstance(value, Mapping | WorkerConfig):
            raise RefusedError(f"is {kind_of(value)}", "write a URL, or {name: …, url: …}")
        return value

    @property
    def label(self) -> str:
        """The name in force."""
        return self.name or parse_worker_url(self.url).default_name


ListedWorkers = Annotated[tuple[WorkerConfig, ...], Tag(LISTED)]
SomeListedWorkers = Annotated[tuple[WorkerConfig, ...], Field(min_length=1), Tag(LISTED)]
FoundWorkers = Annotated[FoundWorkersConfig, Tag(FOUND)]
WORKER_FORMS = Discriminator(lambda value: FOUND if isinstance(value, Mapping | FoundWorkersConfig) else LISTED)


def listed_in(workers: tuple[WorkerConfig, ...] | FoundWorkersConfig) -> tuple[WorkerConfig, ...]:
    """The workers that the file names; none where they are found."""
    return () if isinstance(workers, FoundWorkersConfig) else workers


def found_by(workers: tuple[WorkerConfig, ...] | FoundWorkersConfig) -> FoundWorkersConfig | None:
    """What says how workers are found; None where they are listed."""
    return workers if isinstance(workers, FoundWorkersConfig) else None
