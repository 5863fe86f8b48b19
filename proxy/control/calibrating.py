"""What the workers' own requests teach about them: references that stand still, and how far each worker is from its own.

A reference is shared by all workers that are alike (`CalibrationKey`). It is accepted once, from the worker in the middle of
those that are alike, and then changes only by someone's doing; what a worker does lately is held against it, and is never the
measure itself. References are kept in a file where one is configured.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import time as wall_clock

import msgspec

from proxy.control.unwritten import CALIBRATIONS, Unwritten
from roofline.calibration.calibration import Calibration, CalibrationKey, Fit
from roofline.calibration.drift import Drift, drift
from roofline.calibration.reference import DEFAULT_RULE, Reference, accept, doubts
from roofline.calibration.reference_json import reference_from_json, reference_to_json
from roofline.calibration.sample import Sample, decode_sample, prefill_sample
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES, Losses
from telemetry.judgement import Judgement, Yardstick
from telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

ENGINE = "vllm"
UNKNOWN_VERSION = "unknown"
_ALL_SAMPLES = 600  # of a worker; from then on one request in `_SHARE` is a sample, which costs as much as judging it
_SHARE = 4
_HALF_LIFE_SAMPLES = 500.0
_FIT_SAMPLES = 64  # a worker is looked at again after so many
_MOST_REFERENCES = 256  # the earliest accepted is forgotten: one more comes with each version of the engine
_FEW_ARRIVED = 10  # prompt tokens of others for each output token: less than a twentieth of its time


class _Worker:
    """What is known of one worker, as what it is now."""

    __slots__ = ("calibration", "drift", "fit", "key", "offered", "since_fit")

    def __init__(self, key: CalibrationKey, defaults: Losses) -> None:
        self.key = key
        self.calibration = Calibration(key, defaults, half_life_samples=_HALF_LIFE_SAMPLES)
        self.fit: Fit | None = None
        self.drift: Drift | None = None
        self.offered = 0  # requests that could have been samples
        self.since_fit = 0


class Calibrations:
    """One per control process; ``path`` keeps the references."""

    def __init__(self, path: Path | None = None, unwritten: Unwritten | None = None) -> None:
        self._path = path
        self._unwritten = unwritten or Unwritten()
        self._defaults = DEFAULT_LOSSES[ENGINE]
        self._references: dict[CalibrationKey, Reference] = {}
        self._workers: dict[str, _Worker] = {}  # by name
        if path is not None:
            self._read(path)

    def __repr__(self) -> str:
        return f"<Calibrations of {len(self._workers)} workers, {len(self._references)} references>"

    def losses_of(self, key: CalibrationKey) -> Losses:
        """What requests of such workers are judged by: the reference, or the defaults while there is none."""
        reference = self._references.get(key)
        return self._defaults if reference is None else reference.losses

    def keep_only(self, workers: Iterable[str]) -> None:
        """Forget workers that are gone."""
        names = set(workers)
        self._workers = {name: each for name, each in self._workers.items() if name in names}

    def inherit(self, key: CalibrationKey) -> None:
        """Workers are known to be these from now on. What was accepted of them before they had said their version is theirs."""
        unknown = replace(key, engine_version=UNKNOWN_VERSION)
        if key.engine_version == UNKNOWN_VERSION or key in self._references or unknown not in self._references:
            return
        self._references[key] = replace(self._references.pop(unknown), key=key)
        self._keep()

    def look(self) -> None:
        """Keep what could not be kept before; to be called now and then."""
        if CALIBRATIONS in self._unwritten:
            self._keep()

    def learn(
        self, key: CalibrationKey, worker: str, record: RequestRecord, judgement: Judgement, yardstick: Yardstick
    ) -> bool:
        """Take a judged request in. True when the reference of such workers is another one than before."""
        each = self._workers.get(worker)
        if each is None or (each.key is not key and each.key != key):  # another version, say, learns anew
            each = self._workers[worker] = _Worker(key, self._defaults)
        each.offered += 1
        if each.offered > _ALL_SAMPLES and each.offered % _SHARE:
            return False
        for sample in _samples(record, judgement, yardstick):
            each.calibration.add(sample)
            each.since_fit += 1
        if each.since_fit < _FIT_SAMPLES:
            return False
        each.since_fit = 0
        return self._look(key, each)

    def has_reference(self, key: CalibrationKey) -> bool:
        """Whether requests of such workers are judged by what they were themselves."""
        return key in self._references

    def view(self) -> dict[str, object]:
        """Everything for people: references, and each worker's recent fit beside its own."""
        return {
            "references": [reference_to_json(reference) for reference in self._references.values()],
            "workers": {
                name: {
                    "model": each.key.model,
                    "gpu": each.key.gpu,
                    "engine_version": each.key.engine_version,
                    "samples": each.calibration.samples_taken,
                    "recent": None if each.fit is None else _fit_view(each.fit),
                    "drift": None if each.drift is None else _drift_view(each.drift),
                    "doubts": () if each.fit is None else doubts(each.fit),
                }
                for name, each in self._workers.items()
            },
        }

    def accept(self, worker: str) -> Reference:
        """Make what this worker does lately the reference of all that are like it, by someone's decision.

        ``LookupError`` if there is no such worker, or nothing is known of it yet.
        """
        each = self._workers.get(worker)
        if each is None or each.fit is None:
            raise LookupError(f"nothing is known yet of a worker {worker!r}")
        return self._accept(each.fit)

    def _accept(self, fit: Fit) -> Reference:
        reference = accept(fit, accepted_unix_seconds=wall_clock())
        self._references[fit.key] = reference
        while len(self._references) > _MOST_REFERENCES:
            del self._references[min(self._references, key=lambda key: self._references[key].accepted_unix_seconds)]
        self._keep()
        self._compare(fit.key)
        return reference

    def _look(self, key: CalibrationKey, each: _Worker) -> bool:
        each.fit = each.calibration.fit()
        reference = self._references.get(key)
        if reference is not None:
            if each.fit is not None:
                each.drift = drift(reference, each.fit)
            return False
        chosen = self._middle(key)
        if chosen is None:
            return False
        self._accept(chosen)
        _log.info("a calibration of %s on %s with vLLM %s was accepted as reference", key.model, key.gpu, key.engine_version)
        return True

    def _middle(self, key: CalibrationKey) -> Fit | None:
        """The fit of the worker in the middle of those alike, once half of them have one that leaves no doubts."""
        alike = [each for each in self._workers.values() if each.key == key]
        fits = sorted(
            (each.fit for each in alike if each.fit is not None and not doubts(each.fit, DEFAULT_RULE)),
            key=lambda fit: fit.default_ratio,
        )
        return fits[(len(fits) - 1) // 2] if fits and 2 * len(fits) >= len(alike) else None

    def _compare(self, key: CalibrationKey) -> None:
        reference = self._references[key]
        for each in self._workers.values():
            if each.key == key and each.fit is not None:
                each.drift = drift(reference, each.fit)

    def _read(self, path: Path) -> None:
        """Take kept references up. A file that cannot be read is told once and begun anew."""
        try:
            for value in json.loads(path.read_text(encoding="utf-8")):
                reference = reference_from_json(value)
                self._references[reference.key] = reference
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            _log.warning("the calibrations in %s are not used: %s", path, error)

    def _keep(self) -> None:
        if self._path is None:
            return
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            fresh.write_bytes(msgspec.json.encode([reference_to_json(each) for each in self._references.values()]))
            fresh.replace(self._path)
        except OSError as error:
            self._unwritten.failed(CALIBRATIONS, f"calibrations could not be kept in {self._path}", error)
        else:
            self._unwritten.went_well(CALIBRATIONS)


def key_of(deployment: Deployment, engine_version: str = UNKNOWN_VERSION) -> CalibrationKey:
    """Workers of this deployment are alike that run the same version of the engine."""
    return CalibrationKey.of(deployment, engine=ENGINE, engine_version=engine_version)


def has_clean_ttft(record: RequestRecord) -> bool:
    """Whether it tells the engine's pace: a first token that had to wait for others' prompts does not."""
    return not record.ahead_tokens


def has_clean_tpot(record: RequestRecord) -> bool:
    """The same for the others, between which prompts may have been computed."""
    return (record.arrived_tokens or 0) <= _FEW_ARRIVED * (record.completion_tokens or 0)


def _samples(record: RequestRecord, judgement: Judgement, yardstick: Yardstick) -> Iterable[Sample]:
    prompt, cached = record.prompt_tokens, record.cached_tokens
    if prompt is None:
        return
    if judgement.ttft is not None and cached is not None and has_clean_ttft(record):
        yield prefill_sample(
            yardstick.deployment,
            prompt_tokens=prompt,
            cached_tokens=cached,
            around=judgement.ttft.around,
            measured_seconds=judgement.ttft.measured_seconds - (record.worker_queue_seconds or 0.0),
        )
    if judgement.tpot is not None and has_clean_tpot(record):
        yield decode_sample(
            yardstick.deployment,
            context_tokens=prompt,
            completion_tokens=record.completion_tokens or 2,
            around=judgement.tpot.around,
            measured_seconds=judgement.tpot.measured_seconds,
        )


def _fit_view(fit: Fit) -> Mapping[str, object]:
    return {
        "constants": {
            name: {"value": estimate.value, "standard_error": estimate.standard_error, "basis": estimate.basis.value}
            for name, estimate in fit.estimates.items()
        },
        "error_ratio": fit.losses.error_ratio,
        "samples": fit.samples,
        "outlier_ratio": fit.outlier_ratio,
        "attained_p10_ratio": fit.attained_p10_ratio,
        "attained_p50_ratio": fit.attained_p50_ratio,
        "attained_p90_ratio": fit.attained_p90_ratio,
        "basis": fit.basis,
    }


def _drift_view(found: Drift) -> Mapping[str, object]:
    return {
        figure: None
        if shift is None
        else {
            "ratio": shift.ratio,
            "low_ratio": shift.low_ratio,
            "high_ratio": shift.high_ratio,
            "direction": direction,
        }
        for figure, shift, direction in (
            ("ttft", found.ttft, found.ttft_direction),
            ("tpot", found.tpot, found.tpot_direction),
        )
    }
