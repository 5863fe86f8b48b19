"""What request bodies ask for, and how wrong ones are refused."""

from __future__ import annotations

import json

import pytest

from simulator.bodies import Generation, Served, parse_chat, parse_completion, parse_detokenize, parse_tokenize
from simulator.dialect import ForcedUsage
from simulator.refusals import Refusal
from simulator.text import ToolCall, Wish
from simulator.transfer import Transfer
from simulator.wire.small import error_body
from tests.captures import load

SERVED = Served(models=("tiny", "tiny-alias"), max_model_len=32768)
SUM_TOO_LONG = (
    "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your prompt contains "
    "at least 769 input tokens, for a total of at least 32769 tokens. Please reduce the length of the input prompt or the "
    "number of requested output tokens. (parameter=input_tokens, value=769)"
)
HELLO = [{"role": "user", "content": "hello"}]


def a_chat(**fields) -> bytes:
    return json.dumps({"model": "tiny", "messages": HELLO, **fields}).encode()


def a_completion(**fields) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "hello", **fields}).encode()


def refused(parse, raw: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(raw, SERVED)
    return caught.value


def wish(wanted: Generation) -> Wish:
    (only,) = wanted.wishes
    return only


def chat_with(served: Served = SERVED, **fields) -> Generation:
    return parse_chat(a_chat(**fields), served)


def test_what_is_asked_for_is_read():
    """Limits, streaming and usage options of a chat come through."""
    wanted = parse_chat(
        a_chat(stream=True, max_tokens=7, ignore_eos=True, stream_options={"include_usage": True}, nonsense={"a": 1}), SERVED
    )

    assert (wish(wanted).limit_tokens, wish(wanted).ignores_end, wanted.stream) == (7, True, True)
    assert (wanted.wants_usage, wanted.wants_running_usage) == (True, False)


def test_running_usage_needs_usage():
    """Usage in every event comes only together with usage at the end."""
    only = parse_chat(a_chat(stream=True, stream_options={"continuous_usage_stats": True}), SERVED)
    both = parse_chat(a_chat(stream=True, stream_options={"continuous_usage_stats": True, "include_usage": True}), SERVED)

    assert (only.wants_running_usage, both.wants_running_usage) == (False, True)


def test_the_newer_name_of_the_limit_wins():
    """``max_completion_tokens`` counts if both are there."""
    assert wish(chat_with(max_tokens=12, max_completion_tokens=2)).limit_tokens == 2


@pytest.mark.parametrize("limit", [7.0, "7"])
def test_a_whole_number_may_be_written_otherwise(limit):
    """As vLLM's lax models have it."""
    assert wish(chat_with(max_tokens=limit)).limit_tokens == 7


def test_without_a_limit_a_chat_may_fill_the_context_and_a_completion_gets_16_tokens():
    """The two endpoints have the defaults of vLLM."""
    chat = chat_with()

    assert wish(chat).limit_tokens == 32768 - chat.sources[0].prompt.tokens
    assert wish(parse_completion(a_completion(), SERVED)).limit_tokens == 16


def test_the_model_may_be_left_out():
    """A request without a model is for the one there is."""
    assert parse_completion(b'{"prompt":"hello"}', SERVED).model == "tiny"


def test_an_alias_is_answered_under_the_first_name_and_an_adapter_under_its_own():
    """Aliases are names of the model; an adapter is another one, whose prompts share nothing with it."""
    served = Served(models=("tiny", "tiny-alias"), max_model_len=32768, adapters=("tuned",))
    long = [{"role": "user", "content": "x" * 200}]
    plain, alias, tuned = (parse_chat(a_chat(model=model, messages=long), served) for model in ("tiny", "tiny-alias", "tuned"))

    assert (plain.model, alias.model, tuned.model) == ("tiny", "tiny", "tuned")
    assert plain.sources == alias.sources
    assert not set(plain.sources[0].prompt.blocks) & set(tuned.sources[0].prompt.blocks)


def test_conversations_share_what_they_begin_with():
    """Two chats of one system prompt share its blocks; a salt or tools before it separate them."""
    system = {"role": "system", "content": "rules " * 100}

    def blocks(question: str, **fields) -> set[bytes]:
        messages = [system, {"role": "user", "content": question}]
        return set(chat_with(messages=messages, **fields).sources[0].prompt.blocks)

    assert len(blocks("one") & blocks("two")) == 9
    assert not blocks("one") & blocks("one", cache_salt="s")
    assert not blocks("one") & blocks("one", tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")


def test_content_in_parts_is_the_same_as_in_one_text():
    """A list of text parts is their texts joined."""
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]

    assert parse_chat(a_chat(messages=[{"role": "user", "content": parts}]), SERVED) == parse_chat(a_chat(), SERVED)


@pytest.mark.parametrize(("prompt", "tokens"), [("hello", 2), (["hello"], 2), ([1, 2, 3], 3), ([[1, 2, 3]], 3)])
def test_a_completion_prompt_is_a_text_or_token_ids(prompt, tokens):
    """One prompt is accepted in each of the four forms of the API."""
    (source,) = parse_completion(a_completion(prompt=prompt), SERVED).sources

    assert source.prompt.tokens == tokens


def test_several_prompts_and_choices_are_counted_in_order():
    """Each of the prompts gets each of the choices."""
    wanted = parse_completion(a_completion(prompt=["hello", "good morning"], n=3), SERVED)

    assert [source.prompt.tokens for source in wanted.sources] == [2, 3]
    assert (wanted.n, wanted.choices, len(wanted.wishes)) == (3, 6, 2)


def test_usage_may_be_forced():
    """What the flag does depends on the version: all of it, the last event, or the last event where options were given."""

    def wants(forced: ForcedUsage, **fields) -> tuple[bool, bool]:
        wanted = chat_with(Served(models=("tiny",), max_model_len=32768, forced_usage=forced), stream=True, **fields)
        return wanted.wants_usage, wanted.wants_running_usage

    assert wants(ForcedUsage.ALWAYS, stream_options={"include_usage": False}) == (True, True)
    assert wants(ForcedUsage.FINAL) == (True, False)
    assert wants(ForcedUsage.IF_OPTIONS) == (False, False)
    assert wants(ForcedUsage.IF_OPTIONS, stream_options={"include_usage": False}) == (True, False)


def test_wishes_come_through():
    """Stops, least length, the only text allowed and options of form are read."""
    wanted = chat_with(
        stop="x", min_tokens=3, stop_token_ids=[7], include_stop_str_in_output=True, structured_outputs={"choice": ["yes"]}
    )
    form = chat_with(
        logprobs=True,
        top_logprobs=2,
        return_token_ids=True,
        include_reasoning=False,
        stream_interval=5,
        priority=-1,
        request_id="r",
        n=2,
    )

    assert wish(wanted).stop == ("x",)
    assert (wish(wanted).least_tokens, wish(wanted).stop_ids, wish(wanted).includes_stop) == (3, {7}, True)
    assert wish(wanted).fixed == "yes"
    assert (form.top_logprobs, form.wants_token_ids, form.shows_reasoning) == (2, True, False)
    assert (form.stream_interval, form.priority, form.identifier, form.n) == (5, -1, "r", 2)
    assert wish(chat_with(stop=["", "y"])).stop == ("y",)


def test_a_scripted_answer_is_said_unless_more_tokens_are_wanted():
    """A worker with an answer says it, but a request that ignores the end gets words to its limit."""
    served = Served(models=("tiny",), max_model_len=32768, answer="yes", thinks=True, thoughts="hm")

    assert (wish(chat_with(served)).fixed, wish(chat_with(served, ignore_eos=True)).fixed) == ("yes", None)
    assert (wish(chat_with(served)).thinks, wish(chat_with(served)).thoughts) == (True, "hm")


def test_thinking_is_of_chats_and_can_be_switched_off():
    """With a reasoning parser chats think, unless their template is told otherwise; completions never do."""
    served = Served(models=("tiny",), max_model_len=32768, thinks=True)

    assert wish(chat_with(served)).thinks
    assert not wish(chat_with(served, chat_template_kwargs={"enable_thinking": False})).thinks
    assert not wish(parse_completion(a_completion(), served)).thinks
    assert not wish(chat_with()).thinks


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}
ASKED = [*HELLO, {"role": "tool", "tool_call_id": "c", "content": "rain"}]
CALLING = Served(models=("tiny",), max_model_len=32768, calls_tools=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tools": [TOOL]}, ToolCall(name="f", arguments='{"a": 3}', finish_reason="tool_calls", beside=None)),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": [TOOL], "messages": ASKED}, None),
        (
            {"tools": [TOOL], "tool_choice": "required", "messages": ASKED},
            ToolCall(name="f", arguments='{"a": 3}', finish_reason="tool_calls", beside=""),
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            ToolCall(name="f", arguments='{"a": 3}', finish_reason="stop", beside=""),
        ),
    ],
)
def test_when_a_tool_is_called(fields, expected):
    """With tools there is a call, unless it is not wanted, or its result is there already."""
    assert wish(chat_with(CALLING, **fields)).tool == expected


def test_a_worker_without_a_parser_calls_only_what_it_is_told_to():
    """A tool that the client insists on needs no parser; a choice of the model's own does."""
    assert wish(chat_with(tools=[TOOL], tool_choice="required")).tool is not None
    assert refused(parse_chat, a_chat(tools=[TOOL])).message.startswith('"auto" tool choice requires')


def test_the_prompt_may_be_repeated():
    """Echo of a completion is its prompt; that of a chat is the message that the answer goes on from, if there is one."""
    last = [*HELLO, {"role": "assistant", "content": "Well"}]

    assert parse_completion(a_completion(echo=True), SERVED).echoes == ("hello",)
    assert parse_completion(a_completion(prompt=[[int.from_bytes(b"hell", "little")]], echo=True), SERVED).echoes == ("hell",)
    assert chat_with(echo=True, messages=last).echoes == ("Well",)
    assert chat_with(echo=True).echoes == ()
    assert chat_with(echo=True, add_generation_prompt=False).echoes == ("hello",)


def test_only_the_prompt_may_be_asked_for():
    """No output with an echo runs for one token that nobody sees, and tells the prompt's logprobs if any are told."""
    wanted = parse_completion(a_completion(echo=True, max_tokens=0, logprobs=1), SERVED)

    assert (wanted.hides_output, wish(wanted).limit_tokens) == (True, 1)
    assert (wanted.top_logprobs, wanted.prompt_logprobs) == (1, 1)
    assert parse_completion(a_completion(prompt_logprobs=2), SERVED).prompt_logprobs == 2


def test_transfers_need_a_connector():
    """Without one the parameters are ignored, as with vLLM."""
    params = {"do_remote_decode": True}
    with_connector = Served(models=("tiny",), max_model_len=32768, transfers=True)

    assert chat_with(kv_transfer_params=params).transfer is None
    assert chat_with(with_connector, kv_transfer_params=params).transfer == Transfer(is_prefill=True)


def test_tokenize_counts_texts_and_conversations():
    """The count is the one that the engine would use."""
    asked = parse_tokenize(b'{"prompt":"hello","return_token_strs":true}', SERVED)

    assert (len(asked.source.ids()), asked.wants_spellings) == (2, True)
    assert parse_tokenize(a_chat(), SERVED).source.prompt == chat_with().sources[0].prompt


def test_detokenize_is_the_inverse():
    """The ids of a text are that text again."""
    ids = parse_tokenize(b'{"prompt":"hello"}', SERVED).source.ids()

    assert parse_detokenize(json.dumps({"tokens": ids}).encode(), SERVED) == "hello"
    assert parse_detokenize(b'{"tokens": []}', SERVED) == ""


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("err_invalid_json", b'{"model": "tiny", "messages": ['),
        ("err_too_long", a_chat(messages=[{"role": "user", "content": "a" * 240_000}], max_tokens=12)),
        ("err_unknown_model", json.dumps({"model": "nope", "messages": HELLO}).encode()),
        ("chat_max0", a_chat(max_tokens=0)),
        ("chat_stream_options_without_stream", a_chat(stream_options={"include_usage": True})),
    ],
)
def test_refusals_are_the_captured_ones(name, raw):
    """The error body is byte for byte the captured one."""
    assert error_body(refused(parse_chat, raw)) == load(name).payload


@pytest.mark.parametrize(
    ("parse", "raw", "expected"),
    [
        (parse_chat, b"", "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}"),
        (
            parse_chat,
            b'{"model": "tiny"}',
            "{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}",
        ),
        (parse_chat, a_chat(temperature="hot"), "'loc': 'body.temperature'"),
        (parse_chat, a_chat(messages=[{"content": "x"}]), "'loc': 'body.messages.0.role', 'msg': 'Field required'"),
        (parse_chat, b"[]", "'loc': 'body'"),
        (parse_tokenize, b"{}", "'loc': 'body.prompt'"),
    ],
)
def test_bodies_of_the_wrong_form_are_refused_by_validation(parse, raw, expected):
    """What is missing or of another type is a 400 of type "Bad Request" that says where."""
    refusal = refused(parse, raw)

    assert (refusal.status, refusal.kind) == (400, "Bad Request")
    assert expected in refusal.message


@pytest.mark.parametrize(
    ("parse", "raw", "expected"),
    [
        (parse_chat, a_chat(messages=[]), "Cannot apply chat template to an empty conversation. Provide at least one message."),
        (
            parse_chat,
            a_chat(max_tokens=40000),
            "max_tokens=40000 cannot be greater than max_model_len=32768. Please request fewer output tokens.",
        ),
        (parse_chat, a_chat(n=0), "n must be at least 1, got 0."),
        (
            parse_chat,
            a_chat(temperature=-1.0),
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
        ),
        (
            parse_chat,
            a_chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]),
            "tiny is not a multimodal model",
        ),
        (
            parse_completion,
            a_completion(prompt="a" * 4000, max_tokens=32000),
            SUM_TOO_LONG,
        ),
        (parse_completion, a_completion(prompt=""), "Either prompt or prompt_embeds must be provided and non-empty."),
        (parse_completion, a_completion(prompt=[]), "You must pass at least one prompt"),
        (parse_completion, a_completion(prompt=["one", ""]), "Either prompt or prompt_embeds must be provided"),
        (parse_completion, a_completion(prompt=["one", 1]), "Either prompt or prompt_embeds must be provided"),
        (parse_completion, a_completion(prompt=[1 << 32]), "Token id 4294967296 is out of vocabulary"),
        (parse_completion, a_completion(suffix="x"), "suffix is only supported for models with FIM completion rendering"),
        (parse_completion, a_completion(max_tokens=0), "max_tokens must be at least 1, got 0."),
        (parse_chat, a_chat(logprobs=True, top_logprobs=100), "Requested sample logprobs of 100, which is greater than max"),
        (parse_chat, a_chat(tool_choice="auto"), "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"),
        (
            parse_chat,
            a_chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
        ),
        (parse_detokenize, b'{"tokens": [-1]}', "Token id -1 is out of vocabulary"),
        (parse_chat, b"\xff\xff\xff\xff", "There was an error parsing the body"),
    ],
)
def test_bad_values_are_refused_in_the_words_of_vllm(parse, raw, expected):
    """What cannot be done is a 400 of type "BadRequestError"."""
    refusal = refused(parse, raw)

    assert (refusal.status, refusal.kind) == (400, "BadRequestError")
    assert refusal.message.startswith(expected)
