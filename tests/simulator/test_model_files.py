"""From what people write to a model: names, files and fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.model_files import load_model

HERE = Path()
FIELDS = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
NVFP4 = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], "group_size": 16},
}


def write(folder: Path, text: str, name: str = "config.json") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_a_known_name_needs_no_file() -> None:
    """Names are looked up when no file of that name is there."""
    assert load_model("llama-3.1-8b", HERE).shape.parameters() == 8_030_261_248


def test_fields_may_be_given_inline() -> None:
    """The fields of a config.json stand for it."""
    assert load_model(FIELDS, HERE).shape.layers == 2


@pytest.mark.parametrize("spec", ["tiny/config.json", "tiny"])
def test_a_file_or_its_folder_is_read_from_beside_the_configuration(tmp_path: Path, spec: str) -> None:
    """Relative paths start at the configuration; the model is called as its folder."""
    write(tmp_path / "tiny", json.dumps(FIELDS))

    assert (load_model(spec, tmp_path).shape.name, load_model(spec, tmp_path).shape.layers) == ("tiny", 2)


def test_widths_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Checkpoints of one tool keep their widths beside the config."""
    write(tmp_path / "tiny", json.dumps(FIELDS))
    write(tmp_path / "tiny", json.dumps(NVFP4), "hf_quant_config.json")
    scheme = load_model("tiny", tmp_path).shape.scheme

    assert scheme.width("model.layers.0.mlp.up_proj").bytes_each < 0.6
    assert scheme.width("lm_head").bytes_each == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "holds no JSON object but a list"),
        ("{}", "hidden_size"),
        ("[" * 100_000, "is nested too deeply|is no JSON"),
        ('{"a": "\\ud800', "is no JSON"),
        (" " * 5_000_000, "has more than 4194304 bytes"),
    ],
)
def test_a_file_that_is_no_config_is_an_error_that_says_why(tmp_path: Path, text: str, message: str) -> None:
    """Whatever stands in the file, the error names it."""
    write(tmp_path / "tiny", text)

    with pytest.raises(ValueError, match=message):
        load_model("tiny", tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [("gone/config.json", "there is no file gone/config.json"), ("no-such-model-7b", "no model is known by the name")],
)
def test_what_is_not_there_is_an_error_that_says_what_to_give(spec: str, message: str) -> None:
    """Neither a file nor a known name."""
    with pytest.raises(ValueError, match=message):
        load_model(spec, HERE)
