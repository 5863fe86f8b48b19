"""Shapes from a config.json: any family counted exactly, nested and hand-written ones read, others refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.models.config import shape_from_config
from roofline.precision import BF16, FP16, FP32, Width
from roofline.shape import Attention, Experts, LatentAttention, LayerGroup, ModelShape, Recurrence, WeightKind
from tests.roofline.public_configs import CONFIGS, Config, plain

LLAMA = plain("llama", 64, 4, 8, 2, 128, 1000)
MIXTURE = {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def shape_of(config: Config, **more: Any) -> ModelShape:
    return shape_from_config({**config, **more}, name="the model")


def modules(shape: ModelShape, *kinds: WeightKind) -> set[str]:
    inside = [matrix for group in shape.groups for matrix in group.matrices]
    return {matrix.module for matrix in (*inside, *shape.outside) if matrix.kind in kinds}


def group_of(shape: ModelShape, layer: int) -> LayerGroup:
    return next(group for group in shape.groups if layer in group.layers)


@pytest.mark.parametrize("name", CONFIGS)
def test_public_configs_are_counted_exactly(name: str) -> None:
    """Whatever a family calls its fields and wherever it has biases and norms, the count is the checkpoint's."""
    parameters, config = CONFIGS[name]

    assert shape_from_config(config, name=name).parameters() == parameters


def test_an_unknown_type_that_looks_like_llama_is_read_as_one() -> None:
    """A model_type that is not known, or none at all, is what its fields say."""
    known = shape_of(LLAMA)

    assert shape_of(LLAMA, model_type="brand_new").groups == known.groups
    assert shape_from_config({key: value for key, value in LLAMA.items() if key != "model_type"}, name="by hand") == (
        shape_from_config(LLAMA, name="by hand")
    )


def test_nothing_is_inferred_from_the_name() -> None:
    """Names that promise experts, another size or another width change nothing."""
    honest, boasting = shape_from_config(LLAMA, name="x"), shape_from_config(LLAMA, name="DeepSeek-R1-671B-FP8")

    assert (honest.groups, honest.scheme) == (boasting.groups, boasting.scheme)


def test_a_small_llama_by_hand() -> None:
    """Every matrix has rows x columns of its projection; norms and the final norm are vectors."""
    shape = shape_of(LLAMA)
    (group,) = shape.groups

    assert {matrix.module.rpartition(".")[2]: matrix.parameters for matrix in group.matrices} == {
        "q_proj": 64 * 64,
        "k_proj": 64 * 16,
        "v_proj": 64 * 16,
        "o_proj": 64 * 64,
        "gate_proj": 64 * 128,
        "up_proj": 64 * 128,
        "down_proj": 64 * 128,
        "norms_and_biases": 2 * 64,
    }
    assert group.mixer == Attention(heads=8, kv_heads=2, qk_head_dim=8, v_head_dim=8)
    assert group.layers == (0, 1, 2, 3)
    assert [(matrix.kind, matrix.parameters) for matrix in shape.outside] == [
        (WeightKind.EMBEDDING, 64_000),
        (WeightKind.HEAD, 64_000),
        (WeightKind.VECTOR, 64),
    ]


def test_a_tied_head_is_named_and_not_counted() -> None:
    """Tied: the head is still there to be read every step, and adds no parameters."""
    tied, separate = shape_of(LLAMA, tie_word_embeddings=True), shape_of(LLAMA)

    assert modules(tied, WeightKind.HEAD) == {"lm_head"}
    assert separate.parameters() - tied.parameters() == 64_000


@pytest.mark.parametrize(
    ("field", "extra"),
    [
        ("attention_bias", 4 * (64 + 16 + 16 + 64)),
        ("mlp_bias", 4 * (128 + 128 + 64)),
        ("use_qk_norm", 4 * (8 + 8)),
    ],
)
def test_switches_of_the_config_add_their_vectors(field: str, extra: int) -> None:
    """Biases and norms that a field switches on are counted as vectors."""
    plain_shape, switched = shape_of(LLAMA), shape_of(LLAMA, **{field: True})

    assert switched.parameters() - plain_shape.parameters() == extra
    assert switched.parameters(WeightKind.VECTOR) - plain_shape.parameters(WeightKind.VECTOR) == extra


def test_missing_key_value_heads_mean_one_for_every_head() -> None:
    """No field for key-value heads: multi-head attention. The head dimension is the field's before it is the quotient."""
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    (group,) = shape_of(config, head_dim=32).groups

    assert group.mixer == Attention(heads=8, kv_heads=8, qk_head_dim=32, v_head_dim=32)


@pytest.mark.parametrize(
    ("name", "kv_heads"),
    [("tiiuae/falcon-7b", 1), ("tiiuae/falcon-40b", 8), ("bigcode/starcoder", 1), ("THUDM/chatglm2-6b", 2)],
)
def test_families_that_say_it_in_another_way_have_their_key_value_heads(name: str, kv_heads: int) -> None:
    """multi_query, n_head_kv and multi_query_group_num are understood."""
    mixer = shape_from_config(CONFIGS[name][1], name=name).groups[0].mixer

    assert isinstance(mixer, Attention)
    assert mixer.kv_heads == kv_heads


def test_experts_of_a_layer_are_one_matrix_each_way() -> None:
    """Routed experts are counted together, shared ones apart, the router by itself."""
    shape = shape_of(MIXTURE, n_shared_experts=2)
    (group,) = shape.groups
    sizes = {matrix.module.removeprefix("model.layers.{layer}.mlp."): matrix.parameters for matrix in group.matrices}

    assert group.experts == Experts(count=8, chosen=2)
    assert sizes["experts.{expert}.gate_proj"] == sizes["experts.{expert}.down_proj"] == 8 * 64 * 32
    assert sizes["shared_experts.up_proj"] == 64 * 64
    assert sizes["gate"] == 64 * 8
    assert shape.parameters() - shape.active_parameters == 4 * 6 * 3 * 64 * 32


def test_routed_experts_may_work_on_a_shorter_vector() -> None:
    """moe_latent_size: two projections that every token passes, and experts as narrow as the latent (Nemotron 3 Super)."""
    wide, narrow = shape_of(MIXTURE), shape_of(MIXTURE, moe_latent_size=16)

    assert narrow.parameters(WeightKind.EXPERT) * 4 == wide.parameters(WeightKind.EXPERT)
    assert narrow.parameters(WeightKind.SHARED_EXPERT) == 4 * 2 * 64 * 16


def test_a_dense_part_can_stand_beside_the_experts() -> None:
    """Gemma 4: every layer has both; 25.2 billion parameters of which a token passes 3.8 (model card of 26B-A4B)."""
    config = plain(
        *("gemma4_text", 2816, 30, 16, 8, 2112, 262144),
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
        sliding_window=1024,
    )
    shape = shape_of(config)

    assert shape.parameters() == pytest.approx(25.2e9, rel=0.002)
    assert shape.active_parameters == pytest.approx(3.8e9, rel=0.01)
    assert group_of(shape, 0).matrices[-1].parameters == (4 + 3 + 1) * 2816 + 128 + 2 * 256, "norms, router, qk norms"
    values = [layer for group in shape.groups for layer in group.layers if any("v_proj" in m.module for m in group.matrices)]
    assert sorted(values) == [layer for layer in range(30) if (layer + 1) % 6], "full layers use their keys as values"


def test_a_latent_without_a_query_latent() -> None:
    """q_lora_rank null: one query projection instead of two (DeepSeek-V2-Lite)."""
    shape = shape_from_config(CONFIGS["deepseek-ai/DeepSeek-V2-Lite"][1], name="x")
    names = {module.rpartition(".")[2] for module in modules(shape, WeightKind.ATTENTION)}

    assert names == {"q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
    assert group_of(shape, 0).mixer == LatentAttention(
        heads=16, latent_dim=512, rope_head_dim=64, nope_head_dim=128, v_head_dim=128
    )


def test_a_latent_may_have_biases() -> None:
    """attention_bias: of what goes into both latents and of the output."""
    config = {**CONFIGS["deepseek-ai/DeepSeek-V2"][1], "attention_bias": True}
    without = CONFIGS["deepseek-ai/DeepSeek-V2"][0]

    assert shape_from_config(config, name="x").parameters() - without == 60 * (1536 + 512 + 64 + 5120)


def test_dense_layers_between_mixtures_have_a_size_of_their_own() -> None:
    """Llama 4 Maverick: intermediate_size is one expert's, intermediate_size_mlp is that of the layers without experts."""
    config = {**LLAMA, "model_type": "llama4_text", "intermediate_size_mlp": 256, "num_local_experts": 4}
    shape = shape_of(config, num_experts_per_tok=1, interleave_moe_layer_step=2)

    assert group_of(shape, 0).experts is None
    assert shape.parameters(WeightKind.FFN) == 2 * 3 * 64 * 256
    assert shape.parameters(WeightKind.EXPERT) == 4 * shape.parameters(WeightKind.SHARED_EXPERT) == 2 * 4 * 3 * 64 * 128


def test_a_mixture_without_experts_keeps_its_shared_part() -> None:
    """Granite 4.0 Micro: no experts, shared_intermediate_size is the feed-forward part."""
    shape = shape_of(LLAMA, model_type="granitemoehybrid", num_local_experts=0, shared_intermediate_size=96)

    assert shape.parameters(WeightKind.FFN) == 4 * 3 * 64 * 96


def test_layers_of_sparse_attention_may_share_an_indexer() -> None:
    """A layer marked as shared has no indexer of its own and still attends to the chosen tokens only."""
    config = {
        **LLAMA,
        "kv_lora_rank": 32,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 100,
        "indexer_types": ["full", "shared", "shared", "full"],
    }
    shape = shape_of(config)
    own, shared = group_of(shape, 0).mixer, group_of(shape, 1).mixer

    assert isinstance(own, LatentAttention)
    assert isinstance(shared, LatentAttention)
    assert (own.index_heads, own.index_top_tokens, shared.index_heads, shared.index_top_tokens) == (2, 100, 0, 100)
    assert shape.parameters(WeightKind.INDEXER) == 2 * (16 * 2 * 16 + 64 * 16 + 64 * 2)


def test_recurrent_layers_have_a_state_and_the_least_work() -> None:
    """Gated delta net: three multiply-adds a number of the state and token; Mamba: two; the convolution keeps kernel - 1."""
    delta = shape_of(
        {**LLAMA, "model_type": "qwen3_next"},
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
    )
    mamba = shape_from_config(CONFIGS["mistralai/Mamba-Codestral-7B-v0.1"][1], name="x")

    assert group_of(delta, 0).mixer == Recurrence(
        state_elements=4 * 8 * 16, convolution_elements=(2 * 2 * 8 + 4 * 16) * 3, flop_per_token=6.0 * 4 * 8 * 16
    )
    assert isinstance(group_of(delta, 3).mixer, Attention)
    assert group_of(mamba, 0).mixer == Recurrence(
        state_elements=8192 * 128, convolution_elements=(8192 + 2 * 8 * 128) * 3, flop_per_token=4.0 * 8192 * 128
    )


def test_multi_token_prediction_is_left_out_of_the_total() -> None:
    """One more layer, a projection from two vectors to one and three norms, counted apart."""
    without, with_it = shape_of(LLAMA), shape_of(LLAMA, num_nextn_predict_layers=1)
    layer = sum(matrix.parameters for matrix in without.groups[0].matrices)

    assert with_it.parameters() == without.parameters()
    assert (without.mtp_parameters, with_it.mtp_parameters) == (0, layer + 2 * 64 * 64 + 3 * 64)


@pytest.mark.parametrize(
    ("fields", "native"),
    [
        ({"torch_dtype": "float16"}, FP16),
        ({"dtype": "bfloat16"}, BF16),
        ({"torch_dtype": "torch.float32"}, FP32),
        ({"torch_dtype": "auto"}, BF16),
        ({"torch_dtype": None}, BF16),
        ({}, BF16),
    ],
)
def test_the_native_format_is_the_configs(fields: Config, native: Width) -> None:
    """torch_dtype, or dtype, or bf16 if neither says."""
    assert shape_of(LLAMA, **fields).native == native


def test_a_language_model_inside_a_multimodal_one() -> None:
    """Fields come from text_config, the widths from wherever quantization_config is, and modules have the outer prefix."""
    quantization = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    config = {
        "model_type": "mistral3",
        "text_config": LLAMA,
        "vision_config": {"hidden_size": 1},
        "quantization_config": quantization,
        "torch_dtype": "float16",
    }
    shape = shape_from_config(config, name="x")
    alone = shape_of(LLAMA, quantization_config=quantization, torch_dtype="float16")

    assert (shape.parameters(), shape.scheme, shape.native) == (alone.parameters(), alone.scheme, alone.native)
    assert modules(shape, WeightKind.HEAD, WeightKind.EMBEDDING) == {
        "language_model.lm_head",
        "language_model.model.embed_tokens",
    }


@pytest.mark.parametrize(
    ("outer", "embedding"),
    [
        ({"model_type": "llama4", "text_config": LLAMA}, "language_model.model.embed_tokens"),
        ({"model_type": "internvl_chat", "llm_config": LLAMA}, "language_model.model.embed_tokens"),
        ({"model_type": "deepseek_vl_v2", "language_config": LLAMA}, "language_model.model.embed_tokens"),
        ({"model_type": "qwen3_vl", "text_config": LLAMA}, "model.language_model.embed_tokens"),
        ({"model_type": "qwen2_5_vl", "text_config": LLAMA}, "model.embed_tokens"),
        (
            {"model_type": "qwen2_5_omni", "thinker_config": {"model_type": "qwen2_5_omni_thinker", "text_config": LLAMA}},
            "thinker.model.embed_tokens",
        ),
    ],
)
def test_modules_of_nested_models_have_the_names_of_their_checkpoints(outer: Config, embedding: str) -> None:
    """Every way of nesting is found, and each has its own prefix."""
    shape = shape_from_config(outer, name="x")

    assert modules(shape, WeightKind.EMBEDDING) == {embedding}
    assert shape.hidden_size == 64


def test_what_a_nested_config_leaves_to_its_code_is_filled_in() -> None:
    """Gemma 3 4B publishes neither heads nor vocabulary: 4,300,079,472 parameters less 419,816,304 of vision all the same."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    shape = shape_from_config({"model_type": "gemma3", "text_config": text}, name="x")

    assert shape.parameters() == 4_300_079_472 - 419_816_304
    with pytest.raises(ValueError, match="vocab_size"):
        shape_from_config(text, name="x")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("microsoft/Phi-3-mini-4k", "model.layers.{layer}.self_attn.qkv_proj"),
        ("tiiuae/falcon-7b", "transformer.h.{layer}.self_attention.query_key_value"),
        ("gpt2", "transformer.h.{layer}.mlp.c_fc"),
        ("facebook/opt-125m", "model.decoder.layers.{layer}.fc1"),
        ("EleutherAI/pythia-6.9b", "gpt_neox.layers.{layer}.attention.query_key_value"),
        ("THUDM/glm-4-9b", "transformer.encoder.layers.{layer}.mlp.dense_h_to_4h"),
        ("microsoft/Phi-3.5-MoE-instruct", "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1"),
        ("Qwen/Qwen1.5-MoE-A2.7B", "model.layers.{layer}.mlp.shared_expert.gate_proj"),
        ("Qwen/Qwen1.5-MoE-A2.7B", "model.layers.{layer}.mlp.shared_expert_gate"),
        ("deepseek-ai/DeepSeek-V2", "model.layers.{layer}.mlp.experts.{expert}.gate_proj"),
        ("deepseek-ai/DeepSeek-V2", "model.layers.{layer}.self_attn.kv_a_proj_with_mqa"),
        ("mistralai/Mamba-Codestral-7B-v0.1", "backbone.layers.{layer}.mixer.in_proj"),
        ("ai21labs/Jamba-v0.1", "model.layers.{layer}.mamba.in_proj"),
        ("ai21labs/Jamba-v0.1", "model.layers.{layer}.feed_forward.router"),
    ],
)
def test_matrices_have_the_names_of_their_checkpoints(name: str, expected: str) -> None:
    """Lists of modules that are not quantised name them so."""
    assert expected in modules(shape_from_config(CONFIGS[name][1], name=name), *WeightKind)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"hidden_size \| n_embd.*; vocab_size \| padded_vocab_size; num_hidden_layers \| n_layer"),
        ({**LLAMA, "intermediate_size": None}, r"lacks intermediate_size \| ffn_dim"),
        ({**LLAMA, "num_attention_heads": None, "intermediate_size": None}, r"lacks num_attention_heads .*; intermediate_size"),
        ({**MIXTURE, "num_experts_per_tok": None}, r"lacks num_experts_per_tok \|"),
        ({**MIXTURE, "num_experts_per_tok": 9}, "9 experts per token"),
        ({**LLAMA, "num_key_value_heads": 3}, "8 attention heads cannot share 3"),
        ({**LLAMA, "num_attention_heads": 7, "num_key_value_heads": 7}, "head_dim"),
        ({**LLAMA, "hidden_size": -4096}, "hidden_size in the config of the model is -4096"),
        ({**LLAMA, "torch_dtype": "int8"}, "torch_dtype.*'int8'.*bfloat16"),
        ({**LLAMA, "kv_lora_rank": 512}, "qk_nope_head_dim; qk_rope_head_dim; v_head_dim"),
        ({**LLAMA, "quantization_config": {"quant_method": "astrology"}}, "astrology"),
        ({**LLAMA, "quantization_config": "fp8"}, "quantization_config.*an object"),
        ({**LLAMA, "num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ({**LLAMA, "block_configs": [{}]}, "block_configs gives every layer another shape"),
        ({**LLAMA, "cross_attention_layers": [3]}, "cross_attention_layers"),
        ({**LLAMA, "hybrid_layer_pattern": [1, 0]}, "hybrid_layer_pattern"),
        ({**LLAMA, "model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim"),
        ({**LLAMA, "model_type": "gpt2"}, "n_positions"),
        ({**LLAMA, "model_type": "gemma3n_text"}, "gemma3n_text"),
        ({**LLAMA, "model_type": "bert"}, "encoder"),
        ({"model_type": "t5", "d_model": 768, "num_layers": 12, "is_encoder_decoder": True, "vocab_size": 32128}, "encoder"),
        ({"general.architecture": "llama", "llama.block_count": 32}, "GGUF"),
    ],
)
def test_configs_that_cannot_be_counted_say_why(config: Config, message: str) -> None:
    """Each error names the field, the names it may have and what would be right."""
    with pytest.raises(ValueError, match=message):
        shape_from_config(config, name="the model")


def test_something_else_than_an_object_is_refused() -> None:
    """A list that was parsed from some other JSON file is no config."""
    with pytest.raises(ValueError, match=r"list.*config\.json"):
        shape_from_config([], name="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_hidden_layers": 100_000}, "more than 2000 layers"),
        ({"model_type": "electra"}, "an encoder has another shape"),
        ({"model_type": "brand_new", "architectures": ["BrandNewForMaskedLM"]}, "are not of a language model"),
    ],
)
def test_what_is_no_language_model_is_refused(changed: dict[str, object], message: str) -> None:
    """Encoders, sizes beyond reason, and unknown types that say themselves that they generate nothing."""
    fields = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    with pytest.raises(ValueError, match=message):
        shape_from_config({**fields, **changed}, name="test")
    assert (
        shape_from_config({**fields, "model_type": "brand_new", "architectures": ["NewForCausalLM"]}, name="test").layers == 2
    )
