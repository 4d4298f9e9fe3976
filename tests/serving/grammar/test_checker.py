"""Grammars that explode, crash llguidance, or mean nothing: refused in time by a process that outlives them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.grammar import MAX_GRAMMAR_CHARS, Grammar
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.grammar.checker import GrammarChecker
from headrace.serving.grammar.worker import MEMORY_BYTES, TOO_MUCH
from tests import needs
from tests.places import TALE
from tests.waiting import LONG_S

needs.package("llguidance")

REFUSED_S = 1.0
"""Bound on the processor time of a refusal; the limit is `worker.CPU_S`."""
PATIENT = "import sys; from headrace.serving.grammar import worker as w; w.WALL_S = 60.0; sys.exit(w.main())"
"""A worker in which a busy machine is no reason for a refusal, as it is after WALL_S."""


def chain(length: int) -> dict[str, Any]:
    """Each definition is the next one: llguidance follows them with its stack."""
    links: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": links | {f"a{length}": {"type": "string"}}}


def either(count: int) -> dict[str, Any]:
    """4 to the power of `count` combinations."""
    one = [
        [{"type": "object", "properties": {f"p{i}": {"const": j}}} for j in range(4)] for i in range(count)
    ]
    return {"allOf": [{"anyOf": part} for part in one]}


def doubling(count: int) -> str:
    rules = [f"T{i}: T{i + 1} T{i + 1}" for i in range(count)]
    return "\n".join(["start: T0", *rules, f'T{count}: "a"']) + "\n"


EXPLOSIVE: dict[str, tuple[str, Any]] = {
    "many repeats": ("regex", "a{1000000}"),
    "a chain of references": ("json_schema", chain(1800)),
    "combinations": ("json_schema", either(5)),
    "more combinations": ("json_schema", either(6)),
    "many optional properties": (
        "json_schema",
        {"type": "object", "properties": {f"p{i}": {} for i in range(1000)}},
    ),
    "multiples of a large number": ("json_schema", {"type": "integer", "multipleOf": 999_983}),
    "doubling": ("lark", doubling(30)),
    "a chain of rules": (
        "lark",
        "\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(3000)), 'r3000: "a"']),
    ),
    "large automata": (
        "lark",
        "start: T\nT: " + " & ".join(f"/.*{c}.{{20}}.*/" for c in "abcdefghij") + "\n",
    ),
    "overlapping patterns": (
        "json_schema",
        {"patternProperties": {f"^a{'.' * i}b$": {"type": "string"} for i in range(60)}},
    ),
}
HARMLESS: dict[str, tuple[str, Any]] = {
    "nested repeats": ("regex", "(a+)+$"),
    "nested counts": ("regex", "((a{1,100}){1,100}){1,100}"),
    "many states": ("regex", "(a|b)*a(a|b){4000}"),
    "a long string": ("json_schema", {"type": "string", "maxLength": 10**6}),
    "a long list": ("json_schema", {"type": "array", "items": {"type": "integer"}, "maxItems": 10**6}),
    "many values": ("json_schema", {"enum": [f"value number {i}" for i in range(2000)]}),
    "a short chain": ("json_schema", chain(50)),
}
MEANINGLESS: list[tuple[str, Any, str]] = [
    ("json_schema", {"type": "strin"}, "Invalid type: strin"),
    ("json_schema", {"not": {}}, "not"),
    ("json_schema", {"$ref": "#/nowhere"}, "nowhere"),
    ("json_schema", {"$ref": "http://127.0.0.1:1/x"}, "does not fetch"),
    ("json_schema", {"$ref": "file:///etc/passwd"}, "does not fetch"),
    ("json_schema", {"enum": []}, "Unsatisfiable"),
    ("regex", "(?=a)b", "look-ahead"),
    ("regex", "[", "unclosed"),
    ("regex", r"[^\s\S]", "no text matches"),
    ("lark", "start: foo", "foo"),
    ("lark", "begin: /a/", "start"),
    ("lark", "start: (((", "Expected"),
]


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(str(TALE), 2048, frozenset({1}), (sys.executable, "-P", "-c", PATIENT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.serving.grammar.checker.ANSWER_S", 90.0)
        made.check(Grammar("regex", "a"))
        yield made
    made.close()


def spent_s(checker: GrammarChecker) -> float:
    """Processor time of the process' children so far."""
    fields = Path(f"/proc/{checker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


USUAL = ("many repeats", "combinations", "many optional properties", "doubling")
"""Of each kind of grammar, and of time and memory."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in EXPLOSIVE]
)
def test_explosive_grammars_are_refused_in_time(checker: GrammarChecker, name: str) -> None:
    pid, kind, source = checker.pid, *EXPLOSIVE[name]
    before = spent_s(checker)
    with pytest.raises(InvalidParams, match="cannot be used"):
        checker.check(Grammar(kind, source))
    assert spent_s(checker) - before < REFUSED_S
    assert checker.check(Grammar("regex", "b")) <= MEMORY_BYTES
    assert checker.pid == pid


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_grammars_that_resemble_explosive_ones_are_accepted(
    checker: GrammarChecker, name: str
) -> None:
    assert checker.check(Grammar(*HARMLESS[name])) <= MEMORY_BYTES


@pytest.mark.parametrize(("kind", "source", "what"), MEANINGLESS, ids=range(len(MEANINGLESS)))
def test_the_reason_is_one_clear_line(checker: GrammarChecker, kind: str, source: Any, what: str) -> None:
    with pytest.raises(InvalidParams, match=what) as caught:
        checker.check(Grammar(kind, source))
    text = str(caught.value)
    assert len(text) < 500 and "\n" not in text and "<" not in text and "0x" not in text


def test_a_child_that_is_killed_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are what ends an explosion: without them this one takes seconds and hundreds of megabytes."""
    monkeypatch.setattr("headrace.serving.grammar.checker.ANSWER_S", 60.0)
    program = (
        "import sys; from headrace.serving.grammar import worker as w;"
        "w.CPU_S, w.WALL_S, w._ADDRESS_SPACE_BYTES, w.MEMORY_BYTES = 60, 60, 1 << 40, 1 << 40; sys.exit(w.main())"
    )
    unlimited = GrammarChecker(str(TALE), 2048, frozenset({1}), (sys.executable, "-c", program))
    try:
        size = unlimited.check(Grammar("json_schema", {"multipleOf": 199_999, "type": "integer"}))  # type: ignore[arg-type]
        assert size > MEMORY_BYTES or spent_s(unlimited) > REFUSED_S
    finally:
        unlimited.close()
    assert "too much time or memory" in TOO_MUCH


def test_a_lost_process_is_restarted() -> None:
    checker = GrammarChecker(str(TALE), 2048, frozenset({1}))
    try:
        checker.check(Grammar("regex", "a"))
        first = checker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        checker.check(Grammar("regex", "b"))
        assert checker.pid not in (None, first)
    finally:
        checker.close()


def test_a_silent_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serving.grammar.checker.START_S", 0.3)
    silent = GrammarChecker(
        str(TALE), 2048, frozenset({1}), (sys.executable, "-c", "import time; time.sleep(60)")
    )
    with pytest.raises(Overloaded, match="in time"):
        silent.check(Grammar("regex", "a"))
    assert silent.pid is None


def test_a_stopped_process_is_killed_with_any_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checker = GrammarChecker(str(TALE), 2048, frozenset({1}))
    checker.check(Grammar("regex", "a"))
    assert checker.pid is not None
    os.kill(checker.pid, signal.SIGSTOP)
    monkeypatch.setattr("headrace.serving.grammar.checker.ANSWER_S", 0.3)
    with pytest.raises(Overloaded, match="in time"):
        checker.check(Grammar("regex", "\u00e9" * MAX_GRAMMAR_CHARS))
    assert checker.pid is None


def test_the_process_ends_with_its_parent() -> None:
    checker = GrammarChecker(str(TALE), 2048, frozenset({1}))
    checker.check(Grammar("regex", "a"))
    process = checker._process
    assert process is not None and process.stdin is not None
    process.stdin.close()  # as the system does when a process dies
    assert process.wait(LONG_S) == 0
    process.stdout.close()  # type: ignore[union-attr]


def test_json_objects_and_choices_need_no_process() -> None:
    checker = GrammarChecker(str(TALE), 2048, frozenset({1}))
    assert checker.check(Grammar("json_object")) == checker.check(Grammar("choice", ["a"])) == 0
    assert checker.pid is None
