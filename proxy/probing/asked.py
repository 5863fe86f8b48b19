"""The options of a probe, checked and made into values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.probing.design import Design
from proxy.probing.endpoint import CHAT, COMPLETIONS, Target
from proxy.probing.expectations import Expectation, expectation_of
from proxy.probing.probe import Asked
from proxy.probing.running import Bounds

_PATHS = {"auto": None, "completions": COMPLETIONS, "chat": CHAT}
_MOST_NUMBERS = 40
_LEAST_STEADY = 3
_MOST_TOKENS = 10_000_000


class OptionError(Exception):
    """An option that cannot be; the text says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """As they are written."""

    url: str
    model: str | None
    api_key_env: str | None
    endpoint: str
    metrics_url: str | None
    outputs: str
    prompts: str
    concurrency: str
    contexts: str
    output_prompt: int
    prompt_output: int
    concurrency_output: int
    steady: int
    repeats: int
    is_warm_too: bool
    max_requests: int
    max_concurrency: int
    max_seconds: float
    gpu: str | None
    shape: str | None
    gpus: int | None
    tensor_parallel: int | None
    weight_dtype: str | None
    kv_dtype: str | None
    chunk_tokens: int | None


def asked_of(options: Options, environ: Mapping[str, str]) -> Asked:
    """Everything that a probe needs. `OptionError` names the option that is wrong."""
    if options.endpoint not in _PATHS:
        raise OptionError(f"--endpoint is auto, completions or chat, not {options.endpoint!r}")
    key = None
    if options.api_key_env is not None:
        key = environ.get(options.api_key_env)
        if not key:
            raise OptionError(f"--api-key-env: the variable {options.api_key_env} is not set, or empty")
    if options.steady and options.steady < _LEAST_STEADY:
        raise OptionError(
            f"--steady is 0, or {_LEAST_STEADY} and more: the first requests of each stream find fewer others, and do not count"
        )
    design = Design(
        outputs=_numbers(options.outputs, "--outputs"),
        output_prompt_tokens=options.output_prompt,
        prompts=_numbers(options.prompts, "--prompts"),
        prompt_output_tokens=options.prompt_output,
        concurrencies=_numbers(options.concurrency, "--concurrency"),
        contexts=_numbers(options.contexts, "--contexts"),
        concurrency_output_tokens=options.concurrency_output,
        steady_requests=options.steady,
        repeats=options.repeats,
        is_warm_too=options.is_warm_too,
    )
    if next(iter(design.bursts()), None) is None:
        raise OptionError("no experiment is left: give lengths in --outputs, --prompts, or --concurrency and --contexts")
    return Asked(
        target=Target(
            url=_base(options.url),
            model=options.model,
            key=key,
            key_env=options.api_key_env,
            path=_PATHS[options.endpoint],
        ),
        design=design,
        bounds=Bounds(requests=options.max_requests, seconds=options.max_seconds),
        most_at_once=options.max_concurrency,
        metrics_url=options.metrics_url,
        expectation=_expectation(options),
        chunk_tokens=options.chunk_tokens,
    )


def _expectation(options: Options) -> Expectation | None:
    shape = options.shape or options.model
    if options.gpu is None:
        if options.shape is not None:
            raise OptionError("--shape says something only together with --gpu")
        return None
    if shape is None:
        raise OptionError("--gpu needs --shape (or a --model that is known) to say what is expected")
    try:
        return expectation_of(
            options.gpu,
            shape,
            gpus=options.gpus,
            tensor=options.tensor_parallel,
            weight_dtype=options.weight_dtype,
            kv_dtype=options.kv_dtype,
            chunk_tokens=options.chunk_tokens,
        )
    except (ValueError, OSError, LookupError) as error:
        raise OptionError(str(error)) from None


def _numbers(text: str, option: str) -> tuple[int, ...]:
    numbers = []
    for piece in text.replace(" ", "").split(","):
        if not piece:
            continue
        if not piece.isascii() or not piece.isdecimal() or not 0 < int(piece) <= _MOST_TOKENS:
            raise OptionError(f"{option} are whole numbers above 0 with commas between them, not {piece!r}")
        numbers.append(int(piece))
    if len(numbers) > _MOST_NUMBERS:
        raise OptionError(f"{option} has {len(numbers)} numbers; at most {_MOST_NUMBERS} make sense")
    return tuple(sorted(set(numbers)))


def _base(url: str) -> str:
    """Without /v1 and slashes at the end, which people write too."""
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query
    except ValueError:
        is_fine = False
    if not is_fine:
        raise OptionError("URL is the base of an endpoint, such as http://127.0.0.1:8000")
    base = url.rstrip("/")
    for ending in (CHAT, COMPLETIONS, "/v1"):
        base = base.removesuffix(ending)
    return base.rstrip("/")
