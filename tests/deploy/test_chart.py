"""The chart: what it renders is valid for Kubernetes and its operators, and what cannot work is refused with a reason."""

from __future__ import annotations

import copy
import re
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule
from helm_python import HelmError, chart

from deploy.helm import render
from proxy.config.settings import load_config
from proxy.supervisor import CONTROL_END_SECONDS, KILL_MARGIN_SECONDS
from telemetry import catalog

OLDEST, NEWEST = "1.30", "1.37"
CUSTOM = {"PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule, "ScaledObject": ScaledObject}
EXAMPLE = yaml.safe_load(render.VALUES.read_text())
EVERYTHING = {
    "ingress": {"enabled": True, "className": "nginx", "host": "llm.example", "tlsSecret": "tls", "annotations": {"a": "b"}},
    "restartOnChange": True,
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "yes"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
    "envFrom": [{"secretRef": {"name": "more"}}],
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
    "service": {"type": "LoadBalancer", "annotations": {"c": "d"}},
    "serviceAccount": {"annotations": {"e": "f"}},
}
WORKERS = [{"name": "my-model", "workers": ["http://vllm:8000"]}]


def values(**changed: Any) -> dict[str, Any]:
    """The example's values, with these in place of its own."""
    return copy.deepcopy(EXAMPLE) | changed


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def the_pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = of_kind(objects, "Deployment")
    return deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", ["none", "hpa", "keda"])
@pytest.mark.parametrize("more", [{}, EVERYTHING], ids=["example", "everything"])
def test_every_object_fits_its_schema_and_has_no_unknown_field(kind, more):
    """Core objects by schemas of the oldest Kubernetes allowed and the newest known, the others by models of theirs."""
    objects = render.objects(values(autoscaling={"kind": kind}, **more))

    for each in objects:
        model = CUSTOM.get(each["kind"])
        if model is None:
            for version in (OLDEST, NEWEST):
                kubernetes_validate.validate(each, version, strict=True)
        else:
            known = model.model_validate(each).model_dump(mode="json", by_alias=True, exclude_unset=True)
            assert known["spec"] == each["spec"]
    assert {"Deployment", "ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget", "Role", "PodMonitor"} <= {
        each["kind"] for each in objects
    }


def test_the_lint_of_helm_finds_nothing():
    """Neither an error nor a warning, with the example's values."""
    report = chart.lint(render.CHART, EXAMPLE, strict=True)

    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert not report["errors"]


def test_the_package_holds_the_rules_and_dashboards_that_grafana_has(tmp_path):
    """Not links to them: whoever installs the package has no checkout."""
    with tarfile.open(chart.package(render.CHART, destination=tmp_path)) as package:
        packed = {name: package.extractfile(name).read() for name in package.getnames()}  # type: ignore[union-attr]

    grafana = Path("grafana")
    sources = [*grafana.glob("rules/*.yaml"), *grafana.glob("dashboards/*.json")]
    for path in sources:
        assert packed[f"ridgeline/files/{path.relative_to(grafana)}"] == path.read_bytes()
    names = {each["metadata"]["name"] for each in render.objects(EXAMPLE) if each["kind"] in ("PrometheusRule", "ConfigMap")}
    assert len(names) == len(sources) + 1


def test_the_manifests_are_those_of_the_chart():
    """Otherwise `make fix` renders them anew."""
    assert render.manifests() == render.MANIFESTS.read_text()


def test_the_manifests_of_the_workers_are_valid():
    """And their pools are those that the example's configuration looks for."""
    objects = list(yaml.safe_load_all((render.MANIFESTS.parent / "vllm.yaml").read_text()))

    for each in objects:
        kubernetes_validate.validate(each, OLDEST, strict=True)
    services = {each["metadata"]["name"]: each["spec"]["selector"] for each in of_kind(objects, "Service")}
    deployments = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "Deployment")}
    pools = EXAMPLE["config"]["models"][0]["pools"]
    for pool, known in zip(pools, EXAMPLE["workerPools"], strict=True):
        selector = services[pool["workers"]["kubernetes"]["service"]]
        spec = deployments[known["scale"]["targetName"]]
        assert selector == known["selector"] == spec["template"]["metadata"]["labels"]
        arguments = spec["template"]["spec"]["containers"][0]["args"]
        assert f"--max-model-len={pool['max_total_tokens']}" in arguments


def test_the_configuration_in_the_map_is_one_the_gateway_takes(tmp_path):
    """Read as the gateway does, with what its environment gets from secrets."""
    (config_map,) = [each for each in of_kind(render.objects(EXAMPLE), "ConfigMap") if "ridgeline.yaml" in each["data"]]
    file = tmp_path / "ridgeline.yaml"
    file.write_text(config_map["data"]["ridgeline.yaml"])

    config = load_config(file, {"VLLM_KEY": "secret", "APP_A_SHA256": "0" * 64})

    assert (config.listen, config.observe_listen, config.admin_listen) == ("0.0.0.0:8080", "0.0.0.0:8082", "127.0.0.1:8081")
    assert [pool.name for pool in config.models[0].pools] == ["short", "long"]
    assert "secret" not in file.read_text()


def test_the_pod_may_write_nowhere_and_become_nobody():
    """Non-root, read-only root, no capabilities, a seccomp profile; a token only where somebody must be asked."""
    pod = the_pod(render.objects(EXAMPLE))
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"]
    listed = values(config={"models": WORKERS}, workerPools=[])
    assert not the_pod(render.objects(listed))["automountServiceAccountToken"]


def test_with_certificates_everybody_who_asks_uses_https():
    """Probes by `tls`, Prometheus by `observe_tls`; the Secret is mounted where the configuration looks for it."""
    tls = {"certificate": "/tls/tls.crt", "key": "/tls/tls.key"}
    mount = {"name": "tls", "mountPath": "/tls", "readOnly": True}
    objects = render.objects(
        values(
            config={"models": WORKERS, "tls": tls, "observe_tls": tls},
            workerPools=[],
            extraVolumes=[{"name": "tls", "secret": {"secretName": "ridgeline-tls"}}],
            extraVolumeMounts=[mount],
        )
    )

    (container,) = the_pod(objects)["containers"]
    assert {container[f"{name}Probe"]["httpGet"]["scheme"] for name in ("startup", "liveness", "readiness")} == {"HTTPS"}
    assert mount in container["volumeMounts"]
    (monitor,) = of_kind(objects, "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    (service,) = of_kind(objects, "Service")
    assert service["spec"]["ports"][0]["appProtocol"] == "https"
    for each in objects:
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, OLDEST, strict=True)


def test_roles_are_for_endpoint_slices_where_workers_are_and_for_nothing_else():
    """One in each namespace that the configuration names, none where workers are listed."""
    here = {"kubernetes": {"service": "a"}}
    there = {"kubernetes": {"service": "b", "namespace": "batch"}}
    stage = {"workers": {"kubernetes": {"service": "c", "namespace": "stages"}}}
    listed = {"name": "q", "workers": ["http://w:1"], "prefill": stage}
    models = [{"name": "a", "workers": here}, {"name": "b", "pools": [{"name": "p", "workers": there}, listed]}]

    roles = of_kind(render.objects(values(config={"models": models}, workerPools=[])), "Role")

    assert [role["metadata"]["namespace"] for role in roles] == ["batch", render.NAMESPACE, "stages"]
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    assert all(role["rules"] == [rule] for role in roles)
    assert not of_kind(render.objects(values(config={"models": WORKERS}, workerPools=[])), "Role")


def test_workers_are_reached_from_the_gateway_and_administration_from_nobody():
    """The gateway's pods let in clients and observers, by the names of those two ports."""
    objects = render.objects(values(networkPolicy={"workerObservers": []}))
    gateway, *workers = of_kind(objects, "NetworkPolicy")

    assert [rule["ports"][0]["port"] for rule in gateway["spec"]["ingress"]] == ["http", "metrics"]
    selector = gateway["spec"]["podSelector"]
    for policy in workers:
        (rule,) = policy["spec"]["ingress"]
        namespace = {"matchLabels": {"kubernetes.io/metadata.name": render.NAMESPACE}}
        assert rule["from"] == [{"namespaceSelector": namespace, "podSelector": selector}]
    (service,) = of_kind(objects, "Service")
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


def test_a_pod_ends_by_readiness_first_and_within_its_grace_period():
    """preStop, then drain_seconds, then what the supervisor takes beyond them: the sum just fits, one second more does not."""
    limits = {"drain_seconds": 100}
    beyond = KILL_MARGIN_SECONDS + CONTROL_END_SECONDS
    fitting = values(
        config={"models": WORKERS, "limits": limits},
        workerPools=[],
        preStopSeconds=7,
        terminationGracePeriodSeconds=int(7 + 100 + beyond),
    )

    pod = the_pod(render.objects(fitting))
    with pytest.raises(HelmError, match=r"takes up to 117 s \(preStopSeconds 7 \+ config.limits.drain_seconds 100 \+ 10\)"):
        render.objects(fitting | {"terminationGracePeriodSeconds": int(7 + 100 + beyond) - 1})

    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 7}}}
    assert pod["terminationGracePeriodSeconds"] == 117
    assert {"name": "TERMINATION_GRACE_PERIOD_SECONDS", "value": "110"} in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"config": {"models": []}}, "config.models is empty"),
        ({"config": {"models": WORKERS, "listen": "0.0.0.0:80"}, "workerPools": []}, "config.listen is set by the chart"),
        ({"config": {"models": WORKERS}}, "workerPools has llama-3.1-8b/short, which config does not.*my-model/default"),
        ({"replica": 3}, "replica"),
        ({"autoscaling": {"kind": "vpa"}}, "autoscaling.kind|/autoscaling/kind"),
        ({"config": {"models": WORKERS, "limits": {"drain_grace_seconds": 200}}, "workerPools": []}, "drain_grace_seconds"),
        ({"workerPools": [EXAMPLE["workerPools"][0]] * 2}, "give one of them a resourceName"),
        ({"workerPools": [EXAMPLE["workerPools"][0] | {"selector": {}}]}, "selector"),
        ({"autoscaling": {"gateway": {"minReplicas": 9, "maxReplicas": 3}}}, r"minReplicas \(9\) is above maxReplicas \(3\)"),
        ({"rbac": {"create": False}, "serviceAccount": {"create": False}}, "set one of them"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(changed, reason):
    """By the schema or a template, before anything is installed."""
    with pytest.raises(HelmError, match=reason):
        render.objects(values(**changed))


def queries_of_autoscaling() -> list[str]:
    """What KEDA asks, and what prometheus-adapter would be asking with its placeholders filled in."""
    scaled = of_kind(render.objects(EXAMPLE), "ScaledObject")
    triggers = [trigger for each in scaled for trigger in each["spec"]["triggers"] if trigger["type"] == "prometheus"]
    queries = [trigger["metadata"]["query"] for trigger in triggers]
    rules = yaml.safe_load((render.HELM / "prometheus-adapter-values.yaml").read_text())["rules"]
    for rule in [*rules["custom"], *rules["external"]]:
        series = rule["seriesQuery"].partition("{")[0]
        filled = {"<<.Series>>": series, "<<.LabelMatchers>>": 'namespace="llm",pool="short"', "<<.GroupBy>>": "namespace"}
        query = rule["metricsQuery"]
        for placeholder, text in filled.items():
            query = query.replace(placeholder, text)
        queries.append(query)
    return queries


def test_autoscaling_asks_for_metrics_that_there_are():
    """Every query parses, and every name in it is in the catalogue."""
    queries = queries_of_autoscaling()

    assert len(queries) == 8
    for query in queries:
        promql_parser.parse(query)
        names = set(re.findall(r"ridgeline_\w+", query))
        assert names
        assert names <= {family.name for family in catalog.EXPOSED}


def test_scalers_ask_for_the_metrics_that_the_adapter_serves():
    """An HPA and prometheus-adapter meet by name only."""
    rules = yaml.safe_load((render.HELM / "prometheus-adapter-values.yaml").read_text())["rules"]
    scalers = of_kind(render.objects(values(autoscaling={"kind": "hpa"})), "HorizontalPodAutoscaler")
    metrics = [metric for each in scalers for metric in each["spec"]["metrics"]]

    for kind, served in (("pods", "custom"), ("external", "external")):
        asked = {metric[kind]["metric"]["name"] for metric in metrics if kind in metric}
        assert asked == {rule["name"]["as"] for rule in rules[served]}
