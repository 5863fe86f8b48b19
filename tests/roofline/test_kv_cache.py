"""What the cache of a sequence takes: the layouts of vLLM by hand, windows that stop growing, states that never grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.kv_cache import KvWidth, kv_bytes, kv_bytes_per_token, kv_width, state_bytes_per_sequence
from roofline.models.config import shape_from_config
from roofline.models.known import ROWS, find_shape
from roofline.precision import FP32, Precision
from roofline.shape import Attention, LatentAttention
from tests.roofline.public_configs import plain

LLAMA = find_shape("meta-llama/Llama-3.1-8B")
DEEPSEEK = find_shape("deepseek-ai/DeepSeek-V3")
GLM_5 = find_shape("zai-org/GLM-5")
GPT_OSS = find_shape("openai/gpt-oss-120b")
NEMOTRON = find_shape("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
HEADS = Attention(heads=32, kv_heads=8, qk_head_dim=128, v_head_dim=128)
LATENT = LatentAttention(heads=64, latent_dim=512, rope_head_dim=64, nope_head_dim=128, v_head_dim=128)


@pytest.mark.parametrize(
    ("dtype", "bytes_per_token"),
    [
        ("auto", 2 * 8 * 128 * 2),
        ("bfloat16", 2 * 8 * 128 * 2),
        ("BF16", 2 * 8 * 128 * 2),
        ("float16", 2 * 8 * 128 * 2),
        ("fp8", 2 * 8 * 128),
        ("fp8_e4m3", 2 * 8 * 128),
        ("fp8_e5m2", 2 * 8 * 128),
        ("fp8_inc", 2 * 8 * 128),
        ("nvfp4", 2 * 8 * (128 // 2 + 128 // 16)),
        ("nvfp4_4over6", 2 * 8 * (128 // 2 + 128 // 16)),
        ("fp8_per_token_head", 2 * 8 * (128 + 4)),
        ("int8_per_token_head", 2 * 8 * (128 + 4)),
        ("int4_per_token_head", 2 * 8 * (128 // 2 + 4)),
    ],
)
def test_bytes_of_keys_and_values(dtype: str, bytes_per_token: int) -> None:
    """Each name of --kv-cache-dtype has the bytes of its layout, scales included."""
    assert kv_width(dtype, LLAMA).bytes_per_token(HEADS) == bytes_per_token


@pytest.mark.parametrize(("dtype", "bytes_per_token"), [("auto", 1152), ("fp8", 576), ("fp8_ds_mla", 656), ("nvfp4", 324)])
def test_bytes_of_a_latent(dtype: str, bytes_per_token: int) -> None:
    """One latent and one rotary key for all heads; packed: 512 fp8, four scales, 64 in 16 bit."""
    assert kv_width(dtype, DEEPSEEK).bytes_per_token(LATENT) == bytes_per_token


def test_sparse_attention_packs_its_latents_whenever_they_are_fp8() -> None:
    """GLM-5 and DeepSeek-V3.2: any fp8 is the packed layout; dense latents stay as asked for."""
    assert kv_bytes_per_token(GLM_5, kv_width("fp8", GLM_5)).full_bytes_per_token == 78 * 656
    assert kv_bytes_per_token(DEEPSEEK, kv_width("fp8", DEEPSEEK)).full_bytes_per_token == 61 * 576


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_index_keys_are_counted_apart_and_always_fp8(dtype: str) -> None:
    """128 bytes and a scale for every token and layer that has an indexer, whatever the cache is stored as."""
    assert kv_bytes_per_token(GLM_5, kv_width(dtype, GLM_5)).index_bytes_per_token == 78 * 132
    assert kv_bytes_per_token(DEEPSEEK, kv_width(dtype, DEEPSEEK)).index_bytes_per_token == 0


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("fp16_turbo", "'fp16_turbo' is not known here; known are auto, bfloat16"),
        ("turboquant_k8v4", "known are"),
        ("fp8_ds_mla", "latents"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(dtype: str, message: str) -> None:
    """Names that are not known, and a layout for latents where there are none."""
    with pytest.raises(ValueError, match=message):
        kv_width(dtype, LLAMA)


def test_a_packed_latent_cannot_hold_heads() -> None:
    """A width made for another model is refused where it is used."""
    with pytest.raises(ValueError, match="per head"):
        kv_width("fp8_ds_mla", DEEPSEEK).bytes_per_token(HEADS)


def test_a_checkpoint_may_ask_for_its_cache() -> None:
    """auto is what the quantisation config says of the cache, if it says something; the operator's word wins."""
    config = plain("llama", 64, 4, 8, 2, 128, 1000)
    asking = shape_from_config(
        {**config, "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
        name="x",
    )

    assert kv_width("auto", asking).bytes_each == 1.0
    assert kv_width("bfloat16", asking).bytes_each == 2.0


def test_the_cache_is_multiplied_in_the_format_that_kernels_use() -> None:
    """fp8 keys are multiplied as such; formats that kernels widen first, in the model's own."""
    maths = {dtype: kv_width(dtype, LLAMA).math(Precision.BF16) for dtype in ("auto", "fp8", "nvfp4", "int8_per_token_head")}

    assert maths == {"auto": "bf16", "fp8": "fp8", "nvfp4": "fp8", "int8_per_token_head": "bf16"}
    assert KvWidth.native(FP32).bytes_per_token(HEADS) == 2 * 8 * 128 * 4


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(1, 36864 + 36864), (128, 128 * (36864 + 36864)), (1000, 1000 * 36864 + 128 * 36864)],
)
def test_windows_stop_growing(tokens: int, expected: int) -> None:
    """gpt-oss-120b: 18 layers keep 128 tokens at most, 18 keep all."""
    assert kv_bytes(GPT_OSS, tokens) == expected


def test_states_are_there_from_the_first_token() -> None:
    """Mamba layers take the same for any length; only attention layers grow."""
    state = state_bytes_per_sequence(NEMOTRON)

    assert state == 23 * (64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 3 * 2)
    assert kv_bytes(NEMOTRON, 0) == state
    assert kv_bytes(NEMOTRON, 1000) == state + 1000 * 6144


def test_a_long_sequence_of_llama_by_hand() -> None:
    """128 KiB a token in bf16: 16 GiB for 131,072 tokens, half of it in fp8."""
    assert kv_bytes(LLAMA, 131_072) == 16 * 2**30
    assert kv_bytes(LLAMA, 131_072, kv_width("fp8", LLAMA)) == 8 * 2**30


@given(model=st.sampled_from(sorted(ROWS)), tokens=st.integers(0, 10**6), more=st.integers(0, 10**5))
def test_longer_sequences_take_no_less(model: str, tokens: int, more: int) -> None:
    """Bytes grow with tokens, never faster than the bytes of one token each."""
    cache = kv_bytes_per_token(find_shape(model))
    most = cache.full_bytes_per_token + cache.index_bytes_per_token + cache.sliding_bytes_per_token

    assert 0 <= cache.sequence_bytes(tokens + more) - cache.sequence_bytes(tokens) <= more * most
