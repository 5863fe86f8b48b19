"""Models known by name: counted as their public implementations count them, and found by the names people write."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.kv_cache import kv_bytes_per_token
from roofline.models.config import shape_from_config
from roofline.models.known import ROWS, UnknownModel, find_model, find_shape
from roofline.quantization import named_scheme
from roofline.shape import ModelShape, WeightKind
from tests.facts import facts_in

FACTS = facts_in("models.yaml")
MODELS: dict[str, dict[str, Any]] = {model["id"]: model for model in FACTS["models"]}
# The figures of active parameters leave out the indexer that the total has; every token passes it (note in the facts).
GLM_5_INDEXER = 731_008_512
GLM_5_INDEXER_NORMS = 78 * 2 * 128
# Biases of chosen experts: part of the active count, read with the matrices, multiplied with nothing.
CHOSEN_EXPERT_BIASES = {"openai/gpt-oss-20b": 24 * 4 * 3 * 2880, "openai/gpt-oss-120b": 36 * 4 * 3 * 2880}


def indexer(model: str) -> int:
    return GLM_5_INDEXER if model == "zai-org/GLM-5" else 0


def multiplied(shape: ModelShape) -> int:
    """Parameters that each token is multiplied with, the head included."""
    embedding = 0 if shape.is_tied else shape.parameters(WeightKind.EMBEDDING)
    return shape.active_parameters - shape.parameters(WeightKind.VECTOR) - embedding


@pytest.mark.parametrize("model", MODELS)
def test_a_config_json_is_counted_exactly(model: str) -> None:
    """All parameters, those one token passes, embedding and head are the numbers that the public implementations have."""
    facts = MODELS[model]
    shape = shape_from_config(facts["config"], name=model)

    assert shape.parameters() == facts["params"]["text_total_exact"]
    assert shape.active_parameters == facts["params"]["active_all"] + indexer(model)
    assert shape.parameters(WeightKind.EMBEDDING) == facts["params"]["embedding"]
    assert shape.parameters(WeightKind.HEAD) == facts["params"]["lm_head_separate"]


@pytest.mark.parametrize("model", MODELS)
def test_matrices_are_told_from_vectors(model: str) -> None:
    """What a token is multiplied with is everything active but norms, biases, convolutions and the embedding."""
    more = CHOSEN_EXPERT_BIASES.get(model, 0) + (indexer(model) and GLM_5_INDEXER - GLM_5_INDEXER_NORMS)
    expected = MODELS[model]["params"]["matmul_params_per_token_incl_lm_head"] + more

    assert multiplied(shape_from_config(MODELS[model]["config"], name=model)) == expected


@pytest.mark.parametrize("model", MODELS)
def test_the_cache_of_a_known_model_is_exact(model: str) -> None:
    """Bytes per token of full layers and of windows, and the state of a sequence, are exact."""
    cache = kv_bytes_per_token(find_shape(model))
    expected = MODELS[model]["kv_cache_bf16"]

    assert cache.full_bytes_per_token == expected["bytes_per_token_full"]
    assert cache.sliding_bytes_per_token == expected["bytes_per_token_sliding"]
    assert cache.state_bytes_per_sequence == expected["fixed_state_bytes_per_sequence"]


@pytest.mark.parametrize("model", [name for name, facts in MODELS.items() if "mtp_estimate" in facts["params"]])
def test_layers_for_multi_token_prediction_are_counted_apart(model: str) -> None:
    """They are in no total; their own count is the published estimate (with the indexer of its layer)."""
    layers = MODELS[model]["config"]["num_hidden_layers"]
    expected = MODELS[model]["params"]["mtp_estimate"] + indexer(model) // layers

    assert find_shape(model).mtp_parameters == expected


@pytest.mark.parametrize("model", MODELS)
def test_layers_are_of_the_kinds_they_should_be(model: str) -> None:
    """So many layers of each kind as the facts say, every number once."""
    shape = find_shape(model)
    numbers = sorted(layer for group in shape.groups for layer in group.layers)

    assert numbers == list(range(MODELS[model]["config"]["num_hidden_layers"]))
    assert sorted(len(group.layers) for group in shape.groups) == sorted(MODELS[model]["layers_by_kind"].values())


@pytest.mark.parametrize(("model", "gib"), [("openai/gpt-oss-20b", 12.8), ("openai/gpt-oss-120b", 60.8)])
def test_a_quantised_checkpoint_has_its_published_size(model: str, gib: float) -> None:
    """Names of modules and the quantisation config together give the size that the model card states."""
    shape = find_shape(model)
    stored = sum(
        len(group.layers)
        * matrix.parameters
        * shape.scheme.width(matrix.module, is_expert=matrix.kind is WeightKind.EXPERT).bytes_each
        for group in shape.groups
        for matrix in group.matrices
    ) + sum(matrix.parameters * shape.scheme.width(matrix.module).bytes_each for matrix in shape.outside)

    assert round(stored / 2**30, 1) == gib


def test_every_model_of_the_facts_is_known() -> None:
    """The table and the facts have the same models with the same fields, and each says where they are from."""
    assert MODELS.keys() == ROWS.keys()
    for model, row in ROWS.items():
        facts = MODELS[model]["config"]
        fields = {("torch_dtype" if name == "dtype" else name): value for name, value in facts.items()}
        different = {name: value for name, value in row.config.items() if name in fields and fields[name] != value}
        absent = {name for name, value in fields.items() if value not in (False, None, [], 0) and name not in row.config}
        assert (model, different, absent) == (model, {}, set())
        assert row.source


@pytest.mark.parametrize("model", ROWS)
def test_a_known_row_has_the_shape_of_its_full_config(model: str) -> None:
    """Leaving out fields that are false or zero changes nothing about any matrix."""
    known, full = find_shape(model), shape_from_config(MODELS[model]["config"], name=model)

    assert (known.groups, known.outside, known.mtp_parameters) == (full.groups, full.outside, full.mtp_parameters)
    assert known.scheme == full.scheme


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.3-70b", "meta-llama/Llama-3.1-70B"),
        ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"),
        ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B"),
        ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B"),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("DeepSeek-R1", "deepseek-ai/DeepSeek-V3"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("google/gemma-3-27b-pt", "google/gemma-3-27b-it"),
        ("/models/Llama-4-Scout-17B-16E-Instruct/", "meta-llama/Llama-4-Scout-17B-16E"),
        ("models--Qwen--Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
        ("Mistral-7B-Instruct-v0.1", "mistralai/Mistral-7B-v0.1"),
    ],
)
def test_names_as_people_write_them(name: str, model: str) -> None:
    """Organisation, folder, case and endings that change no shape do not matter."""
    found = find_model(name)

    assert (found.id, found.width_hint) == (model, None)
    assert found.shape.parameters() == MODELS[model]["params"]["text_total_exact"]


@pytest.mark.parametrize("model", MODELS)
def test_every_id_is_found_by_itself(model: str) -> None:
    """The id and its last part lead to the model itself."""
    assert find_model(model).id == find_model(model.lower()).id == find_model(model.rpartition("/")[2]).id == model


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "max_context_tokens", 8192),
        ("Qwen3-235B-A22B-Thinking-2507", "max_context_tokens", 262144),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "vocabulary_size", 32768),
        ("mistralai/Mistral-7B-Instruct-v0.2", "vocabulary_size", 32000),
    ],
)
def test_models_that_differ_a_little_do(name: str, field: str, value: int) -> None:
    """Where a model of the same layers differs in a field, that field is its own."""
    assert getattr(find_shape(name), field) == value


def test_sparse_attention_of_a_later_version_is_its_own() -> None:
    """DeepSeek-V3.2 is V3 with an indexer in every layer: 1536 x 64 x 128 + 7168 x (128 + 64) + norms."""
    indexers = find_shape("DeepSeek-V3.2").parameters() - find_shape("DeepSeek-V3").parameters()

    assert indexers == 61 * (1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128)


@pytest.mark.parametrize(
    ("name", "model", "hint"),
    [
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "meta-llama/Llama-3.1-8B", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "meta-llama/Llama-3.1-70B", "int4"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "meta-llama/Llama-3.1-8B", "awq"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-72B", "gptq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-7B", "int8-weight-only"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B", "fp8"),
        ("nvidia/DeepSeek-R1-FP4", "deepseek-ai/DeepSeek-V3", "nvfp4"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "fp8"),
        ("unsloth/llama-3.1-8b-instruct-bnb-4bit", "meta-llama/Llama-3.1-8B", "nf4"),
        ("unsloth/DeepSeek-V3-bf16", "deepseek-ai/DeepSeek-V3", "bf16"),
    ],
)
def test_what_a_name_says_of_its_widths_is_passed_on(name: str, model: str, hint: str) -> None:
    """The hint is a scheme's name; the shape keeps the widths of the model it is from, and asking for it alone is refused."""
    found = find_model(name)

    assert (found.id, found.width_hint) == (model, hint)
    assert found.shape.scheme == find_model(model).shape.scheme
    assert named_scheme(hint, found.shape.native)
    with pytest.raises(ValueError, match=f"{hint}.*weight_dtype"):
        find_shape(name)


def test_a_name_that_says_what_is_so_anyway_gives_no_hint() -> None:
    """A bf16 in the name of a model in bf16 is no news."""
    assert find_model("Qwen3-8B-bf16").width_hint is None


@pytest.mark.parametrize("name", ["qwen3-14b", "Llama-3.1-8B-Lorablated", "llama", "gpt-4o", "Mistral-7B-Instruct", "", "/"])
def test_other_sizes_versions_and_merges_are_not_guessed(name: str) -> None:
    """What is not known is refused, and told what would do instead."""
    with pytest.raises(UnknownModel, match=r"config\.json"):
        find_model(name)


def test_an_unknown_name_is_told_its_neighbours() -> None:
    """The error names known models that are spelt alike."""
    with pytest.raises(UnknownModel, match="Qwen/Qwen3-8B"):
        find_shape("qwen3-14b")
