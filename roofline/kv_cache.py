"""How keys and values are stored, and what a sequence takes of it: per token, up to a window, and once.

Layouts are those of vLLM: ``vllm/config/cache.py`` for the names, ``vllm/v1/kv_cache_interface.py`` for the bytes. Nothing is
rounded up to blocks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from roofline.precision import Precision, Width
from roofline.shape import RECURRENT_STATE_BYTES, Attention, LatentAttention, ModelShape, Recurrence

_SCALE_BYTES = 4  # fp32
_SCALED_TOGETHER = 128  # numbers that share a scale in packed latents and index keys


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWidth:
    """How the cache stores its numbers, and in which format attention multiplies them."""

    name: str  # as --kv-cache-dtype has it
    bytes_each: float
    head_scale_bytes: float = 0.0  # for each token's key and value of each head
    is_packed_latent: bool = False  # latents in fp8 with scales, their rotary part in 16 bit
    multiplied_in: Precision | None = None  # None: the model's own format

    @classmethod
    def native(cls, width: Width) -> KvWidth:
        """The model's own format, which is what engines choose by themselves."""
        return cls(name="auto", bytes_each=width.bytes_each)

    def math(self, native: Precision) -> Precision:
        """The fastest format in which engines multiply numbers stored like this, for a model of that format."""
        return self.multiplied_in or native

    def bytes_per_token(self, mixer: Attention | LatentAttention) -> float:
        """One token in one layer, without index keys. ``ValueError`` if a packed latent is asked for and there is none."""
        if isinstance(mixer, LatentAttention):
            if self.is_packed_latent:
                return mixer.latent_dim + mixer.latent_dim / _SCALED_TOGETHER * _SCALE_BYTES + 2.0 * mixer.rope_head_dim
            return mixer.cached_elements_per_token * self.bytes_each + self.head_scale_bytes
        if self.is_packed_latent:
            raise ValueError(f"KV cache dtype {self.name} is a layout for latents, this model has keys and values per head")
        return mixer.cached_elements_per_token * self.bytes_each + 2 * mixer.kv_heads * self.head_scale_bytes

    def index_bytes_per_token(self, mixer: Attention | LatentAttention) -> float:
        """The index key of one token in one layer of sparse attention, else 0: always fp8 with scales, 132 bytes for 128."""
        if isinstance(mixer, Attention):
            return 0.0
        return mixer.index_head_dim + mixer.index_head_dim / _SCALED_TOGETHER * _SCALE_BYTES


_FP8 = KvWidth(name="fp8", bytes_each=1.0, multiplied_in=Precision.FP8)
_PACKED = KvWidth(name="fp8_ds_mla", bytes_each=1.0, is_packed_latent=True)  # kernels multiply it in 16 bit
_NAMED: Mapping[str, KvWidth] = {
    width.name: width  # the Triton kernels of the per-head formats widen before they multiply
    for width in (
        KvWidth(name="bfloat16", bytes_each=2.0),
        KvWidth(name="float16", bytes_each=2.0),
        _FP8,
        replace(_FP8, name="fp8_e4m3"),
        replace(_FP8, name="fp8_e5m2"),
        replace(_FP8, name="fp8_inc"),
        _PACKED,
        KvWidth(name="fp8_per_token_head", bytes_each=1.0, head_scale_bytes=4.0),
        KvWidth(name="int8_per_token_head", bytes_each=1.0, head_scale_bytes=4.0),
        KvWidth(name="int4_per_token_head", bytes_each=0.5, head_scale_bytes=4.0),
        KvWidth(name="nvfp4", bytes_each=0.5 + 1 / 16, multiplied_in=Precision.FP8),  # an fp8 scale for 16 numbers
        KvWidth(name="nvfp4_4over6", bytes_each=0.5 + 1 / 16, multiplied_in=Precision.FP8),
    )
}
_ALSO = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}


def kv_width(dtype: str, shape: ModelShape) -> KvWidth:
    """What a worker with this ``--kv-cache-dtype`` stores for this model.

    "auto" is what the checkpoint's quantisation config asks for, else the model's own format. Latents of sparse attention are
    packed whenever fp8 is asked for (vLLM 0.11 packs them by "auto" too). ``ValueError`` names what is accepted, and if the
    layout does not suit the model.
    """
    wanted = dtype.strip().lower()
    if wanted == "auto":
        if shape.scheme.kv_dtype is None:
            return KvWidth.native(shape.native)
        wanted = shape.scheme.kv_dtype
    width = _NAMED.get(_ALSO.get(wanted, wanted))
    if width is None:
        raise ValueError(f"KV cache dtype {dtype!r} is not known here; known are auto, {', '.join(_NAMED)}")
    mixers = [group.mixer for group in shape.groups]
    latents = [mixer for mixer in mixers if isinstance(mixer, LatentAttention)]
    if width.is_packed_latent and not latents:
        raise ValueError(f"KV cache dtype {dtype} is a layout for latents (MLA), which {shape.name} does not have")
    if width.name.startswith("fp8") and any(mixer.index_top_tokens is not None for mixer in latents):
        return _PACKED
    return width


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWindow:
    """Layers that keep only so many tokens."""

    tokens: int
    bytes_per_token: float  # all of them together


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBytes:
    """What one sequence takes, all layers together, on all GPUs that share one copy."""

    full_bytes_per_token: float  # layers that keep every token
    index_bytes_per_token: float  # index keys of sparse attention, of every token
    windows: tuple[CacheWindow, ...]
    state_bytes_per_sequence: float  # linear attention and Mamba: the same for any length

    @property
    def sliding_bytes_per_token(self) -> float:
        """Layers that keep only a window, while a sequence is shorter than it."""
        return sum(window.bytes_per_token for window in self.windows)

    def sequence_bytes(self, tokens: int) -> float:
        """A sequence of that many tokens, prompt and completion. A chunked window is taken as full."""
        growing = (self.full_bytes_per_token + self.index_bytes_per_token) * tokens
        kept = sum(window.bytes_per_token * min(tokens, window.tokens) for window in self.windows)
        return growing + kept + self.state_bytes_per_sequence


def kv_bytes_per_token(shape: ModelShape, kv: KvWidth | None = None) -> KvBytes:
    """The cache of one sequence of this model, stored like that (``None``: in the model's own format)."""
    kv = kv or KvWidth.native(shape.native)
    full = index = 0.0
    windows: dict[int, float] = {}
    for group in shape.groups:
        layers, mixer = len(group.layers), group.mixer
        if mixer is None or isinstance(mixer, Recurrence):
            continue
        index += layers * kv.index_bytes_per_token(mixer)
        size = layers * kv.bytes_per_token(mixer)
        if isinstance(mixer, Attention) and mixer.window_tokens is not None:
            windows[mixer.window_tokens] = windows.get(mixer.window_tokens, 0.0) + size
        else:
            full += size
    return KvBytes(
        full_bytes_per_token=full,
        index_bytes_per_token=index,
        windows=tuple(CacheWindow(tokens=tokens, bytes_per_token=size) for tokens, size in sorted(windows.items())),
        state_bytes_per_sequence=state_bytes_per_sequence(shape),
    )


def state_bytes_per_sequence(shape: ModelShape) -> float:
    """Recurrent states (fp32) and the tails of their convolutions (the model's own format), all layers; 0 if there are none."""
    return sum(
        len(group.layers)
        * (group.mixer.state_elements * RECURRENT_STATE_BYTES + group.mixer.convolution_elements * shape.native.bytes_each)
        for group in shape.groups
        if isinstance(group.mixer, Recurrence)
    )


def kv_bytes(shape: ModelShape, tokens: int, kv: KvWidth | None = None) -> float:
    """Cache and state of one sequence of that many tokens. For many lengths keep the `KvBytes` and ask that."""
    return kv_bytes_per_token(shape, kv).sequence_bytes(tokens)
