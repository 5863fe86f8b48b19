"""Serves the tiny model with vLLM on the CPU, on loopback and a free port, until SIGTERM or Ctrl-C.

    python deploy/vllm-cpu/serve.py [--scripted] [further arguments for vLLM]

Installs nothing (`setup.sh` does), makes the model when it is missing, and prints one line once vLLM answers:
``vLLM (pid 123) serves tiny at http://127.0.0.1:4567``. What vLLM says goes to standard error. When vLLM ends, however it
ends, so does this process, with vLLM's exit status (128 + signal for one that was killed), and takes along the engine
processes that a killed vLLM leaves behind. Needs Linux and nothing but the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".cache" / "vllm-cpu"
VENV = Path(os.environ.get("RIDGELINE_VLLM_VENV") or HOME / "venv")
HOST = "127.0.0.1"
MODEL = "tiny"
START_SECONDS = 300.0  # 40 to 60 s on an idle machine
STOP_SECONDS = 15.0  # from SIGTERM to SIGKILL
ENGINE_CORE = min(os.sched_getaffinity(0))
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

FLAGS = (
    *("--served-model-name", MODEL),
    "--enforce-eager",  # compiling takes 37 s and gains nothing here
    "--enable-prompt-tokens-details",  # without it nobody learns how many prompt tokens were cached
    *("--max-num-seqs", "64"),
)


class StartError(Exception):
    """vLLM does not serve; the text says why."""


def environment(engines: int = 1) -> dict[str, str]:
    """What vLLM's process gets: ours without Python's own settings, no network, least memory, one core for arithmetic."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"}
    return kept | {
        "PYTHONNOUSERSITE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the least it takes
        "VLLM_CPU_OMP_THREADS_BIND": "|".join([str(ENGINE_CORE)] * engines),  # one place an engine
    }


def model_folder(*, is_scripted: bool) -> Path:
    """The folder of the model, made if no folder was made by this version of the maker. `StartError` when that fails."""
    maker = HERE / "make_tiny_model.py"
    digest = hashlib.sha256(maker.read_bytes()).hexdigest()[:8]
    folder = HOME / "models" / f"{'scripted' if is_scripted else 'random'}-{digest}"
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [str(VENV / "bin" / "python"), str(maker), str(unfinished), *(["--scripted"] if is_scripted else [])]
        made = subprocess.run(command, env=environment(), stdout=sys.stderr, check=False)  # noqa: S603 -- our own script
        if made.returncode:
            raise StartError(f"the model could not be made (exit status {made.returncode})")
        with contextlib.suppress(OSError):  # another process was first, with the same files
            unfinished.rename(folder)
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def wait_until_served(process: subprocess.Popen[bytes], port: int) -> None:
    """Return once ``/health`` is 200. `StartError` when vLLM ends before, or takes too long."""
    ends_at = time.monotonic() + START_SECONDS
    while time.monotonic() < ends_at:
        if process.poll() is not None:
            raise StartError(f"vLLM ended while starting, with {process.returncode}")
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        connection.close()
        time.sleep(0.2)
    raise StartError(f"vLLM did not answer within {START_SECONDS:.0f} s")


def children_of(parent: int) -> Iterator[int]:
    """Process ids of the direct children."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(stat.parent.name)


def keep_engine_on_its_core(server: int) -> None:
    """Bind the engine's processes, which are the descendants of the API server, to one core.

    While a request runs, two of them spin: on two cores they leave nothing to the API server and to whoever talks to it, which
    then wait for seconds.
    """
    for child in children_of(server):
        keep_engine_on_its_core(child)
        for thread in Path(f"/proc/{child}/task").glob("*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {ENGINE_CORE})


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End vLLM if it still runs, then every process that it leaves behind."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    while left := list(children_of(os.getpid())):  # those that vLLM has left to us
        for pid in left:
            os.kill(pid, signal.SIGKILL)  # a child of ours stays known until it is waited for
            os.waitpid(pid, 0)


def engines_in(arguments: Sequence[str]) -> int:
    """How many engines these arguments for vLLM ask for."""
    return next((int(value) for name, value in pairwise(arguments) if name == "--data-parallel-size"), 1)


def serve(arguments: Sequence[str], *, is_scripted: bool) -> int:
    """Run vLLM to its end and return its exit status. `StartError` when it does not get as far as serving."""
    if not (VENV / "bin" / "python").exists():
        raise StartError(f"there is no vLLM in {VENV}: run deploy/vllm-cpu/setup.sh")
    # A killed vLLM leaves its engine processes to its nearest ancestor that asks for them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = model_folder(is_scripted=is_scripted)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    command = [str(VENV / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", HOST, "--port", str(port), *FLAGS, *arguments]
    process = subprocess.Popen(  # noqa: S603 -- our own command
        command, env=environment(engines_in(arguments)), stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    try:
        wait_until_served(process, port)
        keep_engine_on_its_core(process.pid)
        sys.stdout.write(f"vLLM (pid {process.pid}) serves {MODEL} at http://{HOST}:{port}\n")
        sys.stdout.flush()
        status = process.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):  # once is enough
            signal.signal(number, signal.SIG_IGN)
        end_all(process)
    return status if status >= 0 else 128 - status


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scripted", action="store_true", help="fixed answers instead of noise")
    known, arguments = parser.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter too: a shell's background jobs start with it ignored
        signal.signal(number, signal.default_int_handler)
    try:
        return serve(arguments, is_scripted=known.scripted)
    except StartError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
