"""Shapes, GPUs and formats in a configuration: typing errors are found where they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.config.settings import ConfigError, load_config, parse_config

POOLED = """
models:
  - name: {name}
    {shape}
    pools:
      - name: p
        workers: [http://127.0.0.1:8000]
        {setting}
"""


def problem(setting: str, *, name: str = "llama-3.1-8b", shape: str = "aliases: []") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(POOLED.format(name=name, shape=shape, setting=setting), {}, "gateway.yaml")
    (only,) = caught.value.problems
    return str(only)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("gpu: h100-smx", "line 8, models[0].pools[0].gpu: 'smx' in 'h100-smx'"),
        ("gpu: H100", "models[0].pools[0].gpu: 'H100' may be h100-sxm or h100-pcie or h100-nvl"),
        ("gpu: NVIDIA A100-40C", "models[0].pools[0].gpu: "),
        (
            "gpu: {dense_flop_per_second: {bf16: 1979e12}, memory_bytes_per_second: 3.35e12}",
            "1.979e15 FLOP/s for bf16 is what h100-sxm reaches with 2:4 structured sparsity only",
        ),
        ("gpu: {based_on: h100-sxm, memmory_bytes: 80e9}", "memory_bytes"),
        ("gpu: h100-sxm\n        weight_dtype: fp9", "weight dtype 'fp9' is not known"),
        ("gpu: h100-sxm\n        kv_dtype: fp8_ds_mla", "is a layout for latents"),
        ("gpu: h100-sxm\n        gpus_per_worker: 4\n        tensor_parallel: 3", "4 GPUs a worker are not 3 (tensor)"),
        ("gpu: generic-cpu-ddr5-8ch\n        weight_dtype: int8", None),
    ],
)
def test_what_a_pool_says_of_its_gpus_must_mean_something(setting: str, expected: str | None) -> None:
    """One problem each, at its line; formats without a path of their own fall back to wider ones."""
    if expected is None:
        parse_config(POOLED.format(name="qwen3-8b", shape="aliases: []", setting=setting), {}, "gateway.yaml")
    else:
        assert expected in problem(setting)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("shape: llama-3.1-8bb", "line 4, models[0].shape: no model is known by the name 'llama-3.1-8bb'"),
        ("shape: gone/config.json", "models[0].shape: there is no file gone/config.json"),
        ("shape: {hidden_size: 64}", "models[0].shape: config of inline lacks"),
    ],
)
def test_a_shape_must_be_known(shape: str, expected: str) -> None:
    """A shape that is given is looked up even if no GPU is named."""
    assert expected in problem("max_total_tokens: 100", shape=shape)


def test_a_model_whose_name_means_nothing_keeps_its_gpu() -> None:
    """Names of models are the operator's own: without a shape there is nothing to hold against the limits, and no fault."""
    config = parse_config(POOLED.format(name="my-model", shape="aliases: []", setting="gpu: h100-sxm"), {}, "gateway.yaml")

    assert config.models[0].pools[0].gpu == "h100-sxm"


def test_a_shape_beside_the_configuration_is_found(tmp_path: Path) -> None:
    """Paths start at the file that names them, wherever the gateway was started."""
    fields = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    (tmp_path / "tiny.json").write_text(json.dumps(fields))
    (tmp_path / "gateway.yaml").write_text(POOLED.format(name="m", shape="shape: tiny.json", setting="gpu: l40s"))

    assert load_config(tmp_path / "gateway.yaml", {}).models[0].shape == "tiny.json"
