"""Models known by name, so that a plan needs no config.json.

A name stands for a shape. It says nothing sure about how the weights are stored: what it seems to say ("-FP8", "-AWQ") is
reported as `KnownModel.width_hint` and applied nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from roofline.models.config import shape_from_config
from roofline.models.known_dense import DENSE
from roofline.models.known_hybrid import HYBRIDS
from roofline.models.known_moe import MIXTURES
from roofline.models.known_row import Row
from roofline.shape import ModelShape

ROWS: Mapping[str, Row] = {**DENSE, **MIXTURES, **HYBRIDS}


class UnknownModel(ValueError):  # noqa: N818 - says what is wrong, as the project's other errors do
    """No model is known by this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """What is known of a model by its name."""

    id: str  # the model whose config.json the shape is from
    shape: ModelShape  # with the widths of that model's own checkpoint, whatever the name says
    width_hint: str | None  # what the name says of its weights if not the same, for `roofline.quantization.named_scheme`
    source: str


_Like = tuple[str, Mapping[str, object]]  # a model's id, and the fields in which another one differs

# Models of the same layers under another name.
_ALSO: Mapping[str, _Like] = {
    "llama-3-8b": ("meta-llama/Llama-3.1-8B", {"max_position_embeddings": 8192}),
    "llama-3-70b": ("meta-llama/Llama-3.1-70B", {"max_position_embeddings": 8192}),
    "llama-3.3-70b": ("meta-llama/Llama-3.1-70B", {}),
    "deepseek-r1-distill-llama-8b": ("meta-llama/Llama-3.1-8B", {}),
    "deepseek-r1-distill-llama-70b": ("meta-llama/Llama-3.1-70B", {}),
    "deepseek-r1-distill-qwen-7b": ("Qwen/Qwen2.5-7B", {}),
    "qwen2-0.5b": ("Qwen/Qwen2.5-0.5B", {}),
    "qwen2-7b": ("Qwen/Qwen2.5-7B", {}),
    "qwen2-72b": ("Qwen/Qwen2.5-72B", {}),
    "qwen2.5-coder-0.5b": ("Qwen/Qwen2.5-0.5B", {}),
    "qwen2.5-coder-7b": ("Qwen/Qwen2.5-7B", {}),
    "qwen3-30b-a3b-instruct-2507": ("Qwen/Qwen3-30B-A3B", {"max_position_embeddings": 262144}),
    "qwen3-30b-a3b-thinking-2507": ("Qwen/Qwen3-30B-A3B", {"max_position_embeddings": 262144}),
    "qwen3-coder-30b-a3b": ("Qwen/Qwen3-30B-A3B", {"max_position_embeddings": 262144}),
    "qwen3-235b-a22b-instruct-2507": ("Qwen/Qwen3-235B-A22B", {"max_position_embeddings": 262144}),
    "qwen3-235b-a22b-thinking-2507": ("Qwen/Qwen3-235B-A22B", {"max_position_embeddings": 262144}),
    "qwen3-next-80b-a3b-thinking": ("Qwen/Qwen3-Next-80B-A3B-Instruct", {}),
    "mistral-7b-instruct-v0.1": ("mistralai/Mistral-7B-v0.1", {}),
    "mistral-7b-instruct-v0.2": ("mistralai/Mistral-7B-Instruct-v0.3", {"vocab_size": 32000}),
    "mistral-7b-v0.3": ("mistralai/Mistral-7B-Instruct-v0.3", {}),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1", {}),
    "mixtral-8x7b-instruct-v0.1": ("mistralai/Mixtral-8x7B-v0.1", {}),
    "mixtral-8x22b": ("mistralai/Mixtral-8x22B-v0.1", {}),
    "mixtral-8x22b-instruct-v0.1": ("mistralai/Mixtral-8x22B-v0.1", {"vocab_size": 32768}),
    "phi-4-reasoning": ("microsoft/phi-4", {"max_position_embeddings": 32768}),
    "phi-4-reasoning-plus": ("microsoft/phi-4", {"max_position_embeddings": 32768}),
    "deepseek-v3-0324": ("deepseek-ai/DeepSeek-V3", {}),
    "deepseek-v3.1": ("deepseek-ai/DeepSeek-V3", {}),
    "deepseek-v3.2": (
        "deepseek-ai/DeepSeek-V3",
        {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048},
    ),
    "deepseek-r1": ("deepseek-ai/DeepSeek-V3", {}),
    "deepseek-r1-0528": ("deepseek-ai/DeepSeek-V3", {}),
    "gpt-oss-safeguard-20b": ("openai/gpt-oss-20b", {}),
    "gpt-oss-safeguard-120b": ("openai/gpt-oss-120b", {}),
    "kimi-k2-instruct-0905": ("moonshotai/Kimi-K2-Instruct", {"max_position_embeddings": 262144}),
    "glm-4.6": ("zai-org/GLM-4.5", {"max_position_embeddings": 202752}),
    "minimax-m2": ("MiniMaxAI/MiniMax-M2.5", {}),
    "minimax-m2.1": ("MiniMaxAI/MiniMax-M2.5", {}),
    "nemotron-3-nano-30b-a3b": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {}),
    "nvidia-nemotron-3-nano-30b-a3b": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {}),
}

_TUNING = re.compile(r"-(?:instruct|chat|base|it|pt|hf)\Z")
_WIDTH = re.compile(
    r"[-_.](?:quantized\.)?(?P<width>bf16|fp16|fp8(?:-dynamic|-kv|-block)?|nvfp4|fp4|mxfp4|awq(?:-int4)?|gptq(?:-int[48])?"
    r"|bnb-4bit|int4|int8|4bit|8bit|w4a16|w8a16|w8a8)\Z"
)
_HINTS: Mapping[str, str] = {
    "fp8-dynamic": "fp8",
    "fp8-kv": "fp8",
    "fp4": "nvfp4",
    "awq-int4": "awq",
    "gptq-int4": "gptq",
    "gptq-int8": "int8-weight-only",
    "bnb-4bit": "nf4",
    "4bit": "int4",
    "8bit": "int8-weight-only",
    "w4a16": "int4",
    "w8a16": "int8-weight-only",
    "w8a8": "int8",
}


_SHORT: Mapping[str, _Like] = {model_id.rpartition("/")[2].lower(): (model_id, {}) for model_id in ROWS}
_NAMES: Mapping[str, _Like] = {
    **{_TUNING.sub("", short): row for short, row in _SHORT.items()},
    **_SHORT,
    **_ALSO,
}


def find_model(name: str) -> KnownModel:
    """The model of this name; case does not matter.

    A name fits if its last part (behind organisation or folder) is that of a known model, or becomes so without endings that
    change no shape: formats (-FP8, -AWQ, -GPTQ-Int4 ...), then -Instruct, -Chat, -Base, -it, -pt, -hf. Other sizes, versions
    and merges do not fit. `UnknownModel` names the nearest and what else would do.
    """
    short = re.split(r"[/\\]|--", name.strip().rstrip("/\\"))[-1].lower()
    if short.startswith("meta-llama-"):
        short = short.removeprefix("meta-")
    hint = None
    while short not in _NAMES:
        if found := _WIDTH.search(short):
            hint = hint or _HINTS.get(found["width"], found["width"])
        elif not (found := _TUNING.search(short)):
            raise _unknown(name)
        short = short[: found.start()]
    model_id, shape = _NAMES[short][0], _shape(short)
    return KnownModel(
        id=model_id,
        shape=shape,
        width_hint=None if hint == shape.scheme.name else hint,
        source=ROWS[model_id].source,
    )


def find_shape(name: str) -> ModelShape:
    """The shape of the model of this name, for names that say nothing of the width of weights; see `find_model`.

    ``ValueError`` for one that does: the widths in the shape are those of the model it was made from.
    """
    model = find_model(name)
    if model.width_hint is not None:
        raise ValueError(
            f"{name} seems to store its weights as {model.width_hint}: "
            f"name {model.id} and say weight_dtype, or give the model's config.json"
        )
    return model.shape


@cache
def _shape(short: str) -> ModelShape:
    model_id, differing = _NAMES[short]
    name = model_id if not differing else short
    return shape_from_config({**ROWS[model_id].config, **differing}, name=name)


def _unknown(name: str) -> UnknownModel:
    short = name.rpartition("/")[2].lower()
    near = [_NAMES[match][0] for match in get_close_matches(short, _NAMES, n=5, cutoff=0.5)]
    nearest = f"; nearest are {', '.join(dict.fromkeys(near))}" if near else ""
    return UnknownModel(
        f"no model is known by the name {name!r}{nearest}. "
        "A path to its config.json will do as well, or the fields of one (shape: ...)"
    )
