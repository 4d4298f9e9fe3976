"""The form of an output: a kind of grammar and its source, checked for size and shape, not yet compiled."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidParams

MAX_GRAMMAR_CHARS = 65_536
"""Longest source of a grammar."""
MAX_CHOICES = 1024
MAX_NESTING = 64
"""Deepest nesting of brackets in a source of any kind."""

JSON_OBJECT, JSON_SCHEMA, REGEX, CHOICE, LARK = KINDS = (
    "json_object", "json_schema", "regex", "choice", "lark",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grammar:
    """Every output is a word of this language. `source` by `kind`:

    - json_object: empty; any JSON object.
    - json_schema: a JSON Schema, as JSON text; the object itself is taken too.
    - regex: a regular expression in Rust's syntax, which the whole output matches.
    - choice: a JSON list of strings, one of which is the output; the list itself is taken too.
    - lark: a grammar in llguidance's dialect of Lark, with the rule `start`.

    Raises InvalidParams from the constructor for an unknown kind and for a source that is too large, too deeply nested
    or of the wrong shape. Other errors are found when it is compiled, see `headrace.text.grammars`.
    """

    kind: str
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise InvalidParams(f"the kind of a grammar is one of {', '.join(KINDS)}")
        given: object = self.source
        if self.kind == JSON_SCHEMA and isinstance(given, Mapping):
            given = _written(given, "a JSON schema")
        elif self.kind == CHOICE and isinstance(given, Iterable) and not isinstance(given, (str, Mapping)):
            given = _written(list(given), "a choice")
        if not isinstance(given, str):
            raise InvalidParams(f"the source of a {self.kind} grammar must be text")
        if len(given) > MAX_GRAMMAR_CHARS:
            raise InvalidParams(
                f"the {self.kind} grammar has {len(given)} characters; at most {MAX_GRAMMAR_CHARS} are allowed"
            )
        if not is_unicode(given):
            raise InvalidParams(f"the {self.kind} grammar holds half of a surrogate pair")
        if _nesting(self.kind, given) > MAX_NESTING:
            raise InvalidParams(f"the {self.kind} grammar is nested more than {MAX_NESTING} levels deep")
        object.__setattr__(self, "source", _CHECKS[self.kind](given))


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_SKIPPED = {JSON_OBJECT: _STRING, JSON_SCHEMA: _STRING, REGEX: _ESCAPED, CHOICE: _STRING, LARK: _STRING}
_BRACKETS = re.compile(r"[\[\](){}]")


def _plain(source: str) -> str:
    if not source:
        raise InvalidParams("the source of the grammar is empty")
    return source


def _nothing(source: str) -> str:
    if source:
        raise InvalidParams("a json_object grammar has no source; a json_schema grammar has")
    return source


def _schema(source: str) -> str:
    if not isinstance(_read(source, "the JSON schema"), dict):
        raise InvalidParams("the JSON schema must be an object")
    return source


def _choices(source: str) -> str:
    choices = _read(source, "the choice")
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise InvalidParams("a choice must be a list of strings")
    if not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidParams(f"a choice must hold 1 to {MAX_CHOICES} strings, got {len(choices)}")
    if not all(choices):
        raise InvalidParams("a choice must not hold empty strings")
    return source


_CHECKS = {JSON_OBJECT: _nothing, JSON_SCHEMA: _schema, REGEX: _plain, CHOICE: _choices, LARK: _plain}


def _read(source: str, what: str) -> Any:
    try:
        return json.loads(source, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidParams(f"{what} is not JSON: {error!s:.200}") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _written(value: object, what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParams(f"{what} must be JSON: {error!s:.200}") from error


def is_unicode(text: str) -> bool:
    """False where the text holds half of a surrogate pair, which cannot be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _nesting(kind: str, source: str) -> int:
    """The deepest nesting of brackets, without those in strings and after a backslash."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_SKIPPED[kind].sub("", source)):
        depth = depth + 1 if bracket in "([{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest
