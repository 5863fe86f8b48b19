"""The two regimes of a language model on any laptop: prefill computes, decode reads. Needs NumPy and some ten seconds.

A stack of transformer blocks with random weights keeps only the shapes of a real model. One function computes prefill, [S, d]
on one cache, and decode, one row for each of B caches, and counts its FLOP and bytes. Each step is then held against the least
time that this machine's best rates allow. NumPy has losses as any engine has; ``time / floor`` shows them. See docs/theory.md.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from timeit import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of float32, which CPUs multiply fast: 4 bytes each; tokens are integers


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What decides time and memory. Fewer KV heads than heads is grouped-query attention."""

    layers: int = 8
    hidden: int = 1024
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    ffn: int = 4096
    vocabulary: int = 8192


@dataclass
class Count:
    """Work done: a multiply-add is two FLOP; a step reads each weight once, and each sequence's cache once."""

    linear_flop: float = 0.0
    attention_flop: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0

    def multiply(self, x: Array, weights: Array) -> Array:
        """[T, in] x [in, out]: weights are read once however many rows there are. This is all the difference there is."""
        self.linear_flop += 2 * len(x) * weights.size
        self.weight_bytes += weights.nbytes
        return x @ weights


class Cache:
    """Keys and values of one sequence: a row each per token, layer and KV head. Queries are never needed again."""

    def __init__(self, sizes: Sizes, length: int = 0, room: int = 0) -> None:
        self.length = length  # as if so many tokens had been computed: what they say changes no time
        self.keys, self.values = np.full((2, sizes.layers, sizes.kv_heads, length + room, sizes.head_dim), 0.1, np.float32)

    @property
    def bytes(self) -> int:
        """2 x layers x KV heads x tokens x head dim x 4."""
        return 2 * int(self.keys[:, :, : self.length].nbytes)


def make_weights(sizes: Sizes) -> dict[str, Array]:
    """One stack of matrices per name, [layers, in, out]; embedding and head stand outside the layers."""
    d, heads, cached, ffn = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, sizes.ffn
    inside = {"qkv": (d, heads + 2 * cached), "o": (heads, d), "up": (d, ffn), "down": (ffn, d)}
    outside = {"embedding": (sizes.vocabulary, d), "head": (d, sizes.vocabulary)}
    shapes = [*((name, (sizes.layers, *shape)) for name, shape in inside.items()), *outside.items()]
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape, np.float32) / np.float32(shape[-2] ** 0.5) for name, shape in shapes}


def step(sizes: Sizes, weights: dict[str, Array], tokens: Array, caches: list[Cache], count: Count) -> Array:
    """Next token of each sequence. One cache and S tokens: prefill, or a chunk of it. B caches and B tokens: decode."""
    new = len(tokens) // len(caches)
    x = weights["embedding"][tokens]
    for layer in range(sizes.layers):
        qkv = count.multiply(_normed(x), weights["qkv"][layer]).reshape(len(caches), new, -1)
        mixed = [_attend(sizes, layer, rows, cache, count) for rows, cache in zip(qkv, caches, strict=True)]
        x = x + count.multiply(np.concatenate(mixed), weights["o"][layer])
        x = x + count.multiply(np.maximum(count.multiply(_normed(x), weights["up"][layer]), 0), weights["down"][layer])
    for cache in caches:
        cache.length += new
    last = x[new - 1 :: new]  # a prompt wants one next token: the head never sees its other positions
    return np.asarray(count.multiply(_normed(last), weights["head"]).argmax(axis=1))


def _attend(sizes: Sizes, layer: int, rows: Array, cache: Cache, count: Count) -> Array:
    new, end, group = len(rows), cache.length + len(rows), sizes.heads // sizes.kv_heads
    q, k, v = np.split(rows.reshape(new, -1, sizes.head_dim), [sizes.heads, sizes.heads + sizes.kv_heads], axis=1)
    cache.keys[layer, :, end - new : end], cache.values[layer, :, end - new : end] = k.swapaxes(0, 1), v.swapaxes(0, 1)
    keys, values = cache.keys[layer, :, :end], cache.values[layer, :, :end]
    count.kv_bytes += keys.nbytes + values.nbytes
    # Queries of the heads that share keys are stacked, [KV heads, group x new, head dim], so that the cache is read once.
    stacked = q.reshape(new, sizes.kv_heads, group, -1).transpose(1, 2, 0, 3).reshape(sizes.kv_heads, group * new, -1)
    scores = stacked @ keys.swapaxes(1, 2) / np.float32(sizes.head_dim**0.5)
    # Nobody looks ahead. What is masked here was computed all the same: a good kernel skips it, half of a long prompt.
    scores += np.tile(np.triu(np.full((new, end), -1e9, np.float32), end - new + 1), (group, 1))
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    mixed: Array = shares / shares.sum(axis=2, keepdims=True) @ values
    count.attention_flop += 2 * 2 * sizes.heads * new * end * sizes.head_dim  # scores, and the sum of values
    return mixed.reshape(sizes.kv_heads, group, new, -1).transpose(2, 0, 1, 3).reshape(new, -1)


def _normed(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(1e-6)))


def main(arguments: list[str] | None = None) -> None:
    """Measure the machine's peaks, then hold steps of both kinds against them."""
    parser = argparse.ArgumentParser(description="Time prefill and decode of a small random transformer.")
    for name, value in {**vars(Sizes()), "prompt": 384, "batch": 16}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    given = vars(parser.parse_args(arguments))
    prompt, batch = given.pop("prompt"), given.pop("batch")
    sizes = Sizes(**given)
    weights = make_weights(sizes)
    square, wide = np.ones((1024, 1024), np.float32), np.ones((16384, 4096), np.float32)
    peak = 2 * 1024**3 / min(repeat(lambda: square @ square, number=1))
    bandwidth = wide.nbytes / min(repeat(lambda: wide @ wide[0], number=1))
    write = sys.stdout.write
    write(f"this machine: {peak / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.0f} GB/s, ridge {peak / bandwidth:.1f} FLOP per byte\n\n")
    write("step                             ms a step  ms a token  GFLOP/s    GB/s  FLOP per byte  time / floor\n")

    def show(title: str, new: int, past: int, sequences: int = 1) -> None:
        tokens, count = np.ones(new * sequences, np.int64), Count()
        caches = [Cache(sizes, past, new) for _ in range(sequences)]

        def rewind() -> None:
            for cache in caches:
                cache.length = past

        seconds = min(repeat(lambda: step(sizes, weights, tokens, caches, count), rewind, number=1, repeat=3))
        flop, moved = (count.linear_flop + count.attention_flop) / 3, (count.weight_bytes + count.kv_bytes) / 3
        floor = max(flop / peak, moved / bandwidth)
        write(f"{title:32}{1e3 * seconds:10.1f}{1e3 * seconds / len(tokens):12.2f}{flop / seconds / 1e9:9.1f}")
        write(f"{moved / seconds / 1e9:8.1f}{flop / moved:15.2f}{seconds / floor:14.2f}\n")

    read = sum(matrix.nbytes for name, matrix in weights.items() if name != "embedding")
    show(f"prefill of {prompt}", prompt, 0)
    for past in (prompt, 4 * prompt, read // Cache(sizes, 1).bytes):  # the last: as many bytes of cache as of weights
        show(f"decode after {past}", 1, past)
    for sequences in (4, batch):
        show(f"decode of {sequences} after {prompt} each", 1, prompt, sequences)


if __name__ == "__main__":
    main()
