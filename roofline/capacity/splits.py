"""Over how many GPUs a model can be split, and which layers pipeline stages hold: vLLM's rules (0.33 was read)."""

from __future__ import annotations

from roofline.shape import Attention, LatentAttention, ModelShape, WeightKind


def splits_evenly(shape: ModelShape, tensor: int) -> bool:
    """Whether matrices can be split over so many GPUs.

    Heads must divide; key-value heads must divide too, or be held by equally many GPUs each; and so must feed-forward sizes.
    """
    for group in shape.groups:
        mixer = group.mixer
        if isinstance(mixer, Attention | LatentAttention) and mixer.heads % tensor:
            return False
        if isinstance(mixer, Attention) and mixer.kv_heads % tensor and tensor % mixer.kv_heads:
            return False
        if any(matrix.kind is WeightKind.FFN and matrix.parameters // shape.hidden_size % tensor for matrix in group.matrices):
            return False
    return True


def tensor_sizes(shape: ModelShape, most: int = 64) -> tuple[int, ...]:
    """Numbers of GPUs that a model's matrices can be split over, smallest first."""
    return tuple(size for size in range(1, most + 1) if splits_evenly(shape, size))


def stage_layers(layers: int, stages: int) -> tuple[range, ...]:
    """Which layers each pipeline stage holds: evenly, and what is left over goes to the stages before the last.

    That is vLLM's rule (`get_pp_indices`); the environment variable VLLM_PP_LAYER_PARTITION overrides it.
    """
    if stages > layers:
        raise ValueError(f"{stages} pipeline stages need at least as many layers, and there are {layers}")
    counts = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        counts[-back] += 1
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))
