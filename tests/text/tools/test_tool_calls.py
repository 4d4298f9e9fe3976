"""Calls in the text of models: what each format means, in any pieces, in linear time, and never an error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.text.tools.formats import TOOL_CALL_FORMATS, detect_tool_calls
from headrace.text.tools.hermes import HermesParser
from headrace.text.tools.pieces import CallArguments, CallBegins, Content, Piece
from tests.text.replies import Reply, read
from tests.work import growth

TOOLS = dict.fromkeys(["weather", "add", "now"])

CASES: list[tuple[str, str, str, list[list[str]]]] = [
    # ---- Hermes ----
    ("hermes", "", "", []),
    ("hermes", "  plain text\n", "  plain text\n", []),
    (
        "hermes", 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        "Let me see.", [["weather", '{"city": "Oslo"}']],
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}</tool_call>\n'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n Done.\n',
        "Done.\n", [["add", '{"a": 1, "b": [2, {"c": "}"}]}'], ["now", "{}"]],
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [["now", "{}"]]),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [["now", "{}"]]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [["add", '{"a": 1}']]),
    ("hermes", '<tool_call>{"id": 7, "type": "function", "name": "add", "arguments": {}}', "", [["add", "{}"]]),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [["add", '{"a": 1}']]),
    ("hermes", '<tool_call>{"name": "made.up-1", "arguments": {}}</tool_call>', "", [["made.up-1", "{}"]]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"t": "</tool_call>\\"{"}}',
     "", [["add", '{"t": "</tool_call>\\"{"}']]),
    # An outer brace is missing; the closing tag is; both are.
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call> ok', "ok", [["add", '{"a": 1}']]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call> ok', "ok", [["add", '{"a": 1']]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}<tool_call>{"name": "now"}',
     "", [["add", '{"a": 1}'], ["now", "{}"]]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "lon', "", [["add", '{"a": "lon']]),
    # No calls.
    ("hermes", "<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "add", "arguments": 7}', '<tool_call>{"name": "add", "arguments": 7}', []),
    ("hermes", '<tool_call>{"name": "add", "arguments": "7"}', '<tool_call>{"name": "add", "arguments": "7"}', []),
    ("hermes", '<tool_call>{"arguments": {}}', '<tool_call>{"arguments": {}}', []),
    ("hermes", '<tool_call>{"name": "a b"}', '<tool_call>{"name": "a b"}', []),
    ("hermes", '<tool_call>{"name": "\\ud800"}', '<tool_call>{"name": "\\ud800"}', []),
    ("hermes", '<tool_call>{"name": "add", "city": "Oslo"}', '<tool_call>{"name": "add", "city": "Oslo"}', []),
    ("hermes", '<tool_call>{"name": "ad', '<tool_call>{"name": "ad', []),
    ("hermes", "a < b <tool_cal", "a < b <tool_cal", []),
    ("hermes", "<tool_call><tool_call>{}", "<tool_call><tool_call>{}", []),
    # ---- Llama 3 ----
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Oslo"}}', "", [["weather", '{"city": "Oslo"}']]),
    ("llama3_json", ' <|python_tag|>{"name": "x", "parameters": {}}\n', "", [["x", "{}"]]),
    ("llama3_json", 'Wait: <|python_tag|>{"name": "add", "arguments": {}}', "Wait:", [["add", "{}"]]),
    (
        "llama3_json", '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
        "", [["add", '{"a": 1}'], ["now", "{}"]],
    ),
    ("llama3_json", '{"name": "now", "parameters": {}}; and then', "; and then", [["now", "{}"]]),
    ("llama3_json", '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', []),
    ("llama3_json", '{"title": "Oslo", "n": [1]}', '{"title": "Oslo", "n": [1]}', []),
    ("llama3_json", 'So {"name": "now", "parameters": {}}', 'So {"name": "now", "parameters": {}}', []),
    ("llama3_json", '<|python_tag|>search.call(query="x")', '<|python_tag|>search.call(query="x")', []),
    ("llama3_json", "plain", "plain", []),
    # ---- Mistral ----
    (
        "mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]',
        "", [["add", '{"a": 1}'], ["now", "{}"]],
    ),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": [1]}, "id": "abcdefghi"}]',
     "", [["add", '{"a": [1]}']]),
    ("mistral", 'I look.[TOOL_CALLS]add[ARGS]{"a": {"b": "[TOOL_CALLS]"}}',
     "I look.", [["add", '{"a": {"b": "[TOOL_CALLS]"}}']]),
    (
        "mistral", '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}',
        "", [["add", '{"a": 1}'], ["now", "{}"]],
    ),
    ("mistral", '[TOOL_CALLS]add{"a": 1} then', "then", [["add", '{"a": 1}']]),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": "x', "", [["add", '{"a": "x']]),
    ("mistral", "[TOOL_CALLS]add[ARGS]nothing", "[TOOL_CALLS]add[ARGS]nothing", []),
    ("mistral", "[TOOL_CALLS] two words", "[TOOL_CALLS] two words", []),
    ("mistral", '[TOOL_CALLS][{"name": 1}]', '[TOOL_CALLS][{"name": 1}]', []),
    ("mistral", "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}", []),
    ("mistral", '[TOOL_CALLS]{"a": 1}', '[TOOL_CALLS]{"a": 1}', []),
    ("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", []),
    ("mistral", "[TOOL_CA", "[TOOL_CA", []),
    # ---- Pythonic ----
    (
        "pythonic", "[add(a=1, b=-2.5, c=[True, None, 'x)'], d={'k': (1,)}), now()]\n",
        "", [["add", '{"a": 1, "b": -2.5, "c": [true, null, "x)"], "d": {"k": [1]}}'], ["now", "{}"]],
    ),
    ("pythonic", "[add(a=true)]", "", [["add", '{"a": true}']]),
    ("pythonic", '[weather(city="O\\"slo")] ok', "ok", [["weather", '{"city": "O\\"slo"}']]),
    ("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
    ("pythonic", "[other(a=1)]", "[other(a=1)]", []),
    ("pythonic", "[add(a=open('x'))]", "[add(a=open('x'))]", []),
    ("pythonic", "[add(**{'a': 1})]", "[add(**{'a': 1})]", []),
    ("pythonic", "[add(1)]", "[add(1)]", []),
    ("pythonic", "[add(a=1e999)]", "[add(a=1e999)]", []),
    ("pythonic", "[add(a=b'x')]", "[add(a=b'x')]", []),
    ("pythonic", "[add(a='x", "[add(a='x", []),
    ("pythonic", "[now(), nope", ", nope", [["now", "{}"]]),
    ("pythonic", "Text [now()]", "Text [now()]", []),
]  # fmt: skip

IDS = [f"{name}-{number}" for number, (name, *_) in enumerate(CASES)]


def parse(name: str, pieces: list[str] | str, hidden: tuple[str, ...] = ()) -> Reply:
    return read(
        TOOL_CALL_FORMATS[name].parser(TOOLS, hidden), [pieces] if isinstance(pieces, str) else pieces
    )


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES, ids=IDS)
def test_what_a_reply_means(name: str, text: str, content: str, calls: list[list[str]]) -> None:
    whole = parse(name, text)
    assert (whole.content, whole.calls) == (content, calls)
    assert parse(name, list(text)) == whole


FRAGMENTS = [
    "<tool_call>", "</tool_call>", '{"name": "add", ', '"arguments": {"a": 1}}', '"parameters": {"b": [1, "}"', "}",
    "{", "[", "]", '"', "\\", "[TOOL_CALLS]", "add", "now", "[ARGS]", "[CALL_ID]", "<|python_tag|>", ";", ", ", " ",
    "\n", "text", "weather(city='O')", "(", ")", "a=1", "'", '{"name": "now"}', "null", ":", "1e5", "é", "<", "<|",
]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join)


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(TOOL_CALL_FORMATS)),
    HOSTILE | st.sampled_from([text for _, text, *_ in CASES]) | st.text(max_size=40),
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
)
def test_pieces_do_not_matter_and_nothing_raises(name: str, text: str, cuts: list[int], hide: bool) -> None:
    hidden = TOOL_CALL_FORMATS[name].markers if hide else ()
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert parse(name, pieces, hidden) == parse(name, text, hidden)


class Forgetful(HermesParser):
    """A planted fault: a marker that is cut in two is not recognised."""

    def push(self, text: str) -> list[Piece]:
        pieces = super().push(text)
        if self._rest:
            self._prose.add(self._rest, pieces)
            self._rest = ""
        return pieces


def test_the_check_of_pieces_would_notice_a_lost_marker() -> None:
    text = '<tool_call>{"name": "now"}</tool_call>'
    assert read(Forgetful(TOOLS), list(text)) != read(Forgetful(TOOLS), [text])


def test_no_part_of_a_marker_is_shown_before_it_is_known() -> None:
    parser = HermesParser(TOOLS)
    shown = [
        parser.push(char) for char in 'Hi <tool_call>{"name": "add", "arguments": {"a": 12}}</tool_call>'
    ]
    flat = [piece for pieces in shown for piece in pieces]
    assert flat[:2] == [Content("H"), Content("i")]
    assert flat[2] == CallBegins(0, "add")
    assert [piece.text for piece in flat[3:] if isinstance(piece, CallArguments)] == list('{"a": 12}')


def test_arguments_are_streamed_incrementally() -> None:
    parser = HermesParser(TOOLS)
    assert parser.push('<tool_call>{"name": "add", "arguments": ') == []
    assert parser.push("{") == [CallBegins(0, "add"), CallArguments(0, "{")]
    assert parser.push('"a": "half') == [CallArguments(0, '"a": "half')]


def test_markers_that_are_special_tokens_are_not_shown_where_they_mark_no_call() -> None:
    for name, text, left in [
        ("hermes", "<tool_call>nothing", "nothing"),
        ("mistral", "[TOOL_CALLS] two words", " two words"),
        ("llama3_json", "<|python_tag|>nothing", "nothing"),
    ]:
        reply = parse(name, text, TOOL_CALL_FORMATS[name].markers)
        assert reply.content.strip() == left.strip() and not reply.calls
        assert parse(name, text).content == text  # where it is not a special token


def hostile(many: int) -> dict[str, tuple[str, str]]:
    """Formats, and texts of about `many` marks that a parser could scan again with each piece."""
    return {
        "braces": ("hermes", '<tool_call>{"name": "add", "arguments": ' + "{" * many),
        "open tags": ("hermes", "<tool_call>" * many),
        "half tags": ("hermes", "<tool_cal" * many),
        "closing tags": ("hermes", "</tool_call>" * many),
        "calls": ("hermes", '<tool_call>{"name": "now"}</tool_call>\n' * (many // 10)),
        "a long key": ("hermes", '<tool_call>{"' + "x" * many),
        "spaces in a call": ("hermes", '<tool_call>{"name": "add", "arguments"' + " " * many),
        "spaces": ("hermes", "x" + " " * many + "y"),
        "backslashes": ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "' + "\\\\" * many),
        "quotes": ("hermes", '<tool_call>{"name": "add", "arguments": {' + '"' * many),
        "arguments as text": ("hermes", '<tool_call>{"name": "add", "arguments": "' + "[" * many + '"}'),
        "markers": ("mistral", "[TOOL_CALLS]" * many),
        "lists": ("mistral", "[TOOL_CALLS][" * many),
        "names": ("mistral", "[TOOL_CALLS]add[ARGS" * many),
        "items": ("mistral", "[TOOL_CALLS] [" + '{"name": "now", "arguments": {}}, ' * (many // 10)),
        "ids": ("mistral", "[TOOL_CALLS]add[CALL_ID]" + "x" * many),
        "tags": ("llama3_json", "<|python_tag|>" * many),
        "semicolons": ("llama3_json", '{"name": "now", "parameters": {}}' + ";" * many),
        "calls of llama": ("llama3_json", '{"name": "now", "parameters": {}}; ' * (many // 10)),
        "parentheses": ("pythonic", "[add(a=" + "(" * many),
        "python strings": ("pythonic", "[add(a='" + "\\'" * many),
        "nested lists": ("pythonic", "[add(a=" + "[" * (many // 4) + "]" * (many // 4) + ")]"),
        "python calls": ("pythonic", "[" + "now(), " * (many // 10)),
    }  # fmt: skip


HOSTILE = list(hostile(0))


def read_twice(make: Callable[[], object], text: str) -> None:
    """Whole and in pieces of 19 characters, to the same reply."""
    whole = read(make(), [text])
    assert read(make(), [text[at : at + 19] for at in range(0, len(text), 19)]) == whole


def parser_of(what: str) -> Callable[[], object]:
    return lambda: TOOL_CALL_FORMATS[hostile(0)[what][0]].parser(TOOLS, ())


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.long if at % 3 else ()) for at, what in enumerate(HOSTILE)]
)
def test_the_work_for_hostile_text_is_linear(what: str) -> None:
    assert growth(lambda many: read_twice(parser_of(what), hostile(many)[what][1])) < 5


@pytest.mark.long
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_takes_linear_time(what: str) -> None:
    """As a count of lines does not show it: a regular expression may search the same text again and again."""
    started = time.process_time()
    read_twice(parser_of(what), hostile(100_000)[what][1])
    assert time.process_time() - started < 4.0


def test_a_quadratic_parser_is_noticed() -> None:
    class Rescanning(HermesParser):
        """A planted fault: everything is kept and read again with each piece."""

        def push(self, text: str) -> list[Piece]:
            self._seen = getattr(self, "_seen", "") + text
            HermesParser(TOOLS).push(self._seen)
            return super().push(text)

    def work(many: int) -> None:
        read_twice(lambda: Rescanning(TOOLS), hostile(many)["open tags"][1])

    assert growth(work, 50) > 10


def test_arguments_are_the_json_that_the_model_wrote() -> None:
    arguments = {"text": 'a "quoted" \\ line\nwith <tool_call> and }}', "n": [1, {"x": None}], "ü": "日本"}
    written = json.dumps({"name": "add", "arguments": arguments}, ensure_ascii=False)
    (call,) = parse("hermes", list(f"<tool_call>\n{written}\n</tool_call>")).calls
    assert json.loads(call[1]) == arguments


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}{{ tool_call.name }}", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("'<|python_tag|>' + message.content", "llama3_json"),
        ('Respond in the format {"name": function name, "parameters": dictionary of', "llama3_json"),
        ("[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]", "pythonic"),
        ("{{ message.content }}", None),
        (None, None),
    ],
)  # fmt: skip
def test_the_format_is_detected_from_the_template(template: str | None, name: str | None) -> None:
    found = detect_tool_calls(template)
    assert (None if found is None else found.name) == name


def test_ids_of_calls() -> None:
    assert len({TOOL_CALL_FORMATS["hermes"].new_id() for _ in range(100)}) == 100
    assert len(TOOL_CALL_FORMATS["mistral"].new_id()) == 9 and TOOL_CALL_FORMATS["mistral"].new_id().isalnum()
