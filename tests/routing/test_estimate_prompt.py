"""What is read of a request's texts."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.estimate import UNLEARNED, estimate
from routing.estimate_prompt import read_chat, read_prompt, texts_of
from routing.estimate_text import FEATURES

MESSAGES, PARTS, TOOLS, LOWER = (FEATURES.index(name) for name in ("messages", "parts", "tools", "lower"))
BASE64 = "QUJD" * 50_000


def chat(messages, *others, has_tools=False):
    return read_chat(json.dumps(messages).encode(), [json.dumps(other).encode() for other in others], has_tools=has_tools)


def test_only_texts_count_and_messages_are_counted():
    """The keys around a text are not in the prompt; what a template puts there is learned per message."""
    found = chat([{"role": "system", "content": "abc"}, {"role": "user", "content": "defg"}])

    assert (found.counts[MESSAGES], found.counts[LOWER], found.images) == (2, 7, 0)


def test_a_message_with_more_fields_counts_the_same():
    """The quick way for plain messages and the thorough one agree."""
    plain, named = [{"role": "user", "content": "abc def 12"}], [{"role": "user", "name": "x", "content": "abc def 12"}]

    assert estimate(chat(plain), UNLEARNED).tokens == pytest.approx(estimate(chat(named), UNLEARNED).tokens, abs=2)


@pytest.mark.parametrize(
    ("part", "images", "audios"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}}, 1, 0),
        ({"type": "image_url", "image_url": "https://example.com/a.png"}, 1, 0),
        ({"image_url": {"url": f"data:image/png;base64,{BASE64}"}, "type": "image_url"}, 1, 0),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}"}, 1, 0),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}, 1, 0),
        ({"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}, 0, 1),
        ({"type": "hologram", "data": BASE64}, 1, 0),
    ],
)
def test_bytes_of_images_and_audio_are_no_text(part, images, audios):
    """Each is an allowance, however many bytes it has."""
    found = chat([{"role": "user", "content": [{"type": "text", "text": "what is this"}, part]}])

    assert (found.images, found.audios, found.counts[LOWER], found.counts[PARTS]) == (images, audios, 10, 2)


def test_a_text_about_images_is_text():
    """A data URI that is quoted in a text is tokenised."""
    found = chat([{"role": "user", "content": f'see {{"type":"image_url","url":"data:image/png;base64,{BASE64}"}}'}])

    assert found.images == 0
    assert estimate(found, UNLEARNED).tokens > 50_000


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "a text",
        7,
        {"role": "user"},
        [None],
        [1, "two", ["three"]],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": {}}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": ["bare", None, 3, {}, [], {"type": 5, "text": "x"}, {"type": "text"}]}],
        [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]}],
        [{"role": "user", "content": [[[[["deep"]]]]]}],
    ],
)
def test_odd_content_is_never_an_error(messages):
    """Whether it is a request is for the worker to say."""
    found = estimate(chat(messages), UNLEARNED)

    assert 0 <= found.least <= found.tokens <= found.most < 1000


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]), inner, max_size=4)
        ),
    )
)
def test_any_json_can_be_read(value):
    """As messages, as a prompt, as tools."""
    raw = json.dumps(value).encode()

    for found in (read_chat(raw, [raw], has_tools=True), read_prompt(raw)):
        assert estimate(found, UNLEARNED).tokens >= 0


def test_tools_count():
    """Their schema is put into the prompt, after a preamble that is learned."""
    tools = [
        {"type": "function", "function": {"name": f"f{index}", "description": "Does this and that"}} for index in range(50)
    ]
    messages = [{"role": "user", "content": "hi"}]

    found = chat(messages, tools, has_tools=True)

    assert found.counts[TOOLS] == 1
    assert estimate(found, UNLEARNED).tokens > estimate(chat(messages), UNLEARNED).tokens + 700


def test_results_of_tools_and_items_of_responses_count():
    """Texts that are no contents: arguments, outputs, calls."""
    for item in (
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "word " * 400}}]},
        {"type": "function_call_output", "output": "word " * 400},
        {"role": "user", "content": [{"type": "tool_result", "content": "word " * 400}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "word " * 400}]}]},
        {"role": "assistant", "content": [{"type": "tool_use", "input": {"text": "word " * 400}}]},
    ):
        assert 300 < estimate(chat([item]), UNLEARNED).tokens < 600, item


@pytest.mark.parametrize(
    ("prompt", "longest", "prompts", "ratio"),
    [
        ([1, 2, 3], 3, 1, 1.0),
        ([[1, 2, 3], [4], []], 3, 3, 4 / 3),
        ([[5]], 1, 1, 1.0),
        ([[]], 0, 1, 1.0),
    ],
)
def test_ids_are_counted(prompt, longest, prompts, ratio):
    """One list is a prompt, a list of lists a batch of which the longest decides."""
    found = read_prompt(json.dumps(prompt).encode())

    assert (found.has_text, found.token_ids, found.prompts) == (False, longest, prompts)
    assert found.batch_ratio == pytest.approx(ratio)


@pytest.mark.parametrize("prompt", [[], [1, "a", [2]], ["a", 1], [None], {"a": 1}, None, ""])
def test_mixed_prompts_are_left_to_the_worker(prompt):
    """Something is estimated, nothing is raised."""
    assert estimate(read_prompt(json.dumps(prompt).encode()), UNLEARNED).tokens >= 0


def test_the_longest_of_a_batch_decides():
    """Two short prompts and a long one are estimated like the long one, all of them by their bytes."""
    long = "the quick brown fox " * 10_000

    found = read_prompt(json.dumps(["short one", long, "short two"]).encode())

    alone = read_prompt(json.dumps(long).encode())
    assert estimate(found, UNLEARNED) == estimate(alone, UNLEARNED)
    assert (found.prompts, found.batch_ratio) == (3, pytest.approx(1, abs=0.01))


def test_a_thousand_small_prompts():
    """The batch is a thousand times one of them."""
    found = read_prompt(json.dumps(["the quick brown fox"] * 1000).encode())

    assert (found.prompts, found.batch_ratio) == (1000, 1000)
    assert estimate(found, UNLEARNED).tokens < 20


def test_very_many_messages_are_read_as_one_text():
    """Taking apart a hundred thousand messages would hold the loop."""
    found = read_chat(msgspec.json.encode([{"role": "user", "content": "a"}] * 100_000), (), has_tools=False)

    assert found.counts[MESSAGES] == 1


def test_a_large_tool_is_text():
    """However many bytes its schema has; only parts of a message can be images."""
    tool = {"type": "function", "function": {"name": "f", "description": "word " * 4000}}

    found = chat([{"role": "user", "content": "hi"}], [tool], has_tools=True)

    assert (found.images, found.counts[PARTS]) == (0, 0)
    assert estimate(found, UNLEARNED).tokens > 3000
    assert texts_of(b"[]", [json.dumps([tool]).encode()], b"") == [json.dumps([tool])]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x" * 50}] * 45_000,
        [{"role": "user", "content": [{"type": "text", "text": "x" * 50}] * 45_000}],
        [{"role": "user", "content": [{"type": "text", "text": "x" * 50}] * 4500}] * 10,
        [None, *["x" * 50] * 45_000],
    ],
)
def test_many_small_pieces_do_not_hold_the_loop(messages):
    """Megabytes of messages or parts are read as text as they stand, in a few milliseconds."""
    raw = json.dumps(messages).encode()
    read_chat(raw, (), has_tools=False)  # what comes first pays for memory

    seconds = []
    for _ in range(5):
        started_at = time.process_time()
        found = read_chat(raw, (), has_tools=False)
        seconds.append(time.process_time() - started_at)

    assert min(seconds) < 0.015
    assert estimate(found, UNLEARNED).tokens > 100_000
