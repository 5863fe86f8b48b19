"""The runnable example says what it shows: its shapes, counts and cache agree with the theory, whatever the machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from roofline.deployment import Deployment
from roofline.kv_cache import KvWidth
from roofline.precision import FP32, Precision
from roofline.quantization import WeightScheme
from roofline.shape import Attention, LayerGroup, Matrix, ModelShape, WeightKind
from roofline.work import Span, work
from tests.roofline.shapes import a_gpu

SCRIPT = Path(__file__).resolve().parents[1] / "examples/prefill_and_decode.py"
TINY = {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 48, "vocabulary": 64}
PROMPT = 24


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prefill_and_decode", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look up their module
    spec.loader.exec_module(module)
    return module


example: Any = load()
SIZES = example.Sizes(**TINY)
WEIGHTS = example.make_weights(SIZES)


def the_same_shape(sizes: Any = SIZES) -> Deployment:
    """What the example computes, as the product describes a model."""
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    inside = {
        WeightKind.ATTENTION: sizes.hidden * (queries + 2 * keys) + queries * sizes.hidden,
        WeightKind.FFN: 2 * sizes.hidden * sizes.ffn,
    }
    outside = dict.fromkeys((WeightKind.EMBEDDING, WeightKind.HEAD), sizes.hidden * sizes.vocabulary)
    shape = ModelShape(
        name="example",
        hidden_size=sizes.hidden,
        vocabulary_size=sizes.vocabulary,
        max_context_tokens=None,
        is_tied=False,
        native=FP32,
        scheme=WeightScheme(native=FP32),
        groups=(
            LayerGroup(
                layers=tuple(range(sizes.layers)),
                mixer=Attention(
                    heads=sizes.heads, kv_heads=sizes.kv_heads, qk_head_dim=sizes.head_dim, v_head_dim=sizes.head_dim
                ),
                experts=None,
                matrices=tuple(Matrix(module=kind, kind=kind, parameters=count) for kind, count in inside.items()),
            ),
        ),
        outside=tuple(Matrix(module=kind, kind=kind, parameters=count) for kind, count in outside.items()),
    )
    return Deployment(shape, a_gpu(peaks={Precision.FP32: 1e12}), kv=KvWidth.native(FP32))


def some_tokens(count: int) -> Any:
    return np.random.default_rng(1).integers(0, SIZES.vocabulary, count)


def attention_of(span: Span) -> tuple[float, float]:
    operators = {operator.name: operator for operator in work(the_same_shape(), [span]).operators}
    return operators["attention scores"].flop, operators["attention scores"].bytes


def test_prefill_in_one_go_in_chunks_and_by_single_tokens_is_the_same() -> None:
    """However a prompt is cut into steps, the cache ends with the same keys and values and the same token comes next."""
    results = []
    for part in (PROMPT, 7, 1):
        cache = example.Cache(SIZES, room=PROMPT)
        tokens = some_tokens(PROMPT)
        for start in range(0, PROMPT, part):
            following = example.step(SIZES, WEIGHTS, tokens[start : start + part], [cache], example.Count())
        results.append((cache, following))

    whole, chosen = results[0]
    for cache, following in results[1:]:
        assert cache.length == whole.length == PROMPT
        np.testing.assert_allclose(cache.keys, whole.keys, atol=1e-4)
        np.testing.assert_allclose(cache.values, whole.values, atol=1e-4)
        assert following.tolist() == chosen.tolist()


def test_a_batch_decodes_what_its_sequences_decode_alone() -> None:
    """One step for several caches returns the tokens that a step for each would have, and leaves the same caches."""
    prompts = [some_tokens(length) for length in (5, 9, 14)]

    def prefilled() -> tuple[list[Any], Any]:
        caches = [example.Cache(SIZES, room=len(prompt) + 1) for prompt in prompts]
        steps = [
            example.step(SIZES, WEIGHTS, prompt, [cache], example.Count())
            for prompt, cache in zip(prompts, caches, strict=True)
        ]
        return caches, np.concatenate(steps)

    together, tokens = prefilled()
    alone, _ = prefilled()
    batch = example.step(SIZES, WEIGHTS, tokens, together, example.Count())
    single = [int(example.step(SIZES, WEIGHTS, tokens[i : i + 1], [alone[i]], example.Count())[0]) for i in range(3)]

    assert batch.tolist() == single
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.keys, other.keys, atol=1e-4)


def test_prefill_counts_what_the_theory_counts() -> None:
    """Linear FLOP and weight bytes agree exactly; attention is the full square, of which the causal mask needs (S + 1) / 2S."""
    count = example.Count()
    example.step(SIZES, WEIGHTS, some_tokens(PROMPT), [example.Cache(SIZES, room=PROMPT)], count)
    theory = work(the_same_shape(), [Span(0, PROMPT)])
    causal_flop, cache_bytes = attention_of(Span(0, PROMPT))

    assert count.linear_flop == theory.flop - causal_flop
    assert count.weight_bytes == theory.bytes - cache_bytes
    assert count.attention_flop * (PROMPT + 1) / (2 * PROMPT) == causal_flop
    assert count.kv_bytes == cache_bytes


@pytest.mark.parametrize(("sequences", "context"), [(1, 1), (1, 20), (4, 20)])
def test_decode_counts_what_the_theory_counts(sequences: int, context: int) -> None:
    """FLOP and bytes of a decode step agree exactly, for one sequence and for a batch, which reads the weights once."""
    count = example.Count()
    caches = [example.Cache(SIZES, context, room=1) for _ in range(sequences)]
    example.step(SIZES, WEIGHTS, some_tokens(sequences), caches, count)
    theory = work(the_same_shape(), [Span(context, 1, count=sequences)])

    assert count.linear_flop + count.attention_flop == theory.flop
    assert count.weight_bytes + count.kv_bytes == theory.bytes
    assert count.weight_bytes == work(the_same_shape(), [Span(0, PROMPT)]).bytes - attention_of(Span(0, PROMPT))[1]


def test_the_cache_grows_by_the_bytes_of_a_token() -> None:
    """Every token computed adds 2 x layers x KV heads x head dim numbers: KV heads, not heads."""
    cache, per_token = example.Cache(SIZES, room=PROMPT + 2), the_same_shape().kv_bytes_per_token
    example.step(SIZES, WEIGHTS, some_tokens(PROMPT), [cache], example.Count())
    after_prefill = cache.bytes
    for _ in range(2):
        example.step(SIZES, WEIGHTS, some_tokens(1), [cache], example.Count())

    assert per_token == 2 * TINY["layers"] * TINY["kv_heads"] * TINY["head_dim"] * 4
    assert (after_prefill, cache.bytes) == (PROMPT * per_token, (PROMPT + 2) * per_token)


def test_intensity_parts_the_regimes() -> None:
    """With the default sizes a prefill of S does about S / 2 FLOP per byte of four-byte weights, a decode step about a half."""
    default = the_same_shape(example.Sizes())

    assert work(default, [Span(0, 384)]).intensity_flop_per_byte == pytest.approx(384 / 2, rel=0.1)
    assert work(default, [Span(384, 1)]).intensity_flop_per_byte == pytest.approx(1 / 2, rel=0.05)
    assert work(default, [Span(384, 1, count=16)]).intensity_flop_per_byte == pytest.approx(16 / 2, rel=0.2)


def test_it_runs_and_prints_every_step() -> None:
    """As a program with small sizes it ends well and prints the machine's rates and one row for each step."""
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in {**TINY, "prompt": PROMPT, "batch": 8}.items()]
    done = subprocess.run([sys.executable, SCRIPT, *sizes], capture_output=True, text=True, timeout=60, check=True)
    rows = done.stdout.splitlines()

    assert rows[0].startswith("this machine: ")
    assert [" ".join(row[:32].split()) for row in rows[3:]] == [
        f"prefill of {PROMPT}",
        f"decode after {PROMPT}",
        f"decode after {4 * PROMPT}",
        f"decode after {(3 * (32 * 64 + 32 * 32 + 2 * 32 * 48) + 32 * 64) // (2 * 3 * 2 * 8)}",
        f"decode of 4 after {PROMPT} each",
        f"decode of 8 after {PROMPT} each",
    ]
    assert all(float(figure) >= 0 for row in rows[3:] for figure in row[32:].split())
