"""Request shapes from the gateway's log and from public traces."""

from __future__ import annotations

import json

import pytest

from simulator.replay.formats import RecordsError, read_shapes
from simulator.replay.shapes import Shape, in_order

LOG = {
    "time": "2026-11-30T08:24:44.500Z",
    "outcome": "ok",
    "model": "llama-3.1-8b",
    "prompt_tokens": 700,
    "completion_tokens": 120,
    "cached_tokens": 512,
    "max_tokens": 1024,
    "e2e_seconds": 2.5,
    "prefix_hash": "00ff00ff00ff00ff",
    "pool": "short",
    "worker": "http://10.0.0.11:8000",
    "causes": [{"name": "engine_queue", "seconds": 1.0}],
}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,1000,7\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    "45,GPT-4,1087,230,1317,Conversation log\n118,ChatGPT,417,0,417,API log\n"
)
MOONCAKE = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}\n'


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_the_gateways_own_log_is_read() -> None:
    """A request came its whole time before it ended; hits and what it shares a beginning with are kept, nothing else."""
    reading = read_shapes([json.dumps(LOG)])

    assert reading.format == "ridgeline"
    assert reading.shapes == [
        Shape(
            at_seconds=pytest.approx(1796027082.0),  # type: ignore[arg-type]
            prompt_tokens=700,
            output_tokens=120,
            max_tokens=1024,
            cached_tokens=512,
            family="00ff00ff00ff00ff",
            model="llama-3.1-8b",
            pool="short",
            worker="http://10.0.0.11:8000",
        )
    ]


@pytest.mark.parametrize(
    ("text", "name", "instants", "lengths"),
    [
        (AZURE, "azure", [0.0, 0.052], [(4808, 10), (3180, 8)]),
        (AZURE_2024, "azure", [0.0, 0.99007], [(2162, 5), (1000, 7)]),
        (BURSTGPT, "burstgpt", [0.0, 40.0], [(472, 18), (1087, 230)]),
        (MOONCAKE, "mooncake", [0.0], [(6955, 52)]),
        ("\ufeff" + AZURE, "azure", [0.0, 0.052], [(4808, 10), (3180, 8)]),
    ],
)
def test_public_traces_are_known_by_their_columns(
    text: str, name: str, instants: list[float], lengths: list[tuple[int, int]]
) -> None:
    """Times in seconds from the first request, prompt and output in tokens."""
    reading = read_shapes(lines(text))
    shapes = in_order(reading.shapes)

    assert (reading.format, reading.bad) == (name, 0)
    assert [shape.at_seconds for shape in shapes] == pytest.approx(instants, abs=1e-5)
    assert [(shape.prompt_tokens, shape.output_tokens) for shape in shapes] == lengths


def test_requests_without_an_answer_are_passed_over_by_reason() -> None:
    """Refused, failed, or in the trace with no output: nothing of them can be served again."""
    log = [json.dumps(LOG), json.dumps({**LOG, "completion_tokens": None}), json.dumps({**LOG, "is_batch": True})]

    assert read_shapes(log).passed_over == {"without an answer": 1, "of several prompts or choices": 1}
    assert read_shapes(lines(BURSTGPT)).passed_over == {"without an answer": 1}


@pytest.mark.parametrize(
    "bad",
    [
        "{broken",
        "[]",
        json.dumps({**LOG, "prompt_tokens": "many"}),
        json.dumps({**LOG, "prompt_tokens": -4}),
        json.dumps({**LOG, "prompt_tokens": 10**15}),
        json.dumps({**LOG, "time": "yesterday"}),
        json.dumps({"outcome": "ok"}),
    ],
)
def test_a_bad_line_is_counted_and_named_and_the_others_are_read(bad: str) -> None:
    """A log that was cut, or written by somebody else's hand, is no reason to stop."""
    reading = read_shapes([json.dumps(LOG), bad, "", json.dumps(LOG)])

    assert (len(reading.shapes), reading.bad, reading.lines) == (2, 1, 3)
    assert reading.first_bad is not None
    assert reading.first_bad.startswith("line 2: ")


def test_lines_that_cannot_be_parsed_are_bad() -> None:
    """A cell without end, and values nested too deep: as any other."""
    reading = read_shapes(lines(AZURE + '"' + "x" * 200_000 + "\n"))
    assert (len(reading.shapes), reading.bad) == (2, 1)

    deep = '{"prompt_tokens": ' + "[" * 100_000
    assert read_shapes([deep, json.dumps(LOG)]).bad == 1
    with pytest.raises(RecordsError, match="neither a JSON object"):
        read_shapes(['"' + "x" * 200_000])


def test_a_row_with_too_few_columns_is_bad() -> None:
    """It says how many there are."""
    reading = read_shapes(lines(AZURE + "2023-11-16 18:17:05,100\n"))

    assert (len(reading.shapes), reading.bad) == (2, 1)
    assert reading.first_bad == "line 4: 2 columns, not 3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("a,b,c\n1,2,3\n", "neither a JSON object nor a head with TIMESTAMP"),
        ('{"a": 1}\n', "neither the gateway's log"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request with prompt and output lengths"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", "line 2: "),
    ],
)
def test_what_is_no_trace_is_told_with_what_would_be_one(text: str, message: str) -> None:
    """The file may be the wrong one."""
    with pytest.raises(RecordsError) as caught:
        read_shapes(lines(text))

    assert message in str(caught.value)


def test_one_model_of_several_can_be_chosen() -> None:
    """The others are counted."""
    reading = read_shapes([json.dumps(LOG), json.dumps({**LOG, "model": "other"})], model="llama-3.1-8b")

    assert len(reading.shapes) == 1
    assert reading.passed_over == {"for other models": 1}
