"""What recent requests suggest to set otherwise, and that nothing is said without a reason."""

from __future__ import annotations

from telemetry.advice import LEAST_REQUESTS, Advice, Lately, Setting
from telemetry.record import Misroute
from tests.telemetry.judged import YARDSTICK, a_stream


def advised(count: int = 100, **fields: object) -> tuple[Advice, ...]:
    lately = Lately()
    for _ in range(count):
        lately.take(a_stream(**({"estimated_prompt_tokens": 2000} | fields)))  # type: ignore[arg-type]
    return lately.advise(YARDSTICK)


def test_where_all_is_well_nothing_is_advised():
    """Even streams, a small batch, and estimates in their pools."""
    assert advised(stall_ratio=1.2, arrived_tokens=5000, beside_decode_requests=3.0) == ()


def test_streams_that_stutter_beside_prompts_want_a_smaller_chunk():
    """With the budget that keeps a step within half as long again, decoding sequences included."""
    (found,) = advised(stall_ratio=6.0, arrived_tokens=5000, beside_decode_requests=12.0)

    assert found.setting is Setting.CHUNK
    assert found.value is not None
    assert 512 < found.value < 2048
    assert "smaller" in found.why
    assert "6.0 times" in found.why


def test_first_tokens_that_are_missed_want_a_larger_one():
    """Where streams are even, there is room for it."""
    (found,) = advised(stall_ratio=1.2, arrived_tokens=5000, deviations=("ttft",))

    assert found.setting is Setting.CHUNK
    assert "larger" in found.why


def test_where_both_are_missed_no_chunk_helps():
    """It says so, and names none."""
    (found,) = advised(stall_ratio=6.0, arrived_tokens=5000, deviations=("ttft",))

    assert (found.setting, found.value) == (Setting.CHUNK, None)
    assert "less load or more workers" in found.why


def test_gaps_without_prompts_beside_are_no_matter_of_chunks():
    """A stream that stutters by itself has another reason."""
    assert advised(stall_ratio=6.0, arrived_tokens=0) == ()


def test_a_batch_far_beyond_the_knee_is_too_large():
    """Long contexts bend throughput early: what runs beyond that only waits in the same steps."""
    (found,) = advised(prompt=100_000, stall_ratio=1.1, beside_decode_requests=400.0, estimated_prompt_tokens=100_000)

    assert found.setting is Setting.BATCH
    assert found.value is not None
    assert 1 <= found.value < 400


def test_many_misroutes_speak_of_the_boundary():
    """One in fifty is too many; which side, and by how much."""
    lately = Lately()
    for number in range(200):
        odd = {"misroute": Misroute.TOO_SMALL, "misroute_tokens": 300} if number % 50 == 0 else {}
        lately.take(a_stream(estimated_prompt_tokens=1700, **odd))

    (found,) = lately.advise(None)

    assert (found.setting, found.value) == (Setting.BOUNDARY, None)
    assert "2.0% of the requests" in found.why
    assert "longer than estimated, by 300 tokens" in found.why


def test_few_requests_suggest_nothing():
    """Whatever they are like."""
    few = LEAST_REQUESTS - 1
    assert advised(few, stall_ratio=9.0, arrived_tokens=9000, misroute=Misroute.TOO_SMALL, misroute_tokens=5) == ()


def test_without_a_gpu_engines_are_left_alone():
    """What they could do is not known."""
    lately = Lately()
    for _ in range(100):
        lately.take(a_stream(stall_ratio=9.0, arrived_tokens=9000, beside_decode_requests=900.0))
    assert lately.advise(None) == ()


def test_how_large_a_chunk_should_be_is_told_by_prompts_that_were_computed():
    """Short ones found in the cache beside long ones that were not do not make it larger; without any no size is told."""
    lately, beside = Lately(), {"stall_ratio": 6.0, "arrived_tokens": 5000, "beside_decode_requests": 12.0}
    for number in range(120):
        prompt = 30_000 if number % 4 == 0 else 600
        lately.take(a_stream(prompt, cached=0 if prompt == 30_000 else 590, **beside))
    (mixed,) = lately.advise(YARDSTICK)
    (long,) = advised(prompt=30_000, **beside)
    (warm,) = advised(cached=1900, **beside)

    assert mixed.value == long.value
    assert warm.value is None
    assert "make it smaller; only 0 prompts were mostly computed" in warm.why
