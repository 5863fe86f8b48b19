"""References that stand still: accepted from the worker in the middle, kept in a file, changed only by someone's doing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from proxy.control.calibrating import Calibrations, key_of
from roofline.calibration.calibration import CalibrationKey
from roofline.expected import DEFAULT_LOSSES
from telemetry.judgement import judge
from tests.telemetry.judged import YARDSTICK, a_stream, tpot, ttft

KEY = key_of(YARDSTICK.deployment)
DEFAULTS = DEFAULT_LOSSES["vllm"]


def serve(
    calibrations: Calibrations, worker: str, factor: float, requests: int = 400, seed: int = 0, key: CalibrationKey = KEY
) -> bool:
    """Let a worker serve requests of many sizes, each so many times slower than published figures say; whether accepted."""
    dice = Random(f"{worker}{seed}")
    accepted = False
    for _ in range(requests):
        prompt, completion = dice.randint(100, 12_000), dice.randint(20, 400)
        running, context = float(dice.randint(0, 40)), dice.randint(200, 4000)
        noise = dice.gauss(1.0, 0.03)
        record = a_stream(
            prompt,
            completion,
            upstream_ttft_seconds=factor * noise * ttft(prompt, 0, running, context + completion // 2),
            tpot_seconds=factor * noise * tpot(prompt, completion, running, context + completion // 2),
            beside_prefill_requests=running,
            beside_prefill_prompt_tokens=float(context),
            beside_decode_requests=running,
            beside_decode_prompt_tokens=float(context),
        )
        accepted |= calibrations.learn(key, worker, record, judge(record, YARDSTICK), YARDSTICK)
    return accepted


def test_a_first_reference_is_what_workers_do():
    """Workers a fifth slower than published become the measure, and are expected to be."""
    calibrations = Calibrations()
    assert calibrations.losses_of(KEY) is DEFAULTS

    assert serve(calibrations, "w-0", 1.2)

    losses = calibrations.losses_of(KEY)
    assert losses.compute_efficiency_ratio == pytest.approx(DEFAULTS.compute_efficiency_ratio / 1.2, rel=0.06)


def test_one_slow_worker_of_three_is_not_the_measure():
    """The reference comes from the middle, once half of them are known."""
    calibrations = Calibrations()
    for round_ in range(6):
        for worker, factor in (("w-0", 1.8), ("w-1", 1.0), ("w-2", 1.02)):
            serve(calibrations, worker, factor, 70, seed=round_)

    assert calibrations.losses_of(KEY).compute_efficiency_ratio > DEFAULTS.compute_efficiency_ratio / 1.3


def test_a_reference_stands_still():
    """What a worker does afterwards changes nothing about it, and is shown as drift."""
    calibrations = Calibrations()
    serve(calibrations, "w-0", 1.0)
    before = calibrations.losses_of(KEY)

    assert not serve(calibrations, "w-0", 2.0, 4000, seed=1)

    assert calibrations.losses_of(KEY) is before
    shown = calibrations.view()["workers"]["w-0"]
    assert shown["drift"]["tpot"]["direction"] == "slower"
    assert shown["drift"]["tpot"]["ratio"] > 1.5


def test_someone_can_accept_what_a_worker_does():
    """Then all that are like it are judged by that."""
    calibrations = Calibrations()
    serve(calibrations, "w-0", 1.0)
    before = calibrations.losses_of(KEY)
    serve(calibrations, "w-0", 2.0, 4000, seed=1)

    calibrations.accept("w-0")

    assert calibrations.losses_of(KEY).memory_efficiency_ratio < before.memory_efficiency_ratio / 1.4
    with pytest.raises(LookupError, match="w-9"):
        calibrations.accept("w-9")


def test_a_far_too_slow_worker_is_not_accepted_by_itself():
    """Three times slower than published figures may be a fault, and would become its own measure."""
    calibrations = Calibrations()

    assert not serve(calibrations, "w-0", 3.0)

    assert not calibrations.has_reference(KEY)
    assert any("slower than published" in doubt for doubt in calibrations.view()["workers"]["w-0"]["doubts"])


def test_references_outlive_the_process(tmp_path: Path):
    """In a file, if there is one; equal after reading."""
    path = tmp_path / "references.json"
    first = Calibrations(path)
    serve(first, "w-0", 1.1)

    assert Calibrations(path).losses_of(KEY) == first.losses_of(KEY)


@pytest.mark.parametrize("text", ["", "{", "[{}]", "7", '[{"schema": 99}]', "\x00"])
def test_a_file_that_cannot_be_read_is_begun_anew(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture):
    """It is told once, and what is learned overwrites it."""
    path = tmp_path / "references.json"
    path.write_text(text)

    calibrations = Calibrations(path)

    assert not calibrations.has_reference(KEY)
    assert "are not used" in caplog.text
    serve(calibrations, "w-0", 1.0)
    assert len(json.loads(path.read_text())) == 1


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The reference holds for this process all the same."""
    calibrations = Calibrations(tmp_path / "missing" / "references.json")

    assert serve(calibrations, "w-0", 1.0)
    assert calibrations.has_reference(KEY)
    assert "could not be kept" in caplog.text


def test_what_could_not_be_kept_is_kept_when_it_can_be(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """It is tried again at each look and told once."""
    path = tmp_path / "missing" / "references.json"
    calibrations = Calibrations(path)
    serve(calibrations, "w-0", 1.0)
    for _ in range(3):
        calibrations.look()
    path.parent.mkdir()
    calibrations.look()

    assert len(json.loads(path.read_text())) == 1
    assert caplog.text.count("could not be kept") == 1


def test_workers_that_are_gone_are_forgotten():
    """Their reference is not."""
    calibrations = Calibrations()
    serve(calibrations, "w-0", 1.0)

    calibrations.keep_only(["w-1"])

    assert calibrations.view()["workers"] == {}
    assert calibrations.has_reference(KEY)


NEWER = key_of(YARDSTICK.deployment, "0.12.0")


def test_an_upgrade_begins_a_reference_of_its_own():
    """A newer engine that is slower is no drift of the older one, and the older one's reference is there to go back to."""
    calibrations = Calibrations()
    serve(calibrations, "w-0", 1.0, key=key_of(YARDSTICK.deployment, "0.11.0"))
    before = calibrations.losses_of(key_of(YARDSTICK.deployment, "0.11.0"))

    serve(calibrations, "w-0", 1.4, 40, seed=1, key=NEWER)
    assert calibrations.losses_of(NEWER) is DEFAULTS
    assert calibrations.view()["workers"]["w-0"]["drift"] is None
    assert serve(calibrations, "w-0", 1.4, seed=2, key=NEWER)

    shown = calibrations.view()
    assert shown["workers"]["w-0"]["engine_version"] == "0.12.0"
    assert shown["workers"]["w-0"]["drift"]["tpot"]["ratio"] == pytest.approx(1.0, abs=0.1)
    assert len(shown["references"]) == 2
    assert calibrations.losses_of(key_of(YARDSTICK.deployment, "0.11.0")) is before


def test_what_was_kept_before_versions_were_known_belongs_to_the_first_one(tmp_path: Path):
    """So a gateway that begins to ask does not take a slow worker for a new measure; a second version inherits nothing."""
    calibrations = Calibrations(tmp_path / "kept.json")
    serve(calibrations, "w-0", 1.2)
    before = calibrations.losses_of(KEY)

    for _ in range(2):
        again = Calibrations(tmp_path / "kept.json")
        again.inherit(KEY)
        again.inherit(key_of(YARDSTICK.deployment, "0.11.0"))
        again.inherit(NEWER)

        assert again.losses_of(key_of(YARDSTICK.deployment, "0.11.0")) == before
        assert (again.has_reference(KEY), again.has_reference(NEWER)) == (False, False)


def test_references_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """The earliest accepted is forgotten: each version of the engine brings one more."""
    monkeypatch.setattr("proxy.control.calibrating._MOST_REFERENCES", 2)
    calibrations = Calibrations()
    keys = [key_of(YARDSTICK.deployment, f"0.{number}") for number in range(3)]
    for key in keys:
        serve(calibrations, "w-0", 1.0, 300, key=key)

    assert [calibrations.has_reference(key) for key in keys] == [False, True, True]
