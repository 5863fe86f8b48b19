"""vLLM's production-stack: the values of its Helm chart (helm/values.yaml), or the dynamic configuration of its router.

Engines stay as they are and where they are; each model's Service, which the chart makes, is where its pods are found.
"""

from __future__ import annotations

from typing import Any

from proxy.importing.draft import Draft, NothingToImportError, items, mapping
from proxy.importing.options import options_of
from proxy.importing.stack_router import from_stack_options, is_of_stack, prefill_labels, routing, static_models

_POD_PORT, _SERVICE_PORT = 8000, 80
_OF_ROUTER = {  # what the chart of the gateway has of its own
    *("repository", "tag", "imagePullPolicy", "imagePullSecrets", "imagePullSecret", "replicaCount", "resources", "strategy"),
    *(
        "labels",
        "podLabels",
        "annotations",
        "podAnnotations",
        "nodeSelectorTerms",
        "affinity",
        "tolerations",
        "hf_token",
        "env",
    ),
    *("serviceType", "servicePort", "serviceAnnotations", "containerPort", "livenessProbe", "readinessProbe", "startupProbe"),
    *("securityContext", "podSecurityContext", "containerSecurityContext", "priorityClassName", "extraVolumes", "pdb"),
    *("extraVolumeMounts", "serviceAccountName", "enableRouter", "engineScrapeInterval", "requestStatsWindow"),
    *("lmcacheControllerPort", "k8sServiceDiscoveryType", "topologySpreadConstraints", "enablePD"),
}
_TAKEN = {"serviceDiscovery", "staticBackends", "staticModels", "routingLogic", "sessionKey", "extraArgs", "vllmApiKey"}
_QUIET = {
    *("log-level", "log-stats", "log-stats-interval", "service-discovery"),
    *("static-model-labels", "prefill-model-labels", "decode-model-labels"),
}
_WHY = {
    "autoscaling": "in the gateway's own chart: autoscaling.gateway",
    "hpa": "in the gateway's own chart: autoscaling.gateway",
    "ingress": "in the gateway's own chart: ingress",
    "route": "in the gateway's own chart: ingress",
    "otel": "set tracing.otlp_endpoint to the receiver's address for HTTP (4318)",
    "externalProviders": "only vLLM servers are served",
    "serviceMonitor": "in the gateway's own chart: podMonitor",
}


def from_production_stack(tree: Any, *, release: str) -> Draft:
    """Return the draft. ``release``: what `helm install` was told, which Services are named after.

    Raises `NothingToImportError` for another kind of file, or when it has no model.
    """
    whole = mapping(tree)
    options = {str(name).replace("_", "-"): value for name, value in whole.items()}
    if is_of_stack(options):
        return from_stack_options(options)
    if not {"servingEngineSpec", "routerSpec"} & set(whole):
        raise NothingToImportError(
            "it has neither servingEngineSpec nor routerSpec, so it is no values file of production-stack"
        )
    draft = Draft()
    engine, router = mapping(whole.get("servingEngineSpec")), mapping(whole.get("routerSpec"))
    extra = _extra(router)
    apart = prefill_labels(extra, router.get("routingLogic"))
    if router.get("serviceDiscovery") == "static":
        lists, labels = (router.get("staticBackends"), router.get("staticModels"), None), extra.get("static-model-labels")
        models = static_models(*lists, "routerSpec.staticBackends", draft, ",".join(labels or ()), apart)
        key = router.get("vllmApiKey")
        where_key = "routerSpec.vllmApiKey"
    else:
        models = _engines(engine, release, apart, draft)
        key, where_key = engine.get("vllmApiKey"), "servingEngineSpec.vllmApiKey"
    if not models:
        raise NothingToImportError("it has no model that is enabled: servingEngineSpec.modelSpec, or routerSpec.staticBackends")
    chosen = routing(router.get("routingLogic", "roundrobin"), router.get("sessionKey"), "routerSpec.routingLogic", draft)
    for pool in (pool for model in models for pool in model["pools"]):
        pool.update(chosen)
    draft.settings["models"] = models
    _key(key, where_key, draft)
    _router(router, draft)
    for section in whole:
        if section not in ("servingEngineSpec", "routerSpec"):
            draft.leave_out(str(section), "it stays where it is; the gateway does not run engines, caches or adapters")
    return draft


def _engines(engine: dict[str, Any], release: str, apart: frozenset[str], draft: Draft) -> list[dict[str, Any]]:
    """Models by the name that is served; engines with the same one and other lengths are pools of it.

    Those that bear a label of ``apart`` compute prompts for these pools.
    """
    port = engine.get("containerPort") if isinstance(engine.get("containerPort"), int) else _POD_PORT
    service_port = engine.get("servicePort") if isinstance(engine.get("servicePort"), int) else _SERVICE_PORT
    stages: dict[str, dict[str, str]] = {}  # by model: URLs by name
    found: dict[str, dict[str, Any]] = {}
    for index, entry in enumerate(items(engine.get("modelSpec"))):
        spec, where = mapping(entry), f"servingEngineSpec.modelSpec[{index}]"
        name, model = spec.get("name"), _served_name(spec)
        if spec.get("enabled") is False:
            continue
        if not isinstance(name, str) or model is None:
            draft.leave_out(where, "it has no name or no modelURL")
            continue
        if str(mapping(spec.get("labels")).get("model")) in apart:
            stages.setdefault(model, {})[name] = f"http://{release}-{name}-engine-service:{service_port}"
            draft.leave_out(
                where, "its Service is one worker of the stage: prefill.workers: {kubernetes: …} finds the pods behind it"
            )
            continue
        vllm = mapping(spec.get("vllmConfig"))
        pool: dict[str, Any] = {
            "name": name,
            "workers": {"kubernetes": {"service": f"{release}-{name}-engine-service", "port": port}},
        }
        if isinstance(length := vllm.get("maxModelLen"), int):
            pool["max_total_tokens"] = length
        if isinstance(parallel := vllm.get("tensorParallelSize"), int) and parallel > 1:
            pool["tensor_parallel"] = parallel
        if mapping(spec.get("raySpec")).get("enabled"):
            draft.leave_out(f"{where}.raySpec", "its Service is named otherwise: see which one selects the head node")
        pools = found.setdefault(model, {"name": model, "pools": []})["pools"]
        if any(other.get("max_total_tokens") == pool.get("max_total_tokens") for other in pools):
            same = "a second set of engines for the same model and length: select both by one Service, and name that"
            draft.leave_out(where, same)
            continue
        pools.append(pool)
    for made in found.values():
        if len(made["pools"]) == 1:  # there is nothing to choose; what does not fit is refused by the worker's own limit
            made["pools"][0].pop("max_total_tokens", None)
        urls = stages.get(made["name"], {})
        for at, pool in enumerate(made["pools"] if urls else ()):  # a worker of two pools bears a name in each
            named = [{"name": f"{service}-for-{pool['name']}", "url": url} for service, url in urls.items()]
            pool["prefill"] = {"workers": named if at else list(urls.values())}
    for model in stages.keys() - found.keys():
        draft.leave_out("servingEngineSpec", f"{model} has only engines that compute prompts, and none that generates")
    return list(found.values())


def _served_name(spec: dict[str, Any]) -> str | None:
    extra = [str(word) for word in items(mapping(spec.get("vllmConfig")).get("extraArgs"))]
    for at, word in enumerate(extra):
        option, equals, value = word.partition("=")
        if option == "--served-model-name":
            return value if equals else next(iter(extra[at + 1 :]), None)
    url = spec.get("modelURL")
    return url if isinstance(url, str) and url else None


def _key(written: Any, where: str, draft: Draft) -> None:
    secret = mapping(written)
    if isinstance(written, str) and (key := draft.worker_key(written, where, "VLLM_API_KEY")):
        draft.settings["worker_key"] = key
    elif secret.get("secretName"):
        draft.variable("VLLM_API_KEY", f"from the Secret and key that {where} names")
        draft.settings["worker_key"] = "${VLLM_API_KEY}"


def _router(router: dict[str, Any], draft: Draft) -> None:
    for name in router:
        if name not in _TAKEN and name not in _OF_ROUTER:
            draft.leave_out(f"routerSpec.{name}", _WHY.get(name, "no setting here is like it"))
    for option in _extra(router):
        if option not in _QUIET:
            draft.leave_out(f"routerSpec.extraArgs --{option}", "no setting here is like it")


def _extra(router: dict[str, Any]) -> dict[str, list[str]]:
    """The options that its command line gets."""
    words = [str(word) for word in items(router.get("extraArgs"))]
    return options_of(" ".join(["vllm-router --service-discovery k8s", *words])) if words else {}
