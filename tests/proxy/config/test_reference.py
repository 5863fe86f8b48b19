"""The reference: generated files are current, complete, and true."""

import json
from pathlib import Path

import pytest
import yaml

from proxy.config.problems import sections_of
from proxy.config.reference import page_text, schema_text, write
from proxy.config.settings import Config

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["config.schema.json", "configuration.md"])
def test_files_are_current(name, tmp_path):
    """The files in docs/reference are what the generator writes; `python -m proxy.config.reference` mends a failure."""
    write(tmp_path)
    assert (tmp_path / name).read_text() == (ROOT / "docs/reference" / name).read_text()


def test_every_setting_is_described():
    """Every setting has a description that ends as a sentence, and every section one of its own."""
    for section in sections_of(Config).values():
        assert section.__doc__
        for name, setting in section.model_fields.items():
            assert setting.description, name
            assert setting.description.rstrip("`").endswith("."), name


def test_units_are_said():
    """The description of a setting names the unit that its name ends in."""
    for section in sections_of(Config).values():
        for name, setting in section.model_fields.items():
            for unit in ("seconds", "bytes", "tokens"):
                if name.endswith(f"_{unit}"):
                    assert unit in (setting.description or "").lower(), name


def test_the_page_has_every_setting():
    """Each setting has a row."""
    page = page_text()
    for section in sections_of(Config).values():
        assert all(f"| `{name}` |" in page for name in section.model_fields)


def test_the_schema_names_what_the_examples_use():
    """Keys used by the examples are properties of the schema, which allows no others."""
    schema = json.loads(schema_text())
    assert schema["additionalProperties"] is False
    for path in (ROOT / "examples").glob("*.yaml"):
        assert yaml.safe_load(path.read_text()).keys() <= schema["properties"].keys()


def test_the_schema_lets_variables_stand_for_numbers():
    """An editor that knows the schema accepts a variable where a number belongs."""
    connect = json.loads(schema_text())["$defs"]["LimitsConfig"]["properties"]["connect_seconds"]
    assert {"type": "string", "pattern": r"\$\{"} in connect["anyOf"]


def test_bounds_are_in_the_schema():
    """Bounds are written in the words of JSON schema, so that editors check them."""
    text = schema_text()
    assert '"gt"' not in text
    assert '"min_length"' not in text
    plain = json.loads(text)["$defs"]["LimitsConfig"]["properties"]["connect_seconds"]["anyOf"][0]
    assert plain == {"exclusiveMinimum": 0, "maximum": 604800, "type": "number"}
