"""Small shapes and GPUs with round figures, so that tests can be checked by hand."""

from __future__ import annotations

from roofline.gpu import Gpu
from roofline.precision import BF16, Precision, Width
from roofline.quantization import WeightScheme
from roofline.shape import Attention, Experts, LayerGroup, Matrix, Mixer, ModelShape, WeightKind

GROUPED = Attention(heads=4, kv_heads=2, qk_head_dim=10, v_head_dim=10)


def a_gpu(
    *,
    flop_per_second: float = 100e12,
    bytes_per_second: float = 1e12,
    memory_bytes: float = 80e9,
    link_bytes_per_second: float | None = 100e9,
    peaks: dict[Precision, float] | None = None,
) -> Gpu:
    return Gpu(
        id="test-card",
        names=("Test Card",),
        dense_flop_per_second=peaks or {Precision.BF16: flop_per_second, Precision.FP8: 2 * flop_per_second},
        memory_bytes_per_second=bytes_per_second,
        memory_bytes=memory_bytes,
        link_bytes_per_second=link_bytes_per_second,
    )


def a_shape(
    *,
    layers: int = 2,
    hidden: int = 100,
    attention: int = 4_000,
    ffn: int = 6_000,
    head: int = 1_000,
    mixer: Mixer | None = GROUPED,
    experts: Experts | None = None,
    expert: int = 0,
    more: tuple[LayerGroup, ...] = (),
    native: Width = BF16,
    scheme: WeightScheme | None = None,
    is_tied: bool = False,
) -> ModelShape:
    """Layers of ``attention`` + ``ffn`` (+ ``expert``, all experts together) parameters, and a head of ``head``."""
    matrices = [
        Matrix(module="layers.{layer}.attn", kind=WeightKind.ATTENTION, parameters=attention),
        Matrix(module="layers.{layer}.mlp", kind=WeightKind.FFN, parameters=ffn),
    ]
    if experts is not None:
        matrices.append(Matrix(module="layers.{layer}.experts", kind=WeightKind.EXPERT, parameters=expert))
    return ModelShape(
        name="test-shape",
        hidden_size=hidden,
        vocabulary_size=head // hidden,
        max_context_tokens=None,
        is_tied=is_tied,
        native=native,
        scheme=scheme or WeightScheme(native=native),
        groups=(
            LayerGroup(
                layers=tuple(range(layers)), mixer=mixer, experts=experts, matrices=tuple(m for m in matrices if m.parameters)
            ),
            *more,
        ),
        outside=(
            Matrix(module="embed", kind=WeightKind.EMBEDDING, parameters=head),
            Matrix(module="lm_head", kind=WeightKind.HEAD, parameters=head),
        ),
    )
