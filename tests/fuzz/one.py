"""Fuzzes one target in this process: ``python -m tests.fuzz.one TARGET FOLDER SECONDS guided|unguided``.

Ends at the first input that fails, which is left in the folder; the last line on standard output is what was done, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS, Target, load

_HANG_SECONDS = 20


def main() -> int:
    """Fuzz until the time is over, or something fails."""
    name, folder, seconds, way = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    if way == "guided":
        _guided(name, folder, seconds)  # ends the process itself
    return _unguided(load(name), folder, seconds)


def _guided(name: str, folder: Path, seconds: int) -> None:
    import atheris  # an extra of its own: 35 MB, and only for some versions of Python

    with atheris.instrument_imports(include=list(TARGETS[name])):
        target = load(name)
    seeds = folder / "seeds"
    seeds.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (seeds / f"{number:05}").write_bytes(seed)
    words = folder / "words"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.words)
    words.write_text("".join(f'"{word}"\n' for word in escaped))
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={target.longest}",
        f"-dict={words}",
        f"-artifact_prefix={folder}/found-",
        f"-timeout={_HANG_SECONDS}",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], str(folder / "corpus"), str(seeds), *flags], target.check)
    atheris.Fuzz()


def _unguided(target: Target, folder: Path, seconds: int) -> int:
    inputs = target.seeds + [path.read_bytes() for path in (folder / "corpus").iterdir()]
    chance = random.Random()
    began = now = time.monotonic()
    count, data, is_well = 0, b"", True
    try:
        while now < began + seconds:
            for _ in range(100):
                data = mutated(chance, inputs, target.words, target.longest)
                count += 1
                target.check(data)
            now = time.monotonic()
    except KeyboardInterrupt:
        pass
    except Exception:
        is_well = False
        (folder / f"found-{random.randrange(2**32):08x}").write_bytes(data)
        raise
    finally:
        print(json.dumps({"inputs": count, "seconds": round(time.monotonic() - began, 1), "is_well": is_well}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
