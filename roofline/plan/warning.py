"""What a warning of a plan is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a warning weighs."""

    ERROR = "error"  # not one such request can be served
    WARNING = "warning"  # what was asked for is not kept, or not safely
    NOTE = "note"  # good to know


class WarningCode(StrEnum):
    """What is warned of, in the order in which it is told: what binds first at the top."""

    DOES_NOT_FIT = "does_not_fit"
    CONTEXT_TOO_LONG = "context_too_long"
    REQUEST_DOES_NOT_FIT = "request_does_not_fit"
    NO_ROOM_FOR_CUDA_CONTEXT = "no_room_for_cuda_context"
    KV_RESERVE = "kv_reserve_below_minimum"
    CONCURRENCY_ABOVE_KV = "concurrency_above_kv_capacity"
    CONCURRENCY_ABOVE_SEQUENCES = "concurrency_above_max_num_seqs"
    RATE_ABOVE_SATURATION = "rate_above_saturation"
    TTFT_MISSED = "ttft_target_missed"
    TPOT_MISSED = "tpot_target_missed"
    ABOVE_CEILING = "concurrency_above_ceiling"
    CHUNK_SIZE = "chunk_size"
    NO_HARDWARE_PATH = "no_hardware_path"
    UNKNOWN_LINK = "unknown_link"
    UNSURE_GPU = "unsure_gpu_figures"
    UNFITTED_ENGINE = "unfitted_engine"
    ABOVE_RECOMMENDED = "concurrency_above_recommended"
    BEYOND_KNEE = "concurrency_beyond_knee"
    FASTER_THAN_NEEDED = "faster_than_needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """One sentence of what is wrong, and what would be right (empty if there is nothing to do)."""

    code: WarningCode
    severity: Severity
    text: str
    remedy: str = ""


def error(code: WarningCode, text: str, remedy: str = "") -> PlanWarning:
    """Of something that cannot be."""
    return PlanWarning(code=code, severity=Severity.ERROR, text=text, remedy=remedy)


def warning(code: WarningCode, text: str, remedy: str = "") -> PlanWarning:
    """Of something that was asked for and is not kept."""
    return PlanWarning(code=code, severity=Severity.WARNING, text=text, remedy=remedy)


def note(code: WarningCode, text: str, remedy: str = "") -> PlanWarning:
    """Of something to know."""
    return PlanWarning(code=code, severity=Severity.NOTE, text=text, remedy=remedy)
