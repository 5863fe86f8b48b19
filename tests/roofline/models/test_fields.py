"""Fields of a config.json: found under all their names, checked, and named in errors."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.models.fields import ALIASES, ConfigFields, language_model


def fields(**values: Any) -> ConfigFields:
    return ConfigFields(values=values, name="the model")


@pytest.mark.parametrize(("field", "name"), [(field, name) for field, names in ALIASES.items() for name in names])
def test_every_alias_is_read(field: str, name: str) -> None:
    """A field is found under each of its names, and the first that is there counts."""
    first = ALIASES[field][0]

    assert fields(**{name: 7}).amount(field) == 7
    assert fields(**{name: 7, first: 8}).amount(field) == 8


@pytest.mark.parametrize(
    "name",
    [
        *("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers", "num_attention_heads", "n_head"),
        *("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv", "head_dim"),
        *("intermediate_size", "ffn_dim", "n_inter", "ffn_hidden_size", "intermediate_size_mlp"),
        *("num_local_experts", "num_experts", "n_routed_experts"),
        *("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk"),
        *("moe_intermediate_size", "expert_intermediate_size", "n_shared_experts"),
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
        *("num_nextn_predict_layers", "mtp_num_hidden_layers"),
        *("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "expand"),
    ],
)
def test_the_names_that_configs_use_are_aliases(name: str) -> None:
    """The names by which public configs call these fields are known."""
    assert any(name in names for names in ALIASES.values())


def test_null_is_absent() -> None:
    """A field that is null has its default, and is missing where it is needed."""
    nothing = fields(n_inner=None)

    assert (nothing.has("ffn_size"), nothing.count_or("ffn_size", 5), nothing.optional_count("ffn_size")) == (False, 5, None)
    with pytest.raises(ValueError, match="lacks intermediate_size"):
        nothing.count("ffn_size")


def test_all_missing_fields_are_named_at_once() -> None:
    """One error with every missing field and all names it may have; what is there is not in it."""
    with pytest.raises(
        ValueError, match=r"^config of the model lacks num_attention_heads \| n_head \| n_heads; kv_lora_rank: "
    ) as error:
        fields(hidden_size=1).require("hidden_size", "heads", "kv_lora_rank")

    assert "hidden_size" not in str(error.value)


@pytest.mark.parametrize("value", [-1, 0, 1.5, "4096", True, [1, 2], [], {"a": 1}])
def test_a_count_is_a_whole_number_of_at_least_one(value: object) -> None:
    """Anything else is refused with the name that the config has for it, and the value."""
    with pytest.raises(ValueError, match="n_embd in the config of the model is "):
        fields(n_embd=value).count("hidden_size")


def test_a_list_of_equal_numbers_is_that_number() -> None:
    """Some configs repeat a number for every layer."""
    assert fields(moe_topk=[8, 8, 8]).count("top_k") == 8


def test_zero_means_none_where_a_field_may_be_left_out() -> None:
    """No experts and zero experts are the same."""
    assert fields(num_experts=0).optional_count("experts") is None
    assert fields(num_experts=0).amount("experts", 5) == 0


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (lambda these: these.flag("attention_bias", False), {"attention_bias": "no"}),
        (lambda these: these.text("model_type"), {"model_type": 5}),
        (lambda these: these.words("block_types"), {"layer_types": 3}),
        (lambda these: these.words("block_types"), {"layer_types": ["full_attention", 3]}),
        (lambda these: these.numbers("moe_layers"), {"moe_layers": ["first"]}),
        (lambda these: these.section("quantization"), {"quantization_config": "fp8"}),
    ],
)
def test_values_of_another_kind_are_named(read: Any, values: dict[str, object]) -> None:
    """A flag, text, list or section that is something else is refused by name."""
    with pytest.raises(ValueError, match=f"{next(iter(values))} in the config of the model is .* should be"):
        read(fields(**values))


def test_lists_have_an_entry_for_every_layer() -> None:
    """A list that is too short is refused; one that is longer has layers of another purpose at its end."""
    assert fields(layer_types=["a", "b", "c"]).words("block_types", 2) == ("a", "b", "c")
    with pytest.raises(ValueError, match="layer_types in the config of the model has 3 entries for 4 layers"):
        fields(layer_types=["a", "b", "c"]).words("block_types", 4)


def test_numbers_may_be_written_with_commas() -> None:
    """A list of layers may come as text."""
    assert fields(moe_layers_enum="3,4,5").numbers("moe_layers") == (3, 4, 5)


def test_sections_lend_their_fields() -> None:
    """Fields of attn_config and ffn_config count where the config itself has none of that name."""
    these, around = language_model({"d_model": 8, "ffn_config": {"moe_top_k": 4, "d_model": 1}}, "x")

    assert (these.count("top_k"), these.count("hidden_size"), around) == (4, 8, ())


def test_the_innermost_language_model_counts() -> None:
    """Nested twice: the types around it are told, outermost first, and only general fields are inherited."""
    config = {
        "model_type": "outer",
        "hidden_size": 1,
        "torch_dtype": "float16",
        "thinker_config": {"model_type": "middle", "text_config": {"num_hidden_layers": 3, "torch_dtype": None}},
    }
    these, around = language_model(config, "x")

    assert around == ("outer", "middle")
    assert (these.text("dtype"), these.count("layers"), these.has("hidden_size")) == ("float16", 3, False)
