"""What is wrong with how the GPUs of one worker are seen. Pure: from its exporter's page to findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proxy.doctor.finding import Finding, hint, warning
from proxy.doctor.observations import Failure, GpusAsked, WorkerSeen, listing, plain
from telemetry.dcgm import CLOCK, DRAM_ACTIVE, EVENTS, REASONS, Sample, pick, read_page

_SHOWN_VALUES = 4
_UNREACHED = {
    Failure.UNRESOLVED: "its host name is not known here",
    Failure.REFUSED: "nothing listens there",
    Failure.UNREACHABLE: "no connection to it can be made",
    Failure.SILENT: "it does not answer in time",
    Failure.UNTRUSTED: "its certificate is not trusted, or it speaks no TLS",
    Failure.BROKEN: "what it sends is no HTTP answer",
}
_MEND_URL = "correct `dcgm.url`, or start the exporter there; its page is /metrics on port 9400 as a rule"


def look_at_gpus(name: str, worker: WorkerSeen) -> Iterator[Finding]:
    """Yield what keeps the gateway from seeing this worker's GPUs; nothing where no exporter is configured."""
    asked, page = worker.target.gpus, worker.gpus
    if asked is None or page is Failure.NOT_ASKED:
        return
    where = f"of the exporter of its GPUs, {asked.url}"
    if isinstance(page, Failure):
        yield warning("dcgm_unreached", name, f"{where}: {_UNREACHED[page]}", _MEND_URL)
    elif page.status != 200:
        yield warning("dcgm_refused", name, f"{where}: it answers {page.status}", _MEND_URL)
    elif not (samples := read_page(page.body)):
        yield warning("dcgm_other_page", name, f"{where}: its page tells of no GPU", _MEND_URL)
    else:
        yield from _picked(name, where, asked, samples)


def _picked(name: str, where: str, asked: GpusAsked, samples: Sequence[Sample]) -> Iterator[Finding]:
    gpus = pick(samples, dict(asked.labels))
    if gpus is None:
        wanted = ", ".join(f"{label} {' or '.join(values)}" for label, values in asked.labels)
        there = "; ".join(_values(label, samples) for label, _ in asked.labels)
        yield warning("dcgm_labels", name, f"{where}: no GPU has {wanted}. {there}", "correct `dcgm.labels`")
        return
    if asked.gpus_per_worker is not None and gpus.gpus != asked.gpus_per_worker:
        wrong = f"{where}: `dcgm.labels` pick {gpus.gpus} GPUs, and it has {asked.gpus_per_worker}"
        yield warning("dcgm_gpu_count", name, wrong, "correct `dcgm.labels`, or `gpus_per_worker` of the pool")
    names = {sample.name for sample in samples}
    lacking = [counter for counter in (CLOCK, DRAM_ACTIVE) if counter not in names]
    if names.isdisjoint((*REASONS, EVENTS)):
        lacking.append(REASONS[0])
    if lacking:
        wrong = f"{where}: it does not export {listing(lacking)}, so that less can be said of why requests are slow"
        yield hint("dcgm_counters", name, wrong, "add a line for each to the exporter's file of counters (--collectors)")


def _values(label: str, samples: Sequence[Sample]) -> str:
    """What this label is on the page."""
    values = list(dict.fromkeys(sample.labels[label] for sample in samples if label in sample.labels))
    if not values:
        labels = list(dict.fromkeys(key for sample in samples for key in sample.labels))
        return f"There is no label {label} but {listing([plain(key) for key in labels], 12)}"
    return f"{label} is {listing([plain(value) for value in values], _SHOWN_VALUES)} there"
