"""By hand: ``python -m tests.fuzz --target sse --seconds 60``. Exit status 1 if anything was found; it lies in ``.cache/fuzz``.

A run can be stopped and goes on where it was: the inputs that reached something new, and the books, are kept there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.reached import lines_reached, of_use
from tests.fuzz.targets import TARGETS, keep

FOLDER = Path(".cache") / "fuzz"
_UNITS = re.compile(r"number_of_executed_units: (\d+)")
_RATE = re.compile(r"average_exec_per_sec: +(\d+)")
_EDGES = re.compile(r"cov: (\d+)")


def main() -> int:
    """Fuzz, and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", choices=[*TARGETS, "all"], help="what to fuzz; may be given again")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--unguided", action="store_true", help="many more inputs, made of the known ones at random")
    parser.add_argument("--keep", action="store_true", help="add what reached something new to tests/data/fuzz")
    parser.add_argument("--reached", action="store_true", help="do not fuzz; tell which lines the inputs of all runs reach")
    options = parser.parse_args()
    names = list(TARGETS) if not options.target or "all" in options.target else options.target
    found = 0
    for name in names:
        if options.keep:
            print(f"{name}: {keep(name, of_use(name, _inputs(name)))} inputs kept")
        elif options.reached:
            for module, reached, total, missed in lines_reached(name, _inputs(name)):
                print(f"{name} {module}: {reached} of {total} lines, not {missed}")
        else:
            found += _fuzz(name, options.seconds, "unguided" if options.unguided else "guided")
    return 1 if found else 0


def _inputs(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((FOLDER / name / "corpus").glob("*"))]


def _fuzz(name: str, seconds: int, way: str) -> bool:
    """One target for a while; whether it failed."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output").open("w+") as output:
        command = [sys.executable, "-m", "tests.fuzz.one", name, str(folder), str(seconds), way]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = process.wait()
        except KeyboardInterrupt:  # it has got the signal too, and ends by itself
            status = process.wait()
        output.seek(0)
        text = output.read()
    done = _done(text, way)
    book = _note(name, way, done)
    print(f"{name} {way}: {done}; in all runs {book}", flush=True)
    failed = status != 0 and bool(re.search(r"Traceback|ERROR: libFuzzer", text)) and "KeyboardInterrupt" not in text
    if failed:
        print(text[text.index("Traceback") if "Traceback" in text else 0 :][:3000])
        print(f"the input lies in {folder}; add it to a test of its own before mending")
    return failed


def _done(text: str, way: str) -> dict[str, float]:
    if way == "unguided":
        lines = [line for line in text.splitlines() if line.startswith('{"inputs"')]
        read = json.loads(lines[-1]) if lines else {}
        return {"inputs": read.get("inputs", 0), "seconds": read.get("seconds", 0)}
    units, rate, edges = _UNITS.search(text), _RATE.search(text), _EDGES.findall(text)
    inputs = int(units[1]) if units else 0
    seconds = inputs / int(rate[1]) if rate and int(rate[1]) else 0
    return {"inputs": inputs, "seconds": round(seconds, 1), "edges": int(edges[-1]) if edges else 0}


def _note(name: str, way: str, done: Mapping[str, float]) -> dict[str, float]:
    """Add to the books of all runs; return this target's."""
    path = FOLDER / "books.json"
    books: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    book = books.setdefault(f"{name} {way}", {"inputs": 0, "seconds": 0})
    book["inputs"] += done["inputs"]
    book["seconds"] = round(book["seconds"] + done["seconds"], 1)
    if "edges" in done:
        book["edges"] = max(book.get("edges", 0), done["edges"])
    path.write_text(json.dumps(books, indent=1))
    return book


if __name__ == "__main__":
    sys.exit(main())
