"""The arrays as text for Prometheus: format 0.0.4, and OpenMetrics 1.0 for those who ask for it.

Written straight from the cells, a piece at a time, because a library's writer holds an event loop for tens of milliseconds
at fleet size. Counters, histograms and gauges are summed over the serving processes; a gauge that is NaN is left out, and
every other label combination that can occur is there from the start with 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf, isnan, nan

from routing.topology import Topology
from telemetry import catalog
from telemetry.catalog import EXPOSED, SCOPE_LABELS, Family, Kind, Scope
from telemetry.exemplars import FAMILIES, Exemplar, Exemplars
from telemetry.family import blocks_in_use
from telemetry.layout import Layout, cells_per_block, cells_per_combination, combinations, offset

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_PIECE_LINES = 1200  # about 1 ms
_EXACT = 2.0**53  # up to here every whole number is a float64 of its own
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Array = Sequence[float]
Frame = tuple[str, str]  # what stands before and behind the labels of a block: `name{` and `,le="0.5"} `


class Writer:
    """Writes the text for one topology. Holds what does not change between two scrapes, and no figures."""

    def __init__(self, topology: Topology, layout: Layout, *, version: str) -> None:
        self._blocks: dict[Scope, Sequence[int]] = {scope: layout.blocks(scope) for scope in Scope}
        self._labels = _block_labels(topology)
        self._topology = topology
        self._pools = [(pool.model, pool.name) for pool in topology.pools]
        self._frames = {family.name: _frames(family) for family in EXPOSED}
        self._version = version

    def write(
        self,
        arrays: Sequence[Array | None],
        control: Array | None,
        *,
        openmetrics: bool = False,
        exemplars: Exemplars | None = None,
    ) -> Iterator[bytes]:
        """The whole text in pieces of about a millisecond each; let the event loop run between two of them.

        `arrays` are those of the serving processes by slot, ``None`` for one that is not there; `control` is that of the
        control process. Figures are read when their piece is made, so two families may be some milliseconds apart; one
        histogram is always consistent in itself. `exemplars` stand in OpenMetrics only; plain text has no place for them.
        """
        present = [(str(slot), array) for slot, array in enumerate(arrays) if array is not None]
        for family in EXPOSED:
            yield _head(family, openmetrics=openmetrics)
            marks = exemplars if openmetrics and family.name in FAMILIES else None
            yield from filter(None, self._pieces(family, present, control, marks))
        if openmetrics:
            yield b"# EOF\n"

    def write_all(self, arrays: Sequence[Array | None], control: Array | None, *, openmetrics: bool = False) -> bytes:
        """The same in one piece."""
        return b"".join(self.write(arrays, control, openmetrics=openmetrics))

    def _pieces(
        self, family: Family, present: list[tuple[str, Array]], control: Array | None, exemplars: Exemplars | None
    ) -> Iterator[bytes]:
        if family.writer is catalog.Writer.EXPOSITION:
            yield f"{family.name}{{{_labels(version=self._version)}}} 1\n".encode()
            return
        if family.is_per_process:
            for slot, array in present:
                yield "".join(self._lines(family, range(1), [_labels(process=slot)], [array])).encode()
            return
        sources = [array for _, array in present]
        if family.writer is catalog.Writer.CONTROL:
            sources = [] if control is None else [control]
        blocks, labels = self._blocks[family.scope], self._labels[family.scope]
        if family.is_for_some:
            limited = blocks_in_use(family, self._topology)
            blocks, labels = [blocks[index] for index in limited], [labels[index] for index in limited]
        step = max(1, _PIECE_LINES // len(self._frames[family.name]))
        for first in range(0, len(blocks), step):
            some, names = blocks[first : first + step], labels[first : first + step]
            lines = self._lines(family, some, names, sources)
            if exemplars is not None:
                self._mark(lines, family, self._pools[first : first + step], exemplars)
            yield "".join(lines).encode()

    def _mark(self, lines: list[str], family: Family, pools: list[tuple[str, str]], exemplars: Exemplars) -> None:
        """Put exemplars behind the buckets that have one. A histogram is a line for each bucket, its sum and its count."""
        per_combination = cells_per_combination(family) + 1
        for number, (model, pool) in enumerate(pools):
            first = number * len(self._frames[family.name])
            for (combination, bucket), exemplar in exemplars.of(family.name, model, pool).items():
                line = first + combination * per_combination + bucket
                lines[line] = f"{lines[line][:-1]}{_exemplar(exemplar)}\n"

    def _lines(self, family: Family, blocks: Sequence[int], labels: list[str], sources: list[Array]) -> list[str]:
        frames = self._frames[family.name]
        first, width = offset(family.name), cells_per_block(family)
        is_histogram, is_gauge = family.kind is Kind.HISTOGRAM, family.kind is Kind.GAUGE
        may_be_absent = is_gauge or family.usual is not None
        usual = None if family.usual is None else [family.is_usual(values) for values in combinations(family)]
        lines: list[str] = []
        for base, block in zip(blocks, labels, strict=True):
            values = _sum([source[base + first : base + first + width] for source in sources]) or [family.start] * width
            if is_histogram:
                values = _series(values, cells_per_combination(family))
            elif usual is not None:  # the others only once they were counted
                values = [value if value or known else nan for value, known in zip(values, usual, strict=True)]
            lines += [
                f"{before}{block}{behind}{_number(value) if value else '0'}\n"
                for (before, behind), value in zip(frames, values, strict=True)
                if not (may_be_absent and isnan(value))
            ]
        return lines


def content_type(accept: str | None) -> tuple[bool, str]:
    """Whether a scraper with this Accept header gets OpenMetrics, and the Content-Type of the answer.

    OpenMetrics 1.0 is given to those who name it and rank it no lower than plain text; everybody else, and whoever sends a
    header that cannot be read, gets text 0.0.4.
    """
    openmetrics_rank = text_rank = 0.0
    for choice in (accept or "").split(","):
        media, *parameters = (part.strip().lower() for part in choice.split(";"))
        values = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        rank = _rank(values.get("q", "1"))
        if media == "application/openmetrics-text" and values.get("version", "1.0.0").strip('"') == "1.0.0":
            openmetrics_rank = max(openmetrics_rank, rank)
        elif media in {"text/plain", "text/*", "*/*"}:
            text_rank = max(text_rank, rank)
    wants_openmetrics = 0 < openmetrics_rank >= text_rank
    return wants_openmetrics, OPENMETRICS_TYPE if wants_openmetrics else TEXT_TYPE


def bound_text(bound: float) -> str:
    """A bucket's bound as Go and the usual clients write it: queries match it as text, so `1.0` and never `1`."""
    if bound == inf:
        return "+Inf"
    text = repr(bound)
    point = text.find(".")
    if point <= 6:
        return text
    digits = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0").rstrip(".")
    return f"{digits}e+{point - 1:02d}"


def _exemplar(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}"}} {_number(exemplar.value)} {exemplar.unix_seconds:.3f}'


def _rank(text: str) -> float:
    try:
        rank = float(text)
    except ValueError:
        return 0.0
    return rank if 0 <= rank <= 1 else 0.0


def _head(family: Family, *, openmetrics: bool) -> bytes:
    name = family.name
    if openmetrics and family.kind is Kind.COUNTER:
        name = name.removesuffix("_total")
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.kind.value}\n".encode()


def _labels(**labels: str) -> str:
    return ",".join(f'{name}="{_label_value(value)}"' for name, value in labels.items())


def _label_value(value: str) -> str:
    # A name may hold half of a surrogate pair (YAML can spell it), which UTF-8 cannot.
    return value.encode("utf-8", "replace").decode().translate(_ESCAPES)


def _block_labels(topology: Topology) -> dict[Scope, list[str]]:
    """Labels of every block of a scope, in the order of the blocks."""
    pools = {worker.index: pool for pool in topology.pools for worker in pool.workers}
    values: dict[Scope, list[tuple[str, ...]]] = {
        Scope.PROCESS: [()],
        Scope.ROUTE: list(topology.routes),
        Scope.POOL: [(pool.model, pool.name) for pool in topology.pools],
        Scope.WORKER: [(pools[worker.index].model, pools[worker.index].name, worker.name) for worker in topology.workers],
        Scope.KEY: [(key.name,) for key in topology.keys],
    }
    return {
        scope: [_labels(**dict(zip(SCOPE_LABELS[scope], names, strict=True))) for names in blocks]
        for scope, blocks in values.items()
    }


def _frames(family: Family) -> list[Frame]:
    """One frame for each line that a block of the family has, in the order of `_series` for histograms, else of the cells."""
    if family.writer is catalog.Writer.EXPOSITION:
        return []
    has_block_labels = bool(SCOPE_LABELS[family.scope]) or family.is_per_process

    def frame(suffix: str, labels: dict[str, str]) -> Frame:
        text = _labels(**labels)
        if has_block_labels:
            return f"{family.name}{suffix}{{", f",{text}}} " if text else "} "
        return (f"{family.name}{suffix}{{", f"{text}}} ") if text else (f"{family.name}{suffix}", " ")

    frames: list[Frame] = []
    for values in combinations(family):
        labels = dict(zip(family.labels, values, strict=True))
        if family.kind is Kind.HISTOGRAM:
            frames += [frame("_bucket", {**labels, "le": bound_text(bound)}) for bound in (*family.bounds, inf)]
            frames += [frame("_sum", labels), frame("_count", labels)]
        else:
            frames.append(frame("", labels))
    return frames


def _sum(arrays: list[Array]) -> list[float]:
    """Cell by cell; empty when there are no arrays."""
    return list(arrays[0]) if len(arrays) == 1 else [sum(cells) for cells in zip(*arrays, strict=True)]


def _series(cells: list[float], cells_per_histogram: int) -> list[float]:
    """Cumulative buckets, sum and count of each histogram in the cells."""
    figures: list[float] = []
    for first in range(0, len(cells), cells_per_histogram):
        *buckets, total = cells[first : first + cells_per_histogram]
        figures += accumulate(buckets)
        figures += (total, figures[-1])
    return figures


def _number(value: float) -> str:
    """Shortest text that reads back as the same float; whole numbers without point and exponent."""
    if -_EXACT <= value <= _EXACT and value == int(value):
        return str(int(value))
    text = repr(value)
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)
