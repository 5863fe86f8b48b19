"""`ridgeline probe` beside other load tools, on the same endpoint with the same prompts: ``python -m benchmarks.load_tools``.

AIPerf and GuideLLM are installed on first use, each in an environment of its own below ``.cache/load-tools``. Without
``--url`` a simulated worker is started. Each round keeps so many requests under way by one tool after the other, so that what
disturbs the machine disturbs all of them. The streams' starts are spread over the time of one request, and of every tool's
requests those count that the probe would count: sent and answered while all streams ran.
"""

# ruff: noqa: S603 -- pip, and the tools that it has installed

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.policies import row
from benchmarks.tool import ROOT
from proxy.probing.answer import Answer
from proxy.probing.endpoint import Endpoint, Target, session_of
from proxy.probing.running import learn_prompts
from proxy.probing.steady import steady_of
from simulator.children import child

_HOME = ROOT / ".cache" / "load-tools"
_PACKAGES = {
    "aiperf": ("aiperf==0.13.0",),
    "guidellm": ("torch==2.13.0+cpu", "guidellm==0.8.1"),  # without the first pip takes torch for CUDA, several GB
}
_START_SECONDS = 60.0
_RUN_SECONDS = 300.0
_AIPERF_METRICS = ("time_to_first_token", "inter_token_latency", "usage_completion_tokens")
_HEADS = ("under way", "tool", "TTFT P50", "TPOT", "tokens/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every tool sends: so many streams, each of them one request after the other, no prompt a second time."""

    url: str
    model: str
    at_once: int
    prompt_tokens: int
    output_tokens: int
    in_turn: int  # requests of each stream
    alone_seconds: float  # one request, from sending to the last token; the streams' starts are spread over it
    texts: tuple[str, ...]  # a prompt for each request
    tokenizer: Path  # GuideLLM and AIPerf want one, though the counts are the endpoint's


class Found(msgspec.Struct, frozen=True):
    """Median of TTFT, mean of TPOT and generated tokens a second, while all streams ran."""

    ttft_seconds: float
    tpot_seconds: float
    tokens_per_second: float


def by_probe(load: Load, _folder: Path) -> Found:
    """The steady load of the probe."""
    command = [sys.executable, "-m", "proxy.cli", "probe", load.url, "--model", load.model, "--json", "--only-cold"]
    command += ["--outputs", "", "--prompts", "", "--contexts", str(load.prompt_tokens), "--concurrency", str(load.at_once)]
    command += ["--concurrency-output", str(load.output_tokens), "--steady", str(load.in_turn)]
    return msgspec.convert(json.loads(_output_of(command))["steady"][0]["points"][0], Found)


def by_aiperf(load: Load, folder: Path) -> Found:
    """NVIDIA's AIPerf."""
    exact = {"ignore_eos": True, "temperature": 0, "max_tokens": load.output_tokens, "min_tokens": load.output_tokens}
    command = [str(_program("aiperf")), "profile", "-m", load.model, "--url", load.url, "--endpoint-type", "completions"]
    command += ["--streaming", "--use-server-token-count", "--use-legacy-max-tokens", "--extra-inputs", json.dumps(exact)]
    command += ["--input-file", str(_prompts(load, folder, "text")), "--custom-dataset-type", "single_turn"]
    command += ["--dataset-sampling-strategy", "sequential", "--tokenizer", str(load.tokenizer), "--workers-max", "1"]
    command += ["--concurrency", str(load.at_once), "--request-count", str(len(load.texts))]
    if load.at_once > 1:
        command += ["--concurrency-ramp-duration", f"{load.alone_seconds:.3f}"]
    command += ["--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(folder)]
    _output_of(command)
    return found_of(aiperf_answers((folder / "profile_export.jsonl").read_bytes()), load.at_once)


def by_guidellm(load: Load, folder: Path) -> Found:
    """GuideLLM."""
    backend: dict[str, object] = {
        "kind": "openai_http",
        "target": load.url,
        "model": load.model,
        "request_format": "/v1/completions",
    }
    backend["extras"] = {"body": {"temperature": 0, "min_tokens": load.output_tokens}}  # the other tools' sampling
    command = [str(_program("guidellm")), "run", "--backend", json.dumps(backend), "--disable-console"]
    command += ["--profile", f"kind=concurrent,streams={load.at_once},rampup_duration={load.alone_seconds:.3f}"]
    command += ["--constraint", f"kind=max_requests,count={len(load.texts)}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"]
    command += ["--data", f"kind=json_file,path={_prompts(load, folder, 'prompt')}"]
    command += ["--output", f"kind=json,path={folder / 'guidellm.json'}"]
    _output_of(command)
    return found_of(guidellm_answers((folder / "guidellm.json").read_bytes()), load.at_once)


TOOLS: dict[str, Callable[[Load, Path], Found]] = {"ridgeline probe": by_probe, "aiperf": by_aiperf, "guidellm": by_guidellm}


def aiperf_answers(lines: bytes) -> list[Answer]:
    """From its export of requests, one JSON document a line. What it calls inter-token latency is a mean over the request."""
    found = []
    for line in lines.splitlines():
        one = json.loads(line)
        told = {name: one["metrics"][name]["value"] for name in _AIPERF_METRICS}
        ttft, each, count = (told[name] for name in _AIPERF_METRICS)
        begin, end = one["metadata"]["request_start_ns"] / 1e9, one["metadata"]["request_end_ns"] / 1e9
        found.append(_answer(begin, end, ttft / 1e3, each / 1e3, count))
    return found


def guidellm_answers(export: bytes) -> list[Answer]:
    """From the requests in its JSON; its own time per output token counts TTFT too, its inter-token latency does not."""
    return [
        _answer(
            one["request_start_time"],
            one["request_end_time"],
            one["time_to_first_token_ms"] / 1e3,
            one["inter_token_latency_ms"] / 1e3,
            one["output_tokens"],
        )
        for one in json.loads(export)["benchmarks"][0]["requests"]["successful"]
    ]


def _answer(sent_at: float, ended_at: float, ttft_seconds: float, tpot_seconds: float, tokens: float) -> Answer:
    first_at = sent_at + ttft_seconds
    return Answer(
        sent_at=sent_at,
        ended_at=ended_at,
        first_token_at=first_at,
        last_token_at=first_at + tpot_seconds * (tokens - 1),
        completion_tokens=round(tokens),
    )


def found_of(answers: Sequence[Answer], at_once: int) -> Found:
    """Figures of what counts, by the probe's own rule. `RuntimeError` if nothing does."""
    steady = steady_of(answers, at_once)
    if not steady.counted:
        raise RuntimeError(f"there never were {at_once} requests under way for the time of one")
    return msgspec.convert(asdict(steady), Found)


def install(tool: str) -> None:
    """Make the tool's environment, unless it is there with these versions."""
    home, stamp = _HOME / tool, "\n".join(_PACKAGES[tool])
    if (home / "ridgeline-installed").is_file() and (home / "ridgeline-installed").read_text() == stamp:
        return
    sys.stderr.write(f"installing {', '.join(_PACKAGES[tool])} into {home}\n")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", *_PACKAGES[tool]], check=True)
    (home / "ridgeline-installed").write_text(stamp)


def table_of(found: dict[tuple[int, str], list[Found]]) -> Iterator[str]:
    """Lines of Markdown: the median over the rounds, and in brackets what that is to the probe's."""
    yield row(_HEADS)
    yield row(["---"] * len(_HEADS))
    for (at_once, tool), rounds in found.items():
        ours = found[at_once, next(iter(TOOLS))]
        cells = []
        for name, factor, unit, digits in (
            ("ttft_seconds", 1e3, " ms", 1),
            ("tpot_seconds", 1e3, " ms", 2),
            ("tokens_per_second", 1.0, "", 0),
        ):
            value, first = (median(getattr(one, name) for one in several) for several in (rounds, ours))
            beside = "" if rounds is ours else f" ({value / first - 1:+.0%})"
            cells.append(f"{value * factor:,.{digits}f}{unit}{beside}")
        yield row((str(at_once), tool, *cells))


async def measure(url: str | None, options: argparse.Namespace) -> dict[tuple[int, str], list[Found]]:
    """Every tool at every number of requests, round after round."""
    for tool in _PACKAGES:
        await asyncio.to_thread(install, tool)
    tokenizer = _HOME / "tokenizer"
    if not tokenizer.exists():
        maker = ROOT / "deploy" / "vllm-cpu" / "make_tiny_model.py"
        python = _HOME / "aiperf" / "bin" / "python"
        await asyncio.to_thread(subprocess.run, [str(python), str(maker), str(tokenizer)], check=True)
    found: dict[tuple[int, str], list[Found]] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ridgeline-load-")))
        if url is None:
            arguments = ["-m", "simulator.worker", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--port", "0"]
            worker = await stack.enter_async_context(
                child("worker", arguments, folder=folder, grace_seconds=2.0, reads_output=True)
            )
            async with asyncio.timeout(_START_SECONDS):
                url = (await worker.first_line()).split()[-1]
        session = await stack.enter_async_context(session_of())
        endpoint = Endpoint(Target(url=url), session, time.perf_counter)
        await endpoint.prepare()
        prompts, _ = await learn_prompts(endpoint)
        alone = await endpoint.ask(prompts.text(options.prompt_tokens, secrets.token_hex(8)), options.output_tokens)
        for number in range(options.rounds):
            for at_once in options.at_once:
                for tool, measured_by in TOOLS.items():
                    count = at_once * options.in_turn
                    load = Load(
                        url=url,
                        model=endpoint.model,
                        at_once=at_once,
                        prompt_tokens=options.prompt_tokens,
                        output_tokens=options.output_tokens,
                        in_turn=options.in_turn,
                        alone_seconds=alone.whole_seconds or 1.0,
                        texts=tuple(prompts.text(options.prompt_tokens, secrets.token_hex(8)) for _ in range(count)),
                        tokenizer=tokenizer,
                    )
                    own = folder / f"{number}-{at_once}-{tool.replace(' ', '-')}"
                    own.mkdir()
                    one = await asyncio.to_thread(measured_by, load, own)
                    sys.stderr.write(f"round {number + 1}, {at_once} at once, {tool}: {one}\n")
                    found.setdefault((at_once, tool), []).append(one)
    return found


def _prompts(load: Load, folder: Path, name: str) -> Path:
    path = folder / "prompts.jsonl"
    lines = (
        {name: text, "output_tokens_count": load.output_tokens} if name == "prompt" else {name: text} for text in load.texts
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _program(tool: str) -> Path:
    return _HOME / tool / "bin" / tool


def _output_of(command: Sequence[str]) -> str:
    # The tools' threads for arithmetic are of no use here, and would take the cores that the worker needs.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_tools", description=__doc__)
    parser.add_argument("--url", help="an endpoint with one model and without a key (default: a simulated worker)")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], help="streams (default 1 and 4)")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--in-turn", type=int, default=6, help="requests of each stream, 3 or more (default 6)")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    found = asyncio.run(measure(options.url, options))
    sys.stdout.write("".join(table_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
