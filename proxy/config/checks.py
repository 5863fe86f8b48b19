"""What several settings must be together, and what is allowed and probably unwise.

`cross_problems` looks at the values as the file gives them and skips those that are wrong by themselves, so that one run
reports both kinds of problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.admin.token import read_tokens
from proxy.config.errors import KeyPath, Problem, RefusedError, dotted, nearest
from proxy.config.file import Document, Tree
from proxy.config.limits import limit_problems
from proxy.config.tls import tls_problems
from proxy.config.worker_url import ListenAddress, WorkerUrl, parse_listen_address, parse_worker_url
from routing.topology import HealthRules, Limits

if TYPE_CHECKING:
    from proxy.config.settings import Config

VLLM_KEEP_ALIVE_SECONDS = 5
# the defaults; in this order the later of two that overlap is blamed
LISTENERS = {"listen": "0.0.0.0:8080", "admin_listen": "127.0.0.1:8081", "observe_listen": "0.0.0.0:8082"}

ADMIN_TOKENS = ("admin_token", "admin_token_file", "admin_token_sha256")

Found = tuple[KeyPath, Tree]


def find(tree: Tree, pattern: str, path: KeyPath = ()) -> Iterator[Found]:
    """Yield every value that ``models.*.name`` and the like lead to, with its path; ``*`` stands for list indices."""
    if not pattern:
        yield path, tree
        return
    step, _, rest = pattern.partition(".")
    if step == "*" and isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from find(item, rest, (*path, index))
    elif isinstance(tree, dict) and step in tree:
        yield from find(tree[step], rest, (*path, step))


def cross_problems(document: Document) -> list[Problem]:
    """Return what contradicts something else in the file: double names, overlapping listeners, models without workers."""
    return [
        Problem(path=dotted(path), line=document.line(path), wrong=wrong, right=right)
        for path, wrong, right in (
            *(
                found
                for check in (_orders, _listeners, _admin, _models, _pools, _other_pools, _hedging, _workers, _keys)
                for found in check(document.tree)
            ),
            *limit_problems(document),
            *_token_file(document),
            *tls_problems(document),
        )
    ]


def warnings_of(config: Config) -> tuple[str, ...]:
    """Return what is allowed and probably not meant, one sentence each, naming the settings and their values."""
    warnings = []
    if not config.keys and not parse_listen_address(config.listen).is_loopback:
        warnings.append(
            f"listen is {config.listen} and there are no keys: everyone who reaches that address may use every model"
        )
    unverified = [
        f"models[{at}].pools[{index}].worker_tls"
        for at, model in enumerate(config.models)
        for index, pool in enumerate(model.pools)
        if pool.worker_tls is not None and not pool.worker_tls.verify
    ]
    warnings += [
        f"{where}.verify is false: whoever is on the way can read requests and the worker key, and answer"
        for where in (*(() if config.worker_tls.verify else ("worker_tls",)), *unverified)
    ]
    sections = [("limits", config.limits.model_dump(), True)]
    for at, model in enumerate(config.models):
        for index, pool in enumerate(model.pools):
            values = config.limits.model_dump() | pool.limits.model_dump(exclude_unset=True)
            sections.append((f"models[{at}].pools[{index}].limits", values, bool(pool.limits.model_fields_set)))
    for where, limits, speaks in sections:
        if not speaks:
            continue
        idle, hold, first, total = (limits[f"{name}_seconds"] for name in ("worker_idle", "head_hold", "first_byte", "total"))
        first_name = f"first_byte_seconds is {first:g}"
        if idle >= VLLM_KEEP_ALIVE_SECONDS:
            closes = f"vLLM closes unused connections after {VLLM_KEEP_ALIVE_SECONDS} s"
            warnings.append(f"{where}.worker_idle_seconds is {idle:g}: {closes}, so requests may meet closed ones")
        if hold > first:
            warnings.append(f"{where}.head_hold_seconds is {hold:g} and {first_name}: it is given up before the head is let go")
        if total is not None and total < first:
            warnings.append(
                f"{where}.total_seconds is {total:g} and {first_name}: the total ends first, the other has no effect"
            )
    warnings += _shared_workers(config)
    return tuple(warnings)


def _shared_workers(config: Config) -> Iterator[str]:
    seen: dict[str, str] = {}
    for model in config.models:
        for pool in model.pools_in_force:
            for worker in pool.listed_workers:
                if worker.url in seen:
                    yield f"workers {seen[worker.url]} and {worker.label} are both {worker.url}: load is counted for each apart"
                seen.setdefault(worker.url, worker.label)


_ORDERED: tuple[tuple[str, str, str, HealthRules | Limits, str], ...] = (
    ("health", "ejection_seconds", "max_ejection_seconds", HealthRules(), "the first time out would be over the bound of all"),
    ("limits", "body_bytes", "held_body_bytes", Limits(), "no body of that size could ever be taken"),
)


def _orders(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    """Settings of which one bounds the other."""
    for section, smaller, larger, defaults, why in _ORDERED:
        values = tree.get(section, {}) if isinstance(tree, dict) else {}
        if not isinstance(values, dict) or not values.keys() & {smaller, larger}:
            continue
        low, high = (_number(values.get(name, getattr(defaults, name))) for name in (smaller, larger))
        if low is not None and high is not None and low > high:
            blamed = smaller if smaller in values else larger
            is_low = blamed == smaller
            other = f"{larger} is {_said(high)}" if is_low else f"{smaller} is {_said(low)}"
            yield (
                (section, blamed),
                f"is {_said(low if is_low else high)}, while {other}: {why}",
                f"keep {smaller} at most {larger}",
            )


def _said(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _listeners(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    seen: dict[str, ListenAddress] = {}
    for name, default in LISTENERS.items():
        text = tree.get(name, default) if isinstance(tree, dict) else default
        try:
            address = parse_listen_address(text) if isinstance(text, str) else None
        except RefusedError:
            continue
        if address is None:
            continue
        for other, theirs in seen.items():
            if address.overlaps(theirs):
                # of the two, blame one that the file spells
                blamed, second = (name, other) if isinstance(tree, dict) and name in tree else (other, name)
                yield (
                    (blamed,),
                    f"overlaps with {second} ({theirs if second == other else address})",
                    "give each listener a port of its own",
                )
                break
        seen[name] = address


def _admin(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    given = [name for name in ADMIN_TOKENS if tree.get(name) is not None] if isinstance(tree, dict) else []
    for second in given[1:]:
        yield (second,), f"stands beside {given[0]}", "keep one of the two"
    text = tree.get("admin_listen") if isinstance(tree, dict) else None
    with suppress(RefusedError):
        if not given and isinstance(text, str) and not parse_listen_address(text).is_loopback:
            yield (
                ("admin_listen",),
                f"{text} can be reached from other machines, and there is no admin_token",
                'set admin_token: "${ADMIN_TOKEN}", or listen on 127.0.0.1',
            )


def _token_file(document: Document) -> Iterator[tuple[KeyPath, str, str]]:
    name = document.tree.get("admin_token_file")
    if not isinstance(name, str):
        return
    try:
        read_tokens(Path(document.source).parent / name)
    except OSError as error:
        yield ("admin_token_file",), f"cannot be read: {error.strerror}", "name a file with the token"
    except RefusedError as error:
        yield ("admin_token_file",), error.wrong, error.right


def _models(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    yield from _doubles([*find(tree, "models.*.name"), *find(tree, "models.*.aliases.*")], "model name")
    for path, model in find(tree, "models.*"):
        if not isinstance(model, dict):
            continue
        if "workers" in model and "pools" in model:
            yield (*path, "workers"), "stands beside `pools`", "keep one: `workers` is short for a single pool"
        elif "workers" not in model and "pools" not in model:
            yield path, "has neither `workers` nor `pools`", "add workers: [http://10.0.0.11:8000]"
        for key in ("workers", "pools"):
            if model.get(key) == []:
                yield (*path, key), "is empty", "give at least one"


def _pools(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    for path, model in find(tree, "models.*"):
        yield from _doubles([((*path, *at), name) for at, name in find(model, "pools.*.name")], "pool name")
        names = [name for _, name in find(model, "pools.*.name")]
        for at, pool in find(model, "pools.*"):
            if isinstance(pool, dict) and isinstance(pool.get("prefill"), dict) and f"{pool.get('name')}-prefill" in names:
                yield (
                    (*path, *at, "prefill"),
                    "is called like another pool in metrics",
                    f"rename the pool {pool.get('name')}-prefill",
                )
        ranges: dict[int | None, KeyPath] = {}
        for at, pool in find(model, "pools.*"):
            if not isinstance(pool, dict):
                continue
            bound = pool.get("max_total_tokens")
            tokens = int(bound) if isinstance(bound, str) and bound.isdecimal() else bound
            if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int)):
                continue
            here = (*path, *at, "max_total_tokens") if "max_total_tokens" in pool else (*path, *at)
            if tokens in ranges:
                which = "has no max_total_tokens" if tokens is None else f"accepts {tokens} tokens"
                yield (
                    here,
                    f"{which}, like {dotted(ranges[tokens])}: one of the two would get no request",
                    "give each pool a range of its own, or make them one pool",
                )
            ranges.setdefault(tokens, (*path, *at))


def _other_pools(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    for path, model in find(tree, "models.*"):
        names = [name for _, name in find(model, "pools.*.name") if isinstance(name, str)]
        for at, pool in find(model, "pools.*"):
            if not isinstance(pool, dict):
                continue
            here = (*path, *at)
            for setting in ("overflow_to", "borrows_from"):
                other = pool.get(setting)
                if not isinstance(other, str):
                    continue
                if other == pool.get("name"):
                    yield (*here, setting), "is this pool itself", "name another pool of the model, or leave it out"
                elif other not in names:
                    guess = nearest(other, names)
                    right = f"did you mean `{guess}`?" if guess else "write the name of another pool of this model"
                    yield (*here, setting), "is no pool of this model", right
            if pool.get("borrow_below_ratio") is not None and pool.get("borrows_from") is None:
                yield (
                    (*here, "borrow_below_ratio"),
                    "stands without `borrows_from`",
                    "name the pool that helps, or leave it out",
                )
            policy = pool.get("policy")
            if pool.get("session_header") is not None and policy != "session" and isinstance(policy, str | None):
                yield (*here, "session_header"), "has no effect with this policy", "write policy: session, or leave it out"


def _hedging(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    """Two rules for one thing, and what could never happen."""
    retries = tree.get("retries") if isinstance(tree, dict) else None
    tries_once = isinstance(retries, dict) and retries.get("max_attempts") == 1
    for path, section in (*find(tree, "hedging"), *find(tree, "models.*.pools.*.hedging")):
        if not isinstance(section, dict):
            continue
        given = [name for name in ("after_seconds", "after_quantile") if section.get(name) is not None]
        if len(given) == 2:
            yield (*path, given[1]), f"stands beside {given[0]}", "keep one of the two"
        elif given and tries_once:
            yield (*path, given[0]), "has no effect with retries.max_attempts: 1", "allow 2 attempts or more, or leave it out"
    for path, pool in find(tree, "models.*.pools.*"):
        if not isinstance(pool, dict) or not isinstance(own := pool.get("hedging"), dict):
            continue
        if pool.get("prefill") is not None and (own.get("after_seconds") or own.get("after_quantile")):
            yield (
                (*path, "hedging"),
                "stands beside `prefill`, and what a stage computes is not sent twice",
                "leave one of the two out",
            )


def _workers(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    names: dict[str, tuple[KeyPath, WorkerUrl]] = {}
    in_pool: dict[tuple[KeyPath, WorkerUrl], KeyPath] = {}
    for path, entry in (
        *find(tree, "models.*.workers.*"),
        *find(tree, "models.*.pools.*.workers.*"),
        *find(tree, "models.*.pools.*.prefill.workers.*"),
    ):
        text = entry.get("url") if isinstance(entry, dict) else entry
        given = entry.get("name") if isinstance(entry, dict) else None
        try:
            url = parse_worker_url(text) if isinstance(text, str) else None
        except RefusedError:
            continue
        if url is None or not isinstance(given, str | None):
            continue
        if (path[:-1], url) in in_pool:
            yield path, f"is the same worker as {dotted(in_pool[path[:-1], url])}", "list each worker once"
            continue
        in_pool[path[:-1], url] = path
        name = given or url.default_name
        if name not in names:
            names[name] = path, url
            continue
        other, its_url = names[name]
        if its_url == url and given is None:
            yield path, f"is also {dotted(other)}", "give one of them a name: {name: …, url: …}"
        else:
            yield path, f"has the same name as {dotted(other)}", "worker names are unique over all models: give it another"


def _keys(tree: Tree) -> Iterator[tuple[KeyPath, str, str]]:
    yield from _doubles(find(tree, "keys.*.name"), "key name")
    sums = (
        (path, text.lower() if isinstance(text, str) else text)
        for path, text in (*find(tree, "keys.*.sha256"), *find(tree, "keys.*.sha256.*"))
    )
    yield from _doubles(sums, "SHA-256")
    models = [name for _, name in find(tree, "models.*.name") if isinstance(name, str)]
    aliases = {alias for _, alias in find(tree, "models.*.aliases.*") if isinstance(alias, str)}
    for path, name in find(tree, "keys.*.models.*"):
        if not isinstance(name, str) or name in models:
            continue
        if name in aliases:
            yield path, "is an alias", "write the model's name"
        else:
            guess = nearest(name, models)
            yield path, "is no configured model", f"did you mean `{guess}`?" if guess else "write the name of one of `models`"


def _doubles(found: Iterable[Found], what: str) -> Iterator[tuple[KeyPath, str, str]]:
    seen: dict[str, KeyPath] = {}
    for path, text in found:
        if not isinstance(text, str):
            continue
        if text in seen:
            yield path, f"is the same {what} as {dotted(seen[text])}", "make it unique"
        seen.setdefault(text, path)
