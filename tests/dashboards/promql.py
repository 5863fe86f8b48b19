"""A lint of PromQL against the catalogue of metrics, for dashboards, rules and pages alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

from telemetry.catalog import EXPOSED, SCOPE_LABELS, Family, Kind
from telemetry.exposition import bound_text

FAMILIES = {family.name: family for family in EXPOSED}

ADDED_BY_PROMETHEUS = frozenset({"job", "instance", "__name__"})
OWN_OF_PROMETHEUS = {
    "up": ADDED_BY_PROMETHEUS,
    # an alert has whatever labels its rule leaves it
    "ALERTS": None,
    "ALERTS_FOR_STATE": None,
}
RATED = frozenset({"rate", "increase", "irate", "resets", "changes"})
NO_FAULT_OF_COUNTERS = frozenset({"absent", "absent_over_time", "count", "group", "timestamp"})
"""What may be asked of a counter without a rate: whether it is there."""

_VARIABLES = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}


def substituted(expr: str, **chosen: str) -> str:
    """The expression with Grafana's variables filled in: durations, and for each other one what was chosen or everything."""
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$\{?([a-z_]+)\}?", lambda found: chosen.get(found[1], ".*"), expr)


def family_of(name: str) -> tuple[Family, str] | None:
    """The family that a series belongs to, and the suffix beyond its name; None for names that the catalogue lacks."""
    if name in FAMILIES:
        return FAMILIES[name], ""
    for suffix in ("_bucket", "_sum", "_count"):
        family = FAMILIES.get(name.removesuffix(suffix))
        if name.endswith(suffix) and family is not None and family.kind is Kind.HISTOGRAM:
            return family, suffix
    return None


def labels_of(family: Family, suffix: str) -> frozenset[str]:
    """All labels that a series of the family has once it is scraped."""
    own = {*SCOPE_LABELS[family.scope], *family.labels}
    own |= {"process"} if family.is_per_process else set()
    own |= {"le"} if suffix == "_bucket" else set()
    return ADDED_BY_PROMETHEUS | own


def names_in(expr: str) -> set[str]:
    """Names of all series that an expression asks for."""
    return {node.name for node, _ in _walk(promql_parser.parse(substituted(expr)), ()) if _is_selector(node)}


def families_in(expr: str) -> set[str]:
    """Names of the families of the catalogue that an expression asks for."""
    return {found[0].name for name in names_in(expr) if (found := family_of(name)) is not None}


def faults(expr: str, known: dict[str, frozenset[str] | None] | None = None) -> list[str]:
    """What is wrong with an expression; ``known`` are further series with their labels (None: any). Empty when nothing is.

    A metric or label that the catalogue lacks, a value that a closed label cannot have, a bound that is none, a counter that
    is not rated, a gauge that is, a quantile of buckets that were not summed by ``le``, a label that was summed away.
    """
    try:
        tree = promql_parser.parse(substituted(expr))
    except ValueError as error:
        return [f"does not parse: {error}"]
    others = {**OWN_OF_PROMETHEUS, **(known or {})}
    found: list[str] = []
    for node, above in _walk(tree, ()):
        if _is_selector(node):
            found += _selector_faults(node, above, others)
        elif isinstance(node, promql_parser.Call) and node.func.name == "histogram_quantile":
            found += _quantile_faults(node)
    found += _grouping_faults(tree, others)
    return found


def _selector_faults(node: Any, above: tuple[Any, ...], others: dict[str, frozenset[str] | None]) -> list[str]:
    name = node.name or ""
    matchers = [(matcher.name, matcher.op, matcher.value) for matcher in node.matchers.matchers]
    if name in others:
        allowed = others[name]
        return [f"{name} has no label {label}" for label, _, _ in matchers if allowed is not None and label not in allowed]
    known = family_of(name)
    if known is None:
        return [f"no such metric: {name or node}"]
    family, suffix = known
    found = [f"{name} has no label {label}" for label, _, _ in matchers if label not in labels_of(family, suffix)]
    for label, op, value in matchers:
        if label in family.labels:
            found += _value_faults(family, label, op, value)
        elif label == "le" and suffix and value not in {*map(bound_text, family.bounds), "+Inf"}:
            found.append(f'{name} has no bound le="{value}"')
    calls = {one.func.name for one in above if isinstance(one, promql_parser.Call)}
    aggregations = {str(one.op) for one in above if isinstance(one, promql_parser.AggregateExpr)}
    counts = family.kind is Kind.COUNTER or bool(suffix)
    if counts and not calls & RATED and not (calls | aggregations) & NO_FAULT_OF_COUNTERS:
        found.append(f"{name} is a counter and not rated")
    if family.kind is Kind.GAUGE and calls & (RATED - {"changes"}):
        found.append(f"{name} is a gauge and rated")
    if family.kind is Kind.HISTOGRAM and not suffix:
        found.append(f"{name} is a histogram: its series are _bucket, _sum and _count")
    return found


def _value_faults(family: Family, label: str, op: Any, value: str) -> list[str]:
    if label == "version":  # open
        return []
    possible = family.label_values(label)
    if "=~" in str(op) or "Re" in str(op):
        parts = value.split("|")
        wrong = [part for part in parts if re.fullmatch(r"[a-z0-9_-]+", part) and part not in possible]
    else:
        wrong = [value] if value not in possible else []
    return [f"{family.name} has no {label}={one}" for one in wrong]


def _quantile_faults(node: Any) -> list[str]:
    buckets = node.args[1]
    while isinstance(buckets, promql_parser.ParenExpr):
        buckets = buckets.expr
    if not isinstance(buckets, promql_parser.AggregateExpr):
        return []  # of one series, or of a recorded one
    by = buckets.modifier
    if str(buckets.op) != "sum" or by is None or by.type != promql_parser.AggModifierType.By or "le" not in by.labels:
        return ["histogram_quantile of buckets that are not sum by (le, …)"]
    return []


def _grouping_faults(tree: Any, others: dict[str, frozenset[str] | None]) -> list[str]:
    """Aggregations by labels that no series below them has."""
    found = []
    for node, _ in _walk(tree, ()):
        if not isinstance(node, promql_parser.AggregateExpr) or node.modifier is None:
            continue
        if node.modifier.type != promql_parser.AggModifierType.By:
            continue
        below: set[str] = set()
        is_open = False
        for one, _above in _walk(node.expr, ()):
            if _is_selector(one):
                allowed = others.get(one.name)
                known = family_of(one.name or "")
                if known is not None:
                    below |= labels_of(*known)
                elif allowed is not None:
                    below |= allowed
                else:
                    is_open = True
        if not is_open:
            found += [
                f"sum by {label}, which nothing below has: {node.prettify()[:80]}"
                for label in node.modifier.labels
                if label not in below
            ]
    return found


def _is_selector(node: Any) -> bool:
    return isinstance(node, promql_parser.VectorSelector)


def _walk(node: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node with those above it, the outermost first."""
    yield node, above
    for name in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
        below = getattr(node, name, None)
        for one in below if isinstance(below, list) else [below]:
            if isinstance(one, promql_parser.Expr) or type(one).__module__ == "promql_parser":
                yield from _walk(one, (*above, node))
