"""What Grafana reads at its start: the data source and where the dashboards lie."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "grafana" / "provisioning"


def test_the_data_source_is_prometheus_at_an_address_of_the_environment():
    """Nobody edits a file to say where it is; the scrape interval is said, since rates go by it."""
    (source,) = yaml.safe_load((FOLDER / "datasources" / "prometheus.yaml").read_text())["datasources"]

    assert (source["type"], source["url"]) == ("prometheus", "${PROMETHEUS_URL}")
    assert source["jsonData"]["timeInterval"]


def test_the_dashboards_lie_where_the_how_to_and_compose_put_them():
    """The path in Grafana's container is one, wherever it is written."""
    (provider,) = yaml.safe_load((FOLDER / "dashboards" / "ridgeline.yaml").read_text())["providers"]
    path = provider["options"]["path"]
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())["services"]["grafana"]

    assert provider["type"] == "file"
    assert f"| `grafana/dashboards` | `{path}` |" in (ROOT / "docs" / "how-to" / "grafana.md").read_text()
    assert any(volume.endswith(f"grafana/dashboards:{path}:ro") for volume in compose["volumes"])
    assert "PROMETHEUS_URL" in compose["environment"]


def test_what_scrapes_and_what_grafana_believes_of_it_are_the_same():
    """A rate over less than two scrapes has no value."""
    (source,) = yaml.safe_load((FOLDER / "datasources" / "prometheus.yaml").read_text())["datasources"]
    prometheus = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())

    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
