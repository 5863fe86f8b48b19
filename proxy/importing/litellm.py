"""LiteLLM's proxy: `config.yaml` with `model_list` and four sections of settings (docs.litellm.ai, "Config.yaml").

Models of its there are groups of deployments with one `model_name`, each with a provider, a name at the provider and a base
URL. Those of vLLM become workers: `hosted_vllm/…`, or `openai/…` with a base URL of your own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from proxy.importing.draft import Draft, NothingToImportError, items, mapping, seconds

_PROVIDERS = ("hosted_vllm", "openai", "text-completion-openai", "openai_like", "custom_openai", "litellm_proxy")
_CLOUDS = ("api.openai.com", ".openai.azure.com", "openrouter.ai", "api.together.xyz", "api.groq.com")
_POLICIES = {
    "simple-shuffle": "power-of-two",
    "least-busy": "least-load",
    "usage-based-routing": "least-load",
    "usage-based-routing-v2": "least-load",
    "latency-based-routing": "fastest",
}
_OF_DEPLOYMENT = {
    "rpm": "rates are limited by key (`quota`), not by deployment; caps come from the workers' memory (`admission`)",
    "tpm": "rates are limited by key (`quota`), not by deployment; caps come from the workers' memory (`admission`)",
    "weight": "load is what is looked at; a worker that can take less is given less by `admission`",
    "stream_timeout": "streams have limits of their own: first_byte_seconds and token_gap_seconds",
    "order": "pools of one model take each other's place by overflow_to",
}
_QUIET = {"model", "api_base", "base_url", "api_key", "timeout", "max_parallel_requests", "custom_llm_provider", "id"}
_SILENT_SETTINGS = {"set_verbose", "telemetry", "json_logs", "drop_params", "suppress_debug_info", "turn_off_message_logging"}
_BETWEEN_MODELS = (
    "a request is never sent to another model; pools of one model have overflow_to, and max_total_tokens for long ones"
)


@dataclass(frozen=True, slots=True)
class _Deployment:
    where: str
    group: str  # what clients ask for
    model: str  # what the worker gets
    url: str
    key: Any
    parameters: dict[str, Any]


def from_litellm(tree: Any) -> Draft:
    """Return the draft. Raises `NothingToImportError` for another kind of file, or when no deployment is a vLLM."""
    whole = mapping(tree)
    if not items(whole.get("model_list")):
        raise NothingToImportError("it has no model_list, so it is no config.yaml of LiteLLM's proxy")
    draft = Draft()
    groups: dict[str, list[_Deployment]] = {}
    for deployment in _deployments(whole, draft):
        groups.setdefault(deployment.group, []).append(deployment)
    router = mapping(whole.get("router_settings"))
    general = mapping(whole.get("general_settings"))
    module = mapping(whole.get("litellm_settings"))
    policy = _policy(router, draft)
    models = _models(groups, policy, draft)
    if not models:
        raise NothingToImportError("none of its deployments is a vLLM server: " + "; ".join(n.why for n in draft.left_out[:3]))
    _aliases(mapping(router.get("model_group_alias")), groups, models, draft)
    draft.settings = {"listen": "0.0.0.0:4000", "models": list(models.values()), **draft.settings}
    draft.client_key(general.get("master_key"), "general_settings.master_key", "master")
    _settings(router, module, draft)
    virtual = "keys that are made while it runs, budgets and teams are not kept here: list keys with their sha256 under `keys`"
    draft.leave_out_rest(general, {"master_key"}, "general_settings", virtual)
    for section in whole:
        if section not in ("model_list", "router_settings", "general_settings", "litellm_settings"):
            draft.leave_out(section, "no such thing here; set variables where the gateway is started")
    return draft


def _deployments(whole: dict[str, Any], draft: Draft) -> Iterator[_Deployment]:
    for index, entry in enumerate(items(whole.get("model_list"))):
        where = f"model_list[{index}]"
        group = mapping(entry).get("model_name")
        parameters = mapping(mapping(entry).get("litellm_params"))
        written = parameters.get("model")
        if not isinstance(group, str) or not isinstance(written, str):
            draft.leave_out(where, "it has no model_name or no litellm_params.model")
            continue
        provider, slash, model = written.partition("/")
        if isinstance(own := parameters.get("custom_llm_provider"), str):
            provider, slash, model = own, "/", written.removeprefix(f"{own}/")
        if "*" in group or "*" in written:
            draft.leave_out(where, "a name with * : every model is named here")
            continue
        if not slash or provider not in _PROVIDERS:
            draft.leave_out(where, f"the provider {provider if slash else '(by name)'} is no vLLM server")
            continue
        base = parameters.get("api_base", parameters.get("base_url"))
        if base is None:
            draft.leave_out(where, f"no api_base: this goes to the cloud of {provider}, not to a vLLM server")
            continue
        if isinstance(base, str) and any(cloud in base for cloud in _CLOUDS):
            draft.leave_out(where, "its api_base is that of a cloud, not of a vLLM server")
            continue
        url = draft.worker_url(base, f"{where}.litellm_params.api_base")
        if url is None:
            continue
        for name, why in _OF_DEPLOYMENT.items():
            if name in parameters:
                draft.leave_out(f"{where}.litellm_params.{name}", why)
        rest = "what clients send goes to workers unchanged; nothing is added"
        draft.leave_out_rest(parameters, {*_QUIET, *_OF_DEPLOYMENT}, f"{where}.litellm_params", rest)
        yield _Deployment(where, group, model, url, parameters.get("api_key"), parameters)


def _policy(router: dict[str, Any], draft: Draft) -> str | None:
    written = router.get("routing_strategy")
    if written is None:
        return None
    if str(written) not in _POLICIES:
        draft.leave_out("router_settings.routing_strategy", "no policy here is like it; the default is prefix-affinity")
    return _POLICIES.get(str(written))


def _models(groups: dict[str, list[_Deployment]], policy: str | None, draft: Draft) -> dict[str, dict[str, Any]]:
    """Models of the draft by the group that each was made of."""
    found: dict[str, dict[str, Any]] = {}
    by_name: dict[str, dict[str, Any]] = {}
    for group, deployments in groups.items():
        model = deployments[0].model
        for other in deployments:
            if other.model != model:
                draft.leave_out(
                    other.where, f"another model under the name of {group}: workers of a pool serve one and the same"
                )
        same = [each for each in deployments if each.model == model]
        urls = list(dict.fromkeys(each.url for each in same))
        if model in by_name:  # a second name for it
            if by_name[model]["pools"][0]["workers"] != urls:
                other_workers = f"a second set of workers for {model}: give them another --served-model-name"
                draft.leave_out(same[0].where, other_workers)
                continue
            by_name[model].setdefault("aliases", []).append(group)
            continue
        pool: dict[str, Any] = {"name": "default", "workers": urls}
        if policy is not None:
            pool["policy"] = policy
        _of_pool(pool, same, draft)
        entry: dict[str, Any] = {"name": model, "pools": [pool]}
        if group != model:
            entry["aliases"] = [group]
        found[group] = by_name[model] = entry
    return found


def _of_pool(pool: dict[str, Any], deployments: list[_Deployment], draft: Draft) -> None:
    first = deployments[0]
    key = draft.worker_key(first.key, f"{first.where}.litellm_params.api_key", f"WORKER_KEY_{first.where[11:-1]}")
    if key is not None:
        pool["worker_key"] = key
    for other in deployments[1:]:
        if other.key != first.key:
            draft.leave_out(f"{other.where}.litellm_params.api_key", "all workers of a pool get one key, that of the first")
    timeouts = [found for each in deployments if (found := seconds(each.parameters.get("timeout"))) is not None]
    if timeouts:
        pool["limits"] = {"total_seconds": max(timeouts)}
    caps = [cap for each in deployments if isinstance(cap := each.parameters.get("max_parallel_requests"), int) and cap > 0]
    if caps:
        pool["admission"] = {"max_requests_per_worker": min(caps)}


def _aliases(aliases: dict[str, Any], groups: dict[str, Any], models: dict[str, dict[str, Any]], draft: Draft) -> None:
    for alias, target in aliases.items():
        group = str(mapping(target).get("model", target))
        if group in models:
            models[group].setdefault("aliases", []).append(alias)
        else:
            reason = "the model behind it is not carried over" if group in groups else "there is no such model"
            draft.leave_out(f"router_settings.model_group_alias.{alias}", reason)


def _settings(router: dict[str, Any], module: dict[str, Any], draft: Draft) -> None:
    both = {**module, **router}
    if (retries := both.get("num_retries")) is not None and isinstance(retries, int) and retries >= 0:
        draft.attempts(retries)
    timeout = seconds(router.get("timeout")) or seconds(module.get("request_timeout"))
    if timeout is not None:
        draft.set("limits", "total_seconds", timeout)
    if isinstance(fails := both.get("allowed_fails"), int) and fails >= 0:
        draft.set("health", "failures_in_row", fails + 1)
    if (cooldown := seconds(both.get("cooldown_time"))) is not None:
        draft.ejection(cooldown)
    known = {
        "num_retries",
        "timeout",
        "request_timeout",
        "allowed_fails",
        "cooldown_time",
        "model_group_alias",
        "routing_strategy",
    }
    for path, section in (("router_settings", router), ("litellm_settings", module)):
        for name in section:
            if name.endswith("fallbacks"):
                draft.leave_out(f"{path}.{name}", _BETWEEN_MODELS)
            elif name.startswith("redis_"):
                draft.leave_out(f"{path}.{name}", "replicas need no shared store for routing")
            elif "callback" in name:
                draft.leave_out(f"{path}.{name}", "what happened goes to `log`, `tracing` and Prometheus")
            elif name not in known and name not in _SILENT_SETTINGS:
                draft.leave_out(f"{path}.{name}", "no setting here is like it")
