"""Grammars made to explode, by every way in: each is answered soon, and another client's stream continues meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests import needs
from tests.server.conftest import ServeProcess

needs.package("llguidance")

pytestmark = pytest.mark.long  # what a neighbour sees is measured in seconds

ANSWER_S = 8.0
"""Most that one may take. Alone on the machine the worst takes about half a second; what is tried out has a limit of
processor time and gives way to others, so on a busy one it takes some seconds."""
GAP_S = 1.0
"""Longest silence in a neighbour's stream, which else has a token every few milliseconds."""

MESSAGES = [{"role": "user", "content": "a"}]


def doubling(levels: int) -> dict[str, Any]:
    """Each definition holds two of the next: 2 ** levels when unfolded."""
    names = {
        f"d{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in "ab"},
            "required": ["a", "b"],
        }
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**names, f"d{levels}": {"type": "string"}}}


def chained(levels: int, key: str = "allOf") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for level in range(levels):
        schema = {key: [schema, {"type": "integer", "multipleOf": 7 + level}]}
    return schema


SCHEMAS: dict[str, Any] = {
    "doubling": doubling(40),
    "chained": chained(9),
    "one of": chained(9, "oneOf"),
    "to itself": {"$ref": "#"},
    "in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "wide": {"type": "object", "properties": {f"p{number}": {"type": "number"} for number in range(1500)}},
    "long text": {"type": "string", "minLength": 10**9, "maxLength": 10**9},
    "many items": {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
    "pattern": {"type": "string", "pattern": "^(([a-z]+)+)+$"},
    "large pattern": {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"},
    "unlikely numbers": {"type": "integer", "multipleOf": 999_983, "minimum": 10**15, "maximum": 10**15 + 5},
    "elsewhere": {"$ref": "http://localhost:1/schema.json"},
    "a file": {"$ref": "file:///etc/passwd"},
}

REGEXES = {
    "nested stars": "(a+)+$", "alternatives": "(a|aa|a?)+b", "large": "(a{1,1000}){1,1000}",
    "classes": r"(\p{L}\p{N}*)+x",
    "intervals": "(.*a.{20}){8}", "empty loops": "(()*)*" * 20 + "a", "back": r"(a)\1", "ahead": "(?=a)b",
}  # fmt: skip

LARKS = {
    "ambiguous": 'start: e\ne: e e e | e e | "a"\n',
    "endless": "start: start start\n",
    "empty": "start: x*\nx: y*\ny: z*\nz:\n",
    "many rules": "start: r0\n" + "".join(f"r{n}: r{n + 1} r{n + 1}\n" for n in range(300)) + 'r300: "a"\n',
}


def forced(schema: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": schema}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


SCHEMA_WAYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "response_format": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    },
    "guided_json": lambda schema: {"guided_json": schema},
    "tools": forced,
}

BODIES: dict[str, dict[str, Any]] = {
    **{f"{way}: {name}": put(schema) for way, put in SCHEMA_WAYS.items() for name, schema in SCHEMAS.items()},
    **{f"guided_regex: {name}": {"guided_regex": regex} for name, regex in REGEXES.items()},
    **{f"guided_grammar: {name}": {"guided_grammar": lark} for name, lark in LARKS.items()},
}


class Neighbour:
    """A client that streams continuously; `longest` is the longest gap in seconds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._end = threading.Event()
        self.longest, self.tokens = 0.0, 0
        self.first = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        assert self.first.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._end.is_set():
                last = None
                with client.stream("POST", "/v1/completions", json=body) as answer:
                    assert answer.status_code == 200
                    for _ in answer.iter_lines():
                        now = time.monotonic()
                        self.longest = max(self.longest, now - (last or now))
                        last, self.tokens = now, self.tokens + 1
                        self.first.set()


def test_explosive_grammars(tale: ServeProcess) -> None:
    slow, times = [], {}
    with Neighbour(tale.url) as neighbour, httpx.Client(base_url=tale.url, timeout=60) as client:
        for name, fields in BODIES.items():
            began = time.monotonic()
            answer = client.post(
                "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 20, **fields}
            )
            took = times[name] = time.monotonic() - began
            reported = answer.text
            # 429 is for machines too busy to try it out.
            if answer.status_code not in (200, 400, 429) or took > ANSWER_S:
                slow.append(f"{name}: {answer.status_code} after {took:.2f} s: {reported[:200]}")
    slowest = sorted(times.items(), key=lambda item: -item[1])[:4]
    print(f"slowest {slowest}; silence {neighbour.longest:.3f} s; {neighbour.tokens} tokens")
    assert slow == []
    assert neighbour.longest < GAP_S and neighbour.tokens > 1000


def test_a_stalled_stream_is_noticed(tale: ServeProcess) -> None:
    """The planted fault: the engine stands still for a moment."""
    (engine, *_) = tale.descendants()
    with Neighbour(tale.url) as neighbour:
        os.kill(engine, signal.SIGSTOP)
        try:
            time.sleep(GAP_S + 0.3)
        finally:
            os.kill(engine, signal.SIGCONT)
    assert neighbour.longest > GAP_S
