"""What can be configured: the settings with their units, defaults and bounds, and how a file becomes a `Config`.

Field descriptions are the reference: `docs/reference/configuration.md`, the JSON schema and error texts are made of them.
What one value must be stands here; what several values must be together stands in `proxy.config.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationError,
    model_validator,
)

from proxy.config.bounds import AdmissionConfig, LimitsConfig, PoolAdmission, PoolLimits
from proxy.config.checks import LISTENERS, cross_problems, warnings_of
from proxy.config.dcgm import DcgmConfig
from proxy.config.errors import ConfigError, Problem, RefusedError
from proxy.config.file import Document, kind_of, parse_document, read_text
from proxy.config.found import FoundWorkersConfig
from proxy.config.problems import FOUND, LISTED, problems_of
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
from proxy.config.tokenizer import TokenizerConfig
from proxy.config.values import (
    Address,
    AdminToken,
    BaseUrl,
    BorrowRatio,
    ChainHeader,
    Count,
    CountOrZero,
    HostName,
    ModelName,
    Name,
    PoolName,
    Quantile,
    Seconds,
    Section,
    Sha256,
    Text,
    UrlPath,
    WorkerKey,
    list_of_workers,
    one_or_list,
    text_or_mapping,
)
from proxy.config.worker_url import parse_worker_url

__all__ = ["Config", "ConfigError", "Problem", "load_config", "parse_config", "read_config", "warnings_of"]


def _url_or_mapping(schema: dict[str, Any]) -> None:
    mapping = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "description": "The base URL alone."}, mapping]


Policy = Literal["round-robin", "least-load", "power-of-two", "prefix-affinity", "session", "fastest"]


def stage_name(pool: str) -> str:
    """What the prefill stage of a pool is called."""
    return f"{pool}-prefill"


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


_Listed = Annotated[tuple[WorkerConfig, ...], Tag(LISTED)]
_SomeListed = Annotated[tuple[WorkerConfig, ...], Field(min_length=1), Tag(LISTED)]
_Found = Annotated[FoundWorkersConfig, Tag(FOUND)]
_FORMS = Discriminator(lambda value: FOUND if isinstance(value, Mapping | FoundWorkersConfig) else LISTED)


def _listed_in(workers: tuple[WorkerConfig, ...] | FoundWorkersConfig) -> tuple[WorkerConfig, ...]:
    return () if isinstance(workers, FoundWorkersConfig) else workers


def _found_by(workers: tuple[WorkerConfig, ...] | FoundWorkersConfig) -> FoundWorkersConfig | None:
    return workers if isinstance(workers, FoundWorkersConfig) else None


class PrefillConfig(Section):
    """Workers that compute prompts for a pool, whose own workers then take the KV cache over and generate."""

    workers: Annotated[_SomeListed | _Found, _FORMS, BeforeValidator(list_of_workers)] = Field(
        description="The workers, each a base URL or a mapping with `name` and `url`; or how they are found. They need a "
        "connector for KV caches."
    )
    policy: Policy = Field(default="prefix-affinity", description="How one of them is chosen, as in a pool.")
    min_prompt_tokens: CountOrZero = Field(
        default=0, description="Prompts with fewer tokens, by the estimate, are computed by the pool's own workers."
    )
    timeout_seconds: Seconds = Field(
        default=60, description="Seconds that a prompt may take there; then the pool's own worker computes it."
    )

    @property
    def listed_workers(self) -> tuple[WorkerConfig, ...]:
        """The workers that the file names; none where they are found."""
        return _listed_in(self.workers)

    @property
    def finds_workers(self) -> FoundWorkersConfig | None:
        """What says how workers are found; None where they are listed."""
        return _found_by(self.workers)


class PoolConfig(Section):
    """Workers that can stand in for each other: same model, same context range."""

    name: PoolName = Field(
        description="Label in metrics, logs and `x-ridgeline-pool`; unique within the model. `none` is reserved."
    )
    workers: Annotated[_SomeListed | _Found, _FORMS, BeforeValidator(list_of_workers)] = Field(
        description="The workers, each a base URL or a mapping with `name` and `url`; or how they are found."
    )
    max_total_tokens: Count | None = Field(
        default=None,
        description=(
            "Prompt and output budget in tokens that the pool accepts; null: no bound. The smallest pool "
            "that accepts a request gets it."
        ),
    )
    overflow_to: PoolName | None = Field(
        default=None,
        description=(
            "Pool of the same model that gets a request while no worker of this pool can take it: all down, tried or full. "
            "Absent: such a request is refused."
        ),
    )
    borrows_from: PoolName | None = Field(
        default=None,
        description=(
            "Pool of the same model whose workers may take requests of this pool while they are nearly idle and all workers "
            "here are busy."
        ),
    )
    borrow_below_ratio: BorrowRatio | None = Field(
        default=None,
        description=(
            "A worker of `borrows_from` helps while its load in tokens is at most this share of the least load here, from 0 to "
            "below 1; absent: 0, so that only a worker with nothing to do helps."
        ),
    )
    prefill: PrefillConfig | None = Field(
        default=None,
        description=(
            "Workers that compute prompts for this pool (prefill and decode apart); absent: the pool's own workers do both. In "
            "metrics they are a pool of their own, `NAME-prefill`."
        ),
    )
    policy: Policy = Field(
        default="prefix-affinity",
        description=(
            "How a worker is chosen: `least-load` by tokens in flight, `round-robin`, `power-of-two` (the less loaded of two "
            "at random), `prefix-affinity` (who has seen the beginning of the prompt), `session` (who has served the session), "
            "`fastest` (least expected time to the first token)."
        ),
    )
    session_header: ChainHeader | None = Field(
        default=None,
        description=(
            "Header whose value names a session, for `policy: session`; without it the body's `prompt_cache_key` or `user` "
            "does, and without those the beginning of the prompt."
        ),
    )
    ask_usage: bool = Field(
        default=True,
        description=(
            "Ask workers for token usage in streams whose client did not, and take it out again. Without it "
            "such streams have no token counts."
        ),
    )
    health_path: UrlPath = Field(
        default="/health",
        description=(
            "Path that says by status 200 whether a worker is well, asked every five seconds. Another one for what is no vLLM: "
            "`/health/liveliness` for LiteLLM, whose `/health` sends requests to every model."
        ),
    )
    worker_key: WorkerKey | None = Field(
        default=None, description="Sent to these workers as Bearer token; when absent the overall `worker_key`. Secret."
    )
    worker_tls: WorkerTlsConfig | None = Field(
        default=None, description="How these workers are trusted, as a whole; absent: as the overall `worker_tls` says."
    )
    limits: PoolLimits = Field(default_factory=PoolLimits, description="Overrides of the overall `limits` for this pool.")
    admission: PoolAdmission = Field(
        default_factory=PoolAdmission, description="Overrides of the overall `admission` for this pool."
    )
    hedging: HedgingConfig | None = Field(
        default=None,
        description="Asking a second worker when one is late, as a whole; absent: as the overall `hedging` says.",
    )
    gpu: Annotated[Text | dict[str, JsonValue], BeforeValidator(text_or_mapping)] | None = Field(
        default=None,
        description=(
            "GPU of the workers: an id such as `h100-sxm`, the name its driver shows, or its dense peaks inline. "
            "Absent: unknown, and nothing is held against its limits."
        ),
    )
    gpus_per_worker: Count | None = Field(
        default=None, description="GPUs of one worker, a count. What `tensor_parallel` does not say is tensor parallelism."
    )
    tensor_parallel: Count | None = Field(default=None, description="Tensor-parallel size of one worker, a count of GPUs.")
    dcgm: DcgmConfig | None = Field(
        default=None,
        description=(
            "What tells of the workers' GPUs: clocks, heat, power, how busy their memory is. It makes a clock that is held "
            "down, or a memory at its peak, a cause of slow requests by name. Absent: nothing is asked."
        ),
    )
    weight_dtype: Text | None = Field(
        default=None,
        description="How weights are stored, such as `bf16`, `fp8` or `awq`; absent: as the model's own configuration says.",
    )
    kv_dtype: Text | None = Field(
        default=None,
        description="How the KV cache is stored, as vLLM's `--kv-cache-dtype` names it; absent: as the model asks.",
    )

    @property
    def listed_workers(self) -> tuple[WorkerConfig, ...]:
        """The workers that the file names; none where they are found."""
        return _listed_in(self.workers)

    @property
    def finds_workers(self) -> FoundWorkersConfig | None:
        """What says how workers are found; None where they are listed."""
        return _found_by(self.workers)


class ModelConfig(Section):
    """What clients ask for by name, and who serves it: either `workers` or `pools`."""

    name: ModelName = Field(description="What clients send as `model`, and what workers get. `unknown` is reserved.")
    aliases: tuple[ModelName, ...] = Field(default=(), description="Further names for the same model; workers get `name`.")
    shape: Annotated[Text | dict[str, JsonValue], BeforeValidator(text_or_mapping)] | None = Field(
        default=None,
        description=(
            "Shape of the model: a known name, the path of a config.json (or of a folder with one), or its fields inline. "
            "Absent: known by `name`, or unknown."
        ),
    )
    tokenizer: TokenizerConfig | None = Field(
        default=None,
        description="How prompts are counted exactly when the choice of a pool depends on it; null: by the estimate alone.",
    )
    image_tokens: CountOrZero = Field(
        default=1024, description="Tokens that each image of a prompt, or video, is estimated at; at most twice that."
    )
    audio_tokens: CountOrZero = Field(
        default=1024, description="Tokens that each piece of audio is estimated at; at most twice that."
    )
    output_budget: Literal["learned", "declared"] = Field(
        default="learned",
        description=(
            "Output tokens a pool is chosen for: what the client declares, or, if that is less, what answers to the same key "
            "stay within (`learned`). Whether a request fits at all is judged by what is declared."
        ),
    )
    output_quantile: Quantile = Field(
        default=0.99, description="Share of the answers that stay within the learned output budget, 0.5 to 0.9999."
    )
    workers: Annotated[_Listed | _Found, _FORMS, BeforeValidator(list_of_workers)] = Field(
        default=(), description="Workers of a single pool named `default`, in the same forms as those of a pool."
    )
    pools: tuple[PoolConfig, ...] = Field(
        default=(), description="Pools with different ranges of context length, in any order."
    )

    @property
    def pools_in_force(self) -> tuple[PoolConfig, ...]:
        """The pools, or the one pool that `workers` stands for; smallest range first, no bound last."""
        pools = self.pools or (PoolConfig(name="default", workers=self.workers),)
        return tuple(sorted(pools, key=lambda pool: (pool.max_total_tokens is None, pool.max_total_tokens or 0)))


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
