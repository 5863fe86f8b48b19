"""What can be configured of a model and of the pools that serve it, with the prefill stage that a pool may have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from proxy.config.bounds import PoolAdmission, PoolLimits
from proxy.config.dcgm import DcgmConfig
from proxy.config.found import FoundWorkersConfig
from proxy.config.sections import HedgingConfig
from proxy.config.tls import WorkerTlsConfig
from proxy.config.tokenizer import TokenizerConfig
from proxy.config.values import (
    BorrowRatio,
    ChainHeader,
    Count,
    CountOrZero,
    ModelName,
    PoolName,
    Quantile,
    Seconds,
    Section,
    Text,
    UrlPath,
    WorkerKey,
    list_of_workers,
    text_or_mapping,
)
from proxy.config.workers import WORKER_FORMS, FoundWorkers, ListedWorkers, SomeListedWorkers, WorkerConfig, found_by, listed_in

Policy = Literal["round-robin", "least-load", "power-of-two", "prefix-affinity", "session", "fastest"]


def stage_name(pool: str) -> str:
    """What the prefill stage of a pool is called."""
    return f"{pool}-prefill"


class PrefillConfig(Section):
    """Workers that compute prompts for a pool, whose own workers then take the KV cache over and generate."""

    workers: Annotated[SomeListedWorkers | FoundWorkers, WORKER_FORMS, BeforeValidator(list_of_workers)] = Field(
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
        return listed_in(self.workers)

    @property
    def finds_workers(self) -> FoundWorkersConfig | None:
        """What says how workers are found; None where they are listed."""
        return found_by(self.workers)


class PoolConfig(Section):
    """Workers that can stand in for each other: same model, same context range."""

    name: PoolName = Field(
        description="Label in metrics, logs and `x-ridgeline-pool`; unique within the model. `none` is reserved."
    )
    workers: Annotated[SomeListedWorkers | FoundWorkers, WORKER_FORMS, BeforeValidator(list_of_workers)] = Field(
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
        return listed_in(self.workers)

    @property
    def finds_workers(self) -> FoundWorkersConfig | None:
        """What says how workers are found; None where they are listed."""
        return found_by(self.workers)


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
    workers: Annotated[ListedWorkers | FoundWorkers, WORKER_FORMS, BeforeValidator(list_of_workers)] = Field(
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
