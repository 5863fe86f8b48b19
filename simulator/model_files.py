"""Which model is meant by what people write: a known name, a config.json or its folder, or fields given inline.

The configuration, `ridgeline plan` and the simulated worker all speak this language. Nothing is fetched: a name that is not
known is an error that says what to give instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from roofline.models.config import shape_from_config
from roofline.models.known import KnownModel, find_model
from roofline.quantization import scheme_from_config

_MOST_BYTES = 4 * 1024 * 1024  # of a config.json; real ones have some ten kilobytes
_MODELOPT = "hf_quant_config.json"  # beside config.json where that does not hold the widths


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
