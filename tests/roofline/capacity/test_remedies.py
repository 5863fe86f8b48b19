"""What could be changed, one at a time, and what each change would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.capacity.memory import memory_budget
from roofline.capacity.remedies import RemedyCode, RemedyTable, remedies, windowed
from roofline.capacity.standing import Situation, Standing
from roofline.capacity.workload import Workload
from roofline.deployment import Deployment
from roofline.expected import DEFAULT_LOSSES
from roofline.models.known import find_shape
from roofline.shape import Attention
from tests.roofline.workers import a_worker

VLLM = DEFAULT_LOSSES["vllm"]
CHAT = Workload(prompt_tokens=3_000, completion_tokens=500, max_completion_tokens=2_000)


def situation(model: str, gpu: str, workload: Workload = CHAT, **worker: object) -> Situation:
    return Situation(deployment=a_worker(model, gpu, **worker), losses=VLLM, workload=workload)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llama() -> RemedyTable:
    """Llama 3.1 8B on an RTX 4090, 4 requests at once."""
    return remedies(replace(situation("Llama-3.1-8B", "rtx-4090"), concurrency=4.0))


def after(table: RemedyTable, code: RemedyCode) -> Standing:
    found = table.row(code).after
    assert found is not None, table.row(code).reason
    assert table.row(code).reason is None
    return found


def test_every_remedy_has_a_row(llama: RemedyTable) -> None:
    """The table is complete, and each row either gives figures or says why not."""
    assert [row.code for row in llama.rows] == list(RemedyCode)
    assert all((row.after is None) == (row.reason is not None) for row in llama.rows)
    assert all(row.title for row in llama.rows)


@pytest.mark.parametrize(
    ("code", "weights_share"),
    [(RemedyCode.WEIGHTS_FP8, 0.57), (RemedyCode.WEIGHTS_INT8, 0.57), (RemedyCode.WEIGHTS_INT4, 0.36)],
)
def test_narrow_weights_make_room_and_speed(llama: RemedyTable, code: RemedyCode, weights_share: float) -> None:
    """Fewer bytes of weights are more of cache and a faster step; embedding and head stay as they are."""
    found, before = after(llama, code), llama.before

    assert found.weight_bytes / before.weight_bytes == pytest.approx(weights_share, abs=0.01)
    assert found.kv_capacity_tokens > 2 * before.kv_capacity_tokens
    assert found.max_concurrency > before.max_concurrency
    assert (found.tpot_seconds or 1.0) < (before.tpot_seconds or 0.0)
    assert any("same prompts" in note for note in llama.row(code).notes)


def test_arithmetic_decides_about_prefill(llama: RemedyTable) -> None:
    """fp8 and int8 are multiplied faster and shorten TTFT, int4 is widened first and does not."""
    before = llama.before.ttft_seconds or 0.0

    assert (after(llama, RemedyCode.WEIGHTS_FP8).ttft_seconds or 1.0) < 0.6 * before
    assert (after(llama, RemedyCode.WEIGHTS_INT8).ttft_seconds or 1.0) < 0.4 * before
    assert after(llama, RemedyCode.WEIGHTS_INT4).ttft_seconds == pytest.approx(before, rel=0.02)
    assert any("prefill does not get faster" in note for note in llama.row(RemedyCode.WEIGHTS_INT4).notes)


def test_a_card_without_fp8_is_told() -> None:
    """On an A100 fp8 saves memory but no arithmetic."""
    table = remedies(situation("Llama-3.1-8B", "a100-sxm4-80gb"))

    assert any("no fp8 arithmetic" in note for note in table.row(RemedyCode.WEIGHTS_FP8).notes)
    assert any("no fp8 arithmetic" in note for note in table.row(RemedyCode.KV_FP8).notes)
    assert not any("no int8 arithmetic" in note for note in table.row(RemedyCode.WEIGHTS_INT8).notes)
    assert after(table, RemedyCode.WEIGHTS_FP8).ttft_seconds == pytest.approx(table.before.ttft_seconds, rel=0.05)


def test_a_narrow_cache_holds_twice_as_much(llama: RemedyTable) -> None:
    """fp8 keys and values: twice the tokens from the same memory."""
    found = after(llama, RemedyCode.KV_FP8)

    assert found.kv_capacity_tokens == pytest.approx(2 * llama.before.kv_capacity_tokens, abs=16)
    assert (found.weight_bytes, found.batch) == (llama.before.weight_bytes, llama.before.batch)


def test_what_is_narrow_already_is_left_alone() -> None:
    """There is nothing to save twice."""
    table = remedies(situation("DeepSeek-V3", "h200-sxm", weights="fp8-block", kv="fp8", tensor=8))

    for code in (RemedyCode.WEIGHTS_FP8, RemedyCode.WEIGHTS_INT8, RemedyCode.KV_FP8):
        assert "already: nothing to save" in (table.row(code).reason or "")
    assert after(table, RemedyCode.WEIGHTS_INT4).weight_bytes < 0.6 * table.before.weight_bytes


def test_a_smaller_batch_trades_throughput_for_latency(llama: RemedyTable) -> None:
    """Half as many at once: each is faster, all together are slower, the capacity stays."""
    found, before = after(llama, RemedyCode.SMALLER_BATCH), llama.before

    assert found.batch == (before.batch or 0.0) / 2
    assert (found.tpot_seconds or 1.0) < (before.tpot_seconds or 0.0)
    assert (found.tokens_per_second or 1e9) < (before.tokens_per_second or 0.0)
    assert found.max_concurrency == before.max_concurrency


def test_a_shorter_limit_makes_room(llama: RemedyTable) -> None:
    """Half the longest completion: more fit, nothing gets faster or slower; a limit at the mean has nothing to cut."""
    found, before = after(llama, RemedyCode.SHORTER_LIMIT), llama.before

    assert found.situation.workload.total_tokens == 4_000
    assert found.max_concurrency > before.max_concurrency
    assert found.tpot_seconds == before.tpot_seconds
    mean = remedies(situation("Llama-3.1-8B", "rtx-4090", Workload(prompt_tokens=3_000, completion_tokens=500)))
    assert "no longer limit" in (mean.row(RemedyCode.SHORTER_LIMIT).reason or "")


def test_twice_the_gpus(llama: RemedyTable) -> None:
    """Tensor parallelism halves weights per GPU, and says when results must cross PCIe."""
    found = after(llama, RemedyCode.TENSOR_PARALLEL)

    assert found.gpus == 2
    assert found.gpu_weight_bytes == pytest.approx(llama.before.gpu_weight_bytes / 2, rel=0.01)
    assert found.kv_capacity_tokens > 2 * llama.before.kv_capacity_tokens
    assert any("PCIe" in note for note in llama.row(RemedyCode.TENSOR_PARALLEL).notes)


def test_heads_limit_parallelism() -> None:
    """More GPUs than key-value heads hold copies of the cache; more than heads are none."""
    copies = remedies(situation("Llama-3.1-8B", "h100-sxm", tensor=8)).row(RemedyCode.TENSOR_PARALLEL)
    none = remedies(situation("Llama-3.1-8B", "h100-sxm", tensor=32)).row(RemedyCode.TENSOR_PARALLEL)

    assert any("split over 8 at most" in note for note in copies.notes)
    assert "divide by 1, 2, 4, 8, 16, 32 only" in (none.reason or "")


def test_shared_prefixes_save_prefill_and_room(llama: RemedyTable) -> None:
    """Half of the prompt found in the cache: a shorter TTFT and more room; what is cached already is not saved again."""
    found, before = after(llama, RemedyCode.PREFIX_SHARING), llama.before

    assert found.situation.workload.cached_tokens == found.situation.shared_tokens == 1_488  # whole blocks of half of 3,000
    assert (found.ttft_seconds or 1.0) < 0.6 * (before.ttft_seconds or 0.0)
    assert found.max_concurrency > before.max_concurrency
    cached = replace(CHAT, cached_tokens=2_000)
    assert "already" in (remedies(situation("Llama-3.1-8B", "rtx-4090", cached)).row(RemedyCode.PREFIX_SHARING).reason or "")


def test_a_window_makes_long_contexts_cheaper() -> None:
    """With 4,096 tokens kept in every second layer, 32K contexts take little more than half; short ones gain nothing."""
    long = Workload(prompt_tokens=32_000, completion_tokens=500)
    table = remedies(situation("Llama-3.1-8B", "h100-sxm", long))
    found = after(table, RemedyCode.WINDOW)

    assert found.max_concurrency > 1.6 * table.before.max_concurrency
    short = remedies(situation("Llama-3.1-8B", "h100-sxm", Workload(prompt_tokens=1_000, completion_tokens=100)))
    assert "no layer would keep fewer" in (short.row(RemedyCode.WINDOW).reason or "")


def test_every_second_layer_gets_a_window() -> None:
    """Every second layer that attended to everything has the window; others, and models with latents, are left alone."""
    plain, mixed = find_shape("Llama-3.1-8B"), find_shape("gemma-3-27b-it")
    narrow = windowed(plain, 4_096)
    assert narrow is not None
    assert narrow.layers == plain.layers
    assert narrow.parameters() == plain.parameters()
    kept = {
        layer: group.mixer.window_tokens
        for group in narrow.groups
        for layer in group.layers
        if isinstance(group.mixer, Attention)
    }
    assert [kept[layer] for layer in range(4)] == [4_096, None, 4_096, None]

    both = windowed(mixed, 4_096)
    assert both is not None
    windows = {group.mixer.window_tokens for group in both.groups if isinstance(group.mixer, Attention)}
    assert windows == {1_024, 4_096, None}
    assert windowed(find_shape("DeepSeek-V3"), 4_096) is None


def test_offloading_is_for_what_does_not_fit(llama: RemedyTable) -> None:
    """A 13B model of 26 GB runs on 24 GB at last, slowed by the bus; what fits has nothing to gain."""
    table = remedies(situation("Llama-2-13b", "rtx-4090"))
    found = after(table, RemedyCode.OFFLOAD)
    moved = found.situation.settings.offloaded_bytes

    assert moved > table.before.missing_bytes
    assert memory_budget(found.situation.deployment, found.situation.settings).fits
    assert (found.tpot_seconds or 0.0) > moved / 32e9
    assert "the weights fit" in (llama.row(RemedyCode.OFFLOAD).reason or "")


def test_offloading_over_an_unknown_bus() -> None:
    """Where the rate of the bus is not known, no figure is made up."""
    here = situation("Llama-2-13b", "rtx-4090")
    card = replace(here.deployment.gpu, pcie_bytes_per_second=None)
    table = remedies(replace(here, deployment=Deployment(here.deployment.shape, card)))

    assert "not known" in (table.row(RemedyCode.OFFLOAD).reason or "")


def test_without_two_requests_the_batch_cannot_shrink() -> None:
    """A lone request is no batch."""
    table = remedies(replace(situation("Llama-3.1-8B", "rtx-4090"), concurrency=1.0))

    assert "no two requests" in (table.row(RemedyCode.SMALLER_BATCH).reason or "")


@pytest.mark.parametrize("wrong", [{"shared_ratio": 0.0}, {"shared_ratio": 1.0}, {"window_tokens": 0}])
def test_assumptions_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    """A share lies between nothing and everything, a window holds a token."""
    with pytest.raises(ValueError, match="a share lies between 0 and 1"):
        remedies(situation("Llama-3.1-8B", "rtx-4090"), **wrong)  # type: ignore[arg-type]
