"""How quantisation configs name the modules of a checkpoint, and what a module is by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache


class Part(StrEnum):
    """What a module is to a quantisation method."""

    BLOCK = "block"  # linear layers of the blocks, shared experts too
    EXPERT = "expert"  # routed experts
    HEAD = "head"
    EMBEDDING = "embedding"
    FIXED = "fixed"  # norms, biases, convolutions, routers: never converted


_HEADS = {"lm_head", "embed_out", "output_layer"}
_ROOT_HEAD = ["output"]  # InternLM
_EMBEDDINGS = {"wte", "wpe", "word_embeddings", "embeddings"}
# vLLM builds the router of a mixture without a quantisation config (GateLinear in vllm/model_executor/models: deepseek_v2,
# mixtral, gpt_oss, llama4, glm4_moe, minimax_m2, qwen2_moe, qwen3_next, nemotron_h), and checkpoints of the few models where
# it does not list theirs as not converted. The gate of a shared expert and the head weights of an indexer are built likewise.
_ROUTERS = {"gate", "router", "shared_expert_gate"}
_FIXED = {"weights_proj", "e_score_correction_bias", "conv1d", "A_log", "D", "dt_bias", "bias", "sinks"}

# vLLM multiplies these in one go, and some configs name the fused matrix instead of its parts.
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj",
}
_FIRST_SHARD = {"gate_up_proj": "gate_proj"}
_ROOTS = ("", "model.", "model.language_model.", "language_model.model.", "language_model.", "thinker.model.", "backbone.")
_EXPERTS = ".experts."
_REPEATED_REPETITION = re.compile(r"[*+}][^()]*\)[*+{]")


@dataclass(frozen=True, slots=True)
class ModuleName:
    """A module in the spellings that configs may use for it."""

    part: Part
    forms: tuple[str, ...]  # below the root of the language model: as it is, fused, all experts as one, one of them
    runs: frozenset[str]  # components that stand in a row in any of the forms
    spellings: tuple[str, ...]  # the forms below each root that checkpoints have

    @classmethod
    @lru_cache(maxsize=8192)  # a deployment asks for each module several times, a plan for those of several deployments
    def of(cls, module: str, *, is_expert: bool = False) -> ModuleName:
        """Reads a checkpoint's name; ``is_expert`` for the routed experts whose name does not say so."""
        form = below_root(module.replace("{expert}", "0"))
        forms = [form]
        parent, dot, last = form.rpartition(".")
        if last in _FUSED:
            forms.append(parent + dot + _FUSED[last])
        layer, found, inside = form.partition(_EXPERTS)
        if found:
            forms.append(layer + _EXPERTS.rstrip("."))
            if not inside[0].isdigit():  # all experts in one tensor; configs name them one by one
                forms.append(layer + _EXPERTS + "0." + _FIRST_SHARD.get(inside, inside))
        runs = frozenset(run for form in forms for run in _runs(form.split(".")))
        spellings = tuple(root + form for form in forms for root in _ROOTS)
        return cls(_part(form.split("."), is_expert=is_expert), tuple(forms), runs, spellings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Modules that a config lists in one of the ways of naming; a list that is empty names none."""

    names: frozenset[str] = frozenset()  # whole names
    runs: frozenset[str] = frozenset()  # components in a row: "self_attn", "model.layers.3.mlp", "lm_head"
    substrings: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()  # fit from the start of any spelling

    def __contains__(self, module: ModuleName) -> bool:
        return (
            not self.names.isdisjoint(module.forms)
            or not self.runs.isdisjoint(module.runs)
            or any(text in form for form in module.forms if _EXPERTS not in form for text in self.substrings)
            or any(pattern.match(spelling) for pattern in self.patterns for spelling in module.spellings)
        )

    @property
    def is_empty(self) -> bool:
        """Whether no module is named."""
        return not (self.names or self.runs or self.substrings or self.patterns)


EVERY = Modules(patterns=(re.compile(""),))


def named_exactly(names: Iterable[str]) -> Modules:
    """Whole names; after "re:" a regular expression that matches from the start."""
    names = tuple(names)
    plain = [name for name in names if not name.startswith("re:")]
    return Modules(
        names=frozenset(map(below_root, plain)),
        patterns=tuple(regular_expression(name.removeprefix("re:")) for name in names if name.startswith("re:")),
    )


def named_by_path(names: Iterable[str]) -> Modules:
    """Names of modules or of anything around them, from any component on; a "*" stands for anything within a component."""
    paths = [below_root(name.removesuffix(".weight").strip(".")) for name in names]
    return Modules(
        runs=frozenset(path for path in paths if "*" not in path),
        patterns=tuple(_row_of_components(path) for path in paths if "*" in path),
    )


def named_by_glob(names: Iterable[str]) -> Modules:
    """As `named_by_path`, but with a "*" a shell pattern of whole names, in which it stands for dots too (modelopt, Quark)."""
    names = tuple(names)
    globs = "|".join(translate(name) for name in names if "*" in name)  # in one: there may be hundreds
    return Modules(
        runs=named_by_path(name for name in names if "*" not in name).runs,
        patterns=(re.compile(globs),) if globs else (),
    )


def named_in_part(names: Iterable[str]) -> Modules:
    """Any part of a name. Of a routed expert only what comes before its number counts, as vLLM reads AWQ's lists.

    So "gate" names the router and not the gate_proj of every expert.
    """
    return Modules(substrings=tuple(map(below_root, names)))


def regular_expression(text: str) -> re.Pattern[str]:
    """Compiled; ``ValueError`` if it is none, or repeats a repetition, which could take for ever on a name."""
    if _REPEATED_REPETITION.search(text):
        raise ValueError(f"the quantisation config names modules by {text!r}, which repeats a repetition: write it without")
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"the quantisation config names modules by {text!r}, no regular expression: {error}") from None


def below_root(name: str) -> str:
    """A name without the part before the layers, which depends on what model the language model is inside of."""
    for root in sorted(_ROOTS, key=len, reverse=True):
        if root and name.startswith(root):
            return name.removeprefix(root)
    return name


def _part(components: list[str], *, is_expert: bool) -> Part:
    last = components[-1]
    if last in _HEADS or components == _ROOT_HEAD:
        return Part.HEAD
    if last in _EMBEDDINGS or "embed" in last:
        return Part.EMBEDDING
    if last in _FIXED or "norm" in last or not _ROUTERS.isdisjoint(components):
        return Part.FIXED
    return Part.EXPERT if is_expert or "experts" in components else Part.BLOCK


def _runs(components: list[str]) -> Iterable[str]:
    ends = range(1, len(components) + 1)
    return (".".join(components[start:end]) for end in ends for start in range(end))


def _row_of_components(path: str) -> re.Pattern[str]:
    row = r"\.".join("[^.]*".join(map(re.escape, component.split("*"))) for component in path.split("."))
    return re.compile(rf"(?:.*\.)?{row}(?:\.|\Z)")
