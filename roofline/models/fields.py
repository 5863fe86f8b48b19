"""Reads a config.json: each field under any name it is known by, checked, with errors that say what would be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

# What each field is called, the usual name first. A field that is not listed has only its own name.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads", "n_kv_heads"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "ffn_size": ("intermediate_size", "ffn_dim", "n_inter", "n_inner", "ffn_hidden_size", "hidden_dim"),
    "dense_ffn_size": ("intermediate_size_mlp",),  # Llama 4: where intermediate_size is one expert's
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "context": (
        "max_position_embeddings",
        "n_positions",
        "seq_length",
        "max_seq_len",
        "max_sequence_length",
        "n_ctx",
        "model_max_length",
    ),
    "dtype": ("torch_dtype", "dtype"),
    "quantization": ("quantization_config", "compression_config"),
    "activation": ("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function"),
    "qk_norm": ("use_qk_norm", "qk_layernorm", "qk_norm"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "top_k_experts",
        "moe_topk",
        "moe_top_k",
        "moe_k",
    ),
    "expert_ffn_size": ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size"),
    "shared_ffn_size": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "moe_layers": ("moe_layers", "moe_layers_enum"),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "block_types": ("layers_block_type", "layer_types"),
    "window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "mamba_heads": ("mamba_num_heads", "mamba_n_heads", "num_heads"),
    "mamba_head_dim": ("mamba_head_dim", "mamba_d_head", "head_dim"),
    "mamba_state": ("ssm_state_size", "mamba_d_state", "state_size"),
    "mamba_groups": ("n_groups", "mamba_n_groups"),
    "mamba_kernel": ("conv_kernel", "mamba_d_conv", "conv_kernel_size"),
    "mamba_conv_bias": ("use_conv_bias", "mamba_conv_bias"),
    "mamba_bias": ("mamba_proj_bias", "use_bias"),
    "mamba_expand": ("expand", "mamba_expand"),
}

# Where multimodal configs keep the language model, and what they may leave at the top; where DBRX and MPT keep some fields.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_SHARED_WITH_TOP = (
    "quantization_config",
    "compression_config",
    "torch_dtype",
    "dtype",
    "tie_word_embeddings",
    "vocab_size",
    "max_position_embeddings",
)


_SECTIONS = ("attn_config", "ffn_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFields:
    """The fields of one config.json. Fields are asked for by the keys of `ALIASES`, or by their own name.

    A field that is absent and one that is null are the same. A list of equal numbers, one a layer, is read as that number.
    Every method raises ``ValueError`` that names model, field and value if a value is not of the kind asked for.
    """

    values: Mapping[str, object]
    name: str  # of the model, for messages only: nothing is inferred from it

    def has(self, field: str) -> bool:
        """Whether the field is there under any of its names."""
        return self._find(field) is not None

    def require(self, *fields: str) -> None:
        """Raise one ``ValueError`` that names all of these that are missing, with every name they could have."""
        missing = [field for field in fields if not self.has(field)]
        if missing:
            wanted = "; ".join(" | ".join(ALIASES.get(field, (field,))) for field in missing)
            raise ValueError(f"config of {self.name} lacks {wanted}: its parameters cannot be counted")

    def count(self, field: str) -> int:
        """A number of at least 1 that must be there."""
        self.require(field)
        number = self.amount(field)
        if number < 1:
            raise self._refusal(field, "a whole number of at least 1")
        return number

    def count_or(self, field: str, default: int) -> int:
        """A number of at least 1, or the default if the field is absent."""
        return self.count(field) if self.has(field) else default

    def optional_count(self, field: str) -> int | None:
        """A number of at least 1, or ``None`` if the field is absent or 0."""
        return self.amount(field) or None

    def amount(self, field: str, default: int = 0) -> int:
        """A number of at least 0, or the default if the field is absent."""
        found = self._find(field)
        if found is None:
            return default
        value = found[1]
        if isinstance(value, list | tuple) and value and len({repr(item) for item in value}) == 1:
            value = value[0]
        if not _is_whole(value) or value < 0:
            raise self._refusal(field, "a whole number, the same for all layers")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """True or false, or the default if the field is absent."""
        found = self._find(field)
        if found is None:
            return default
        if not isinstance(found[1], bool):
            raise self._refusal(field, "true or false")
        return found[1]

    def text(self, field: str) -> str | None:
        """A string, or ``None`` if the field is absent."""
        found = self._find(field)
        if found is None:
            return None
        if not isinstance(found[1], str):
            raise self._refusal(field, "a string")
        return found[1]

    def words(self, field: str, layers: int = 0) -> tuple[str, ...] | None:
        """A list of strings, at least one per layer, or ``None`` if the field is absent."""
        items = self._list(field, layers)
        if items is None:
            return None
        words = tuple(item for item in items if isinstance(item, str))
        if len(words) != len(items):
            raise self._refusal(field, "a list of strings")
        return words

    def numbers(self, field: str, layers: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers (or a string of them with commas), at least one per layer, or ``None`` if it is absent."""
        items = self._list(field, layers)
        if items is None:
            return None
        numbers = tuple(int(item) for item in items if isinstance(item, int) or (isinstance(item, str) and item.isdecimal()))
        if len(numbers) != len(items):
            raise self._refusal(field, "a list of whole numbers")
        return numbers

    def section(self, field: str) -> Mapping[str, object] | None:
        """An object inside the config, or ``None`` if the field is absent."""
        found = self._find(field)
        if found is None:
            return None
        if not isinstance(found[1], Mapping):
            raise self._refusal(field, "an object")
        return found[1]

    def refuse(self, reason: str) -> ValueError:
        """The error for a config that is well formed but describes something that cannot be counted."""
        return ValueError(f"config of {self.name} cannot be counted: {reason}")

    def _find(self, field: str) -> tuple[str, object] | None:
        for name in ALIASES.get(field, (field,)):
            value = self.values.get(name)
            if value is not None:
                return name, value
        return None

    def _list(self, field: str, layers: int) -> Sequence[object] | None:
        found = self._find(field)
        if found is None:
            return None
        value = found[1].split(",") if isinstance(found[1], str) else found[1]
        if not isinstance(value, list | tuple):
            raise self._refusal(field, "a list")
        if len(value) < layers:
            raise ValueError(f"{found[0]} in the config of {self.name} has {len(value)} entries for {layers} layers")
        return value

    def _refusal(self, field: str, wanted: str) -> ValueError:
        name, value = self._find(field) or (field, None)
        shown = repr(value)
        return ValueError(f"{name} in the config of {self.name} is {shown[:80]}, it should be {wanted}")


def language_model(config: Mapping[str, object], name: str) -> tuple[ConfigFields, tuple[str, ...]]:
    """Fields of the language model, and the types of the models around it, outermost first (none if it stands alone).

    ``ValueError`` if this is no config.json at all.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"the config of {name} is {type(config).__name__}, it should be an object as in a config.json")
    if any(str(key).startswith("general.") for key in config):
        raise ValueError(f"the config of {name} is GGUF metadata; give the config.json of the model it was made from")
    around: list[str] = []
    values: Mapping[str, object] = config
    while inner := next((section for key in _NESTED if isinstance(section := values.get(key), Mapping)), None):
        around.append(str(values.get("model_type", "")))
        shared = {key: values[key] for key in _SHARED_WITH_TOP if values.get(key) is not None}
        values = {**shared, **{key: value for key, value in inner.items() if value is not None}}
    for key in _SECTIONS:
        if isinstance(section := values.get(key), Mapping):
            values = {**section, **values}
    return ConfigFields(values=values, name=name), tuple(around)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
