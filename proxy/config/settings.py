"""What can be configured: the settings of a gateway as a whole, and how a file becomes a `Config`.

Field descriptions are the reference: `docs/reference/configuration.md`, the JSON schema and error texts are made of them. The
settings of models and pools stand in `proxy.config.pools`, those of workers in `proxy.config.workers`, the smaller sections in
modules of their own. What several values must be together stands in `proxy.config.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from proxy.config.bounds import AdmissionConfig, LimitsConfig
from proxy.config.checks import LISTENERS, cross_problems, warnings_of
from proxy.config.errors import ConfigError, Problem
from proxy.config.file import Document, parse_document, read_text
from proxy.config.pools import ModelConfig
from proxy.config.problems import problems_of
from proxy.config.sections import (
    CalibrationConfig,
    ChainsConfig,
    HealthConfig,
    HedgingConfig,
    KeyConfig,
    LogConfig,
    RetriesConfig,
    SharedQuotasConfig,
    TracingConfig,
)
from proxy.config.tls import ListenerTlsConfig, WorkerTlsConfig
from proxy.config.values import Address, AdminToken, HostName, Section, Sha256, Text, WorkerKey, one_or_list

__all__ = ["Config", "ConfigError", "Problem", "load_config", "parse_config", "read_config", "warnings_of"]


class Config(Section):
    """Settings of a gateway. Every text may hold `${NAME}` for an environment variable; `$${` stands for `${` itself."""

    listen: Address = Field(default=LISTENERS["listen"], description="host:port for clients.")
    observe_listen: Address = Field(
        default=LISTENERS["observe_listen"],
        description="host:port for Prometheus and probes: /metrics, /livez, /readyz. Read-only.",
    )
    admin_listen: Address = Field(
        default=LISTENERS["admin_listen"],
        description=("host:port for administration: state and recent records, which name keys and models. Keep it private."),
    )
    admin_token: AdminToken | None = Field(
        default=None,
        description=(
            "What callers of `admin_listen` have to send as Bearer, 16 characters or more; absent: nothing. Wanted where that "
            "is not a loopback address. Secret."
        ),
    )
    admin_token_file: Text | None = Field(
        default=None,
        description=(
            "File with that token, from the folder of this file; two lines are two tokens that are both valid. Read again "
            "when it changes."
        ),
    )
    admin_token_sha256: Annotated[tuple[Sha256, ...], Field(max_length=2), BeforeValidator(one_or_list)] = Field(
        default=(), description="SHA-256 of that token, or of two that are both valid, instead of the token."
    )
    admin_hosts: tuple[HostName, ...] = Field(
        default=(), description="Names beside `localhost` and addresses that callers of `admin_listen` may call it by."
    )
    tls: ListenerTlsConfig | None = Field(
        default=None, description="Certificate of `listen`; absent: plain HTTP. Whether it is there takes effect at the start."
    )
    observe_tls: ListenerTlsConfig | None = Field(default=None, description="The same for `observe_listen`.")
    admin_tls: ListenerTlsConfig | None = Field(default=None, description="The same for `admin_listen`.")
    worker_tls: WorkerTlsConfig = Field(
        default_factory=WorkerTlsConfig, description="How workers with an https URL are trusted."
    )
    models: tuple[ModelConfig, ...] = Field(min_length=1, description="What is served, at least one.")
    worker_key: WorkerKey | None = Field(
        default=None,
        description="Sent to workers as Bearer token; absent: none. A client's own token is never passed on. Secret.",
    )
    keys: tuple[KeyConfig, ...] = Field(
        default=(), description="API keys of clients; none: everyone who reaches `listen` may use every model."
    )
    quotas: SharedQuotasConfig = Field(
        default_factory=SharedQuotasConfig, description="How the quotas of keys are kept. Takes effect at the start."
    )
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="Bounds on every request.")
    retries: RetriesConfig = Field(default_factory=RetriesConfig, description="Sending a request to another worker.")
    hedging: HedgingConfig = Field(
        default_factory=HedgingConfig,
        description="Asking a second worker as well when the first is late.",
    )
    health: HealthConfig = Field(default_factory=HealthConfig, description="Leaving out workers that fail.")
    admission: AdmissionConfig = Field(
        default_factory=AdmissionConfig, description="How much workers are given at once, and who may wait for them."
    )
    log: LogConfig = Field(default_factory=LogConfig, description="Where the request log goes.")
    tracing: TracingConfig = Field(default_factory=TracingConfig, description="OpenTelemetry: traces, and metrics too.")
    calibration: CalibrationConfig = Field(
        default_factory=CalibrationConfig, description="What requests are judged by, once workers are known."
    )
    chains: ChainsConfig = Field(default_factory=ChainsConfig, description="How requests that belong together are known.")


def read_config(text: str, environ: Mapping[str, str], source: str) -> tuple[Config, Document]:
    """Return the configuration a YAML text holds, and where each value stands. Raises `ConfigError` with every problem."""
    document, problems = parse_document(text, environ, source)
    try:
        config = Config.model_validate(document.tree)
    except ValidationError as error:
        config = None
        spoilt = {problem.path for problem in problems}  # what the reader could not make sense of has no other fault
        problems += [problem for problem in problems_of(error, document, Config) if problem.path not in spoilt]
    problems += cross_problems(document)
    if problems or config is None:
        raise ConfigError(problems, source)
    return config, document


def parse_config(text: str, environ: Mapping[str, str], source: str) -> Config:
    """Return the configuration a YAML text holds. Raises `ConfigError` with every problem; ``source`` names it there."""
    return read_config(text, environ, source)[0]


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Return the configuration of a file. Raises `ConfigError` with every problem, also when it cannot be read."""
    return parse_config(read_text(path), environ, str(path))
