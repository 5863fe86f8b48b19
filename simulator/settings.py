"""The settings of one simulated worker, named after vLLM's flags where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.bodies import Served
from simulator.dialect import Dialect, dialect_by_name
from simulator.engine.engine import Engine, EngineSettings, Noise, Speculation
from simulator.engine.prefix import BLOCK_TOKENS
from simulator.engine.timing import StepTimer
from simulator.faults import NO_FAULTS, Faults
from simulator.hardware import Hardware, Placement, place

_SEQUENCES, _STEP_TOKENS = 256, 2048  # where no GPU says what vLLM's defaults are


class Launch(NamedTuple):
    """What a worker begins with."""

    engine: Engine
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker. ``port`` 0 takes a free one. ``ValueError`` for settings that cannot be."""

    model: str
    gpu: str  # an id, a driver's name or figures; see `roofline.gpu_given.resolve_gpu`
    port: int
    shape: str | None = None  # a known model, a config.json or its folder; None: what is known as ``model``
    hardware: Hardware = Hardware()  # noqa: RUF009 -- immutable
    host: str = "127.0.0.1"
    aliases: tuple[str, ...] = ()  # further names of the model
    adapters: tuple[str, ...] = ()  # LoRA adapters by name
    imitate: str = "0.32"  # version of vLLM
    max_model_len: int | None = None  # prompt and output tokens together; None: what the model allows
    max_num_seqs: int | None = None  # None: vLLM's default for the GPU
    step_tokens: int | None = None  # --max-num-batched-tokens; None: vLLM's default for the GPU
    max_queued: int | None = None  # requests that may wait; None: any number
    block_tokens: int = BLOCK_TOKENS
    data_parallel_size: int = 1
    step_noise_sigma: float = 0.0  # of the lognormal factor on each step's time; 0 for none
    timer: StepTimer | None = None  # times the steps; with kv_tokens, nothing is asked of model and GPU
    kv_tokens: int | None = None  # KV cache of one rank; None: what the GPUs have room for
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
        counts = ("max_model_len", "max_num_seqs", "step_tokens", "max_queued", "kv_tokens")
        for name in (*counts, "data_parallel_size", "stream_interval", "block_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("draft_tokens", "shutdown_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
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

    def served(self, max_model_len: int) -> Served:
        """What a request is read with."""
        return Served(
            models=self.names,
            max_model_len=max_model_len,
            adapters=self.adapters,
            calls_tools=self.calls_tools,
            thinks=self.thinks,
            thoughts=self.thoughts,
            answer=self.answer,
            forced_usage=self.dialect.forced_usage if self.force_include_usage else None,
            transfers=self.kv_connector,
            block_tokens=self.block_tokens,
        )

    def launch(self) -> Launch:
        """A new engine, and the longest context.

        ``ValueError`` for a model, GPU or format that means nothing, and for a context that the KV cache cannot hold.
        """
        if self.timer is not None and self.kv_tokens is not None:
            return self._launched(self.timer, self.kv_tokens, None)
        placed = place(
            self.model,
            self.shape,
            self.gpu,
            self.hardware,
            ranks=self.data_parallel_size,
            block_tokens=self.block_tokens,
            max_num_seqs=self.max_num_seqs,
            step_tokens=self.step_tokens,
            kv_tokens=self.kv_tokens,
        )
        return self._launched(self.timer or placed.timer, placed.kv_tokens, placed)

    def _launched(self, timer: StepTimer, kv_tokens: int, placed: Placement | None) -> Launch:
        speculation = None
        if self.draft_tokens:
            speculation = Speculation(drafts=self.draft_tokens, acceptance_ratio=self.draft_acceptance_ratio)
        sequences = self.max_num_seqs or (placed.max_num_seqs if placed else _SEQUENCES)
        step_tokens = self.step_tokens or max(sequences, placed.step_tokens if placed else _STEP_TOKENS)
        settings = EngineSettings(
            timer=timer,
            kv_tokens=kv_tokens,
            max_num_seqs=sequences,
            step_tokens=step_tokens,
            block_tokens=self.block_tokens,
            ranks=self.data_parallel_size,
            steps_together=placed is not None and placed.steps_together,
            speculation=speculation,
            noise=Noise(sigma=self.step_noise_sigma),
            seed=self.seed,
        )
        tokens = settings.kv_blocks * settings.block_tokens
        longest = self.max_model_len or (placed.max_model_len if placed else None) or tokens
        if longest > tokens:
            raise ValueError(
                f"max_model_len {longest} is more than the {tokens} tokens of KV cache on {self.gpu}; "
                f"say at most {tokens}, or give it more memory"
            )
        return Launch(Engine(settings), longest)
