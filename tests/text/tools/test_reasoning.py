"""The reasoning of a reply, apart from its content and its calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.tools.formats import TOOL_CALL_FORMATS
from headrace.text.tools.reader import ReplyReader
from headrace.text.tools.reasoning import REASONING_FORMATS, ReasoningParser, Stage, detect_reasoning
from tests.text.replies import Reply, read
from tests.work import growth

CASES: list[tuple[str, bool, str, str, str]] = [
    ("qwen3", False, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("qwen3", False, "\n<think>a</think>b", "a", "b"),
    ("qwen3", False, " just text ", "", " just text "),
    ("qwen3", False, "text <think>is no thought</think>", "", "text <think>is no thought</think>"),
    ("qwen3", False, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    ("qwen3", False, "<think>cut off", "cut off", ""),
    ("qwen3", False, "<think>cut off </thi", "cut off </thi", ""),
    ("qwen3", False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    ("qwen3", False, "<thi", "", "<thi"),
    ("qwen3", False, "", "", ""),
    ("qwen3", True, "Hm.\n</think>\nYes.\n", "Hm.", "Yes.\n"),
    ("qwen3", True, "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("qwen3", True, "never closed", "never closed", ""),
    ("qwen3", True, "  \n ", "", ""),
    ("mistral", False, "[THINK]a[/THINK]b", "a", "b"),
]


@pytest.mark.parametrize(("name", "inside", "text", "reasoning", "content"), CASES)
def test_the_parts_of_a_reply(name: str, inside: bool, text: str, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text)):
        parser = ReasoningParser(REASONING_FORMATS[name], inside)
        assert read(parser, pieces) == Reply(content, reasoning)


PARTS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", '{"name": "now"}', "</tool_call>", " ", "\n", "a", "<", "</"]
    ),
    max_size=20,
)  # fmt: skip


@given(PARTS, st.booleans(), st.lists(st.integers(0, 200), max_size=10))
def test_pieces_do_not_matter(parts: list[str], inside: bool, cuts: list[int]) -> None:
    text = "".join(parts)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]

    def reader() -> ReplyReader:
        reasoning = ReasoningParser(REASONING_FORMATS["qwen3"], inside)
        return ReplyReader(reasoning, TOOL_CALL_FORMATS["hermes"].parser({"now": None}, ()))

    whole = read(reader(), [text])
    assert read(reader(), [text[a:b] for a, b in pairwise(edges)]) == whole
    assert read(reader(), text) == whole


def test_a_call_after_the_reasoning() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    reader = ReplyReader(
        ReasoningParser(REASONING_FORMATS["qwen3"], False), TOOL_CALL_FORMATS["hermes"].parser({}, ())
    )
    reply = read(reader, f"<think>I could {call}.</think>\n{call}")
    assert reply == Reply("", f"I could {call}.", [["now", "{}"]])


def test_only_the_first_call_counts_where_one_is_allowed() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    reader = ReplyReader(None, TOOL_CALL_FORMATS["hermes"].parser({}, ()), single=True)
    assert read(reader, f"a {call} {call} b") == Reply("ab", "", [["now", "{}"]])


HOSTILE: list[Callable[[int], str]] = [
    lambda many: "<think>" * many, lambda many: "<think>" + "</thin" * many,
    lambda many: "<think>" + " " * many + "x",
]  # fmt: skip


def read_twice(text: str) -> None:
    """Whole and in pieces of 19 characters."""
    for size in (len(text), 19):
        parser = ReasoningParser(REASONING_FORMATS["qwen3"], False)
        assert read(parser, [text[at : at + size] for at in range(0, len(text), size)]).reasoning


@pytest.mark.parametrize("text", HOSTILE)
def test_the_work_for_many_marks_is_linear(text: Callable[[int], str]) -> None:
    assert growth(lambda many: read_twice(text(many))) < 5


@pytest.mark.long
@pytest.mark.parametrize("text", HOSTILE)
def test_many_marks_take_linear_time(text: Callable[[int], str]) -> None:
    started = time.process_time()
    read_twice(text(100_000))
    assert time.process_time() - started < 2.0


def test_where_a_reply_begins() -> None:
    qwen, deepseek = REASONING_FORMATS["qwen3"], REASONING_FORMATS["deepseek_r1"]
    assert qwen.stage("<|assistant|>\n<think>\n") is deepseek.stage("<|assistant|><think>") is Stage.INSIDE
    assert qwen.stage("<|assistant|>") is Stage.BEFORE and deepseek.stage("<|assistant|>") is Stage.INSIDE
    for one in (qwen, deepseek):
        assert one.stage("<|assistant|>\n<think>\n\n</think>\n\n") is Stage.PAST
        for said in ("<think>x</think>", "<think>x</think>\nSo", "So", "x</think>"):
            assert one.stage(f"<|assistant|>{said}", said) is Stage.PAST, said
        assert one.stage("<|assistant|><think>x", "<think>x") is Stage.INSIDE
        assert one.stage("<|assistant|>", " ") is one.stage("<|assistant|>")
    assert detect_reasoning("{% if thinking %}<think>{% endif %}") is qwen
    assert detect_reasoning("{{ messages }}") is None and detect_reasoning(None) is None
