"""One half of a layer as it is put together: its matrices by name, everything small, and what it does to tokens."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.models.fields import ConfigFields
from roofline.shape import Experts, Matrix, Mixer, WeightKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One half of a layer: what mixes tokens, or the feed-forward part."""

    matrices: tuple[Matrix, ...] = ()
    vector_parameters: int = 0  # norms inside it, biases, small convolutions
    mixer: Mixer | None = None
    experts: Experts | None = None


def module(*parts: str) -> str:
    """A module's name from its parts; empty ones are left out."""
    return ".".join(part for part in parts if part)


def matrices(path: str, names: tuple[str, ...], kind: WeightKind, sizes: tuple[int, ...]) -> tuple[Matrix, ...]:
    """Matrices of these sizes; if there is only one name they are stored as one."""
    if len(names) == 1:
        return (Matrix(module=module(path, names[0]), kind=kind, parameters=sum(sizes)),)
    return tuple(Matrix(module=module(path, name), kind=kind, parameters=size) for name, size in zip(names, sizes, strict=True))


def has_bias(fields: ConfigFields, rule: bool | str) -> bool:
    """What a bias rule of `Family` comes to for this config."""
    return rule if isinstance(rule, bool) else fields.flag(rule, False)
