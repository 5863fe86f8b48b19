"""The options of a probe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.probing.asked import OptionError, Options, asked_of

OPTIONS = Options(
    url="http://127.0.0.1:8000",
    model=None,
    api_key_env=None,
    endpoint="auto",
    metrics_url=None,
    outputs="64, 16",
    prompts="256",
    concurrency="1,2",
    contexts="2048",
    output_prompt=512,
    prompt_output=64,
    concurrency_output=128,
    steady=0,
    repeats=1,
    is_warm_too=True,
    max_requests=10,
    max_concurrency=4,
    max_seconds=60.0,
    gpu=None,
    shape=None,
    gpus=None,
    tensor_parallel=None,
    weight_dtype=None,
    kv_dtype=None,
    chunk_tokens=None,
)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "http://127.0.0.1:8000/",
        "http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8000/v1/",
        "http://127.0.0.1:8000/v1/chat/completions",
    ],
)
def test_the_base_is_found_in_what_people_write(url: str) -> None:
    """With or without /v1, a slash, or the whole path."""
    assert asked_of(replace(OPTIONS, url=url), {}).target.url == "http://127.0.0.1:8000"


def test_lengths_are_sorted_and_known() -> None:
    """In whatever order they are given."""
    assert asked_of(OPTIONS, {}).design.outputs == (16, 64)


def test_a_key_comes_from_its_variable() -> None:
    """And nobody sees it on the command line."""
    target = asked_of(replace(OPTIONS, api_key_env="KEY"), {"KEY": "geheim"}).target

    assert (target.key, target.key_env) == ("geheim", "KEY")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "such as http://127.0.0.1:8000"),
        ({"url": "http://127.0.0.1:99999"}, "such as http://127.0.0.1:8000"),
        ({"api_key_env": "KEY"}, "the variable KEY is not set"),
        ({"endpoint": "responses"}, "--endpoint is auto, completions or chat"),
        ({"outputs": "16,many"}, "--outputs are whole numbers above 0 with commas between them, not 'many'"),
        ({"prompts": "0"}, "--prompts are whole numbers above 0"),
        ({"contexts": ",".join(map(str, range(1, 60)))}, "at most 40"),
        ({"outputs": "", "prompts": "", "contexts": ""}, "no experiment is left"),
        ({"shape": "llama-3.1-8b"}, "--shape says something only together with --gpu"),
        ({"gpu": "h100-sxm"}, "--gpu needs --shape"),
        ({"gpu": "h100-smx", "shape": "llama-3.1-8b"}, "h100-sxm"),
        ({"gpu": "h100-sxm", "shape": "llama-3.1-9b"}, "nearest are meta-llama/Llama-3.1-8B"),
    ],
)
def test_a_wrong_option_is_told_with_what_would_be_right(change: dict[str, object], message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(OptionError) as caught:
        asked_of(replace(OPTIONS, **change), {})  # type: ignore[arg-type]

    assert message in str(caught.value)


def test_a_steady_load_of_too_few_requests_is_refused() -> None:
    """Of one or two nothing would be left that found all others under way."""
    with pytest.raises(OptionError, match="--steady is 0, or 3 and more"):
        asked_of(replace(OPTIONS, steady=2), {})
    assert asked_of(replace(OPTIONS, steady=3), {}).design.steady_requests == 3
    assert asked_of(OPTIONS, {}).design.steady_requests == 0
