"""The rules of the layout as functions of source text: who may import whom, what keeps the core pure, what no file may name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# proxy ─► dashboards | simulator ─► telemetry ─► routing | roofline: each package and the packages it may import
ARROWS: Mapping[str, frozenset[str]] = {
    "proxy": frozenset({"dashboards", "simulator", "telemetry", "routing", "roofline"}),
    "dashboards": frozenset({"telemetry", "routing", "roofline"}),
    "simulator": frozenset({"telemetry", "routing", "roofline"}),
    "telemetry": frozenset({"routing", "roofline"}),
    "routing": frozenset(),
    "roofline": frozenset(),
}

# Within the proxy the serving path stands alone: what each of its packages may import of the proxy. It knows no configuration
# file, no control and no admin; what it is told comes in through `published`.
SERVING_PATH: Mapping[str, frozenset[str]] = {
    "proxy.wire": frozenset({"proxy.wire"}),
    "proxy.serving": frozenset(
        {f"proxy.{name}" for name in ("wire", "serving", "upstream", "published", "records", "rundir", "tls")}
    ),
    "proxy.upstream": frozenset({f"proxy.{name}" for name in ("wire", "serving", "upstream", "rundir", "tls")}),
}
# What the rest of the proxy may use of the serving path: what paths and headers are called.
SERVING_PATH_FOR_OTHERS = frozenset({"proxy.serving.endpoints", "proxy.wire.request_head"})

# Core: the decision parts. What they import of the project is core with them.
CORE_PACKAGES = ("routing", "roofline", "telemetry")
CORE_MODULES = (
    *(
        "simulator.engine.engine",
        "simulator.engine.roofline_timing",
        "simulator.traces",
        "simulator.virtual.fleet",
        "simulator.virtual.routing",
    ),
    *("simulator.bodies", "simulator.dialect", "simulator.exposition", "simulator.faults", "simulator.metrics"),
    *("simulator.prompts", "simulator.refusals", "simulator.text", "simulator.transfer", "simulator.vocabulary"),
    *("simulator.bodies_more", "simulator.wire.common", "simulator.wire.chat", "simulator.wire.completion"),
    *("simulator.wire.messages", "simulator.wire.responses", "simulator.wire.small"),
    "dashboards.live",
)
# The parts of core packages that do I/O.
SHELL = ("telemetry.cells", "telemetry.sinks", "telemetry.reference", "telemetry.record_reference")

IMPURE_MODULES = frozenset(
    {
        "aiohttp",
        "asyncio",
        "concurrent",
        "fcntl",
        "http",
        "io",
        "logging",
        "mmap",
        "multiprocessing",
        "opentelemetry",
        "os",
        "prometheus_client",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
        "warnings",
    }
)
PURE_EXCEPTIONS = frozenset({"urllib.parse"})  # parsing text only
PURE_NAMES = {"random": {"Random"}, "pathlib": {"PurePath", "PurePosixPath"}}  # of these modules, only these names
IMPURE_CALLS = frozenset({"open", "print", "input", "__import__"})
CLOCK_CALLS = frozenset({"now", "utcnow", "today"})  # of datetime and date


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, with the names taken from it (none for ``import module``)."""

    module: str
    names: tuple[str, ...]
    line: int


def imports_of(module: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import in the source, at whatever depth, relative ones resolved, and `import_module` with a constant."""
    parents = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name, (), node.lineno)
            case ast.ImportFrom(module=name, names=names, level=level):
                base = parents[: len(parents) - level + 1] if level else []
                yield Import(".".join([*base, *([name] if name else [])]), tuple(alias.name for alias in names), node.lineno)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
                if called == "import_module":
                    yield Import(name, (), node.lineno)
            case _:
                pass


def arrow_faults(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """The imports of this module that point against the arrows."""
    package = module.partition(".")[0]
    faults = []
    for item in imports_of(module, source, is_package=is_package):
        target = item.module.partition(".")[0]
        outside = target in {"tests", "benchmarks", "examples"}
        if outside or (target in ARROWS and target != package and target not in ARROWS[package]):
            faults.append(f"{module}:{item.line} imports {item.module}")
    return faults


def serving_path_faults(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """The imports that tie the serving path to the rest of the proxy, in either direction."""
    here = ".".join(module.split(".")[:2])
    allowed = SERVING_PATH.get(here)
    faults = []
    for item in imports_of(module, source, is_package=is_package):
        parts = item.module.split(".")
        if parts[0] != "proxy":
            continue
        names = [item.module] if len(parts) > 1 else [f"proxy.{name}" for name in item.names]
        for name in names:
            target = ".".join(name.split(".")[:2])
            if target not in allowed if allowed is not None else target in SERVING_PATH and name not in SERVING_PATH_FOR_OTHERS:
                faults.append(f"{module}:{item.line} imports {name}")
    return faults


def is_core(module: str) -> bool:
    """Whether the module has to be pure by its own name."""

    def within(names: tuple[str, ...]) -> bool:
        return any(module == name or module.startswith(name + ".") for name in names)

    return within(CORE_MODULES + CORE_PACKAGES) and not within(SHELL)


def core_of(sources: Mapping[str, str]) -> dict[str, str]:
    """The modules that have to be pure, each with the reason: its own name, or the core module that imports it."""
    reasons = {module: "by its name" for module in sources if is_core(module)}
    todo = list(reasons)
    while todo:
        importer = todo.pop()
        for item in imports_of(importer, sources[importer], is_package=_is_package(importer, sources)):
            for target in (item.module, *(f"{item.module}.{name}" for name in item.names)):
                if target in sources and target not in reasons:
                    reasons[target] = f"imported by {importer}"
                    todo.append(target)
    return reasons


def purity_faults(module: str, source: str) -> list[str]:
    """What in this source does I/O, reads a clock, draws from shared randomness, logs, or is asynchronous."""
    tree = ast.parse(source)
    faults = []
    for item in imports_of(module, source):
        top = item.module.partition(".")[0]
        if top in IMPURE_MODULES and item.module not in PURE_EXCEPTIONS:
            faults.append(f"{module}:{item.line} imports {item.module}")
        elif top in PURE_NAMES:
            faults += [f"{module}:{item.line} imports {top}.{name}" for name in item.names if name not in PURE_NAMES[top]]
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="random" | "pathlib" as top), attr=name) if name not in PURE_NAMES[top]:
                faults.append(f"{module}:{node.lineno} uses {top}.{name}")
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                faults.append(f"{module}:{node.lineno} calls {name}")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date") | ast.Attribute(attr="datetime" | "date"))):
                if node.func.attr in CLOCK_CALLS:  # type: ignore[attr-defined]  # the pattern says it is an Attribute
                    faults.append(f"{module}:{node.lineno} reads the clock")
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                faults.append(f"{module}:{node.lineno} is asynchronous")
            case ast.Global(names=names):
                faults.append(f"{module}:{node.lineno} changes the global {', '.join(names)}")
            case _:
                pass
    return faults


def _is_package(module: str, sources: Mapping[str, str]) -> bool:
    return any(other.startswith(module + ".") for other in sources)


# What a file of the project must not name; the patterns are written so that they do not match themselves.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:work|farm|root|home/\w+)/"),
    "a folder outside the project": re.compile(
        r"\.\./shared\b|\bshared/(?:vllm|cases|facts|bench|hooks|design|style)|\.librar[y]\b"
    ),
    "the host of a package registry": re.compile(
        r"\b(?:pypi\.org|files\.pythonhosted\.org|registry\.npmjs\.org|deb\.debian\.org|proxy\.golang\.org)"
    ),
    "a number of a working list": re.compile(r"\bB0\d\d\b|\bissue #?\d+\b", re.IGNORECASE),
    "what looks like a key": re.compile(r"\bsk-[A-Za-z0-9]{20,}"),
}


def text_faults(name: str, text: str) -> list[str]:
    """The lines of a file that name what no file of the project may name."""
    return [
        f"{name}:{number} names {what}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if (found := pattern.search(line))
    ]
