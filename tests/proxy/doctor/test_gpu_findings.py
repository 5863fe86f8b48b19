"""What `ridgeline doctor` makes of the exporters that tell of workers' GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.doctor.finding import Finding, Severity
from proxy.doctor.findings import find
from proxy.doctor.observations import Answer, Failure, GpusAsked, Reply
from tests.proxy.doctor.test_findings import ALL_WELL, WELL
from tests.telemetry.dcgm_pages import a_page

URL = "http://node-1:9400/metrics"
FIRST = GpusAsked(url=URL, labels=(("gpu", ("0",)), ("Hostname", ("node-1",))))


def found_in(page: Reply, asked: GpusAsked | None = FIRST) -> tuple[Finding, ...]:
    worker = replace(WELL, target=replace(WELL.target, gpus=asked), gpus=page)
    return find(replace(ALL_WELL, workers=(worker,)))


def says(body: bytes, status: int = 200) -> Answer:
    return Answer(status=status, body=body)


def test_gpus_that_are_seen_are_no_finding() -> None:
    """Nor where no exporter is configured, whatever there is."""
    assert found_in(says(a_page())) == ()
    assert found_in(Failure.NOT_ASKED, None) == ()
    assert found_in(says(a_page()), replace(FIRST, gpus_per_worker=1)) == ()


@pytest.mark.parametrize(
    ("page", "code", "words"),
    [
        (Failure.REFUSED, "dcgm_unreached", "nothing listens there"),
        (Failure.UNRESOLVED, "dcgm_unreached", "its host name is not known here"),
        (says(b"", 404), "dcgm_refused", "it answers 404"),
        (says(b"vllm:num_requests_running 1\n"), "dcgm_other_page", "its page tells of no GPU"),
    ],
)
def test_an_exporter_that_cannot_be_read(page: Reply, code: str, words: str) -> None:
    """The worker, the URL, what is wrong with it and which setting mends it."""
    (found,) = found_in(page)

    assert (found.severity, found.code, found.subjects[0].partition(" ")[0]) == (Severity.WARNING, code, "w")
    assert URL in found.wrong
    assert words in found.wrong
    assert "dcgm.url" in found.mend


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [
        (
            (("gpu", ("7",)),),
            "no GPU has gpu 7. gpu is 0, 1 there",
        ),
        (
            (("gpu", ("0",)), ("Hostname", ("node-9", "node-8"))),
            "no GPU has gpu 0, Hostname node-9 or node-8. gpu is 0, 1 there; Hostname is node-1 there",
        ),
        (
            (("pod", ("w",)),),
            "There is no label pod but gpu, UUID, pci_bus_id, device, modelName, Hostname, DCGM_FI_DRIVER_VERSION",
        ),
    ],
)
def test_labels_that_fit_no_gpu(labels: tuple[tuple[str, tuple[str, ...]], ...], wrong: str) -> None:
    """With what the page has instead."""
    (found,) = found_in(says(a_page(2)), GpusAsked(url=URL, labels=labels))

    assert (found.severity, found.code) == (Severity.WARNING, "dcgm_labels")
    assert found.wrong.endswith(wrong)


def test_other_gpus_than_the_worker_has() -> None:
    """The number is configured for the limits, and this one contradicts it."""
    (found,) = found_in(says(a_page(8)), GpusAsked(url=URL, gpus_per_worker=4))

    assert (found.severity, found.code) == (Severity.WARNING, "dcgm_gpu_count")
    assert "pick 8 GPUs, and it has 4" in found.wrong


def test_counters_that_are_not_exported() -> None:
    """By default neither profiling counters nor what holds clocks down is: a hint names the lines to add."""
    (found,) = found_in(says(a_page(DCGM_FI_PROF_DRAM_ACTIVE=None, DCGM_FI_DEV_CLOCKS_EVENT_REASONS=None)))

    assert (found.severity, found.code) == (Severity.HINT, "dcgm_counters")
    assert "DCGM_FI_PROF_DRAM_ACTIVE, DCGM_FI_DEV_CLOCKS_EVENT_REASONS" in found.wrong
