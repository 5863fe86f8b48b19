"""The settings of one simulated worker, named after vLLM's flags where there is one."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.bodies import Served
from simulator.dialect import Dialect, dialect_by_name
from simulator.engine import Engine, EngineSettings, Noise, Speculation
from simulator.faults import NO_FAULTS, Faults
from simulator.gpus import gpu_by_name
from simulator.prefix import BLOCK_TOKENS
from simulator.timing import StepTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker. ``port`` 0 takes a free one. ``ValueError`` for settings that cannot be."""

    model: str
    gpu: str
    port: int
    host: str = "127.0.0.1"
    aliases: tuple[str, ...] = ()  # further names of the model
    adapters: tuple[str, ...] = ()  # LoRA adapters by name
    imitate: str = "0.32"  # version of vLLM
    max_model_len: int = 131_072  # prompt and output tokens together
    max_num_seqs: int = 64
    max_queued: int | None = None  # requests that may wait; None: any number
    block_tokens: int = BLOCK_TOKENS
    data_parallel_size: int = 1
    step_noise_sigma: float = 0.0  # of the lognormal factor on each step's time; 0 for none
    timer: StepTimer | None = None  # times the steps instead of the GPU's demo constants
    kv_tokens: int | None = None  # KV cache of one rank; None: the demo GPU's
    draft_tokens: int = 0  # speculative decoding: drafts in each step, 0 for none
    draft_acceptance_ratio: float = 0.7
    api_key: str | None = None  # None: open
    seed: int = 0
    speed: float = 1.0  # 2.0: everything takes half its time

    prompt_tokens_details: bool = False
    per_request_metrics: bool = False
    request_id_headers: bool = False
    load_tracking: bool = False
    force_include_usage: bool = False
    calls_tools: bool = False  # --enable-auto-tool-choice with a parser
    thinks: bool = False  # --reasoning-parser
    thoughts: str | None = None  # what is thought with ``thinks``; None: some words
    answer: str | None = None  # what is said, unless a request ignores the end; None: some words
    stream_interval: int = 1  # tokens an event, but for the first
    sse_keep_alive_seconds: float | None = None  # a comment after each such silence
    kv_connector: bool = False  # takes part in the prefill/decode exchange
    dev_mode: bool = False  # /pause, /resume, /abort_requests, /reset_prefix_cache
    shutdown_seconds: float = 0.0  # what runs may go on for so long after SIGTERM

    faults: Faults = NO_FAULTS
    control_port: int | None = None  # on loopback; 0 takes a free one, None: faults cannot be changed

    def __post_init__(self) -> None:
        dialect_by_name(self.imitate)
        for name in ("max_model_len", "max_num_seqs", "data_parallel_size", "stream_interval", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("draft_tokens", "shutdown_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.max_queued is not None and self.max_queued < 1:
            raise ValueError(f"max_queued must be at least 1, got {self.max_queued}")
        if self.sse_keep_alive_seconds is not None and self.sse_keep_alive_seconds <= 0:
            raise ValueError(f"sse_keep_alive_seconds must be above 0, got {self.sse_keep_alive_seconds}")

    @property
    def dialect(self) -> Dialect:
        """The version that is imitated."""
        return dialect_by_name(self.imitate)

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model; answers have the first."""
        return (self.model, *self.aliases)

    def served(self) -> Served:
        """What a request is read with."""
        return Served(
            models=self.names,
            max_model_len=self.max_model_len,
            adapters=self.adapters,
            calls_tools=self.calls_tools,
            thinks=self.thinks,
            thoughts=self.thoughts,
            answer=self.answer,
            forced_usage=self.dialect.forced_usage if self.force_include_usage else None,
            transfers=self.kv_connector,
            block_tokens=self.block_tokens,
        )

    def engine(self) -> Engine:
        """A new engine. ``ValueError`` for a GPU nobody knows, or a context that its KV cache cannot hold."""
        speculation = None
        if self.draft_tokens:
            speculation = Speculation(drafts=self.draft_tokens, acceptance_ratio=self.draft_acceptance_ratio)
        is_timed = self.timer is not None and self.kv_tokens is not None
        settings = EngineSettings(
            gpu=None if is_timed else gpu_by_name(self.gpu),
            timer=self.timer,
            kv_tokens=self.kv_tokens,
            max_num_seqs=self.max_num_seqs,
            step_tokens=max(2048, self.max_num_seqs),
            block_tokens=self.block_tokens,
            ranks=self.data_parallel_size,
            speculation=speculation,
            noise=Noise(sigma=self.step_noise_sigma),
            seed=self.seed,
        )
        tokens = settings.kv_blocks * settings.block_tokens
        if self.max_model_len > tokens:
            raise ValueError(f"max_model_len {self.max_model_len} is more than the {tokens} tokens of KV cache on {self.gpu}")
        return Engine(settings)
