"""What is kept of a known model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUNDLED = "config.json as NVIDIA's aiconfigurator bundles it"
PUBLISHED = "published config.json, confirmed by the exact parameter count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Fields of a config.json (for multimodal models: of its text model) and where they are from."""

    config: Mapping[str, object]
    source: str
