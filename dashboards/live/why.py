"""Why one request was as slow as it was: the three numbers, the gap, and its causes.

The three numbers are those of the back of an envelope: the FLOP of the prefill over what the GPU can do, the bytes of a decode
step over its bandwidth, and the request's KV cache over the room that there is. They are of this request alone.
"""

from __future__ import annotations

import msgspec

from dashboards.live.phases import Part, phases
from dashboards.live.words import OUTCOMES, cause_words, percent, seconds, stage_words
from roofline.capacity.memory import MemoryBudget, memory_budget
from roofline.cost import cost
from roofline.deployment import Deployment
from roofline.limits import decode_limit
from roofline.work import Routing, Span
from telemetry.judgement import Held, Yardstick, judge
from telemetry.record import Outcome, RequestRecord

_WORTH_SAYING = 0.1  # share of the excess


class Number(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the three: an amount, what there is of it, and what share of that it is."""

    amount: float
    of: float
    share_ratio: float
    least_seconds: float | None = None  # that the amount takes at full peaks
    measured_seconds: float | None = None  # what it took
    text: str


class Numbers(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``None``: not known, or there was none."""

    prefill_flop: Number | None = None  # per second of the first token's time, of the GPUs' peak
    decode_bytes: Number | None = None  # per second of a token's time, of the GPUs' bandwidth
    kv_bytes: Number | None = None  # of the room of the worker's cache


class Judged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A figure beside its limits, in seconds."""

    figure: str
    measured_seconds: float
    floor_seconds: float
    reference_seconds: float
    expected_seconds: float
    least_expected_seconds: float  # below expected where it is not known how much was cached
    attained_ratio: float
    floor_ratio: float
    binds: str  # what sets the floor: compute or memory
    deviates: bool


class Share(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One cause and what it explains."""

    cause: str
    seconds: float
    share_ratio: float
    what: str
    advice: str


class Why(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything the panel says."""

    id: str
    summary: str
    advice: str
    outcome: str
    outcome_text: str
    fault: str | None
    hardware: str | None  # None: not configured, so there are no limits
    figures: tuple[Judged, ...]
    numbers: Numbers
    excess_seconds: float | None  # over what the request should have taken; None if that is not far off, or not known
    causes: tuple[Share, ...]  # most first
    unexplained_seconds: float | None
    parts: tuple[Part, ...]
    prefill_from: str | None
    stage: str | None  # what became of the leg at a prefill stage, in words; None without one
    prompt_tokens: int | None
    cached_tokens: int | None
    expected_cached_tokens: int | None
    cache_lost: str | None
    completion_tokens: int | None


def why(record: RequestRecord, yardstick: Yardstick | None, hardware: str | None) -> Why:
    """Explain a record that control has judged; without a yardstick only how it ended and where its time went."""
    judgement = () if yardstick is None else judge(record, yardstick)
    figures = tuple(
        _judged(name, held, record) for name, held in zip(("ttft", "tpot", "e2e"), judgement, strict=False) if held is not None
    )
    excess = sum(cause.seconds for cause in record.causes) if record.causes else None
    causes = tuple(_share(cause.name, cause.seconds, excess or 0.0) for cause in record.causes)
    parts, prefill_from = phases(record)
    return Why(
        id=record.request_id,
        summary=_summary(record, figures, causes, excess, hardware),
        advice=_advice(record, causes),
        outcome=record.outcome,
        outcome_text=OUTCOMES[record.outcome].what,
        fault=record.fault,
        hardware=hardware,
        figures=figures,
        numbers=Numbers() if yardstick is None else numbers(record, yardstick),
        excess_seconds=excess,
        causes=causes,
        unexplained_seconds=None
        if excess is None
        else next((cause.seconds for cause in record.causes if cause.name == "unexplained"), 0.0),
        parts=parts,
        prefill_from=prefill_from,
        stage=stage_words(record),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        expected_cached_tokens=record.expected_cached_tokens,
        cache_lost=record.cache_lost,
        completion_tokens=record.completion_tokens,
    )


def numbers(record: RequestRecord, yardstick: Yardstick) -> Numbers:
    """The three numbers of a request alone, as far as its tokens are known."""
    deployment, prompt, completion = yardstick.deployment, record.prompt_tokens, record.completion_tokens
    if not prompt or record.prompt_is_estimate or record.is_batch:
        return Numbers()
    cached = min(record.cached_tokens or 0, prompt - 1)
    return Numbers(
        prefill_flop=None if record.is_prefilled_elsewhere else _prefill(record, deployment, prompt, cached),
        decode_bytes=_decode(record, yardstick, prompt, completion) if completion and completion > 1 else None,
        kv_bytes=_kv(deployment, prompt + (completion or 0)),
    )


def _prefill(record: RequestRecord, deployment: Deployment, prompt: int, cached: int) -> Number:
    least = cost(deployment, (Span(cached, prompt - cached),), Routing.FEWEST)
    measured = record.upstream_ttft_seconds
    peak = least.flop / least.compute_seconds
    known = "" if record.cached_tokens is not None else " (how many were cached is not known)"
    text = (
        f"{prompt - cached:,} of {prompt:,} prompt tokens to compute{known}: {least.flop / 1e12:.3g} TFLOP, "
        f"at least {seconds(least.compute_seconds)} at {peak / 1e12:,.0f} TFLOP/s"
    )
    spent = least.compute_seconds / measured if measured else 0.0
    if measured:
        text += f"; the first token took {seconds(measured)}, so {percent(spent)} of the peak was used for it"
    return Number(
        amount=least.flop,
        of=peak,
        share_ratio=spent,
        least_seconds=least.compute_seconds,
        measured_seconds=measured,
        text=text,
    )


def _decode(record: RequestRecord, yardstick: Yardstick, prompt: int, completion: int) -> Number:
    limit = decode_limit(yardstick.deployment, yardstick.losses, context_tokens=prompt, completion_tokens=completion)
    steps = completion - 1
    least = cost(yardstick.deployment, (Span(prompt, steps, 1.0, steps, steps),), Routing.FEWEST)
    each = least.memory_seconds / steps
    measured = record.tpot_seconds
    bandwidth = limit.bytes / each
    text = f"{limit.bytes / 1e9:.3g} GB to read for each token: at least {seconds(each)} at {bandwidth / 1e12:.3g} TB/s"
    spent = each / measured if measured else 0.0
    if measured:
        text += f"; a token took {seconds(measured)}, so {percent(spent)} of the bandwidth was used for this request alone"
    return Number(
        amount=limit.bytes,
        of=bandwidth,
        share_ratio=spent,
        least_seconds=each,
        measured_seconds=measured,
        text=text,
    )


def _kv(deployment: Deployment, tokens: int) -> Number | None:
    budget = _budget(deployment)
    if budget is None or budget.kv_bytes <= 0:
        return None
    own = budget.sequence_bytes(tokens)
    share = own / budget.kv_bytes / deployment.parallelism.data
    room = int(1 / share) if share else 0
    text = (
        f"{own / 1e9:.3g} GB of KV cache on each GPU for {tokens:,} tokens, of {budget.kv_bytes / 1e9:.3g} GB that there is: "
        f"room for {room:,} such requests at once"
    )
    return Number(amount=own, of=budget.kv_bytes, share_ratio=share, text=text)


def _budget(deployment: Deployment) -> MemoryBudget | None:
    try:
        return memory_budget(deployment)
    except ValueError:  # the memory of the device is not known
        return None


def _judged(figure: str, held: Held, record: RequestRecord) -> Judged:
    return Judged(
        figure=figure,
        measured_seconds=held.measured_seconds,
        floor_seconds=held.floor_seconds,
        reference_seconds=held.reference_seconds,
        expected_seconds=held.expected_seconds,
        least_expected_seconds=held.least_expected_seconds,
        attained_ratio=held.attained_ratio,
        floor_ratio=held.floor_ratio,
        binds=held.binds,
        deviates=figure in record.deviations,
    )


def _share(cause: str, its_seconds: float, excess: float) -> Share:
    words = cause_words(cause)
    return Share(
        cause=cause,
        seconds=its_seconds,
        share_ratio=its_seconds / excess if excess else 0.0,
        what=words.what,
        advice=words.advice,
    )


_FIGURES = {"ttft": "The first token", "tpot": "A token", "e2e": "The answer"}


def _summary(
    record: RequestRecord, figures: tuple[Judged, ...], causes: tuple[Share, ...], excess: float | None, hardware: str | None
) -> str:
    if record.outcome is not Outcome.OK:
        text = f"It did not end well: {OUTCOMES[record.outcome].what}"
        if record.reason or record.phase:
            text += f" ({record.reason or record.phase})"
        return text + (f": {record.fault}." if record.fault else ".")
    if not figures:
        if hardware is None:
            return "It ended well. How fast it could have been is not known: its pool names no gpu, or the shape is unknown."
        if record.is_prefilled_elsewhere:
            return "It ended well. It is not held against limits: its prompt was computed by the prefill stage."
        return "It ended well. It is not held against limits: a batch, or tokens that its worker did not count."
    flagged = next((figure for figure in figures if figure.figure in record.deviations), None)
    if flagged is None or excess is None:
        attained = min(figures, key=lambda figure: figure.attained_ratio)
        share = percent(attained.attained_ratio)
        return f"It was as fast as can be expected: {share} of the expected {_short(attained.figure)} was attained."
    if causes and causes[0].cause == "facts":
        return (
            f"{_FIGURES[flagged.figure]} took {seconds(flagged.measured_seconds)}, "
            f"less than the {seconds(flagged.floor_seconds)} that physics allows: "
            f"if it is not alone in that, the configured hardware is wrong."
        )
    told = [f"{seconds(cause.seconds)}: {cause.what}" for cause in causes if cause.share_ratio >= _WORTH_SAYING]
    whole = "" if flagged.figure != "tpot" else " over all tokens"
    return (
        f"{_FIGURES[flagged.figure]} took {seconds(_whole(record, flagged))}, {seconds(excess)} too long{whole}. "
        + "; ".join(told)
        + "."
    )


def _short(figure: str) -> str:
    return {"ttft": "TTFT", "tpot": "TPOT", "e2e": "time"}[figure]


def _whole(record: RequestRecord, figure: Judged) -> float:
    """What the client waited, of which the figure is the worker's part."""
    whole = {"ttft": record.ttft_seconds, "e2e": record.e2e_seconds}.get(figure.figure)
    return figure.measured_seconds if whole is None else whole


def _advice(record: RequestRecord, causes: tuple[Share, ...]) -> str:
    if record.outcome is not Outcome.OK:
        return OUTCOMES[record.outcome].advice
    return causes[0].advice if causes else ""
