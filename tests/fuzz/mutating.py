"""Inputs made of others at random, for many of them in little time: nothing watches which branches they take."""

from __future__ import annotations

import random
from collections.abc import Sequence


def mutated(chance: random.Random, inputs: Sequence[bytes], words: Sequence[bytes], longest: int) -> bytes:
    """One of the inputs with one to six changes, at most ``longest`` bytes."""
    data = bytearray(chance.choice(inputs))
    for _ in range(chance.randint(1, 6)):
        at = chance.randint(0, len(data))
        match chance.randrange(6):
            case 0:
                data[at:at] = chance.choice(words)
            case 1:
                data[at : at + chance.randint(1, 12)] = b""
            case 2:
                data[at : at + 1] = bytes((chance.randrange(256),))
            case 3:
                other = chance.choice(inputs)
                start = chance.randint(0, len(other))
                data[at:at] = other[start : start + chance.randint(1, 64)]
            case 4:
                start = chance.randint(0, len(data))
                data[at:at] = data[start : start + chance.randint(1, 64)]
            case _:
                data[at : at + chance.randint(0, 4)] = chance.choice(words)
    return bytes(data[:longest])
