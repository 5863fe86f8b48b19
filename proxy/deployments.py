"""What runs on a worker, from what people write: a model by name, file or fields; a GPU by name or figures; formats.

Both the configuration and `ridgeline plan` speak this language. Nothing is fetched: a name that is not known is an error that
says what to give instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roofline.deployment import Deployment, Parallelism
from roofline.gpu import Gpu
from roofline.kv_cache import kv_width
from roofline.models.config import shape_from_config
from roofline.models.known import KnownModel, find_model
from roofline.quantization import named_scheme, scheme_from_config

_MOST_BYTES = 4 * 1024 * 1024  # of a config.json; real ones have some ten kilobytes
_MODELOPT = "hf_quant_config.json"  # beside config.json where that does not hold the widths


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How a worker is described. ``None``: not said."""

    weight_dtype: str | None = None
    kv_dtype: str | None = None
    gpus: int | None = None  # GPUs of one worker
    tensor: int | None = None
    pipeline: int = 1
    data: int = 1
    is_expert_parallel: bool = False

    def parallelism(self) -> Parallelism:
        """How the GPUs share the work: what is not said of ``gpus`` is tensor parallelism.

        ``ValueError`` if the numbers contradict each other.
        """
        stated = (self.tensor or 1) * self.pipeline * self.data
        gpus = self.gpus or stated
        if self.tensor is None and gpus % stated == 0:
            return Parallelism(tensor=gpus // stated, pipeline=self.pipeline, data=self.data, expert=self.is_expert_parallel)
        if gpus != stated:
            raise ValueError(
                f"{gpus} GPUs a worker are not {self.tensor or 1} (tensor) x {self.pipeline} (pipeline) x {self.data} (data)"
            )
        return Parallelism(tensor=self.tensor or 1, pipeline=self.pipeline, data=self.data, expert=self.is_expert_parallel)


def load_model(spec: str | Mapping[str, object], directory: Path) -> KnownModel:
    """The model that is meant: a known name, the path of a config.json or of a folder with one, or its fields.

    Relative paths start at ``directory``. ``ValueError`` says what is wrong and what would be right; ``OSError`` if a file that
    is there cannot be read.
    """
    if isinstance(spec, Mapping):
        shape = shape_from_config(spec, name=str(spec.get("name") or spec.get("_name_or_path") or "inline"))
        return KnownModel(id=shape.name, shape=shape, width_hint=None, source="fields given inline")
    path = directory / spec
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        return _from_file(path)
    if spec.endswith(".json"):
        raise ValueError(f"there is no file {spec}; give the path of the model's config.json, or a known name")
    return find_model(spec)


def deployment_of(model: KnownModel, gpu: Gpu, written: Written) -> Deployment:
    """The worker. ``ValueError`` names the format, GPU or count that does not suit the model."""
    shape = model.shape
    wanted = written.weight_dtype or model.width_hint
    weights = shape.scheme if wanted in (None, "auto") else named_scheme(str(wanted), shape.native)
    kv = kv_width(written.kv_dtype or "auto", shape)
    deployment = Deployment(shape, gpu, weights=weights, kv=kv, parallelism=written.parallelism())
    _ = deployment.rates  # asks for every peak that is needed, so that a GPU without one is found here
    return deployment


def _from_file(path: Path) -> KnownModel:
    fields = _json_object(path)
    name = path.parent.name if path.name == "config.json" else path.stem
    shape = shape_from_config(fields, name=str(fields.get("_name_or_path") or name or path))
    widths = path.with_name(_MODELOPT)
    if widths.is_file() and "quantization_config" not in fields:
        shape = replace(shape, scheme=scheme_from_config(_json_object(widths), shape.native))
    return KnownModel(id=shape.name, shape=shape, width_hint=None, source=str(path))


def _json_object(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES} bytes; a config.json describes a model, it does not hold one")
    try:
        fields = json.loads(raw)
    except ValueError as error:  # broken JSON or no UTF-8
        raise ValueError(f"{path} is no JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply for a config.json") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds no JSON object but a {type(fields).__name__}; a config.json is one")
    return fields
